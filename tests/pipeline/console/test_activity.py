"""Nobody waits in silence: what takes long says what it does, and a phase says within seconds that it has begun."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest
from rich.console import Console

from pipeline.console import progress
from pipeline.console.activity import announced
from pipeline.console.progress import FIRST_SECONDS, FitProgress, RunProgress
from pipeline.corpus.events import Event
from stages.computing import Computing, advance, computing, current, segmented, segmenting, tell_segmented
from stages.device import Budget, in_batches

LONG = 600


def until_shown(shown: io.StringIO, text: str) -> None:
    end = time.monotonic() + LONG
    while text not in shown.getvalue() and time.monotonic() < end:
        time.sleep(0.02)
    assert text in shown.getvalue()


def test_what_is_slow_says_what_it_does_and_what_is_quick_does_not() -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=60)
    with announced(console, "counting quickly", after=LONG):
        pass
    with announced(console, "counting [slowly]", after=0.01):
        until_shown(shown, "counting [slowly] …")
    assert "quickly" not in shown.getvalue()


def test_a_phase_says_within_five_seconds_what_it_starts_with() -> None:
    assert FIRST_SECONDS <= 4
    shown = io.StringIO()
    with RunProgress(Console(file=shown, width=120), chunks=2, sentences=0, visits=True, starting="starting Ray"):
        until_shown(shown, "0/2 chunks segmented, 0 of 0 sentences done, starting Ray")


def test_a_stage_that_takes_long_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "STAGE_SECONDS", 0.0)
    shown = io.StringIO()
    with RunProgress(Console(file=shown, width=160), chunks=0, sentences=100, visits=True) as one:
        one.see(Event(kind="chunk", where="a"))
        with computing("autobleu"):
            assert "autobleu of a part 0%" in one._note()
            advance(0.25)
            assert "autobleu of a part 25%, " in one._note() and "left of it" in one._note()
            one.see(Event(kind="part", where="a", rows=40))
            assert "/s, " in one._note() and "; autobleu of a part 25%, " in one._note()
        assert current() is None and "autobleu" not in one._note()


def test_a_few_small_parts_do_not_say_how_long_the_rest_takes() -> None:
    one = RunProgress(Console(file=io.StringIO(), width=160), chunks=0, sentences=1000, visits=True)
    for number in range(7):
        one.see(Event(kind="part", where=f"{number}", rows=10))
        assert one.numbers()["left"] is None and "left" not in one._line()
    one.see(Event(kind="part", where="8", rows=10))
    assert one.numbers()["left"] and " left" in one._line()
    one = RunProgress(Console(file=io.StringIO(), width=160), chunks=0, sentences=1000, visits=True)
    one.see(Event(kind="part", where="large", rows=100))
    assert one.numbers()["left"] and " left" in one._line()


def test_segmenting_alone_says_how_long_the_rest_takes() -> None:
    one = RunProgress(Console(file=io.StringIO(), width=160), chunks=20, sentences=0, visits=False)
    tell_segmented(segmented() + 1000)
    one.see(Event(kind="chunk", where="1"))
    assert one.numbers()["left"] is None and "left" not in one._line(), "one of 20 chunks says little"
    one.see(Event(kind="chunk", where="2"))
    assert one.numbers()["left"] and one._line().endswith(" left")
    for number in range(3, 21):
        one.see(Event(kind="chunk", where=f"{number}"))
    assert not one.numbers()["left"] and "left" not in one._line()


@pytest.mark.parametrize("visits", [True, False])
def test_a_chunk_that_takes_long_says_how_much_text_of_it_is_segmented(visits: bool) -> None:
    one = RunProgress(Console(file=io.StringIO(), width=160), chunks=1, sentences=0, visits=visits)
    with segmenting(1000):
        assert "loading the models" in one._line() and "characters" not in one._line()
        advance(0.5)
        assert " 500 characters segmented, " in one._line() and one._line().endswith("/s")
    assert " 1 000 characters segmented, " in one._line()
    tell_segmented(segmented() + 1000)  # by another process
    assert " 2 000 characters segmented, " in one._line()
    one.see(Event(kind="chunk", where="a"))
    assert "characters" not in one._line()


def test_batches_tell_how_many_are_done() -> None:
    seen: list[float] = []

    def compute(start: int, stop: int) -> None:
        now = current()
        assert now and now.stage == "encode"
        seen.append(now.share)

    with computing("encode"):
        in_batches(np.array([4, 4, 2, 2, 2]), Budget(4, "batch_tokens", "tokens", "lower it"), compute, mixed=True)
        assert seen == [0.0, 4 / 14, 8 / 14, 12 / 14] and (current() or Computing("")).share == 1.0


def test_whoever_began_last_is_shown() -> None:
    with computing("encode"):
        with computing("noise"):
            assert (current() or Computing("")).stage == "noise"
        advance(0.5)  # of the first, which nobody sees any more
        assert current() is None


def test_what_was_done_before_a_fit_was_stopped_counts_neither_in_its_rate_nor_in_the_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    shown = io.StringIO()
    with FitProgress(Console(file=shown, width=160), "decoder", "step") as one:
        now[0] += 60  # loading the decoder
        one.of(174, 1000)
        assert not shown.getvalue()
        now[0] += 10
        one.of(194, 1000)
        one.measuring(0, 12)
        now[0] += 10
        one.measuring(3, 12)
    assert shown.getvalue() == (
        "decoder: step 194 of 1 000, 2.0/s, 6 min 43 s left\ndecoder: measurement 3 of 12, 0.3/s, 30 s left\n"
    )
