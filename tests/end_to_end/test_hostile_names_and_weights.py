"""Metadata that bears names of our own, and encoders whose files are not what they should be; on the command line."""

from __future__ import annotations

import hashlib
import http.server
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from tests.conftest import TINY_CARD, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said

OURS: dict[str, Any] = {
    "embedding": [1.0], "codes": [1], "part": "p", "row": 7, "doc": 3, "doc_id": "other", "split": "none",
    "source": "x", "status": 9, "u": 0.5, "autobleu": "no number", "sentences": ["a"], "rows": 1, "start": "late",
}  # fmt: skip
KEPT = {"sentence": "s", "document": "d", "piece": "k", "Part": "P", "Row": "R", "__file": "F", "file_row_number": "n"}


def test_columns_of_parquet_that_bear_our_own_names(tmp_path: Path) -> None:
    """Those that are not asked for do no harm; what is kept under such a name comes out of exports and SQL again."""
    rows = [one | OURS | KEPT for one in sample_documents("libreoffice-eng", 2)]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in/a.parquet")
    source = {"path": "in/*.parquet", "id": "id", "lang": {"column": "lang"}}
    path = write_config(tmp_path, input=[source | {"keep": [*OURS]}], autobleu=None)
    refused = pipeline("run", path)
    assert refused.returncode == 2 and "which the corpus itself uses" in " ".join(said(refused).split())
    path = write_config(tmp_path, input=[source | {"keep": [*KEPT]}], autobleu=None)
    for command in (("run", path), ("verify", path), ("export", path, "--format", "parquet", "--to", tmp_path / "x")):
        done = pipeline(*command)
        assert done.returncode == 0, said(done)
    table = pq.read_table(next((tmp_path / "x").rglob("*.parquet")))
    assert len(set(table.column_names)) == len(table.column_names)
    assert {name: set(table[name].to_pylist()) for name in KEPT} == {name: {value} for name, value in KEPT.items()}
    assert set(table["doc_id"].to_pylist()) <= {one["id"] for one in rows} and table["piece_"].type == pa.int32()
    query = 'SELECT count(*), min(row), min("Row_"), min(__file), min(piece) FROM corpus'
    code = "import duckdb, json, sys; print(json.dumps(duckdb.execute(sys.argv[1] + sys.argv[2]).fetchone()))"
    shown = subprocess.run([sys.executable, "-c", code, pipeline("sql", path).stdout, query], capture_output=True)
    assert json.loads(shown.stdout) == [table.num_rows, 0, "R", "F", "k"], shown.stderr


def card_of(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """A card like the tiny one, of which the encoder is another."""
    card = yaml.safe_load(TINY_CARD.read_text()) | {"name": name}
    for file in card["files"].values():
        shutil.copy(TINY_CARD.parent / file["path"], folder)
    weights = torch.load(folder / "enc.pt", weights_only=True)
    change(weights)
    torch.save(weights, folder / "enc.pt")
    data = (folder / "enc.pt").read_bytes()
    card["files"]["encoder"] |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    path = folder / "card.yaml"
    path.write_text(yaml.safe_dump(card))
    return path


def first_matrix(value: Any) -> tuple[dict[str, Any], str]:
    """Where the first matrix of nested weights stands."""
    for name, one in value.items():
        if isinstance(one, torch.Tensor) and one.ndim == 2:
            return value, name
        if isinstance(one, dict):
            return first_matrix(one)
    raise AssertionError("no matrix")


def with_nan(weights: dict[str, Any]) -> None:
    owner, name = first_matrix(weights)
    owner[name][-1, -1] = float("nan")


def of_another_shape(weights: dict[str, Any]) -> None:
    owner, name = first_matrix(weights)
    owner[name] = owner[name][:-1].clone()


@pytest.mark.parametrize(
    ("change", "message"), [(with_nan, "holds values that are not numbers"), (of_another_shape, "of another shape")]
)
def test_weights_that_no_sentence_gets_an_embedding_from(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-eng", 1))
    card = card_of(tmp_path, "broken", change)
    done = pipeline("run", write_config(tmp_path, encode={"model": str(card)}, autobleu=None))
    shown = " ".join(said(done).split())
    assert done.returncode == 1 and message in shown and "Traceback" not in shown, shown
    assert not list((tmp_path / "out/embeddings").glob("*"))


def test_a_card_whose_file_on_a_server_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither used nor kept; the right one is fetched by the same command once it is there."""
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    served = tmp_path / "served"
    served.mkdir()
    right = (TINY_CARD.parent / "enc.pt").read_bytes()
    (served / "enc.pt").write_bytes(right[:1000] + bytes([right[1000] ^ 1]) + right[1001:])
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-eng", 1))
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        card = yaml.safe_load(TINY_CARD.read_text()) | {"name": "from-a-server"}
        for role, file in card["files"].items():
            if role == "encoder":
                del file["path"]
                file["url"] = f"http://127.0.0.1:{server.server_port}/enc.pt"
            else:
                file["path"] = str(TINY_CARD.parent / file["path"])
        (tmp_path / "card.yaml").write_text(yaml.safe_dump(card))
        path = write_config(tmp_path, encode={"model": str(tmp_path / "card.yaml")}, autobleu=None)
        done = pipeline("run", path)
        shown = " ".join(said(done).split())
        assert done.returncode == 1 and "sha256" in shown.lower() and "Traceback" not in shown, shown
        assert not [one for one in (tmp_path / "cache").rglob("*") if one.is_file() and one.suffix == ".pt"]
        (served / "enc.pt").write_bytes(right)
        done = pipeline("run", path)
        assert done.returncode == 0, said(done)
        server.shutdown()
