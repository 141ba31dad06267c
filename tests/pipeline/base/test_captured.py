"""Warnings of workers reach the receipts and the books; threads do not hear each other's."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence

import pytest

from launchers.launch import launch
from pipeline.base.captured import capture_warnings
from pipeline.config.load import load_config
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import RunRecord
from pipeline.planning.plan import make_plan
from pipeline.storage.store import Store
from stages.segment.segmenter import Segmented, Segmenter
from tests.conftest import TINY_CARD, MakeConfig
from tests.support.cli import pipeline

FLOAT32 = {"model": str(TINY_CARD), "precision": "float32"}


def test_each_thread_hears_its_own_and_each_text_once() -> None:
    heard: dict[int, list[str]] = {}
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        with capture_warnings() as mine:
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
        with capture_warnings() as heard:
            warnings.warn("again", stacklevel=1)
        assert heard == ["again"]
    with pytest.warns(UserWarning, match="outside"):
        warnings.warn("outside", stacklevel=1)


def test_warnings_of_the_segmenter_are_in_the_receipts_of_its_parts(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = Segmenter.segment

    def warns(self: Segmenter, texts: Sequence[str], langs: Sequence[str]) -> Segmented:
        warnings.warn(f"a library says {langs[0]}", stacklevel=1)
        return segment(self, texts, langs)

    monkeypatch.setattr(Segmenter, "segment", warns)
    config = load_config(make_config(encode=None, autobleu=None, segment={"model": str(TINY_CARD)}))
    plan = make_plan(config)
    record = RunRecord(Store(config.output), config, plan.view)
    assert not [event for event in launch(plan, record.folder) if event.kind == "failed"]
    receipts = [part.receipts["segment"] for chunk in Corpus(config.output).chunks for part in chunk.parts]
    first = [receipt for receipt in receipts if receipt.part.endswith("-00000")]
    assert sorted(text for receipt in first for text in receipt.warnings) == [
        "a library says deu_Latn",
        "a library says eng_Latn",
        "a library says eng_Latn",
    ]


@pytest.mark.slow
def test_warnings_of_ray_workers_are_shown_at_the_end_of_a_run(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKL_CBWR", "OFF")
    probe = "import torch; from stages.sonar.checkpoint import rows_are_independent as f; print(f(torch.float32))"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True).stdout == "True\n":
        pytest.skip("here rows do not depend on each other even so: nothing to warn of")
    done = pipeline("run", make_config(autobleu=None, encode=FLOAT32, launcher="local"))
    assert done.returncode == 0, done
    assert done.stdout.count("warning: encode: matmul in torch.float32 on this CPU depends") == 1


def test_warnings_of_stages_are_in_receipts_and_books(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.sonar.checkpoint.rows_are_independent", lambda *_: False)  # as on some CPUs
    path = make_config(autobleu=None, encode=FLOAT32)
    plan = make_plan(load_config(path))
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    assert not [event for event in launch(plan, record.folder) if event.kind == "failed"]
    corpus = Corpus(plan.config.output)
    parts = [part for chunk in corpus.chunks for part in chunk.parts]
    assert all(len(part.receipts["encode"].warnings) == 1 for part in parts)
    assert not any(part.receipts["segment"].warnings for part in parts)  # where nothing warned
    ((text, count),) = compute_accounting(corpus.store, corpus.chunks).warnings.items()
    assert text.startswith("encode: matmul in torch.float32 on this CPU") and count == len(parts) > 1
    shown = pipeline("status", path).stdout
    assert shown.count("warning: encode: matmul") == 1 and f"({count} parts)" in shown
