"""The result of a check, and a few checks that several modules need.

Of credentials for object stores, only whether and where they were found is said, never what they are.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.base.errors import PipelineError
from pipeline.base.formats import number, size
from pipeline.storage.remote import is_remote
from pipeline.storage.store import REMEDIES, Store

Level = Literal["good", "note", "warn", "bad"]
PACKAGE = "sonar-pipeline"
ROOM_BAD, ROOM_WARN = 1e9, 20e9  # bytes


@dataclass(frozen=True)
class Check:
    """One line: what was checked, what was found, and what to do about it.

    `good`: as it should be; `note`: missing, but not needed here; `warn`: works, but needs attention; `bad`: stops a
    run.
    """

    level: Level
    name: str
    found: str
    todo: str = ""


def installed(package: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def requirements() -> dict[str, list[str]]:
    """Return the distributions that this package needs, by extra ("": always), from its installed metadata."""
    found: dict[str, list[str]] = {"": []}
    for extra in importlib.metadata.metadata(PACKAGE).get_all("Provides-Extra") or []:
        found[extra] = []
    for requirement in importlib.metadata.requires(PACKAGE) or []:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"""extra == ['"]([^'"]+)['"]""", requirement)
        if name:
            found.setdefault(extra[1] if extra else "", []).append(name[0])
    return found


def pip_extra(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{PACKAGE}[{extra}]'"


def existing(path: Path) -> Path:
    """Return the folder itself, or its nearest existing parent."""
    path = path.absolute()
    # Path.is_dir raises where it may not look
    return next(folder for folder in (path, *path.parents) if os.path.isdir(folder))  # noqa: PTH112


def room(name: str, folder: Path, dim: int | None = None) -> Check:
    """Check the free space for a folder that may not exist yet.

    Args:
        name: the name of the check.
        folder: the folder.
        dim: the width of embeddings, to say how many sentences fit; None to leave that out.

    Returns:
        The check, bad or a warning if space is short.
    """
    free = shutil.disk_usage(existing(folder)).free
    found = f"{folder}: {size(free)} free"
    if dim:  # FP16 compresses to 0.85; text, scores and what was decoded are about 150 bytes per sentence
        found += f", room for about {number(free / (2 * dim * 0.85 + 150) / 1e6)} million sentences of {dim} dimensions"
    if free < ROOM_WARN:
        level: Level = "bad" if free < ROOM_BAD else "warn"
        return Check(level, name, found, "free some space, or point it to another disk")
    return Check("good", name, found)


def writable(name: str, url: str, shown: str) -> Check:
    """Check whether receipts can be created: a file is written once, and refused the second time. It is deleted
    afterwards.

    Args:
        name: the name of the check.
        url: the folder to write in; a file is created there for a moment.
        shown: how messages name the folder.

    Returns:
        The check.
    """
    path = f".doctor-{secrets.token_hex(6)}"
    try:
        store = Store(url)
        try:
            first, second = store.create(path, b"1"), store.create(path, b"2")
        finally:
            with contextlib.suppress(PipelineError, OSError):
                store.delete(path)
    except PipelineError as error:
        cause = error.__cause__
        if is_remote(url) or not isinstance(cause, OSError):
            return Check("bad", name, str(error))
        todo = REMEDIES.get(cause.errno or 0, "let this user write there, or set another output")
        return Check("bad", name, f"{shown} cannot be written: {cause.strerror}", todo)
    if not first or second:
        return Check(
            "bad",
            name,
            f"{shown} lets a second writer replace a file, so that two workers could both win",
            "use a disk with hard links, or an object store with conditional writes (If-None-Match)",
        )
    return Check("good", name, f"{shown} can be written; a second writer is refused, as receipts need it")


_WHERE = {
    "env": "environment variables",
    "shared-credentials-file": "~/.aws/credentials",
    "config-file": "~/.aws/config",
    "iam-role": "the role of this machine",
    "container-role": "the role of this container",
}


def credentials(urls: Sequence[str]) -> Iterator[Check]:
    """Look for S3 credentials if the client is installed. `urls`: what a configuration reads and writes."""
    wanted = any(url.startswith(("s3://", "s3a://")) for url in urls)
    if not installed("s3fs"):
        return
    import botocore.exceptions
    import botocore.session

    session = botocore.session.Session()
    session.set_config_variable("metadata_service_timeout", 1)
    session.set_config_variable("metadata_service_num_attempts", 1)
    try:
        found = session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        yield Check("bad" if wanted else "warn", "S3", f"credentials: {error}", "set AWS_PROFILE, or unset it")
        return
    if found is not None:
        yield Check("good", "S3", f"credentials found in {_WHERE.get(found.method, found.method)}")
        return
    todo = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role of this machine"
    yield Check("bad" if wanted else "note", "S3", "no credentials found (for s3:// URLs)", todo if wanted else "")
