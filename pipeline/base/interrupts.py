"""SIGTERM and SIGHUP ask a run to stop, as Ctrl-C does: all raise KeyboardInterrupt, so a run ends in one way only."""

from __future__ import annotations

import signal
import threading


def install_sigterm_handler() -> None:
    """From now on. To be called again after `ray.init`, which puts handlers of its own in place.

    Does nothing outside of the main thread, where signals never arrive.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, signal.default_int_handler)
