"""Paths that files of a corpus name: none of them is believed before it is known to lie where such files lie.

A marker, a receipt, a ledger, a view or an index may be damaged, or come from somebody else. What they name is read,
and sometimes deleted; so each path goes through `named`, and `Store` refuses whatever leaves the corpus all the same.
"""

from __future__ import annotations

import re

from pipeline.base.errors import CorpusError

_SHOWN = 120  # characters of a path in a message


def leaves(path: str) -> bool:
    """Whether a path may lie outside of the folder that it is relative to."""
    return path.startswith("/") or "\0" in path or ".." in path.split("/")


def named(path: str, folder: str, name: str | re.Pattern[str], *, by: str, remedy: str) -> str:
    """A path that a file of the corpus names, if it lies right in `folder` and its name matches the pattern `name`.

    by: the file that names it. Raises `CorpusError` with the file, the path and the remedy.
    """
    head, _, tail = path.rpartition("/")
    if head == folder and re.fullmatch(name, tail) and not leaves(path) and tail not in ("", "."):
        return path
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"
    raise CorpusError(f"{by} is damaged or was tampered with: it names {shown!r}, nothing in {folder}/; {remedy}")
