"""Small real corpora for tests: documents of the sample that ships, the small reference checkpoint as the model."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.state import View, read_state
from pipeline.store import Store

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: tiny networks gain nothing from threads

ROOT = Path(__file__).parent.parent
TINY_CARD = Path(__file__).parent / "stages/fixtures/sonar-space-tiny/card.yaml"
MakeConfig = Callable[..., Path]


def sample_documents(name: str, count: int) -> list[dict[str, Any]]:
    """The first documents of one file of the sample corpus."""
    with gzip.open(ROOT / "conf/sample" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line, _ in zip(lines, range(count), strict=False)]


def write_jsonl(path: Path, documents: list[dict[str, Any]]) -> Path:
    """Write documents one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in documents), "utf-8")
    return path


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """Write a corpus.yaml for three small files with the reference checkpoint; keyword arguments replace sections."""

    def make(**sections: Any) -> Path:
        if not (tmp_path / "in").exists():
            for name, count in (("libreoffice-eng", 6), ("libreoffice-fra", 4), ("libreoffice-deu", 4)):
                write_jsonl(tmp_path / "in" / f"{name}.jsonl", sample_documents(name, count))
        config: dict[str, Any] = {
            "name": "test",
            "output": "out",
            "input": [{"path": "in/*.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": ["title"]}],
            "part_sentences": 100,
            "segment": {"max_chars": 80},
            "encode": {"model": str(TINY_CARD)},
            "autobleu": {"sample": 0.2, "length_extra": 1, "length_factor": 1.0},
            "launcher": "inline",
        }
        config |= sections
        path = tmp_path / "corpus.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not None}), "utf-8")
        return path

    return make


def data_digests(output: Path | str, view: View | None = None) -> dict[str, str]:
    """family/part → digest of the bytes, of everything that the newest run's receipts vouch for."""
    from pipeline.runs import newest_view

    store = Store(str(output))
    found: dict[str, str] = {}
    for chunk in read_state(store, view or newest_view(store)):
        assert chunk.receipt, f"{chunk.chunk.path} has no receipt"
        if chunk.receipt.quarantine:
            found[f"quarantine/{chunk.chunk.id}"] = chunk.receipt.quarantine.digest
        for part in chunk.parts:
            assert not part.missing, f"{part.ref.part} lacks {part.missing}"
            for receipt in part.receipts.values():
                for file in receipt.files:
                    found[f"{file.family}/{part.ref.part}"] = file.digest
    return found
