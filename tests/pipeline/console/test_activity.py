"""Nobody waits in silence: what takes long says what it does, and a phase says within seconds that it has begun."""

from __future__ import annotations

import io
import time

from rich.console import Console

from pipeline.console.activity import announced
from pipeline.console.progress import FIRST_SECONDS, RunProgress

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
