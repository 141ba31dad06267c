"""Where the program begins. Ctrl-C while it still imports its modules ends it at once: nothing is begun by then."""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Import and run the command line."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where the signal is ignored, as in the background of a script
        signal.signal(signal.SIGINT, _leave)
    from pipeline.cli import main as command_line

    signal.signal(signal.SIGINT, before)
    command_line()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
