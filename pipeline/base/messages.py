"""Decides how much a command says: the level and form of the log on standard error, and what is shown in spite of -q.

As JSON, everything on standard error is one object per line, for those who collect logs: the records of the log, and
what a person would read there as text.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import sys
import time
from datetime import UTC, datetime
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from pipeline.base.errors import visible

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
PACKAGES = ("pipeline", "launchers", "stages")
READER_LEFT = 128 + 13  # what shells show of a program that SIGPIPE ended
_chosen = {"form": "text"}  # of this process
MESSAGES = "pipeline"  # the logger that what was written for people is said to come from


class _StandardError(logging.Handler):
    """Writes each record to what `sys.stderr` is at that moment, so that a bar on the terminal stays whole."""

    def emit(self, record: logging.LogRecord) -> None:
        print("\n".join(visible(line) for line in self.format(record).split("\n")), file=sys.stderr)


class _Json(logging.Formatter):
    """Formats a record as one line of JSON; `extra={"event": …}` of a record is kept as an object."""

    def format(self, record: logging.LogRecord) -> str:
        more: dict[str, Any] = {"event": record.event} if hasattr(record, "event") else {}
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        return _line(record.created, record.levelname.lower(), record.name, record.getMessage(), more)


class JsonLines(io.StringIO):
    """A file that writes each text that is printed to it as one line of JSON on standard error."""

    def __init__(self, level: str) -> None:
        super().__init__()
        self.level, self._text = level, ""

    def write(self, text: str) -> int:
        """Keep a part of a text."""
        self._text += text
        return len(text)

    def flush(self) -> None:
        """Write what was kept."""
        text, self._text = self._text.strip("\n"), ""
        if text:
            print(_line(time.time(), self.level, MESSAGES, text, {}), file=sys.stderr)


def _line(when: float, level: str, logger: str, message: str, more: dict[str, Any]) -> str:
    at = datetime.fromtimestamp(when, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": at, "level": level, "logger": logger, "message": message} | more)


def json_for_output(value: Any, indent: int = 1) -> str:
    """Return JSON for standard output: in ASCII where that is not UTF-8, since its escapes are not those of JSON."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return json.dumps(value, ensure_ascii=codecs.lookup(encoding).name != "utf-8", indent=indent)


def write_out(text: str) -> None:
    """Write a text for scripts to standard output, in UTF-8 where the encoding of that is said to be ASCII."""
    import typer  # which other processes than the command line do without

    try:
        typer.echo(text, nl=False)
    except BrokenPipeError:
        end_without_reader()


def end_without_reader() -> NoReturn:
    """End as a program does whose reader has gone, as in `pipeline inspect | head`; write nothing at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(READER_LEFT)


def set_log(level: str, form: str = "text") -> None:
    """Show records of this level and above, of our packages, on standard error, with the time in UTC."""
    for package in PACKAGES:
        logger = logging.getLogger(package)
        for handler in [one for one in logger.handlers if isinstance(one, _StandardError)]:
            logger.removeHandler(handler)
        handler = _StandardError()
        formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
        formatter.converter = time.gmtime
        handler.setFormatter(_Json() if form == "json" else formatter)
        logger.addHandler(handler)
        logger.setLevel(level.upper())
    _chosen["form"] = form


def print_plain(console: Console, text: str, style: str = "") -> None:
    """Print a text as it is, without markup, colours of its own or line breaks, so that paths can be copied.

    Args:
        console: where it goes.
        text: the text.
        style: the style of all of it, as Rich names styles.
    """
    console.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)


def warn(console: Console, text: Text | str, soft_wrap: bool = False) -> None:
    """Show what must not be missed: on the console, or on standard error where -q silences the console.

    Args:
        console: where messages go; it is quiet after -q.
        text: the warning; a string is printed as it is, without markup.
        soft_wrap: whether lines may be longer than the terminal is wide.
    """
    place = console
    if console.quiet:
        place = Console(
            file=JsonLines("warning") if _chosen["form"] == "json" else None, stderr=True, soft_wrap=soft_wrap
        )
    place.print(text if isinstance(text, Text) else Text(text), soft_wrap=soft_wrap or None)
