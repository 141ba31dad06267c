"""`index --share`: N processes make the index that one makes, in any order, whichever of them are killed."""

from __future__ import annotations

import io
import os
import shutil
import signal
import time
from pathlib import Path

import fsspec
import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.train import Plans
from pipeline.maintenance.gc import find_garbage, garbage
from pipeline.select.command import SelectOptions
from pipeline.storage import layout
from pipeline.storage.store import is_unfinished
from pipeline.training.data.command import index_corpus
from tests.pipeline.training.corpora import make_corpus
from tests.support.cli import pipeline, said
from tests.support.processes import start

RULES = SelectOptions(where="chars >= 10", broken="split-documents")


def index(
    corpus: Corpus,
    share: tuple[int, int] | None,
    rules: SelectOptions = RULES,
    answers: str | None = None,
    plans: Plans = "none",
) -> str:
    shown = io.StringIO()
    index_corpus(Console(file=shown, width=200), corpus.url, Corpus(corpus.url), rules, answers, plans, share)
    return shown.getvalue()


def files(corpus: Corpus) -> dict[str, bytes]:
    """Without what a killed write leaves on a disk."""
    found = corpus.store.find(layout.INDEXES)
    return {path: corpus.store.read(path) for path in found if not is_unfinished(path)}


def forget(corpus: Corpus) -> None:
    corpus.store.delete_folder(layout.INDEXES)


@pytest.fixture
def own(finished: Path, tmp_path: Path, corpus: Corpus) -> Corpus:
    """A copy of the corpus, without an index."""
    shutil.copytree(finished, tmp_path / "own", ignore=shutil.ignore_patterns("train"))
    return Corpus(str(tmp_path / "own"))


@pytest.mark.parametrize(("answers", "plans"), [(None, "none"), ("answer", "none"), (None, "headline")])
def test_shares_in_any_order_make_what_one_process_does(
    own: Corpus, monkeypatch: pytest.MonkeyPatch, answers: str | None, plans: Plans
) -> None:
    monkeypatch.setattr("pipeline.training.data.row_range_files.FILE_ROW_RANGES", 3)
    told = index(own, None, answers=answers, plans=plans).rpartition("(made in")[0]
    wanted = files(own)
    more = len(own.parts) + 2  # than there are parts
    for order in ([3, 1, 2], [1], range(more, 0, -1)):
        forget(own)
        shown = [index(own, (which, len(order)), answers=answers, plans=plans) for which in order]
        assert all("the last completes the index" in one for one in shown[:-1])
        assert shown[-1].rpartition("(made in")[0].endswith(told) and files(own) == wanted
        assert "existed already" in index(own, (1, len(order)), answers=answers, plans=plans)


def test_on_an_object_store(own: Corpus, bucket: str) -> None:
    fsspec.filesystem("s3").put(own.url, f"{bucket}/out", recursive=True)
    remote = Corpus(f"{bucket}/out")
    index(own, None)
    for which in (2, 1):
        index(remote, (which, 2))
    assert files(remote) == files(own)


def test_shares_at_the_same_time_also_twice(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, 6, part_sentences=100)
    index(corpus, None)
    wanted = files(corpus)
    forget(corpus)
    arguments = ("index", corpus.url, "--where", RULES.where, "--broken", RULES.broken, "--share")
    under_way = [start(*arguments, f"{which}/3") for which in (1, 2, 3, 2)]
    shown = [one.communicate()[0] for one in under_way]
    assert all(one.returncode == 0 for one in under_way), shown
    assert "existed already" in said(pipeline(*arguments, "3/3")) and files(corpus) == wanted


@pytest.mark.faults
def test_killed_before_each_change(tmp_path: Path) -> None:
    """While it writes row ranges, or its note, or completes the index, or deletes what shares have written."""
    corpus = make_corpus(tmp_path, 6, part_sentences=100)
    index(corpus, None)
    wanted, change = files(corpus), 0
    arguments = ("index", corpus.url, "--where", RULES.where, "--broken", RULES.broken, "--share")
    while True:
        change += 1
        forget(corpus)
        index(corpus, (2, 2))
        process = start(*arguments, "1/2", die_before=(change, corpus.url))
        if process.wait() != -signal.SIGKILL:
            break
        again = pipeline(*arguments, "1/2")
        assert again.returncode == 0 and files(corpus) == wanted, (change, said(again))
    assert process.returncode == 0 and change > 10


@pytest.mark.parametrize("lost", [False, True])
def test_a_changed_or_lost_file_of_a_share_completes_nothing(own: Corpus, lost: bool) -> None:
    index(own, (1, 2))
    path = next(Path(own.url).glob("train/index/*.share-1-of-2.train-00000.runs"))
    if lost:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    told = (
        rf"share-1-of-2.train-00000.runs {'is gone' if lost else 'has changed'} since share 1 wrote it; delete .*json, "
    )
    with pytest.raises(CorpusError, match=told):
        index(own, (2, 2))
    note = Path(own.url, layout.INDEXES, f"{path.name.split('.')[0]}.share-1-of-2.json")
    note.unlink()
    assert "made in" in index(own, (1, 2)) and garbage(own) == {}


def test_other_rules_are_other_shares_and_wrong_ones_are_refused(own: Corpus) -> None:
    index(own, (1, 2))
    assert "1 share to be written (1)" in index(own, (2, 2), SelectOptions(where="chars >= 11"))
    with pytest.raises(ConfigError, match="at most 10000 shares"):
        index(own, (1, 1_000_000))
    refused = pipeline("index", own.url, "--share", "3/2")
    assert refused.returncode == 2 and "for instance 3/100" in refused.stderr
    nothing = SelectOptions(where="chars < 0")
    index(own, (1, 2), nothing)
    with pytest.raises(CorpusError, match="keeps no sentence"):
        index(own, (2, 2), nothing)


def aged(corpus: Corpus, days: float) -> None:
    """Everything in the folder of indexes was written that long ago."""
    for path in corpus.store.find(layout.INDEXES):
        os.utime(Path(corpus.url, path), (0, time.time() - days * 86_400))


def test_gc_leaves_shares_a_week_to_be_completed(own: Corpus) -> None:
    index(own, (1, 2))
    assert pipeline("select", own.url, "--share", "1/2").returncode == 0
    begun = set(own.store.find(layout.INDEXES))
    for days in (1.1, 6.9):
        aged(own, days)
        assert find_garbage(own).why == {}
    aged(own, 7.1)
    assert find_garbage(own).why == dict.fromkeys(begun, "shares of an index or of select, the last written 7 days ago")
    assert pipeline("gc", own.url, "--delete", "--yes").returncode == 0
    assert not own.store.find(layout.INDEXES)


def test_gc_deletes_what_shares_left_beside_a_finished_index(own: Corpus) -> None:
    """As a last share leaves it that is killed while it deletes, and shares that were given up for one process."""
    index(own, (1, 2))
    left = set(own.store.find(layout.INDEXES))
    index(own, None)
    whole = files(own)
    assert left and not find_garbage(own).why, "they may be being read"
    aged(own, 1.1)
    assert find_garbage(own).why == dict.fromkeys(left, "left by the shares of an index that is completed")
    assert pipeline("gc", own.url, "--delete", "--yes").returncode == 0
    assert files(own) == {path: data for path, data in whole.items() if path not in left}
    assert "existed already" in index(own, None)
