"""The folder that an export is written to: any fsspec URL that is empty and outside of the corpus.

An export claims its folder with the file `export.lock`, which only one writer can create, and deletes it when its files
are written. An export that is killed leaves it there. Nothing keeps exports apart on a store that has no exclusive
creation of files, which object stores have. Several processes may write shares of one export: each has files of its
own, so these need no claim.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import socket
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.base.errors import ConfigError, CorpusError, StorageError, visible
from pipeline.storage.remote import is_remote, no_output, translate_errors
from pipeline.storage.replacing import replacing_file
from pipeline.storage.retry import check_not_chained, give_up_soon
from pipeline.storage.store import Store

CLAIM = "export.lock"
_NAMED = 3  # files that a message names


class ExportTarget:
    """The folder of an export.

    Args:
        url: the folder.
        corpus: the folder of the corpus.
        shared: names and folders (`data/`) of the files that processes with other shares of this export may have
            written; None if this process writes all.

    Raises:
        ConfigError: if the folder holds other files, or lies inside the corpus.
    """

    def __init__(self, url: str, corpus: str, shared: Collection[str] | None = None) -> None:
        self.url = _absolute(url)
        self._given = url
        self.written: dict[str, dict[str, Any]] = {}  # name of a file → its size in bytes, and its SHA-256 if known
        if f"{self.url}/".startswith(f"{_absolute(corpus)}/"):
            raise ConfigError(f"--to {url} lies inside the corpus, whose files are never changed; give another place")
        if why := no_output(url):
            raise ConfigError(f"--to {url}: {why}; give a folder, or a URL: s3://… gs://… az://…")
        check_not_chained(self.url)
        with translate_errors(url):
            fs, path = fsspec.core.url_to_fs(self.url)
            self._local, self._path = isinstance(fs, LocalFileSystem), path
            fs.invalidate_cache()
            if fs.isfile(path):
                raise ConfigError(f"--to {url} is a file; give the name of a new folder")
        self._refuse(name for name in self.sizes() if shared is None or not _is_of(name, shared))

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other exports out of the folder until the block ends; write what completes the export after that.

        Folders are created. When the block fails, the files that were written until then are deleted, as far as
        possible, and so are the new folders that are empty then.

        Yields:
            Nothing, while the folder is this export's.

        Raises:
            ConfigError: if another export was faster.
            CorpusError: if the folder then holds other files than those of this export.
            StorageError: if the folder cannot be written.
        """
        store, made = Store(self.url), self._make_folders()
        try:
            self._claim(store)
        except BaseException:
            _remove(made)
            raise
        try:
            self._refuse(name for name in self.sizes() if name != CLAIM)
            try:
                yield
            except BaseException:
                self._delete_written(store)
                raise
            self.check()
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                store.delete(CLAIM)
            _remove(made)
            raise
        store.delete(CLAIM)

    @contextlib.contextmanager
    def completed_by(self, last: str) -> Iterator[None]:
        """Surround what completes the export after `claimed`. When it fails, the export's files are deleted, as far as
        possible: the folder of an export that is not complete is refused. `last`: the file that completes it.
        """
        try:
            yield
        except Exception:  # a kill may come when the export is complete
            store = Store(self.url)
            with contextlib.suppress(Exception):  # the first error is the one to report
                store.delete(last)  # its answer may have been lost
                self._delete_written(store)
            raise

    @contextlib.contextmanager
    def file(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file of the folder that appears when it is complete. Folders are created."""
        with replacing_file(f"{self.url}/{name}") as file:
            digested = _Digested(file)
            yield cast(IO[bytes], digested)
        self.written[name] = {"bytes": digested.tell(), "sha256": digested.sha256.hexdigest()}

    def write_text(self, name: str, text: str) -> None:
        """Write a small text file."""
        with self.file(name) as file:
            file.write(text.encode())

    def add(self, name: str, size: int) -> None:
        """Take a file that another library has written into the folder for one of this export. `size`: its bytes."""
        self.written[name] = {"bytes": size}

    def _delete_written(self, store: Store) -> None:
        """Delete what this export has written, as far as possible: the error that ended it is the one to report.

        A store that does not answer is not asked for one file after the other.
        """
        give_up_soon()
        with contextlib.suppress(Exception):
            for name in self.written:
                store.delete(name)
        if self._local:
            below = [Path(folder) for folder, *_ in os.walk(self._path, topdown=False)]
            _remove(below[:-1])  # the last one is the folder of the export

    def _make_folders(self) -> list[Path]:
        """Create the folder, if it is on this machine. Returns the folders that were lacking, the innermost first."""
        if not self._local:
            return []
        folder = Path(self._path)
        made = [one for one in (folder, *folder.parents) if not one.exists()]
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)
        return made

    def _claim(self, store: Store) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        data = f"process {os.getpid()} on {socket.gethostname()} since {now}, {secrets.token_hex(8)}\n".encode()
        if not self._local:
            try:
                is_first = store.create(CLAIM, data)
            except NotImplementedError:  # the store cannot create a file exclusively, as the module says
                return
            if not is_first:
                self._refuse([CLAIM])
            return
        with self._writing():
            try:
                Path(self._path, CLAIM).touch(exist_ok=False)  # unlike `create`, also on disks without hard links
            except FileExistsError:
                self._refuse([CLAIM])
        with contextlib.suppress(OSError):  # on a full disk, the files of the export say so
            Path(self._path, CLAIM).write_bytes(data)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise StorageError(f"{self.url} cannot be written: {why}; fix that, or give another place") from error

    def holds(self, name: str) -> bool:
        """Return whether the folder holds a file now."""
        return Store(self.url).exists(name)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files in the folder by their names, relative to it."""
        with translate_errors(self._given):
            fs, path = fsspec.core.url_to_fs(self.url)
            fs.invalidate_cache()
            found = fs.find(path, detail=True) if fs.exists(path) else {}
        return {str(one)[len(path.rstrip("/")) + 1 :]: int(about["size"] or 0) for one, about in found.items()}

    def _refuse(self, files: Iterable[str]) -> None:
        """Raise `ConfigError` if there are files."""
        there = set(files)
        if CLAIM in there:
            raise ConfigError(
                f"another export writes to --to {self._given}, or was killed there: it holds {CLAIM}, which names the "
                "process; give a new folder, or, if that export no longer runs, delete what is there"
            )
        if there:
            raise ConfigError(
                f"--to {self._given} is not empty, and nothing is overwritten; give a new folder, or delete what is "
                "there (an export without export.json was not finished)"
            )

    def check(self, beside: Collection[str] = (CLAIM,)) -> None:
        """Raise `CorpusError` if the folder does not hold exactly the files that were written, and some beside them."""
        there, wanted = self.sizes(), self.written
        lacking = sorted(name for name in wanted if there.get(name) != wanted[name]["bytes"])
        foreign = sorted(name for name in there if name not in wanted and not _is_of(name, beside))
        if not lacking and not foreign:
            return
        what = f"holds other files ({first_of(foreign)})" if foreign else f"lacks files ({first_of(lacking)})"
        raise CorpusError(
            f"{self.url} {what} than this export has written: something else changed it meanwhile; delete it, and "
            "export again"
        )


class _Digested(io.RawIOBase):
    """Computes the SHA-256 of what is written to a file, from its beginning to its end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._size = file, 0
        self.sha256 = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.sha256.update(data)
        size = memoryview(data).nbytes
        self._size += size
        return size


def is_hidden(name: str) -> bool:
    """Return whether a file is of the system or of another program: `.DS_Store`, `.cache/…`."""
    return any(step.startswith(".") for step in name.split("/"))


def _is_of(name: str, allowed: Collection[str]) -> bool:
    """Return whether a file is hidden, has one of some names, or lies in one of some folders, which end in `/`."""
    folders = (name[: place + 1] for place, letter in enumerate(name) if letter == "/")
    return is_hidden(name) or name in allowed or any(folder in allowed for folder in folders)


def _remove(folders: Iterable[Path]) -> None:
    """Delete folders that are empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def first_of(names: list[str]) -> str:
    """Name the first few files, and say how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(visible, names[:_NAMED])) + more


def _absolute(url: str) -> str:
    return url.rstrip("/") if is_remote(url) or "://" in url else os.path.realpath(url)
