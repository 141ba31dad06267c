"""One line of 20 MB as a document, and another that is not JSON: time and memory stay in proportion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.corpus.reader import Corpus
from tests.conftest import TINY_CARD
from tests.end_to_end.bad_corpus import lines, record

pytestmark = pytest.mark.slow

SIZE, LIMIT = 20 << 20, 5000
TIMES = 12  # memory for each byte of the largest document, beside what every run takes


def pipeline(*arguments: object) -> tuple[int, str, int, float]:
    """A process of its own: exit code, output, bytes of memory at most, CPU seconds."""
    process = subprocess.Popen(
        [str(Path(sys.executable).parent / "pipeline"), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout
    shown = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, shown, used.ru_maxrss << 10, used.ru_utime + used.ru_stime


def write_config(root: Path, name: str, *documents: bytes) -> Path:
    (root / name).mkdir()
    (root / name / "a.jsonl").write_bytes(lines(*documents))
    config = {
        "name": name,
        "output": f"out/{name}",
        "input": [{"path": name, "id": "id", "lang": {"column": "lang"}}],
        "segment": {
            "method": "spacy-capped",
            "model": str(TINY_CARD),
            "max_chars": LIMIT,
            "max_tokens": None,
            "max_document_sentences": 1600,
        },
        "part_sentences": 2000,
        "chunk_bytes": 4 * SIZE,  # one chunk
        "launcher": "inline",
    }
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_document_of_20_megabytes_in_one_line(tmp_path: Path) -> None:
    """Seen: 9 times the document, and 0.5 s of CPU a megabyte, for text without any boundary."""
    small = [record("first"), record("last")]
    _, _, usual, _ = pipeline("run", write_config(tmp_path, "small", *small))
    large = record("large", "x" * SIZE)
    path = write_config(tmp_path, "large", small[0], large, b'{"text": "' + b"y" * SIZE, small[1])
    code, shown, memory, seconds = pipeline("run", path)
    assert code == 0 and "4 in = 3 kept + 0 dropped + 1 " in shown and "invalid JSON 1" in shown, shown
    assert memory - usual < TIMES * SIZE and seconds < 200, (memory, usual, seconds)
    corpus = Corpus(str(tmp_path / "out/large"))
    rows = [row for part in corpus.parts for row in corpus.documents(part).to_pylist()]
    assert [(row["doc_id"], row["subdocument"]) for row in rows] == [
        ("first", 0), ("large", 0), ("large", 1), ("large", 2), ("last", 0)
    ]  # fmt: skip
    assert len(corpus.parts) == 2
    chars = corpus.table("chars")["chars"].to_numpy()
    assert chars.max() <= LIMIT and chars.sum() == SIZE + 2 * len("The house is red.The water runs.")
    (list_of_bad,) = (tmp_path / "out/large/quarantine").rglob("*.parquet")
    (bad,) = pq.read_table(list_of_bad).to_pylist()
    assert bad["record"] == f"a.jsonl line 3, byte {len(small[0]) + len(large) + 2}"
    assert bad["payload_bytes"] == SIZE + 10 and len(bad["payload"]) == 4096
    assert list_of_bad.stat().st_size < 50_000
