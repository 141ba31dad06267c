"""Rows of documents that an earlier version of a part has are copied: the same bytes as made anew, without networks."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.corpus.accounting import compute_accounting
from pipeline.maintenance.purge import purge
from pipeline.maintenance.verify import check
from pipeline.storage.store import Store
from tests.conftest import TINY_CARD, data_digests, sample_documents, write_config, write_inputs, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.languages import SENTENCES
from tests.support.runs import run

STAGES: dict[str, Any] = {
    "encode": {"model": "tiny/card.yaml"},
    "autobleu": {"sample": 0.5, "length_extra": 1, "length_factor": 1.0},
    "language": {},
    "noise": {},
    "duplicates": {"near": {}},
    "fit": {"rows": 100},
    "rvq": {"codebooks": 3, "units": 32},
    "segment": {"method": "spacy-capped", "max_chars": 80, "max_document_sentences": 40},
}
WEIGHTS = ("*.safetensors", "*.pt")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a corpus that is made."""
    folder = tmp_path_factory.mktemp("made")
    write_inputs(folder)
    shutil.copytree(TINY_CARD.parent, folder / "tiny")
    run(write_config(folder, **STAGES))
    return folder


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    """The corpus.yaml of a copy of it."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "corpus.yaml"


def receipts(out: Path) -> dict[str, dict[str, Any]]:
    return {str(path): json.loads(path.read_text()) for path in out.glob("receipts/*/*/*.json")}


def rows_made(out: Path, before: dict[str, dict[str, Any]]) -> tuple[Counter[str], Counter[str]]:
    """Rows that stages made, and that they copied, in receipts that are new; those of the comparisons left out."""
    made, copied = Counter[str](), Counter[str]()
    for name, one in receipts(out).items():
        if name not in before and one["stage"] not in ("duplicates", "near"):
            copied[one["stage"]] += int(one["counts"].get("copied", 0))
            made[one["stage"]] += one["rows"] - int(one["counts"].get("copied", 0))
    return made, copied


def in_place(path: Path, out: Path, *keep: str) -> Path:
    """A corpus of the same configuration and the same fits, made in an empty folder that has some of `out` already."""
    anew = out.with_name("anew")
    anew.mkdir()
    shutil.copy(out / "corpus.json", anew)
    for name in ("fits", *keep):
        if (out / name).exists():
            shutil.copytree(out / name, anew / name)
    run(path, f"output={anew}")
    return anew


def counts(out: Path) -> dict[str, dict[str, float]]:
    """Counts of all stages over the corpus, without how they came about."""
    corpus = Corpus(str(out))
    found = compute_accounting(Store(str(out)), corpus.chunks)
    assert found.complete and not found.problems
    own = {stage: {key: value for key, value in one.items() if key != "copied"} for stage, one in found.counts.items()}
    accounting: dict[str, float] = {**found.dropped, **found.quarantined, "in": found.documents_in}
    return own | {"accounting": accounting}


def assert_same(out: Path, anew: Path) -> None:
    """Every file has the same bytes, and receipts count the same; of decodings that stopped at their limit, whose ids
    are not kept, those of documents that left are still counted.
    """
    assert data_digests(out) == data_digests(anew)
    mine, theirs = counts(out), counts(anew)
    assert mine.keys() == theirs.keys()
    for stage in mine:
        assert mine[stage].pop("stopped_at_length", 0) >= theirs[stage].pop("stopped_at_length", 0)
        assert mine[stage] == pytest.approx(theirs[stage], rel=1e-5), stage
    assert check(Corpus(str(out)), lambda done: None) == []


@pytest.mark.slow
def test_only_a_document_that_was_appended_is_computed(path: Path, tmp_path: Path) -> None:
    out, before = tmp_path / "out", receipts(tmp_path / "out")
    assert not any("replaces" in one for one in before.values()), "ledgers of earlier versions would not agree"
    new = sample_documents("postgresql-eng", 5)[4]
    with (tmp_path / "in/postgresql-eng.jsonl").open("a") as file:
        file.write(json.dumps(new) + "\n")
    rows = Corpus(str(out)).rows
    run(path)
    added = Corpus(str(out)).rows - rows
    made, copied = rows_made(out, before)
    assert added and {made[stage] for stage in ("encode", "autobleu", "rvq", "language", "noise", "hashes")} == {added}
    assert copied["encode"] == copied["rvq"] > 0
    assert_same(out, in_place(path, out))


@pytest.mark.slow
def test_a_document_that_was_changed_is_computed_again(path: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "in/postgresql-eng.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[1]["text"] = "It says something else. " + lines[1]["text"]
    write_jsonl(file, lines)
    before = receipts(out)
    run(path)
    made, copied = rows_made(out, before)
    found = Corpus(str(out)).table("doc_id")["doc_id"].to_pylist()
    assert made["encode"] == found.count(lines[1]["id"]) and copied["encode"] > 0
    assert_same(out, in_place(path, out))


def test_a_purge_copies_rows_without_segmenting_or_networks(path: Path, tmp_path: Path) -> None:
    """As if the input had been segmented and encoded again without the documents, which needs the networks' weights."""
    out = tmp_path / "out"
    ids = [sample_documents("libreoffice-eng", 6)[1]["id"], sample_documents("libreoffice-deu", 4)[0]["id"]]
    before, rows = receipts(out), Corpus(str(out)).rows
    (tmp_path / "ids.txt").write_text("\n".join(ids))
    done = pipeline("purge", path, "--ids", tmp_path / "ids.txt")
    assert done.returncode == 0 and "2 chunks to write again" in said(done), said(done)
    weights = [file for one in WEIGHTS for file in (tmp_path / "tiny").rglob(one)]
    assert weights
    for file in weights:
        file.rename(file.with_suffix(".away"))
    run(path)
    made, copied = rows_made(out, before)
    assert not made.total() and copied["segment"] > copied["encode"] == copied["autobleu"] == copied["rvq"] > 0
    assert Corpus(str(out)).rows < rows
    for file in weights:
        file.with_suffix(".away").rename(file)
    assert_same(out, in_place(path, out, "tombstones"))
    assert run(path).startswith("Nothing to do.")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sentences", "embeddings"])
