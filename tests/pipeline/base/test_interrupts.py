"""Signals that ask a run to stop."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pipeline.base import interrupts
from pipeline.base.interrupts import install_sigterm_handler, stopped_afterwards

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers_are_put_back() -> Iterator[None]:
    before = {sign: signal.getsignal(sign) for sign in SIGNALS}
    yield
    for sign, handler in before.items():
        signal.signal(sign, handler)


@pytest.mark.parametrize("sign", SIGNALS)
def test_a_run_stops_as_by_ctrl_c(sign: signal.Signals) -> None:
    signal.signal(sign, signal.SIG_DFL)  # these tests may run under nohup
    install_sigterm_handler()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), sign)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_come_together_are_one_request(first: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # these tests may run where it is ignored
    try:
        install_sigterm_handler()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), first)
        for sign in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), sign)
        monkeypatch.setattr(interrupts, "TOGETHER_SECONDS", 0.0)  # as if that were long ago
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_nohup_is_heeded() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    install_sigterm_handler()
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize("sign", [*SIGNALS, signal.SIGINT])
def test_a_second_signal_while_a_process_ends_is_no_traceback(sign: signal.Signals) -> None:
    """The command has ended with a code, which stays; then Python calls what libraries have registered for its end."""
    program = (
        "import atexit, os, signal, sys\n"
        "from pipeline.cli import main\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "atexit.register(print, 'not reached', file=sys.stderr)\n"
        f"atexit.register(os.kill, os.getpid(), {int(sign)})\n"
        "sys.argv = ['pipeline', 'schema']\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0 and not ended.stderr and ended.stdout, ended


def test_an_end_is_not_cut_short() -> None:
    """A second Ctrl-C left Ray's folder behind, and a lock held."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    install_sigterm_handler()
    steps = []
    with pytest.raises(KeyboardInterrupt), stopped_afterwards(60):
        os.kill(os.getpid(), signal.SIGTERM)
        steps.append("done")
    assert steps == ["done"] and signal.getsignal(signal.SIGTERM) is interrupts._stop
    interrupts._raised[0] = -math.inf
    with pytest.raises(KeyboardInterrupt), stopped_afterwards(-1):  # it takes too long
        os.kill(os.getpid(), signal.SIGTERM)
        steps.append("not reached")
    assert steps == ["done"]
    with stopped_afterwards(60):
        pass
