"""Files of a corpus on any fsspec filesystem: whole-object writes and create-if-absent, nothing else.

Every data file gets a name that was never used before, so a file that is half written by a killed process is never
mistaken for a complete one: readers open only what a receipt names. A receipt is made by `create`, which succeeds for
one writer only, by the means that each store offers:

| store | a file is complete or absent | only the first writer creates |
|---|---|---|
| local disk, NFS | written and synced beside its target, then renamed | hard link (NFS: checked by the link count) |
| S3 | one PUT, or a multipart upload from 100 MB | PUT with If-None-Match: * |
| Google Cloud Storage | one upload, resumable from 50 MB | ifGenerationMatch=0 |
| Azure | one blob upload | overwrite=False, which is If-None-Match: * |

An answer can be lost after the request was carried out. The request is then repeated (`retry.py`) and refused, and the
existing file is compared with what was to be written. Cost: one request per write, one listing per folder.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from pipeline.base.errors import ConfigError, CorpusError, MissingError, StorageError, is_utf8
from pipeline.storage import layout, retry
from pipeline.storage.local_files import TO_WRITE, in_the_way, link_out, mode_of, not_a_file, sync_folder, walk
from pipeline.storage.remote import CorpusStoreError, translate_errors

REMEDIES = {
    errno.ENOSPC: "make space on that disk",
    errno.EDQUOT: "make space, or have the quota raised",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
} | {number: f"{todo}, or give a new corpus another output" for number, todo in TO_WRITE.items()}

_UNFINISHED = re.compile(r"\.[^/]+\.[0-9a-f]{8}\.tmp")

P = ParamSpec("P")
R = TypeVar("R")


def is_unfinished(path: str) -> bool:
    """Tell whether a file on a local disk is being written, or was when its writer was killed: it has no name yet."""
    return _UNFINISHED.fullmatch(path.rpartition("/")[2]) is not None


def _asks(method: Callable[Concatenate[Store, P], R]) -> Callable[Concatenate[Store, P], R]:
    """Repeat a method of a remote `Store` while it fails in a way that may pass; errors name the corpus and the
    remedy.
    """

    @functools.wraps(method)
    def call(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if store.local:
            return method(store, *args, **kwargs)
        with translate_errors(store.url, CorpusStoreError):
            return store._patiently(method.__name__, lambda: method(store, *args, **kwargs))

    return call


class Store:
    """The folder of one corpus. All paths given to it are relative, with forward slashes.

    `local` says whether the folder is on a mounted file system.
    """

    def __init__(self, url: str) -> None:
        if not url:  # which fsspec takes for the working directory
            raise ConfigError("the place of a corpus is empty; give a folder or a URL")
        self.url = url
        with translate_errors(url, CorpusStoreError):
            fs, root = retry.filesystem(url)
            self._service = retry.service_of(fs, url)
        if not is_utf8(url) or not is_utf8(root):  # files of the corpus could not hold it
            raise ConfigError(f"{root}: the name of a folder is not UTF-8; rename the folder")
        self._fs: Any = fs
        self._root = root.rstrip("/")
        self.local = "file" in ((fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol))

    @property
    def place(self) -> str:
        """Return where the corpus is: one text for all names that links and relative paths give to a folder."""
        return str(Path(self._root).resolve()) if self.local else self.url.rstrip("/")

    @property
    def mark(self) -> str:
        """Return the number and the second of the last change of the corpus's first file, as its file system knows
        them: the same on all nodes, whatever the paths by which they reach it, and other ones in a copy. Empty on
        object stores, and before there is that file.
        """
        with contextlib.suppress(OSError):
            if self.local:
                found = Path(self._root, layout.CORPUS_FILE).stat()
                return f"{found.st_ino}-{int(found.st_ctime)}"
        return ""

    def __reduce__(self) -> tuple[type[Store], tuple[str]]:
        return Store, (self.url,)

    def _patiently(self, operation: str, ask: Callable[[], R]) -> R:
        return retry.with_retries(operation, ask, self._service)

    def _full(self, path: str) -> str:
        if leaves(path):
            raise CorpusError(f"{self.url}: {path!r} does not lie in the corpus, so it is neither read nor changed")
        return f"{self._root}/{path}"

    def check_changeable(self, folder: str) -> None:
        """Raise `StorageError` if a folder lies behind a link that leaves the corpus: what is there may not be ours."""
        self._to_change(f"{folder}/")

    def check_links(self) -> None:
        """Raise `StorageError` if a folder of the corpus is a link that leaves it."""
        if self.local and Path(self._root).is_dir():
            for one in Path(self._root).iterdir():
                if one.is_symlink():
                    self.check_changeable(one.name)

    def _to_change(self, path: str) -> str:
        """Return the place of a file to write or delete, which lies in the corpus, and not behind a link out of it."""
        full = self._full(path)
        if self.local and (link := link_out(self._root, path)):
            there = Path(self._root, link).resolve()
            raise StorageError(
                f"{self.url}/{link} is a link out of the corpus, to {there}: nothing is written or deleted there; put "
                "a folder in place of the link, and into it what belongs to the corpus, then run the same command "
                "again (for another disk: move the whole corpus there, whose own folder may be a link)"
            )
        return full

    def _file(self, path: str) -> str:
        """Return the place of a file to read. On local disks that is an ordinary file, or a link to one.

        A pipe would never end, and a device may do anything. Raises `FileNotFoundError`, or `DamagedError` for what is
        no file.
        """
        full = self._full(path)
        if self.local and not stat.S_ISREG(mode := mode_of(full)):
            raise not_a_file(f"{self.url}/{path}", mode)
        return full

    @_asks
    def read(self, path: str) -> bytes:
        """Return the bytes of a file. Raises `MissingError` if it does not exist."""
        try:
            return bytes(self._fs.cat_file(self._file(path)))
        except FileNotFoundError:
            raise MissingError(f"{self.url}: the file {path} is missing") from None

    @_asks
    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return some bytes of a file.

        Args:
            path: the file.
            start: the offset of the first byte.
            end: the offset after the last byte.

        Returns:
            The bytes; fewer where the file ends before.

        Raises:
            MissingError: if the file does not exist.
        """
        try:
            data = bytes(self._fs.cat_file(self._file(path), start=start, end=end)) if end > start else b""
            if not self.local:
                full = self._full(path)
                retry.check_length(full, start, end, data, lambda: self._fs.info(full)["size"])
            return data
        except FileNotFoundError:
            raise MissingError(f"{self.url}: the file {path} is missing") from None
        except Exception as error:  # stores refuse ranges that begin after the end of the file, each in its own way
            if self.local or retry.is_transient(error) or self._fs.info(self._full(path))["size"] > start:
                raise
            return b""

    @_asks
    def open(self, path: str) -> Any:
        """Open a seekable file for reading (Parquet footers, single row groups); local files are memory-mapped."""
        try:
            if self.local:
                return pa.memory_map(self._file(path))
            return _Ranges(self, path, int(self._fs.info(self._full(path))["size"]))
        except FileNotFoundError:
            raise MissingError(f"{self.url}: the file {path} is missing, though a receipt names it") from None

    @_asks
    def exists(self, path: str) -> bool:
        """Return whether a file exists now."""
        if self.local:
            return Path(self._full(path)).exists()
        self._fs.invalidate_cache(self._full(path).rpartition("/")[0])
        return bool(self._fs.exists(self._full(path)))

    @_asks
    def write(self, path: str, data: bytes | memoryview) -> None:
        """Write a whole file under a name that no other writer uses; local files are synced when this returns."""
        if self.local:
            # cleaning up deletes files of a part that another worker finished: our receipt will not count
            with self._writing(path, data) as temporary, contextlib.suppress(FileNotFoundError):
                temporary.rename(self._full(path))
        else:
            self._fs.pipe_file(self._full(path), bytes(data))

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file unless the name exists. Returns True for the one writer that created it.

        Raises `DamagedError` if what has the name is no file, but a folder, a pipe or a link to nothing.

        The data must differ from any other writer's: on object stores, a writer whose answer was lost recognises its
        own file by its content.
        """
        if self.local:
            with self._writing(path, data) as temporary:
                try:
                    os.link(temporary, self._full(path))
                except FileExistsError:
                    if mode := in_the_way(self._full(path)):  # or who creates the next name would wait for ever
                        raise not_a_file(f"{self.url}/{path}", mode) from None
                    return temporary.stat().st_nlink > 1
            return True
        return self._create(path, data) or (bool(data) and self._holds(path, data))

    @_asks
    def _create(self, path: str, data: bytes) -> bool:
        try:
            self._fs.pipe_file(self._full(path), data, mode="create")
        except FileExistsError:
            return False
        except (
            OSError
        ) as error:  # stores report a refused condition differently: what counts is whether the file exists
            if retry.is_transient(error) or not self._fs.exists(self._full(path)):
                raise
            return False
        return True

    @_asks
    def _holds(self, path: str, data: bytes) -> bool:
        try:
            return bool(self._fs.cat_file(self._full(path)) == data)
        except FileNotFoundError:
            return False

    @contextlib.contextmanager
    def _writing(self, path: str, data: bytes | memoryview) -> Iterator[Path]:
        """Write the data to a temporary file beside the target, to be renamed or linked. Raises `StorageError`."""
        target = Path(self._to_change(path))
        temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}.tmp"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                yield temporary
                sync_folder(target.parent)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            todo = REMEDIES.get(error.errno or 0, "fix that")
            raise StorageError(
                f"{self.url}: cannot write {path} ({len(data)} bytes): {error.strerror}; {todo}, then run the same "
                "command again: finished work is kept"
            ) from error

    @_asks
    def delete(self, path: str) -> None:
        """Delete a file, link, pipe or socket; what does not exist is not an error.

        Raises `DamagedError` for a folder, which may hold what is not ours.
        """
        full = self._to_change(path)
        if self.local and Path(full).is_dir() and not Path(full).is_symlink():
            raise not_a_file(f"{self.url}/{path}", stat.S_IFDIR)
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(full)

    def delete_folder(self, folder: str) -> None:
        """Delete every file below a folder; on disks also the folders. A link is deleted, but not its target."""
        if self.local and Path(self._to_change(folder)).is_symlink():
            self.delete(folder)
            return
        for path in self.find(folder):
            self.delete(path)
        if self.local:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self._full(folder))

    @_asks
    def modified(self, path: str) -> float:
        """Return when a file was last written or touched, in seconds since the epoch by the store's own clock.

        Raises `MissingError` if it does not exist.
        """
        full = self._full(path)
        try:
            if self.local:
                return Path(full).stat().st_mtime
            self._fs.invalidate_cache(full.rpartition("/")[0])
            return _time_of(self._fs.info(full))
        except FileNotFoundError:
            raise MissingError(f"{self.url}: the file {path} is missing") from None

    @_asks
    def size(self, path: str) -> int:
        """Return the size of a file in bytes; 0 if it does not exist."""
        full = self._full(path)
        try:
            return Path(full).stat().st_size if self.local else int(self._fs.info(full)["size"] or 0)
        except FileNotFoundError:
            return 0

    @_asks
    def touch(self, path: str) -> None:
        """Set a small file's modification time to now, by the store's own clock; its content stays.

        On an object store the file is read and written again, so this is for files that only one process writes. Raises
        `MissingError` if it does not exist.
        """
        if not self.local:
            self._fs.pipe_file(self._full(path), self.read(path))
            return
        try:
            os.utime(self._to_change(path))
        except FileNotFoundError:
            raise MissingError(f"{self.url}: the file {path} is missing") from None

    @_asks
    def folders(self, folder: str) -> list[str]:
        """Return the sorted names of the folders directly below a folder; empty if there is no such folder."""
        full = self._full(folder)
        if not self.local:
            self._fs.invalidate_cache()
        found = self._fs.ls(full, detail=True) if self._fs.exists(full) else []
        return sorted(str(one["name"]).rstrip("/").rpartition("/")[2] for one in found if one["type"] == "directory")

    @_asks
    def find(self, folder: str, prefix: str = "") -> list[str]:
        """Return the sorted paths, relative to the corpus, of files below a folder whose path in it begins with a
        prefix.

        The result is empty if there is no such folder. Object stores list only what has the prefix.
        """
        return sorted(self._below(folder, prefix))

    @_asks
    def find_any(self, folder: str, prefixes: Collection[str]) -> list[str]:
        """Find files in a folder whose names begin with one of `prefixes`: one listing each, on local disks one for
        all.
        """
        if not self.local:
            return sorted(path for prefix in prefixes for path in self._below(folder, prefix))
        full, cut, wanted = self._full(folder), len(self._root) + 1, tuple(prefixes)
        try:
            with os.scandir(full) as entries:
                return sorted(one.path[cut:] for one in entries if one.name.startswith(wanted) and one.is_file())
        except FileNotFoundError:
            return []

    @_asks
    def listing(self, folder: str) -> dict[str, float]:
        """List all complete files below a folder at once: path → modification time by the store's own clock.

        The result is empty if there is no such folder. A file that is deleted meanwhile may be missing.
        """
        if not self.local:
            return {path: _time_of(info) for path, info in self._below(folder, "").items()}
        found = {}
        for path in self._below(folder, ""):
            if not path.endswith(".tmp"):
                with contextlib.suppress(FileNotFoundError):
                    found[path] = Path(self._full(path)).stat().st_mtime
        return found

    def _below(self, folder: str, prefix: str) -> dict[str, Any]:
        """Return the files below a folder: path → the store's description (empty on local disks)."""
        full, cut = self._full(folder), len(self._root) + 1
        if self.local:
            return {path[cut:]: None for path in walk(full, prefix)}
        self._fs.invalidate_cache()
        try:
            found: dict[str, Any] = self._fs.find(full, prefix=prefix, detail=True)
        except FileNotFoundError:
            return {}
        wanted = f"{full.rstrip('/')}/{prefix}"  # some stores ignore a prefix
        return {str(path)[cut:]: info for path, info in found.items() if str(path).startswith(wanted)}


