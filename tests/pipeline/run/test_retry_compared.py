"""What a retry brings in is compared with the rest of the corpus: ids, sentences, documents."""

from __future__ import annotations

from pathlib import Path

from pipeline import Corpus
from tests.conftest import MakeConfig, data_digests
from tests.pipeline.run.test_retry import MISTAKE, RIGHT, line, mend, retried
from tests.support.runs import run

TEXT = "Nobody could read this. Now it can be read."


def write_input(folder: Path, later: str) -> None:
    """A file with a mistake in its first record, and a later file with the text of that record under the id `later`."""
    folder.mkdir()
    other = line("other", "The ship arrived in the morning. It left again at night, and nobody knew where to." * 40)
    (folder / "mended.jsonl").write_bytes(line("first", TEXT).replace(RIGHT, MISTAKE) + other)
    (folder / "whole.jsonl").write_bytes(line(later, TEXT) + other.replace(b"other", b"more"))


def test_later_documents_repeat_one_that_comes_in(make_config: MakeConfig, tmp_path: Path) -> None:
    write_input(tmp_path / "in", "later")
    path, out = make_config(autobleu=None, encode=None, duplicates={"near": {"words": 2}}), tmp_path / "out"
    run(path)
    mend(tmp_path / "in/mended.jsonl")
    retried(path)
    run(path, f"output={tmp_path / 'fresh'}")
    assert Corpus(str(out)).to_arrow("doc_duplicate_of", where="doc_id == 'later'")[0].to_pylist() == ["first"] * 2
    assert data_digests(out) == data_digests(tmp_path / "fresh")


def test_of_an_id_that_comes_in_only_the_first_document_stays(make_config: MakeConfig, tmp_path: Path) -> None:
    write_input(tmp_path / "in", "first")
    path, out = make_config(autobleu=None, encode=None, duplicate_ids="keep-first"), tmp_path / "out"
    run(path)
    mend(tmp_path / "in/mended.jsonl")
    retried(path)
    run(path, f"output={tmp_path / 'fresh'}")
    assert Corpus(str(out)).to_arrow("text", where="doc_id == 'first'").num_rows == 2
    assert data_digests(out) == data_digests(tmp_path / "fresh")
