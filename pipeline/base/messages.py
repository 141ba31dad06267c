"""Decides how much a command says: the level of the log on standard error, and what is shown in spite of -q."""

from __future__ import annotations

import logging
import sys
import time

from rich.console import Console
from rich.text import Text

from pipeline.base.errors import visible

LEVELS = ("debug", "info", "warning", "error")
PACKAGES = ("pipeline", "launchers", "stages")


class _StandardError(logging.Handler):
    """Writes each record to what `sys.stderr` is at that moment, so that a bar on the terminal stays whole."""

    def emit(self, record: logging.LogRecord) -> None:
        print("\n".join(visible(line) for line in self.format(record).split("\n")), file=sys.stderr)


def set_log_level(level: str) -> None:
    """Show records of this level and above, of our packages, on standard error, with the time in UTC."""
    for package in PACKAGES:
        logger = logging.getLogger(package)
        for handler in [one for one in logger.handlers if isinstance(one, _StandardError)]:
            logger.removeHandler(handler)
        handler = _StandardError()
        formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
        logger.addHandler(handler)
        logger.setLevel(level.upper())


def warn(console: Console, text: Text | str, soft_wrap: bool = False) -> None:
    """Show what must not be missed: on the console, or on standard error where -q silences the console."""
    place = Console(stderr=True, soft_wrap=True) if console.quiet else console
    place.print(text if isinstance(text, Text) else Text(text), soft_wrap=soft_wrap or None)
