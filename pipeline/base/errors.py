"""Errors written for the person who can mend them: what is wrong, the value, what is allowed, what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

STEERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Text of data and names of files for a message: one line that cannot steer a terminal, nor turn its direction.

    Control characters, line ends and halves of characters become escapes (`\\x1b`); all else stays as it is.
    """
    return STEERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class PipelineError(Exception):
    """Any failure that the command line reports in words, without a traceback; lines may hold text from anywhere."""

    def __init__(self, message: str) -> None:
        super().__init__("\n".join(visible(line) for line in message.split("\n")))


class ConfigError(PipelineError):
    """corpus.yaml or the command line asks for something impossible (exit code 2)."""


class CorpusError(PipelineError):
    """What lies on disk is missing, damaged or does not balance (exit code 1)."""


class DamagedError(CorpusError):
    """A record of the corpus is not what it should be. `where`: the file; `what`: is wrong with it; `remedy`."""

    def __init__(self, where: str, what: str, remedy: str) -> None:
        super().__init__(f"{where} is damaged ({what}); {remedy}")
        self.where, self.what, self.remedy = where, what, remedy

    def __reduce__(self) -> tuple[type[DamagedError], tuple[str, str, str]]:
        return DamagedError, (self.where, self.what, self.remedy)


class MissingError(CorpusError):
    """A file of the corpus is not there; the store has said so (one that does not answer raises `StorageError`)."""


class StorageError(CorpusError):
    """The corpus cannot be written to: a full disk, no permission. Whatever is tried next fails too, so a run stops."""


class AsideError(CorpusError):
    """A part or chunk that killed its worker again and again; the others go on without it."""


class HostDiedError(CorpusError):
    """The process that visited a part for a worker is gone; the part is tried again."""


class StartError(CorpusError):
    """A stage cannot start: its model is not there, or does not load. It would not elsewhere, so a run stops."""


@contextmanager
def starting(stage: str) -> Iterator[None]:
    """Whatever fails while a stage is made becomes a `StartError` that names it."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, (PipelineError, ValueError)) else f"{type(error).__name__}: "
        raise StartError(f"{stage} cannot start: {kind}{error}") from error
