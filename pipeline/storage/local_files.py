"""Files of local disks: listing them, telling them from folders, pipes and devices, and having their names kept."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pipeline.base.errors import DamagedError

TO_WRITE = {errno.EACCES: "let this user write there", errno.EROFS: "mount that file system for writing"}


def refusal(folder: str | os.PathLike[str]) -> int:
    """Return why nothing can be created in a folder, `EROFS` or `EACCES`; 0 if something can."""
    if os.access(folder, os.W_OK | os.X_OK):
        return 0
    return errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES


def walk(folder: str, prefix: str) -> Iterator[str]:
    """Yield files below a local folder whose path in it begins with a prefix; folders without the prefix are not
    opened.

    The folder itself may be a link (to another disk); links to folders below it are not followed.
    """
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    name, slash, rest = prefix.partition("/")
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if entry.name == name if slash else entry.name.startswith(name):
                yield from walk(entry.path, rest)
        elif not slash and entry.name.startswith(name) and not entry.is_dir():
            yield entry.path


def link_out(root: str, path: str) -> str:
    """Return the folder on the way from a root to a path that is a link to somewhere outside of the root; empty if none
    is.

    The root itself may be a link, and so may what has the path, of which only the name is changed.
    """
    folders = path.split("/")[:-1]
    for count in range(1, len(folders) + 1):
        folder = Path(root, *folders[:count])
        if folder.is_symlink() and not folder.resolve().is_relative_to(Path(root).resolve()):
            return "/".join(folders[:count])
    return ""


def sync_folder(folder: Path) -> None:
    """Have the disk keep the names of a folder's files, so that they are there after a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_KINDS = {
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFLNK: "link to nothing, or in a circle",
}


def mode_of(full: str) -> int:
    """Return the mode of what a path leads to. Raises `FileNotFoundError`, also for a link to nothing."""
    try:
        return Path(full).stat().st_mode
    except NotADirectoryError:
        raise FileNotFoundError(full) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return stat.S_IFLNK
        raise


def in_the_way(full: str) -> int:
    """Return the mode of what has a name without being a file, so that no file of that name can be created; 0 for a
    file, and for nothing.
    """
    if not os.path.lexists(full):
        return 0
    try:
        mode = mode_of(full)
    except FileNotFoundError:
        mode = stat.S_IFLNK if Path(full).is_symlink() else stat.S_IFREG
    return 0 if stat.S_ISREG(mode) else mode


def not_a_file(where: str, mode: int) -> DamagedError:
    """Return the error for a path that leads to something other than a file; `where` names it."""
    kind = stat.S_IFMT(mode)
    remedy = "move it away" if kind == stat.S_IFDIR else "delete it"
    return DamagedError(
        where, f"it is a {_KINDS.get(kind, 'device')}, not a file", f"{remedy}, and run pipeline verify --repair"
    )
