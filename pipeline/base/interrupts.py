"""Makes SIGTERM and SIGHUP stop a run as Ctrl-C does, by KeyboardInterrupt, so that a run ends in one way only."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

TOGETHER_SECONDS = 1.0  # signals of this time are one request: a terminal and a wrapper both pass theirs on
_asked: list[int] = []  # signals
_raised = [-math.inf]  # when the last request ended what was done


class StoppedWithProgress(KeyboardInterrupt):
    """Work was stopped after a part of it was saved, so that attempts make progress even if each one is stopped."""


def install_sigterm_handler() -> None:
    """Install the handlers in the main thread; call this again after `ray.init`, which installs handlers of its own.

    Signals that come together with the first one raise nothing, so that what it ends is ended properly; that holds for
    Ctrl-C as well. Outside of the main thread, where signals never arrive, this does nothing.
    """
    if threading.current_thread() is threading.main_thread():
        _raised[0] = -math.inf
        signal.signal(signal.SIGTERM, _stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # it is ignored in the background of a script
            signal.signal(signal.SIGINT, _interrupt)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, _stop)


def end_at_once_when_asked(code: int) -> None:
    """Let signals that ask this process to stop end it from now on without a word, with its exit code: its command has
    said all, and what Python does at its own end would be interrupted with a traceback.
    """
    if threading.current_thread() is threading.main_thread():
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(sign) is not signal.SIG_IGN:
                signal.signal(sign, lambda number, frame: os._exit(code))


def is_asked_to_stop() -> bool:
    """Return whether a signal whose handler was installed here has arrived in this process."""
    return bool(_asked)


def has_interrupted() -> bool:
    """Return whether a signal has ended what this process did, since the handlers were installed."""
    return _raised[0] > -math.inf


def _stop(number: int, frame: FrameType | None) -> None:
    _asked.append(number)
    _interrupt(number, frame)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if (now := time.monotonic()) - _raised[0] > TOGETHER_SECONDS:
        _raised[0] = now
        raise KeyboardInterrupt


@contextlib.contextmanager
def calls_when_asked(stop: Callable[[], None]) -> Iterator[None]:
    """Surround what ends by itself soon after `stop()`: signals that ask this process to stop call that, and raise
    nothing. For the main thread only.
    """
    signs = [one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) != signal.SIG_IGN]
    before = {sign: signal.signal(sign, lambda number, frame: stop()) for sign in signs}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextlib.contextmanager
def stopped_afterwards(seconds: float) -> Iterator[None]:
    """Surround an end that is not to be cut short: signals that ask this process to stop raise `KeyboardInterrupt` only
    after the block, or at once where it takes longer than so many seconds. Outside of the main thread nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    until, asked = time.monotonic() + seconds, False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if number != signal.SIGINT:
            _asked.append(number)
        if time.monotonic() > until:
            _interrupt(number, frame)

    signs = [one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if callable(signal.getsignal(one))]
    before = {sign: signal.signal(sign, note) for sign in signs}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
        if asked:
            _interrupt(0, None)


def hear_again() -> None:
    """Have the system call Python's handlers of signals again: what a library in C++ that ends has put in their place
    without a word to Python would end this process at once. Outside of the main thread this does nothing.
    """
    if threading.current_thread() is threading.main_thread():
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if callable(handler := signal.getsignal(sign)):
                signal.signal(sign, handler)


@contextlib.contextmanager
def stopped_by_exit() -> Iterator[None]:
    """Surround `ray.init`, whose own handlers end the process when it is asked to stop meanwhile: `SystemExit` becomes
    the `KeyboardInterrupt` that such a signal raises at other times. Our handlers are installed again afterwards.
    """
    try:
        yield
    except SystemExit as error:
        if error.code != signal.SIGTERM:
            raise
        raise KeyboardInterrupt from None
    finally:
        install_sigterm_handler()
