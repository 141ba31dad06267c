"""Where the program begins. Ctrl-C while it still imports its modules ends it at once: nothing is begun by then.

Standard streams that are closed are opened on /dev/null first. Otherwise the next file that is opened would take their
number, and whatever is printed would be written into it. What an output that is not UTF-8 cannot represent is printed
as an escape (`\\u4e2d`): nothing that is printed ends the program.
"""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Import and run the command line."""
    _open_standard_streams()
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where the signal is ignored, as in the background of a script
        signal.signal(signal.SIGINT, _leave)
    from pipeline.cli import main as command_line

    signal.signal(signal.SIGINT, before)
    command_line()


def _open_standard_streams() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper) and codecs.lookup(sys.stdout.encoding).name != "utf-8":
        sys.stdout.reconfigure(errors="backslashreplace")


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
