"""Checks paths that files of a corpus name: no path is trusted before it is known to lie where such files lie.

A marker, a receipt, a ledger, a view or an index may be damaged, or come from somebody else. The files that they name
are read, and sometimes deleted; so each path goes through `named`, and `Store` also refuses any path that leaves the
corpus.
"""

from __future__ import annotations

import re

from pipeline.base.errors import CorpusError

_SHOWN = 120  # characters of a path in a message


def leaves(path: str) -> bool:
    """Return whether a path may lie outside of the folder that it is relative to."""
    return path.startswith("/") or "\0" in path or ".." in path.split("/")


def named(path: str, folder: str, name: str | re.Pattern[str], *, by: str, remedy: str) -> str:
    """Return a path that a file of the corpus names, after checking it.

    Args:
        path: the path.
        folder: the folder in which the named file must lie directly.
        name: the pattern that the file's name must match.
        by: the file that names the path.
        remedy: what to do if the path is wrong; it ends the message.

    Raises:
        CorpusError: if the path lies elsewhere or its name does not match.
    """
    head, _, tail = path.rpartition("/")
    if head == folder and re.fullmatch(name, tail) and not leaves(path) and tail not in ("", "."):
        return path
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"
    raise CorpusError(f"{by} is damaged or was tampered with: it names {shown!r}, nothing in {folder}/; {remedy}")
