"""`select --share`: N processes count what one counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import Corpus
from pipeline.storage import layout
from pipeline.training.data.index import unusable
from tests.support.cli import pipeline, said
from tests.support.corpora import made_once, make_corpus
from tests.support.processes import start


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(str(made_once(tmp_path_factory, "select-shares", make_corpus) / "out"))


def test_shares_count_what_one_process_counts(corpus: Corpus) -> None:
    arguments = ("select", corpus.url, "--where", "chars >= 20 and (autobleu is null or autobleu >= 1)")
    wanted = said(pipeline(*arguments))
    assert "sentences kept" in wanted
    more = len(corpus.parts) + 2  # than there are parts
    for order in ([3, 1, 2], [1], range(more, 0, -1)):
        shown = [said(pipeline(*arguments, "--share", f"{which}/{len(order)}")) for which in order]
        assert all("to be written" in one and "the last completes the table" in one for one in shown[:-1])
        assert shown[-1].endswith(wanted), shown[-1]
    at_once = [start(*arguments, "--share", f"{which}/4") for which in (1, 2, 3, 4, 2)]
    assert all(one.wait() == 0 for one in at_once)
    again = said(pipeline(*arguments, "--share", "2/4"))
    assert "share 2 of 4 is written already" in again and again.endswith(wanted)
    assert "1 share to be written (2)" in said(pipeline("select", corpus.url, "--share", "1/2"))  # of other rules


def test_notes_of_shares_are_checked_and_are_no_index(corpus: Corpus) -> None:
    arguments = ("select", corpus.url, "--where", "chars >= 30", "--share")
    before = set(corpus.store.find(layout.INDEXES))
    assert pipeline(*arguments, "1/2").returncode == 0 and unusable(corpus) == {}
    (note,) = set(corpus.store.find(layout.INDEXES)) - before
    assert note.endswith(".select-1.1-of-2.json"), "the version is in its name"
    whole = Path(corpus.url, note).read_bytes()
    Path(corpus.url, note).write_bytes(whole.replace(b'"kept": ', b'"kept": 1'))
    damaged = pipeline(*arguments, "2/2")
    assert damaged.returncode == 1 and "do that share again" in said(damaged) and note in said(damaged)
    refused = pipeline(*arguments, "1/2", "--json")
    assert refused.returncode == 2 and "--share and --json exclude each other" in said(refused)
