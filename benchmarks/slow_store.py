"""A folder that answers late, as an object store does: `slow:///folder`, for fsspec."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

_counting = threading.Lock()
LATENCY = "SLOW_STORE_LATENCY"  # seconds, for the file system of each process


class SlowFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The file system. `requests`: how many it was asked; `sent`: the bytes that it answered."""

    protocol = ("slow",)
    requests = sent = 0

    def _wait(self) -> None:
        with _counting:
            SlowFileSystem.requests += 1
        time.sleep(float(os.environ[LATENCY]))

    def cat_file(self, *arguments: Any, **named: Any) -> bytes:
        """Return bytes of a file."""
        self._wait()
        data = bytes(super().cat_file(*arguments, **named))
        with _counting:
            SlowFileSystem.sent += len(data)
        return data

    def info(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """Return the size of a file; `exists` asks this too."""
        self._wait()
        return dict(super().info(*arguments, **named))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a file."""
        self._wait()
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("xb" if mode == "create" else "wb") as file:
            file.write(value)


fsspec.register_implementation("slow", SlowFileSystem, clobber=True)
