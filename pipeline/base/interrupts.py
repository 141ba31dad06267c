"""SIGTERM asks a run to stop, as Ctrl-C does: both raise KeyboardInterrupt, so that a run ends in one way only."""

from __future__ import annotations

import signal
import threading


def install_sigterm_handler() -> None:
    """From now on. To be called again after `ray.init`, which puts handlers of its own in place.

    Does nothing outside of the main thread, where signals never arrive.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
