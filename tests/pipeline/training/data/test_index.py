"""`pipeline index`: what it counts, what its digest names, that it is found again; answers; what is refused."""

from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.select import SelectSettings
from pipeline.coordination.lock import locked
from pipeline.inputs.splits import SPLITS
from pipeline.maintenance.gc import delete, delete_garbage, find_garbage, garbage
from pipeline.select.command import SelectOptions
from pipeline.storage import layout
from pipeline.training.data.command import index_corpus
from pipeline.training.data.index import make_index, read_index
from pipeline.training.data.row_range_files import ROW_RANGE
from pipeline.training.data.sequences import Sequences
from stages.device import compute_dtype
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings
from stages.sonar.checkpoint import load_encoder
from tests.conftest import TINY_CARD, sample_documents, write_config, write_jsonl
from tests.pipeline.training.corpora import make_corpus
from tests.pipeline.training.expected import sequences_of
from tests.support.runs import run


def index(corpus: Corpus, rules: SelectOptions | None = None, answers: str | None = None) -> str:
    shown = io.StringIO()
    index_corpus(Console(file=shown, width=120), corpus.url, corpus, rules or SelectOptions(), answers)
    return shown.getvalue()


def test_it_says_what_is_in_it_and_is_made_once(corpus: Corpus) -> None:
    rules = SelectOptions(where="chars >= 25", min_sentences=2)
    shown = index(corpus, rules)
    for split in SPLITS:
        sequences = [
            one for one in sequences_of(corpus, split, lambda row: row["chars"] >= 25) if len(one.sentences) > 1
        ]
        documents, sentences = len({one.doc_id for one in sequences}), sum(len(one.sentences) for one in sequences)
        assert re.search(rf"^{split} +{documents} +{len(sequences)} +{sentences} *$", shown, re.M), shown
    assert "– chars >= 25" in shown and "made in" in shown
    digest = re.search("index +([0-9a-f]{32})", shown)
    assert digest and f"{digest[1]}  (existed already)" in index(corpus, rules)
    assert read_index(corpus, digest[1][:12]).digest == digest[1]
    assert "made in" in index(corpus, SelectOptions(where="chars >= 26"))