class _Ranges(io.RawIOBase):
    """A file of an object store that reads exactly what is asked for, without reading ahead; Parquet knows what it
    needs.
    """

    def __init__(self, store: Store, path: str, size: int) -> None:
        self._store, self._path, self._size, self._at = store, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._store.read_range(self._path, self._at, min(self._at + len(buffer), self._size))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _time_of(info: dict[str, Any]) -> float:
    """Return the modification time in a store's description of a file, which each store names in its own way."""
    names = ("LastModified", "last_modified", "mtime", "updated", "created")
    when = next(info[name] for name in names if info.get(name))
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return float(when.timestamp()) if isinstance(when, datetime) else float(when)


_SHOWN = 120  # characters of a path in a message


LONGEST_NAME = 255  # of a file or folder, on most file systems


def leaves(path: str) -> bool:
    """Return whether a path may lie outside of the folder that it is relative to, or cannot be one."""
    names = path.split("/")
    return path.startswith("/") or "\0" in path or ".." in names or max(map(len, names)) > LONGEST_NAME


def named(path: str, folder: str, name: str | re.Pattern[str], *, by: str, remedy: str) -> str:
    """Return a path that a file of the corpus names, after checking it.

    A marker, a receipt, a ledger, a view or an index may be damaged, or come from somebody else. The files that they
    name are read, and sometimes deleted, so no path is trusted before it is known to lie where such files lie.

    Args:
        path: the path.
        folder: the folder in which the named file must lie directly.
        name: the pattern that the file's name must match.
        by: the file that names the path.
        remedy: what to do if the path is wrong; it ends the message.

    Returns:
        The path itself.

    Raises:
        CorpusError: if the path lies elsewhere or its name does not match.
    """
    head, _, tail = path.rpartition("/")
    if head == folder and re.fullmatch(name, tail) and not leaves(path) and tail not in ("", "."):
        return path
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"
    raise CorpusError(f"{by} is damaged or was tampered with: it names {shown!r}, nothing in {folder}/; {remedy}")
