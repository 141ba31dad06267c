"""The folder that an export is written to: any fsspec URL that is empty and outside of the corpus.

An export claims its folder with the file `export.lock`, which only one writer can create, and deletes it when its files
are written. An export that is killed leaves it there. Nothing keeps exports apart on a store that has no exclusive
creation of files, which object stores have. A share of an export has a claim of its own, `export.3-of-100.lock`, and
lets files in `data` and of other shares be.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import secrets
import socket
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from pipeline.base.errors import ConfigError, CorpusError, StorageError, visible
from pipeline.storage.remote import is_remote, translate_errors
from pipeline.storage.replacing import replacing_file
from pipeline.storage.retry import give_up_soon
from pipeline.storage.store import Store

CLAIM = "export.lock"
_NAMED = 3  # files that a message names


class ExportTarget:
    """The folder of an export.

    Args:
        url: the folder.
        corpus: the folder of the corpus.
        share: (which, of how many) if this process writes one of several shares of the export; the first is 1.
        completing: names of the files, beside `data`, that complete an export of shares.

    Raises:
        ConfigError: if the folder is not empty, or lies inside the corpus.
    """

    def __init__(
        self, url: str, corpus: str, share: tuple[int, int] | None = None, completing: Collection[str] = ()
    ) -> None:
        self.url = _absolute(url)
        self._given, self._share = url, share
        self._claim_name = CLAIM
        if share:
            self._claim_name = f"export.{share[0]}-of-{share[1]}.lock"
            names = "|".join(map(re.escape, completing))
            self._shared = re.compile(rf"data/.*|export\.\d+-of-{share[1]}\.(json|lock)|{names}", re.DOTALL)
        self.written: dict[str, dict[str, Any]] = {}  # name of a file → its size in bytes, and its SHA-256 if known
        if f"{self.url}/".startswith(f"{_absolute(corpus)}/"):
            raise ConfigError(f"--to {url} lies inside the corpus, whose files are never changed; give another place")
        with translate_errors(url):
            fs, path = fsspec.core.url_to_fs(self.url)
            self._local, self._path = isinstance(fs, LocalFileSystem), path
            fs.invalidate_cache()
            if fs.isfile(path):
                raise ConfigError(f"--to {url} is a file; give the name of a new folder")
        self._refuse(self._files())

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
            self._claim(store, self._claim_name)
        except BaseException:
            _remove(made)
            raise
        try:
            self._refuse(name for name in self._files() if name != self._claim_name)
            try:
                yield
            except BaseException:
                self._delete_written(store)
                raise
            if not self._share:
                self.check()
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                store.delete(self._claim_name)
            _remove(made)
            raise
        store.delete(self._claim_name)

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

    def write_json(self, name: str, value: Any) -> None:
        """Write a small JSON file."""
        self.write_text(name, json.dumps(value, ensure_ascii=False, indent=1) + "\n")

    def add(self, name: str, size: int) -> None:
        """Take a file that another library has written into the folder for one of this export.

        Args:
            name: the file.
            size: how many bytes it has.
        """
        self.written[name] = {"bytes": size}

    def _delete_written(self, store: Store) -> None:
        """Delete what this export has written, as far as possible: the error that ended it is the one to report.

        A store that does not answer is not asked for one file after the other.
        """
        give_up_soon()
        with contextlib.suppress(Exception):
            for name in self.written:
                store.delete(name)
        if self._local and not self._share:
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

    @contextlib.contextmanager
    def completed(self) -> Iterator[None]:
        """Keep other processes from completing an export whose shares are all written, until the block ends.

        Raises `ConfigError` if another one was faster.
        """
        store = Store(self.url)
        self._claim(store, CLAIM)
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                store.delete(CLAIM)

    def holds(self, name: str) -> bool:
        """Return whether the folder holds a file now."""
        return Store(self.url).exists(name)

    def _claim(self, store: Store, name: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        data = f"process {os.getpid()} on {socket.gethostname()} since {now}, {secrets.token_hex(8)}\n".encode()
        if not self._local:
            try:
                is_first = store.create(name, data)
            except NotImplementedError:  # the store cannot create a file exclusively, as the module says
                return
            if not is_first:
                self._refuse([name])
            return
        with self._writing():
            try:
                Path(self._path, name).touch(exist_ok=False)  # unlike `create`, also on disks without hard links
            except FileExistsError:
                self._refuse([name])
        with contextlib.suppress(OSError):  # on a full disk, the files of the export say so
            Path(self._path, name).write_bytes(data)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise StorageError(f"{self.url} cannot be written: {why}; fix that, or give another place") from error

    def _files(self) -> dict[str, int]:
        """Return the sizes of all files in the folder by their names, relative to it."""
        with translate_errors(self._given):
            fs, path = fsspec.core.url_to_fs(self.url)
            fs.invalidate_cache()
            found = fs.find(path, detail=True) if fs.exists(path) else {}
        return {str(one)[len(path.rstrip("/")) + 1 :]: int(about["size"] or 0) for one, about in found.items()}

    def _refuse(self, files: Iterable[str]) -> None:
        """Raise `ConfigError` if there are files."""
        there = set(files)
        if self._share:
            for name, does in ((self._claim_name, "writes this share to"), (CLAIM, "completes the export in")):
                if name in there:
                    raise ConfigError(
                        f"another process {does} --to {self._given}, or was killed while it did: there is {name}, "
                        "which names the process; if that no longer runs, delete this file, and export this share again"
                    )
            there = {name for name in there if not self._shared.fullmatch(name)}
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

    def check(self, apart_from: Collection[str] = ()) -> None:
        """Raise `CorpusError` if the folder does not hold exactly the files that were written, besides the claim and
        some others.
        """
        there, wanted, apart_from = self._files(), self.written, {CLAIM, *apart_from}
        lacking = sorted(name for name in wanted if there.get(name) != wanted[name]["bytes"])
        foreign = sorted(one for one in there if one not in wanted and one not in apart_from and not is_hidden(one))
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
