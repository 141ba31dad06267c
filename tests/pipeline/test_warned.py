"""Warnings of workers reach the receipts and the books; threads do not hear each other's."""

from __future__ import annotations

import threading
import warnings

import pytest

from launchers import launch
from pipeline.books import keep_books
from pipeline.config import load_config
from pipeline.corpus import Corpus
from pipeline.plan import make_plan
from pipeline.runs import RunRecord
from pipeline.store import Store
from pipeline.warned import listening
from tests.conftest import MakeConfig
from tests.pipeline.test_cli import pipeline


def test_each_thread_hears_its_own_and_each_text_once() -> None:
    heard: dict[int, list[str]] = {}
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        with listening() as mine:
            for _ in range(3):
                barrier.wait()
                warnings.warn(f"thread\n{number}", stacklevel=1)
            heard[number] = list(mine)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == {number: [f"thread {number}"] for number in range(4)}


def test_a_place_that_warned_before_is_heard_again_and_others_hear_it_as_ever() -> None:
    for _ in range(2):
        with listening() as heard:
            warnings.warn("again", stacklevel=1)
        assert heard == ["again"]
    with pytest.warns(UserWarning, match="outside"):
        warnings.warn("outside", stacklevel=1)


def test_warnings_of_stages_are_in_receipts_and_books(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.sonar.checkpoint.rows_are_independent", lambda *_: False)  # as on some CPUs
    path = make_config(autobleu=None)
    plan = make_plan(load_config(path))
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    assert not [event for event in launch(plan, record.folder) if event.kind == "failed"]
    corpus = Corpus(plan.config.output)
    parts = [part for chunk in corpus.chunks for part in chunk.parts]
    assert all(len(part.receipts["encode"].warnings) == 1 for part in parts)
    assert not any(part.receipts["segment"].warnings for part in parts)
    ((text, count),) = keep_books(corpus.store, corpus.chunks).warnings.items()
    assert text.startswith("encode: matmul in torch.float32 on this CPU") and count == len(parts) > 1
    shown = pipeline("status", path).stdout
    assert shown.count("warning: encode: matmul") == 1 and f"(parts: {count})" in shown
