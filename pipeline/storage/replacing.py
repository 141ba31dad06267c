"""Writes a file that a person asked for, at any URL: it appears under its name when it is complete, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.base.errors import ConfigError, PipelineError
from pipeline.storage.remote import translate_errors
from pipeline.storage.retry import check_not_chained


class _NotNowError(Exception):
    """Ends a check of a file, which stays as it was."""


def check_replaceable(url: str) -> None:
    """Raise the errors of `replacing_file` if a file cannot be written, before what shall be in it is computed."""
    with contextlib.suppress(_NotNowError), replacing_file(url):
        raise _NotNowError


@contextlib.contextmanager
def replacing_file(url: str) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name only if the block succeeds. Takes any fsspec URL and creates
    folders.
    """
    check_not_chained(url)
    with translate_errors(url):
        fs, path = fsspec.core.url_to_fs(url)
        if fs.isdir(path):
            raise ConfigError(f"{url} is a folder; give the name of a file")
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.{secrets.token_hex(4)}.tmp"
        local = isinstance(fs, LocalFileSystem)
        try:
            if local:
                fs.makedirs(folder, exist_ok=True)
            with fs.open(temporary, "wb") as file:
                yield file
                file.flush()
                if local:
                    os.fsync(file.fileno())
            if local:
                Path(temporary).replace(path)  # `fs.mv` would copy where renaming fails, and readers see half a file
            else:
                fs.mv(temporary, path)
        except BaseException as error:
            with contextlib.suppress(Exception):  # the first error is the one to report
                fs.rm_file(temporary)
            if local and isinstance(error, OSError):
                why = error.strerror or error
                raise PipelineError(f"{url} cannot be written: {why}; fix that, or give another place") from error
            raise
