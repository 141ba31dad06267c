"""The files of an input: found, sorted, told apart by format and compression, and stamped.

Costs one listing of the folder (on object stores one request per thousand files). Files whose own name or folder
starts with a dot or an underscore (`.DS_Store`, `_SUCCESS`) are skipped; anything else that no format fits is an
error.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fsspec.core import url_to_fs

from pipeline.inputs.settings import InputError, InputSettings

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".md": "text",
}
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}


@dataclass(frozen=True)
class InputFile:
    """One file: `path` is relative to the input's root, `size` is in stored bytes, `stamp` changes with the file."""

    path: str
    url: str
    size: int
    stamp: str
    format: str
    compression: str  # "" when plain


def list_files(settings: InputSettings) -> list[InputFile]:
    """All files of a resolved input, sorted by relative path.

    The root is the folder itself, the folder of a single file, or the part of a pattern before its first wildcard.
    Raises InputError if nothing matches, or if a file's format cannot be told.
    """
    fs, path = url_to_fs(settings.path)
    fs.invalidate_cache()
    root, infos = _find(fs, path)
    files = []
    for full, info in infos.items():
        relative = full[len(root) :].lstrip("/")
        if info["type"] == "file" and (full == path or not any(part[0] in "._" for part in relative.split("/"))):
            try:
                relative.encode()
            except UnicodeEncodeError as error:
                raise InputError(f"input {settings.input_name}: file name {full!r} is not UTF-8; rename it") from error
            kind, compression = _format(settings, relative)
            url = str(fs.unstrip_protocol(full))
            if info["size"] is None:
                raise InputError(f"input {settings.input_name}: the server gives no size for {url}; download it first")
            files.append(InputFile(relative, url, int(info["size"]), stamp(fs, full, info), kind, compression))
    if not files:
        raise InputError(
            f"input {settings.input_name}: nothing matches {settings.path} in folder {root or '/'}; "
            "check the path (relative ones start at the YAML's folder)"
        )
    return sorted(files, key=lambda file: file.path)


def stamp(fs: Any, path: str, info: dict[str, Any]) -> str:
    """A string that changes when the file does: the store's ETag, or size and time of the last change."""
    for key in ("ETag", "etag", "md5Hash", "md5", "content_md5"):
        if info.get(key):
            return str(info[key]).strip('"')
    if "file" in _protocols(fs):
        return f"{info['size']}-{Path(path).stat().st_mtime_ns}"
    changed = next((info[key] for key in ("mtime", "LastModified", "last_modified", "created") if info.get(key)), "")
    return f"{info['size']}-{changed.timestamp() if isinstance(changed, datetime) else changed}"


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _find(fs: Any, path: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Root folder and what was found: full path → the store's description."""
    path = path.rstrip("/") or "/"
    if fs.isfile(path):  # first, so that a name with brackets is no pattern
        return posixpath.dirname(path), {path: fs.info(path)}
    wildcard = min((path.index(sign) for sign in "*?[" if sign in path), default=-1)
    if wildcard < 0:
        return path.rstrip("/"), fs.find(path, detail=True)
    return path[:wildcard].rpartition("/")[0], fs.glob(path, detail=True)


def _format(settings: InputSettings, path: str) -> tuple[str, str]:
    """Format and compression by the extensions of the file's name."""
    stem, last = posixpath.splitext(path.lower())
    compression = COMPRESSIONS.get(last, "")
    extension = posixpath.splitext(stem)[1] if compression else last
    kind = FORMATS.get(extension, "") if settings.format == "auto" else settings.format
    if not kind:
        raise InputError(
            f"input {settings.input_name}: the format of {path} cannot be told from its name; known are "
            f"{' '.join(FORMATS)}, each with {' '.join(COMPRESSIONS)}; set `format:`, or a pattern that leaves it out"
        )
    if kind == "parquet" and compression:
        raise InputError(
            f"input {settings.input_name}: {path} is a compressed Parquet file; Parquet compresses inside, "
            f"so unpack it ({compression} -d) first"
        )
    return kind, compression
