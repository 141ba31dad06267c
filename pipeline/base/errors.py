"""Errors written for the person who can fix them: what is wrong, the value, what is allowed, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

STEERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Make text of data, or the name of a file, safe for a message: one line that cannot control a terminal.

    Control characters, line ends, marks that turn the direction of text, and lone surrogates become escapes (`\x1b`);
    everything else stays as it is.
    """
    return STEERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def is_utf8(text: str) -> bool:
    """Return whether a text can be written as UTF-8: a name of other bytes holds lone surrogates in their place."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class PipelineError(Exception):
    """A failure that the command line reports as a message, without a traceback; its lines may hold any text."""

    def __init__(self, message: str) -> None:
        super().__init__("\n".join(visible(line) for line in message.split("\n")))


class ConfigError(PipelineError):
    """The settings or the command line ask for something impossible (exit code 2)."""


class CorpusError(PipelineError):
    """Files on disk are missing, damaged, or inconsistent with each other (exit code 1)."""


class DamagedError(CorpusError):
    """A file of the corpus is damaged.

    Args:
        where: the file.
        what: what is wrong with it.
        remedy: what to do about it.
    """

    def __init__(self, where: str, what: str, remedy: str) -> None:
        super().__init__(f"{where} is damaged ({what}); {remedy}")
        self.where, self.what, self.remedy = where, what, remedy

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, str, str]]:
        return DamagedError, (self.where, self.what, self.remedy)


class MissingError(CorpusError):
    """A file of the corpus does not exist: the store has said so.

    A store that does not answer raises `StorageError`.
    """


class StorageError(CorpusError):
    """The corpus cannot be written to: a full disk, or no permission. Other writes would fail too: the run stops."""


class AsideError(CorpusError):
    """A part or a chunk has killed its worker too often and is set aside; the others continue without it."""


class HostDiedError(CorpusError):
    """The process that visited a part for a worker has died; the part is tried again."""


class StartError(CorpusError):
    """A stage cannot start because its model is missing or does not load. Retrying elsewhere would not help: the run
    stops.
    """


@contextmanager
def starting(stage: str) -> Iterator[None]:
    """Turn any failure while a stage is created into a `StartError` that names the stage; `StorageError` stays."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        kind = "" if isinstance(error, (PipelineError, ValueError)) else f"{type(error).__name__}: "
        raise StartError(f"{stage} cannot start: {kind}{error}") from error
