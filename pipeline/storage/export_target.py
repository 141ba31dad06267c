"""The folder that an export is written to: any fsspec URL that is empty and outside of the corpus."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import IO, Any

import fsspec

from pipeline.base.errors import ConfigError
from pipeline.storage.remote import is_remote, translate_errors
from pipeline.storage.replacing import replacing_file


class ExportTarget:
    """The folder of an export. Raises `ConfigError` if it is not empty, or is inside the corpus."""

    def __init__(self, url: str, corpus: str) -> None:
        self.url = _absolute(url)
        if f"{self.url}/".startswith(f"{_absolute(corpus)}/"):
            raise ConfigError(f"--to {url} lies inside the corpus, whose files are never changed; give another place")
        with translate_errors(url):
            fs, path = fsspec.core.url_to_fs(self.url)
            fs.invalidate_cache()
            if fs.isfile(path):
                raise ConfigError(f"--to {url} is a file; give the name of a new folder")
            if fs.exists(path) and fs.find(path):
                raise ConfigError(
                    f"--to {url} is not empty, and nothing is overwritten; give a new folder, or delete what is there "
                    "(an export without export.json was not finished)"
                )

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file of the folder that appears when it is complete. Folders are created."""
        with replacing_file(f"{self.url}/{name}") as file:
            yield file

    def write_text(self, name: str, text: str) -> None:
        """Write a small text file."""
        with self.file(name) as file:
            file.write(text.encode())

    def write_json(self, name: str, value: Any) -> None:
        """Write a small JSON file."""
        self.write_text(name, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def _absolute(url: str) -> str:
    return url.rstrip("/") if is_remote(url) or "://" in url else os.path.realpath(url)
