"""`verify`: whatever is changed on disk is found, repaired by the next run, and two corpora are compared."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import CorpusError
from pipeline.maintenance.verify import check, check_sample
from pipeline.maintenance.verify_command import compare_with, verify_corpus, verify_sample
from pipeline.storage import layout
from pipeline.storage.records import sealed
from pipeline.storage.store import Store
from stages.arrow import embedding_array, embedding_matrix
from stages.device import compute_dtype
from tests.conftest import MakeConfig, data_digests
from tests.support.cli import pipeline, said
from tests.support.runs import FITS, run

SECTIONS = FITS | {"autobleu": {"sample": 0.2, "length_extra": 1, "length_factor": 1.0}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.conftest import sample_documents, write_config, write_jsonl

    folder = tmp_path_factory.mktemp("verify")
    write_jsonl(folder / "in/eng.jsonl", sample_documents("libreoffice-eng", 6))
    write_jsonl(folder / "in/deu.jsonl", sample_documents("libreoffice-deu", 4))
    run(write_config(folder, **SECTIONS))
    return folder


@pytest.fixture
def corpus(finished: Path, tmp_path: Path) -> Path:
    """A copy that may be spoilt."""
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def verified(folder: Path, mend: bool = False) -> tuple[bool, str]:
    shown = io.StringIO()
    fine = not verify_corpus(Console(file=shown, width=300), Store(str(folder / "out")), mend)
    return fine, shown.getvalue()


def first_json(folder: Path) -> Path:
    return min(folder.rglob("*.json"))


def first(folder: Path, family: str) -> Path:
    return sorted((folder / "out" / family).rglob("*.parquet"))[0]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_whole_corpus_is_as_its_receipts_say(corpus: Path) -> None:
    fine, shown = verified(corpus)
    assert fine and "Everything agrees with the receipts: " in shown


@pytest.mark.parametrize(
    ("family", "spoil", "what"),
    [
        *(
            (family, flip, "bytes with digest")
            for family in ("documents", "sentences", "embeddings", "codes", "status")
        ),
        ("autobleu", Path.unlink, "is missing, though a receipt vouches for it"),
        ("embeddings", lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes with digest"),
    ],
)
def test_what_is_spoilt_is_found_and_made_again(
    corpus: Path, family: str, spoil: Callable[[Path], object], what: str
) -> None:
    before = data_digests(corpus / "out")
    path = first(corpus, family)
    spoil(path)
    fine, shown = verified(corpus, mend=True)
    assert not fine and f"wrong: {family}/{path.name}" in shown and what in shown and "1 receipt deleted" in shown
    assert "cannot be made again" not in shown
    run(corpus / "corpus.yaml")
    assert verified(corpus)[0] and data_digests(corpus / "out") == before


def test_a_spoilt_fit_is_found_and_not_replaced_unasked(corpus: Path) -> None:
    """Fitted again it would have other values where the corpus has changed since, so a person decides."""
    (artifact,) = (corpus / "out/fits").glob("scaler.*.safetensors")
    flip(artifact)
    fine, shown = verified(corpus, mend=True)
    assert not fine and f"wrong: fits/{artifact.name}" in shown and "pipeline run --refit scaler" in shown
    refused = pipeline("run", corpus / "corpus.yaml")
    assert refused.returncode == 1 and "pipeline run --refit scaler" in " ".join(said(refused).split())
    assert not verified(corpus)[0]
    done = pipeline("run", corpus / "corpus.yaml", "--refit", "scaler")
    assert done.returncode == 0, said(done)
    assert verified(corpus)[0]


def test_what_a_receipt_vouches_for_but_nobody_should_write(corpus: Path) -> None:
    """A file with its digests in order, whose values are not finite and whose row groups are too small."""
    from pipeline.corpus.fingerprint import column_digest, content_digest

    one = Corpus(str(corpus / "out"))
    part = one.parts[0]
    receipt = one.state_of(part).receipts["encode"]
    (file,) = [file for file in receipt.files if file.family == "embeddings"]
    values = embedding_matrix(pq.read_table(corpus / "out" / file.path)["embedding"]).copy()
    values[3, 1] = np.inf
    column = embedding_array(values)
    table = pa.table({"embedding": column}, schema=layout.schema("embeddings", width=values.shape[1]))
    pq.write_table(table, corpus / "out" / file.path, row_group_size=10)
    data = (corpus / "out" / file.path).read_bytes()
    changed = file.model_copy(update={"digest": content_digest(data), "bytes": len(data)})
    files = [changed if one.family == "embeddings" else one for one in receipt.files]
    columns = receipt.columns | {"embeddings.embedding": column_digest(table["embedding"])}
    path = corpus / "out" / layout.receipt_path("encode", part, receipt.fingerprint)
    path.write_bytes(sealed(receipt.model_copy(update={"files": files, "columns": columns}).model_dump_json()))
    what = {one.what.partition(" rows")[0] for one in check(Corpus(str(corpus / "out")), lambda done: None)}
    assert "1" in what and any("row groups" in one for one in what)


@pytest.mark.slow
def test_two_corpora_are_compared(corpus: Path, finished: Path, make_config: MakeConfig, tmp_path: Path) -> None:
    def compared(one: Path, other: Path) -> tuple[bool, str]:
        shown = io.StringIO()
        return compare_with(Console(file=shown, width=300), Corpus(str(one)), Corpus(str(other))), shown.getvalue()

    fine, shown = compared(finished / "out", corpus / "out")
    assert fine and "The same bytes in all" in shown
    other = "float32" if compute_dtype("auto", "cpu") == torch.bfloat16 else "bfloat16"
    run(corpus / "corpus.yaml", f"encode.precision={other}", f"output={tmp_path / 'other'}")
    fine, shown = compared(finished / "out", tmp_path / "other")
    assert not fine and "the least cosine is 0.99" in shown and "embeddings.embedding: different bytes in" in shown
    run(make_config(**SECTIONS))
    fine, shown = compared(finished / "out", tmp_path / "out")
    assert not fine and "lacks" in shown


@pytest.mark.parametrize(
    ("pattern", "spoil"),
    [
        ("corpus.json", Path.unlink),
        ("runs/*/corpus.yaml", flip),
        ("receipts/encode/*/*", flip),
    ],
)
def test_damaged_records_are_found_and_made_again(corpus: Path, pattern: str, spoil: Callable[[Path], object]) -> None:
    before = data_digests(corpus / "out")
    path = sorted((corpus / "out").glob(pattern))[0]
    spoil(path)
    name = path.relative_to(corpus / "out").as_posix()
    fine, shown = verified(corpus)
    assert not fine and f"wrong: {name}" in shown and "--repair" in shown, shown
    fine, shown = verified(corpus, mend=True)
    assert not fine and ("made again" in shown or "deleted" in shown), shown
    run(corpus / "corpus.yaml")
    assert verified(corpus)[0] and data_digests(corpus / "out") == before


@pytest.mark.parametrize("lost", ["receipts/segment", "chunks"])
def test_files_of_a_chunk_are_read_though_its_segmenting_is_lost(corpus: Path, lost: str) -> None:
    """A run makes the same sentences again, and believes the receipts of the other stages."""
    out = corpus / "out"
    before = data_digests(out)
    receipt = first_json(out / lost)
    receipt.write_bytes(b"")
    chunk = layout.part_owner(receipt.name.split(".")[0])
    spoilt = next(path for path in sorted((out / "embeddings").rglob("*.parquet")) if path.name.startswith(chunk))
    data = bytearray(spoilt.read_bytes())
    data[len(data) // 3] ^= 4
    spoilt.write_bytes(data)
    fine, shown = verified(corpus, mend=True)
    assert not fine and spoilt.name in shown and "Everything agrees" not in shown, shown
    run(corpus / "corpus.yaml")
    fine, shown = verified(corpus)
    assert fine and "Everything agrees" in shown, shown
    assert data_digests(out) == before


def test_a_run_goes_on_after_all_receipts_of_segmenting_are_lost(corpus: Path) -> None:
    before = data_digests(corpus / "out")
    for path in (corpus / "out/receipts/segment").rglob("*.json"):
        path.unlink()
    run(corpus / "corpus.yaml")
    assert verified(corpus)[0] and data_digests(corpus / "out") == before


def test_what_a_killed_write_left_is_not_wrong(corpus: Path) -> None:
    """Such a file has no name yet; nobody reads it, and `gc` deletes it a day later."""
    for path in list((corpus / "out").rglob("*.json*")):
        path.with_name(f".{path.name}.0a1b2c3d.tmp").write_bytes(path.read_bytes()[:20])
    fine, shown = verified(corpus)
    assert fine, shown


def test_a_run_writes_its_record_again_when_nobody_can_read_it(corpus: Path) -> None:
    """It said `Nothing to do.` for ever, and every reader that the corpus is damaged."""
    (chunks,) = (corpus / "out/runs").glob("*/chunks.parquet")
    chunks.unlink()
    with pytest.raises(CorpusError, match=r"chunks.parquet is damaged .it is missing.; run the corpus.yaml"):
        Corpus(str(corpus / "out"))
    assert run(corpus / "corpus.yaml").startswith("Nothing to do.")
    assert Corpus(str(corpus / "out")).rows and verified(corpus)[0]


def test_a_sample_reads_the_files_of_its_chunks_and_finds_what_is_wrong_there(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Corpus(str(corpus / "out"))
    assert len(found.chunks) == 2
    files = [
        {file.path for part in one.parts for receipt in part.receipts.values() for file in receipt.files}
        for one in found.chunks
    ]
    read: list[str] = []
    before = Store.read
    monkeypatch.setattr(Store, "read", lambda store, path: read.append(path) or before(store, path))
    assert not check_sample(found, [1], lambda done: None)
    assert {path for path in read if path.endswith(".parquet")} == files[1], "the other chunk is not read"
    data = corpus / "out" / sorted(files[0])[0]
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    assert not check_sample(found, [1], lambda done: None)
    assert [one.path for one in check_sample(found, [0], lambda done: None)] == [sorted(files[0])[0]]
    (receipt,) = (corpus / "out").glob(f"chunks/*/{found.chunks[1].chunk.id}.*.json")
    receipt.unlink()
    assert any("ledger" in one.path for one in check_sample(found, [1], lambda done: None))
    shown = io.StringIO()
    assert len(verify_sample(Console(file=shown, width=300), Store(str(corpus / "out")), 1.0)) >= 2
    assert f"wrong: {sorted(files[0])[0]}" in shown.getvalue()


def test_a_sample_is_a_share_and_repairs_nothing(finished: Path) -> None:
    fine = pipeline("verify", finished / "out", "--sample", "0.01")
    assert fine.returncode == 0 and "A sample agrees with its receipts: 1 chunk of 2" in fine.stdout, said(fine)
    for share in ("0", "1.5", "nan"):
        wrong = pipeline("verify", finished / "out", "--sample", share)
        assert wrong.returncode == 2 and "give a share of the chunks above 0" in said(wrong)
    both = pipeline("verify", finished / "out", "--sample", "0.5", "--repair")
    assert both.returncode == 2 and "--sample only reads" in said(both)