def test_what_is_damaged_is_not_copied(path: Path, tmp_path: Path, family: str) -> None:
    """It is made again from the input, and a receipt says why."""
    out, victim = tmp_path / "out", sample_documents("postgresql-eng", 4)[1]
    corpus = Corpus(str(out))
    part = next(part for part in corpus.parts if victim["id"] in corpus.documents(part)["doc_id"].to_pylist())
    (tmp_path / "ids.txt").write_text(victim["id"])
    assert pipeline("purge", path, "--ids", tmp_path / "ids.txt").returncode == 0
    for file in (out / family).rglob(f"{part}.*"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    before = receipts(out)
    run(path)
    made, _ = rows_made(out, before)
    assert (made["segment"] > 0) == (family == "sentences") and made["encode"] > 0
    warned = [text for one in receipts(out).values() for text in one["warnings"]]
    assert any(f"{family}/{part[:2]}/{part}" in text for text in warned), warned
    assert_same(out, in_place(path, out, "tombstones"))


@pytest.mark.parametrize(
    ("values", "copied"),
    [
        ((1, "secret", 3), False),
        (({"x": 1}, {"secret": 1}, {"x": 2}), False),
        (("one", "secret", 3), True),
    ],
)
def test_nothing_of_a_purged_document_is_left_in_types_and_counts(
    tmp_path: Path, values: tuple[Any, ...], copied: bool
) -> None:
    """Its values may be why a kept column has its type, and another document without text may have its id."""
    documents = [
        {"id": name, "lang": "eng_Latn", "title": "A day", "value": value, "text": "It is late. They go home."}
        for name, value in zip("abc", values, strict=True)
    ]
    empty = {**documents[1], "text": " "}
    write_jsonl(tmp_path / "in/a.jsonl", [*documents, empty, {**empty, "text": ""}])
    inputs = [{"path": "in/*.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": ["title", "value"]}]
    path = write_config(tmp_path, input=inputs, encode=None, autobleu=None)
    run(path)
    out = tmp_path / "out"
    (tmp_path / "ids.txt").write_text("b")
    purge(Console(quiet=True), Corpus(str(out)), str(tmp_path / "ids.txt"), False, lambda jobs: False)
    run(path)
    found = compute_accounting(Store(str(out)), Corpus(str(out)).chunks)
    assert (found.counts["segment"].get("copied", 0) > 0) == copied
    assert found.dropped == {"no text": 2, "purged": 1}
    assert not [name for name in out.rglob("*.*") if name.is_file() and b"secret" in name.read_bytes()]
    assert_same(out, in_place(path, out, "tombstones"))


def test_warnings_of_languages_are_of_all_rows(tmp_path: Path) -> None:
    """Whatever a corpus had before: of few new rows nothing is said, but of all together."""
    out, lines = tmp_path / "out", list[dict[str, Any]]()
    path = write_config(tmp_path, part_sentences=1000, encode=None, autobleu=None, language={})

    def warned(folder: Path) -> list[str]:
        """The warnings of the newest receipt of the language stage, which is of the whole corpus."""
        newest = max((folder / "receipts/language").rglob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        found = json.loads(newest.read_text())
        assert found["rows"] == Corpus(str(folder)).rows == len(lines)
        return list(found["warnings"])

    def grown(lang: str, count: int) -> list[str]:
        lines.extend(
            {"id": f"{lang} {number}", "lang": "eng_Latn", "title": "", "text": SENTENCES[lang]}
            for number in range(len(lines), len(lines) + count)
        )
        write_jsonl(tmp_path / "in/a.jsonl", lines)
        run(path)
        return warned(out)

    assert grown("eng_Latn", 60) == []
    assert len(grown("deu_Latn", 3)) == 1  # 3 of 63
    assert grown("eng_Latn", 120) == []  # 3 of 183
    assert grown("deu_Latn", 50) == warned(in_place(path, out)) != []
    purged = [one["id"] for one in lines if one["id"].startswith("deu")]
    (tmp_path / "ids.txt").write_text("\n".join(purged))
    purge(Console(quiet=True), Corpus(str(out)), str(tmp_path / "ids.txt"), False, lambda jobs: False)
    run(path)
    lines = [one for one in lines if one["id"] not in purged]
    assert warned(out) == []
