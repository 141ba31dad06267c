"""`verify`: whatever is changed on disk is found, repaired by the next run, and two corpora are compared."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from launchers.dispatch import train
from launchers.launch import launch
from pipeline import Corpus
from pipeline.base.errors import CorpusError
from pipeline.config.load import load_config
from pipeline.config.train import TrainSettings
from pipeline.corpus.fits import fitted_scaler
from pipeline.corpus.runs import RunRecord, newest_view
from pipeline.maintenance.gc import garbage
from pipeline.maintenance.verify import check, check_chunks
from pipeline.maintenance.verify_command import compare_with, verify_corpus, verify_sample, verify_share
from pipeline.run.options import RunOptions
from pipeline.run.run import Backend
from pipeline.run.run import run as run_corpus
from pipeline.storage import layout
from pipeline.storage.records import sealed
from pipeline.storage.store import Store
from pipeline.training.record import Pinned, PinnedIndex, Started, write_started
from stages.arrow import embedding_array, embedding_matrix
from stages.device import compute_dtype
from tests.conftest import MakeConfig, data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.runs import FITS, run

SECTIONS = FITS | {"autobleu": {"sample": 0.2, "length_extra": 1, "length_factor": 1.0}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    assert not fine and path.name in shown.split("wrong: ")[1] and what in shown and "1 receipt deleted" in shown
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


def test_fits_of_another_corpus_are_not_taken_for_its_own(corpus: Path, tmp_path: Path) -> None:
    """Another corpus with the same settings has fits of the same names."""
    other = tmp_path / "other"
    write_jsonl(other / "in/eng.jsonl", sample_documents("postgresql-eng", 4))
    run(path := write_config(other, **SECTIONS))
    own, fits = {one.name for one in (corpus / "out/fits").glob("*.json")}, other / "out/fits"
    assert own == {one.name for one in fits.glob("*.json")}
    shutil.copytree(fits, corpus / "out/fits", dirs_exist_ok=True)
    fine, shown = verified(corpus, mend=True)
    assert not fine and all(f"wrong: fits/{name} it is not the {name[:3]}" in shown for name in own)
    assert shown.count("restore it from a copy, or fit the corpus as it is now") == 2
    with pytest.raises(CorpusError, match=r"not the scaler that the newest run used.*--refit scaler"):
        fitted_scaler(Store(str(corpus / "out")), Corpus(str(corpus / "out")).view)
    with pytest.raises(CorpusError, match="not the scaler that the newest run used"):
        garbage(Corpus(str(corpus / "out")))
    before = data_digests(corpus / "out")
    with pytest.raises(CorpusError, match=r"not the rvq that the newest run used.*--refit rvq"):
        run(corpus / "corpus.yaml", options=RunOptions(refit=("scaler",)))
    assert data_digests(corpus / "out") == before
    run(corpus / "corpus.yaml", options=RunOptions(refit=("scaler", "rvq")))
    assert verified(corpus)[0]
    fine, shown = verified(other)
    assert fine and run(path).startswith("Nothing to do.")


def test_a_refit_that_was_killed_does_not_make_the_fit_of_another_corpus_its_own(corpus: Path) -> None:
    out = Store(str(corpus / "out"))
    used, path = newest_view(out), corpus / "corpus.yaml"
    made = replace(used, fit_contents=used.fit_contents | {"scaler": "0" * 32})  # so what is here is another one
    RunRecord(out, load_config(path), made).close({"done": True})

    def killed() -> str:
        raise KeyboardInterrupt

    backend = Backend(launch, killed, train)
    with pytest.raises(KeyboardInterrupt):
        run_corpus(Console(file=io.StringIO()), load_config(path), RunOptions(refit=("scaler",)), backend)
    assert newest_view(out).fit_contents == made.fit_contents
    with pytest.raises(CorpusError, match="not the scaler that the newest run used"):
        run(path)


def test_a_training_of_another_corpus_is_told(corpus: Path) -> None:
    """It is no mistake: a training of this corpus whose index was deleted looks the same."""
    fit = {"path": "", "digest": "", "content": "", "record": ""}
    of_another = PinnedIndex(url="", digest="0123456789ab" + "0" * 20, weight=1.0)
    elsewhere = PinnedIndex(url="/elsewhere", digest="f" * 32, weight=1.0)
    pinned = Pinned(
        card={}, settings={"steps": 7, "batch_concepts": 1}, select=None, indexes=[of_another, elsewhere], encoder="",
        dim=64, scaler=fit, codebooks=None,
    )  # fmt: skip
    write_started(Store(str(corpus / "out")), "train/m", Started(pinned=pinned, settings=TrainSettings(steps=7)))
    fine, shown = verified(corpus)
    told = "train/m was trained on an index that this corpus does not have: 0123456789ab; if the training was copied"
    assert fine and told in shown and "ffff" not in shown


def test_a_view_of_an_earlier_version_does_not_say_which_fits_it_used(corpus: Path) -> None:
    run(corpus / "corpus.yaml")  # at this place
    path, runs = max((corpus / "out/runs").glob("*/view.json")), set((corpus / "out/runs").iterdir())
    header = json.loads(path.read_text())
    del header["fit_contents"], header["seal"]
    path.write_bytes(sealed(json.dumps(header)))
    assert verified(corpus)[0] and run(corpus / "corpus.yaml").startswith("Nothing to do.")
    assert set((corpus / "out/runs").iterdir()) == runs


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


def test_a_fit_that_only_one_corpus_has_is_named(finished: Path) -> None:
    one, shown = Corpus(str(finished / "out")), io.StringIO()
    other = Corpus(one.url, replace(one.view, fits={}))
    assert not compare_with(Console(file=shown, width=300), one, other)
    assert "lacks the fit of scaler" in shown.getvalue()


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
    run(corpus / "corpus.yaml", "autobleu.sample=0.5", f"output={tmp_path / 'fewer'}")
    fine, shown = compared(finished / "out", tmp_path / "fewer")
    assert not fine and "The same" not in shown and "the corpora have decided on other samples" in shown
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
    assert not check_chunks(found, [1], lambda done: None)
    assert {path for path in read if path.endswith(".parquet")} == files[1], "the other chunk is not read"
    data = corpus / "out" / sorted(files[0])[0]
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    assert not check_chunks(found, [1], lambda done: None)
    assert [one.path for one in check_chunks(found, [0], lambda done: None)] == [sorted(files[0])[0]]
    (receipt,) = (corpus / "out").glob(f"chunks/*/{found.chunks[1].chunk.id}.*.json")
    receipt.unlink()
    assert any("ledger" in one.path for one in check_chunks(found, [1], lambda done: None))
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


def test_shares_read_every_file_once_and_find_what_is_wrong(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = corpus / "out"
    found = Corpus(str(out))
    files = {
        file.path
        for part in found.parts
        for receipt in found.state_of(part).receipts.values()
        for file in receipt.files
    }
    read: list[str] = []
    before = Store.read
    with monkeypatch.context() as counting:
        counting.setattr(Store, "read", lambda store, path: read.append(path) or before(store, path))
        for which in range(1, 4):  # one more than there are chunks
            shown = io.StringIO()
            assert verify_share(Console(file=shown, width=300), Store(str(out)), (which, 3)) == []
            assert f"Share {which} of 3 agrees with its receipts" in shown.getvalue()
    assert sorted(path for path in read if path in files) == sorted(files)

    for spoilt in (sorted(files)[0], next(out.glob("fits/scaler.*.safetensors")).relative_to(out).as_posix()):
        flip(out / spoilt)
        codes = [pipeline("verify", out, "--share", f"{which}/2") for which in (1, 2)]
        assert sorted(one.returncode for one in codes) == [0, 1]
        assert any(f"wrong: {spoilt}" in one.stdout for one in codes), [said(one) for one in codes]
        flip(out / spoilt)
    for wrong, why in (("0/3", "the first is 1"), ("4/3", "the first is 1"), ("x", "the first is 1")):
        assert why in said(pipeline("verify", out, "--share", wrong))
    assert "exclude each other" in said(pipeline("verify", out, "--share", "1/2", "--sample", "0.5"))
    assert "--share only reads" in said(pipeline("verify", out, "--share", "1/2", "--repair"))