def test_runs_are_in_files_that_end_with_a_part(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    found = make_index(corpus, SelectSettings(where="chars >= 5"))
    monkeypatch.setattr("pipeline.training.data.row_range_files.FILE_ROW_RANGES", 3)
    again = make_index(corpus, SelectSettings(where="chars >= 4 and chars >= 5"))
    for split in SPLITS:
        assert len(found.about.runs[split]) == 1 < len(again.about.runs[split]) or split != "train"
        sequences = [Sequences.of(one, split) for one in (found, again)]
        one, other = (of_them.take(np.arange(of_them.blocks)) for of_them in sequences)
        assert one.row_ranges.tobytes() == other.row_ranges.tobytes() and len(one.row_ranges) == sum(
            again.about.runs[split]
        )
        assert len(one.sequences) == found.about.splits[split][1]
        assert (
            sequences[0].sentences == one.lengths.sum() == found.about.splits[split][2] + one.row_ranges["after"].sum()
        )
        size = sum(path.stat().st_size for path in Path(corpus.url).glob(f"train/index/{found.digest[:12]}.{split}-*"))
        assert size == len(one.row_ranges) * ROW_RANGE.itemsize == 22 * len(one.row_ranges)


def test_endings_are_those_of_the_encoder(corpus: Corpus) -> None:
    found = make_index(corpus, SelectSettings())
    stage = Encode(EncodeSettings(model=str(TINY_CARD)))
    network = load_encoder(stage.card, compute_dtype("auto", "cpu"), "cpu")
    for number, text in enumerate(("End of text.", "End of response.", "End of paragraph.")):
        ids = torch.tensor(stage.tokenizer.encode([text], "eng_Latn"))
        with torch.inference_mode():
            np.testing.assert_allclose(found.closing_embeddings[number], network(ids)[0].float().numpy(), atol=2e-3)
    assert found.closing_codes is not None and found.closing_codes.shape == (3, 3) == (3, found.about.codebooks)


def test_the_digest_names_the_snapshot(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, 4, part_sentences=100)
    first = make_index(corpus, SelectSettings())
    assert make_index(Corpus(corpus.url), SelectSettings()).digest == first.digest
    assert make_index(corpus, SelectSettings(min_sentences=2)).digest != first.digest
    assert make_index(corpus, SelectSettings(), answers="answer").digest != first.digest
    write_jsonl(tmp_path / "more.jsonl", sample_documents("libreoffice-deu", 2))
    more = {"path": "more.jsonl", "id": "id", "lang": {"column": "lang"}}
    old = {"path": "in.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": ["title", "answer"]}
    run(write_config(tmp_path, input=[old, more], split={"validation": 0.2, "test": 0.1}, autobleu=None))
    grown = Corpus(corpus.url)
    assert make_index(grown, SelectSettings()).digest != first.digest
    again = read_index(grown, first.digest)  # what was indexed before is still there
    assert again.blocks.equals(first.blocks) and again.about == first.about


def test_indexes_that_nothing_can_use_are_garbage(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, 4, part_sentences=100)
    old = make_index(corpus, SelectSettings())
    half = Path(corpus.url, layout.index_row_ranges_path("1" * 32, "train", 0))
    half.write_bytes(b"")
    assert garbage(corpus) == {}  # somebody may be making it
    os.utime(half, (time.time() - 90_000,) * 2)
    left = half.relative_to(corpus.url).as_posix()
    assert garbage(corpus) == {layout.INDEXES: {left: "an index that was begun 1 day ago and not completed"}}
    run(tmp_path / "corpus.yaml", "encode.precision=float32")
    changed = Corpus(corpus.url)
    new = make_index(changed, SelectSettings())
    found = garbage(changed)
    assert {Path(path).name.split(".")[0] for path in found[layout.INDEXES]} == {old.digest[:12], "1" * 12}
    delete(changed, found)
    assert garbage(Corpus(corpus.url)) == {} and read_index(changed, new.digest).about == new.about
    assert len(Sequences.of(new, "train").row_ranges_at([0])) == 1


def test_answers_that_are_no_places(tmp_path: Path, corpus: Corpus) -> None:
    with pytest.raises(
        ConfigError, match="answers: answr is not a column that the input kept; those are: answer, title"
    ):
        make_index(corpus, SelectSettings(), answers="answr")
    with pytest.raises(CorpusError, match=r"title of document .* must be the code point at which the answer begins"):
        make_index(corpus, SelectSettings(), answers="title")


def test_a_flipped_bit_of_an_index_is_found_or_changes_nothing(corpus: Corpus) -> None:
    found = make_index(corpus, SelectSettings(where="chars >= 5"))
    path = Path(corpus.url, layout.index_paths(found.digest)[0])
    whole, errors = path.read_bytes(), 0
    for at in range(len(whole) // 3, len(whole), 13):  # most of it is the footer, with the description in JSON
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        try:
            again = read_index(corpus, found.digest)
        except CorpusError:
            errors += 1
        else:
            assert again.about == found.about and again.blocks.equals(found.blocks), at
    assert errors > 100
    path.write_bytes(whole)


def test_what_cannot_be_indexed(corpus: Corpus) -> None:
    with pytest.raises(CorpusError, match=r"keeps no sentence: of \d+, chars < 0 removes \d+; .* --where 'chars < 0'"):
        make_index(corpus, SelectSettings(where="chars < 0"))
    with pytest.raises(CorpusError, match="has no index 000000000000; those that it has: "):
        read_index(corpus, "0" * 32)
    found = make_index(corpus, SelectSettings(where="chars >= 3"))
    path = Path(corpus.url, layout.index_paths(found.digest)[0])
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CorpusError, match=r"is damaged or of another version .*; delete .* and run the same"):
        read_index(corpus, found.digest)
    runs = Path(corpus.url, layout.index_row_ranges_path(found.digest, "train", 0))
    other = np.frombuffer(runs.read_bytes(), ROW_RANGE).copy()
    other["rows"][0] += 1
    runs.write_bytes(other.tobytes())
    with pytest.raises(CorpusError, match=rf"{runs.name} is damaged: the shuffle block at row range 0 has .*; delete"):
        Sequences.of(found, "train").row_ranges_at([0])
    runs.write_bytes(runs.read_bytes()[:-1])
    said = rf"{runs.name} has {runs.stat().st_size} bytes instead of .*; delete train/index/{path.name} and run"
    with pytest.raises(CorpusError, match=said):
        Sequences.of(found, "train")
    runs.unlink()
    with pytest.raises(CorpusError, match=rf"{runs.name} is missing; delete train/index"):
        Sequences.of(found, "train")


def test_an_index_that_is_completed_while_gc_asks_is_not_deleted(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, 4, part_sentences=100)
    index = make_index(corpus, SelectSettings())
    Path(corpus.url, layout.index_paths(index.digest)[0]).unlink()  # its process is killed before it writes this
    half = list(Path(corpus.url, layout.INDEXES).iterdir())
    left = Path(corpus.url, layout.index_row_ranges_path("1" * 32, "train", 0))
    left.write_bytes(b"")
    for path in (*half, left):
        os.utime(path, (time.time() - 90_000,) * 2)
    shown = io.StringIO()
    with locked(corpus.store, "gc") as lease:
        found = find_garbage(corpus)
        assert len(found.why) == len(half) + 1
        make_index(Corpus(corpus.url), SelectSettings())
        delete_garbage(Console(file=shown), corpus, found, lease)
    assert read_index(corpus, index.digest).about == index.about and all(path.exists() for path in half)
    assert not left.exists() and shown.getvalue() == "1 file deleted, 0 B\n"
