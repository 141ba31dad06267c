"""Lists the files of an input: sorted, with format, compression and a stamp that changes with the file.

Costs one listing of the folder (on object stores one request per thousand files). Files whose own name or folder starts
with a dot or an underscore (`.DS_Store`, `_SUCCESS`) are skipped; a file of unknown format is an error. Anything else
that is found but cannot be read (no permission, a broken link, a named pipe, a folder where a pattern wants files)
becomes an entry of format "unreadable", so that it appears in quarantine and in the accounting while the rest of the
input is processed.
"""

from __future__ import annotations

import errno
import glob
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from pipeline.base.errors import is_utf8
from pipeline.inputs.chunk import UNREADABLE
from pipeline.inputs.settings import InputError, InputSettings
from pipeline.storage.remote import is_remote, missing_bucket
from pipeline.storage.retry import filesystem, is_transient, service_of, with_retries
from stages.shipped import how_to_get

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".md": "text",
}
_DELIMITED = "a table becomes Parquet by: python -m pipeline.inputs.delimited IN.csv OUT.parquet"
_EXCEL = (  # values as they are: 007 is no number, and NA no missing value
    "a table becomes Parquet by: python -c \"import pandas; pandas.read_excel('IN.xlsx', dtype=str, "
    "keep_default_na=False).to_parquet('OUT.parquet')\""
)
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}
KNOWN = (
    f".parquet, and {' '.join(one for one in FORMATS if one != '.parquet')}, these also with {' '.join(COMPRESSIONS)}"
)
_UNPACK = "archives are to be unpacked first: unzip FILE, tar xf FILE"
_AS_TEXT = "logs, mail, source code and the like are read by an input with `format: text` (path: 'data/*.log')"
_DOCUMENTS = "pandoc makes text of HTML, XML, DOCX, EPUB and ODT: pandoc -t plain FILE -o FILE.txt"
_ARROW = (
    'Arrow and Feather files become Parquet, each by: python -c "import pyarrow as pa, pyarrow.parquet as pq; '
    "f = pa.memory_map('IN.arrow'); read = pa.ipc.open_file if f.read(6) == b'ARROW1' else pa.ipc.open_stream; "
    "f.seek(0); pq.write_table(read(f).read_all(), 'OUT.parquet')\""
)
_PARTITION = re.compile(r"([^/=]+)=[^/]*(?=/)")
_INTO_FILES = (
    'to write such values into the files, in a copy: python -c "import sys, pyarrow.dataset as ds; '
    "ds.write_dataset(ds.dataset(sys.argv[1], partitioning='hive'), sys.argv[2], format='parquet', "
    'use_threads=False)" FOLDER COPY'
)
_CONVERTED = {
    **dict.fromkeys((".csv", ".tsv"), _DELIMITED),
    ".xlsx": _EXCEL,
    **dict.fromkeys((".arrow", ".feather", ".ipc"), _ARROW),
    **dict.fromkeys((".zip", ".tar", ".tgz"), _UNPACK),
    **dict.fromkeys((".log", ".py", ".srt", ".rst", ".eml"), _AS_TEXT),
    **dict.fromkeys((".html", ".htm", ".xml", ".docx", ".epub", ".odt"), _DOCUMENTS),
    ".pdf": "pdftotext makes text of PDF: pdftotext FILE FILE.txt",
    ".warc": "warcio reads the pages of WARC files, and trafilatura extracts their text",
    ".wet": "warcio reads the texts of WET files; write them as JSONL",
    **{
        f".parquet{one}": f"Parquet compresses inside: unpack it ({name} -d FILE)" for one, name in COMPRESSIONS.items()
    },
}
SYSTEM = ("/proc/", "/sys/", "/dev/")
IN_MEMORY = "/dev/shm/"  # noqa: S108  files of users, although the folder lies below /dev
BRACES = "; {a,b} has no meaning in it: make two inputs of it"
CLOSED = f"{os.strerror(errno.EACCES)}; let this user read it, or leave it out of `path:`"


@dataclass(frozen=True)
class InputFile:
    """One file: `path` is relative to the input's root, `size` is in stored bytes, `stamp` changes with the file.

    With format "unreadable", `stamp` says why; once the file can be read, its stamp is different.
    """

    path: str
    url: str
    size: int
    stamp: str
    format: str
    compression: str  # "" when plain


def list_files(settings: InputSettings) -> list[InputFile]:
    """Return all files of a resolved input, sorted by relative path.

    The root is the folder itself, the folder of a single file, or the part of a pattern before its first wildcard.
    Raises InputError if nothing matches, nothing that matches can be read, or a file's format is unknown.
    """
    fs, path = filesystem(settings.path)
    if "file" in _protocols(fs):
        fs = _LocalFiles(settings.follow_links)
    fs.invalidate_cache()
    if any("**" in one and one != "**" for one in path.split("/")):
        raise InputError(
            f"input {settings.input_name}: in {settings.path}, ** stands in a name; alone between slashes it means any "
            "folders, and * any characters of a name: data/**/*.jsonl"
        )
    root, infos = with_retries("list input", lambda: _find(fs, path), service_of(fs, settings.path))
    if "//" in path and path not in infos and not {"file", "http"}.intersection(_protocols(fs)):
        raise InputError(
            f"input {settings.input_name}: {settings.path} has two slashes in a row, which object stores take for a "
            "folder without a name, and nothing is looked for in that; leave out one, or give the folder above it, all "
            "of whose files are read"
        )
    files = []
    for full, info in infos.items():
        relative = full[len(root) :].removeprefix("/")  # what follows may begin with / as well, on an object store
        if full == path or not any(part[:1] in (".", "_") for part in relative.split("/")):
            file = _file(settings, fs, full, relative, info, infos)
            files += [file] if file else []
    if not files:
        raise InputError(
            f"input {settings.input_name}: nothing matches {settings.path}{_why_nothing(settings.path, root)}"
        )
    if all(file.format == UNREADABLE for file in files):
        first = files[0]
        raise InputError(
            f"input {settings.input_name}: nothing of {settings.path} can be read; {first.path or root}: {first.stamp}"
        )
    return sorted(_once_each(fs, files), key=lambda file: file.path)


def _why_nothing(path: str, root: str) -> str:
    """Say where nothing matches a path, and what to do."""
    if bucket := missing_bucket(path):
        return f": there is no bucket {bucket}; make it, or correct its name"
    if remedy := how_to_get(path):
        return f"; {remedy}"
    where = "" if root == path else f" in folder {root or '/'}"
    todo = f"{where}; check the path"
    if is_remote(path):
        return f"{todo}{_not_expanded(path)}"
    return f"{todo} (relative ones start at the YAML's folder{_not_expanded(path)})"


def _not_expanded(path: str) -> str:
    """Say what a path holds that a shell would expand."""
    if re.search(r"\$\w|\$\{\w", path):
        return (
            "; variables of the environment are not expanded in corpus.yaml: write their values, or let the shell do "
            'it: --set "input.0.path=$DIR/*.jsonl"'
        )
    return BRACES if "{" in path else ""


def _once_each(fs: Any, files: list[InputFile]) -> list[InputFile]:
    """Mark local files that are reached a second time through links as unreadable: their documents would be
    duplicated.
    """
    if not isinstance(fs, _LocalFiles):
        return files
    readable = [file for file in files if file.format != UNREADABLE]
    places = {file.url: str(fs._strip_protocol(file.url)) for file in readable}
    targets = {url: os.path.realpath(place) for url, place in places.items()}
    first: dict[str, InputFile] = {}
    for file in sorted(readable, key=lambda file: (targets[file.url] != places[file.url], file.path)):  # links last
        first.setdefault(targets[file.url], file)
    return [
        file
        if file.format == UNREADABLE or (same := first[targets[file.url]]) is file
        else replace(file, size=0, stamp=f"it is the same file as {same.path}, which is read", format=UNREADABLE)
        for file in files
    ]


def stamp(fs: Any, path: str, info: dict[str, Any]) -> str:
    """Return a string that changes when the file does.

    Args:
        fs: an fsspec filesystem.
        path: the file.
        info: what the filesystem says about it.

    Returns:
        The store's ETag or checksum, or size and time of the last change.
    """
    for key in ("ETag", "etag", "md5Hash", "md5", "content_md5", "blob_id"):  # the last is of the Hugging Face Hub
        if info.get(key):
            return str(info[key]).strip('"')
    if "file" in _protocols(fs):
        return f"{info['size']}-{Path(path).stat().st_mtime_ns}"
    changed = next((info[key] for key in ("mtime", "LastModified", "last_modified", "created") if info.get(key)), "")
    return f"{info['size']}-{changed.timestamp() if isinstance(changed, datetime) else changed}"


class _LocalFiles(LocalFileSystem):  # type: ignore[misc]
    """A local file system that skips nothing; fsspec silently leaves out links, and folders that it may not list.

    If something is wrong with an entry, its info says so as `why`. Links are followed within the folder `inside`, and
    out of it if `follow_links` says so; nothing of the system (/proc) is read, whatever leads there.
    """

    cachable = False

    def __init__(self, follow_links: bool) -> None:
        super().__init__()
        self._follow_links = follow_links
        self.inside = ""  # the folder of the input, once it is known
        self.closed: dict[str, str] = {}  # folders that could not be listed

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        try:
            infos = [self._followed(info) for info in super().ls(path, detail=True, **kwargs)]
        except FileNotFoundError:
            raise
        except OSError as error:
            self.closed[str(self._strip_protocol(path))] = f"the folder cannot be listed: {_why(error)}"
            infos = []
        return infos if detail else [info["name"] for info in infos]

    def alone(self, path: str) -> dict[str, Any] | None:
        """Return what stands at a path, unless it is a folder, or nothing."""
        try:
            info = self.info(path)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
                return None
            return {"name": path, "size": 0, "type": "other", "why": _leads_nowhere(path, error)}
        return None if info["type"] == "directory" else self._followed(info)

    def _followed(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the target's info under the link's name; a link to a folder around it would be followed endlessly."""
        name = info["name"]
        if info["islink"]:
            try:
                info = self.info(name)
            except OSError as error:
                return info | {"why": _leads_nowhere(name, error)}
        if info["islink"] and info["type"] == "directory":
            target = Path(name).resolve()
            if any(parent.resolve().is_relative_to(target) for parent in Path(name).parents):
                return info | {"type": "other", "why": "the link leads to a folder that it lies in"}
        if why := self._lies_elsewhere(name):
            return info | {"size": 0, "type": "other", "why": why}
        if info["type"] == "other":
            return info | {"why": "it is not a regular file (a pipe, socket or device)"}
        if info["type"] == "file" and not os.access(name, os.R_OK):
            return info | {"why": CLOSED}
        return info

    def _lies_elsewhere(self, name: str) -> str:
        """Say why something is not read because of its place, after resolving links; empty if it may be read."""
        target = os.path.realpath(name)
        if f"{target}/".startswith(SYSTEM) and not target.startswith(IN_MEMORY):
            return f"it lies in {target}, which is the system's and holds no documents"
        if not self.inside or self._follow_links or Path(target).is_relative_to(os.path.realpath(self.inside)):
            return ""
        return f"the link leads out of the input's folder, to {target}; set `follow_links: true` to read it"


def _leads_nowhere(path: str, error: OSError) -> str:
    return f"the link leads nowhere: {error.strerror}" if Path(path).is_symlink() else _why(error)


def _why(error: OSError) -> str:
    return CLOSED if error.errno == errno.EACCES else str(error.strerror)


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _find(fs: Any, path: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the root folder and what was found: full path → the store's description."""
    path = path.rstrip("/") or "/"
    local = isinstance(fs, _LocalFiles)
    one = fs.alone(path) if local else _file_at(fs, path)
    if one:  # first, so that a name with brackets is not a pattern
        return path.rpartition("/")[0], {path: one}
    begin = _named_literally(path) if local else 0
    wildcard = min((path.index(sign, begin) for sign in "*?[" if sign in path[begin:]), default=-1)
    root = path.rstrip("/") if wildcard < 0 else path[:wildcard].rpartition("/")[0]
    if local:
        fs.inside = root or "/"
    if wildcard < 0:
        found = dict(fs.find(path, detail=True))
    elif local:
        found = _below_matching(fs, root, path[len(root) :])
    elif "**" in path or "http" in _protocols(fs):  # listed whole; or links of a page, which have no levels
        found = dict(fs.glob(path, detail=True))
    else:
        matches = re.compile(glob_translate(path)).match
        levels = path.removeprefix(root).lstrip("/").count("/") + 1
        found = {info["name"]: info for info in _below(fs, root, levels) if matches(info["name"])}
    if local:
        found |= {name: {"size": 0, "type": "other", "why": why} for name, why in fs.closed.items()}
    return root, found


def _below_matching(fs: _LocalFiles, root: str, pattern: str) -> dict[str, dict[str, Any]]:
    """Return what matches below a folder, whose own name is not a pattern; fsspec's `glob` takes it for one."""
    depth = None if "**" in pattern else pattern.count("/")
    matches = re.compile(glob_translate(f"{glob.escape(root)}{pattern}")).match
    return {name: info for name, info in fs.find(root or "/", depth, True, detail=True).items() if matches(name)}


def _named_literally(path: str) -> int:
    """Return how much of a path is the name of a folder that exists, signs of patterns included: `notes [2024]`."""
    end = len(path)
    while end > 0 and not Path(path[:end]).is_dir():
        end = path.rfind("/", 0, end)
    return max(end, 0)


def _file_at(fs: Any, path: str) -> dict[str, Any] | None:
    try:
        info: dict[str, Any] = fs.info(path)
    except Exception as error:  # whatever a store says of a pattern, or of what is not there
        if is_transient(error):
            raise
        return None
    return info if info["type"] == "file" else None


def _below(fs: Any, folder: str, levels: int) -> Iterator[dict[str, Any]]:
    """Yield what `levels` levels of folders hold; fsspec's own `glob` leaves out folders whose listing fails."""
    try:
        infos = fs.ls(folder, detail=True)
    except FileNotFoundError:
        return
    for info in infos:
        info = info | {"name": info["name"].rstrip("/")}
        if info["name"] == folder:  # the marker of a folder that web consoles create
            continue
        yield info
        if info["type"] == "directory" and levels > 1:
            yield from _below(fs, info["name"], levels - 1)


def _file(
    settings: InputSettings, fs: Any, full: str, relative: str, info: dict[str, Any], infos: dict[str, Any]
) -> InputFile | None:
    """Return an entry of the listing; None for a folder, unless the pattern matched it as a file and nothing below is
    read.
    """
    why = info.get("why")
    if info["type"] == "directory":
        extension = posixpath.splitext(relative.lower())[1]
        if extension not in FORMATS.keys() | COMPRESSIONS.keys() or any(one.startswith(f"{full}/") for one in infos):
            return None
        why = f"it is a folder, and the pattern is for files; to read it, make it an input of its own ({full})"
    if not is_utf8(relative):
        full, relative = (os.fsencode(one).decode("utf-8", "backslashreplace") for one in (full, relative))
        why = "its name is not UTF-8; rename it"
    if "::" in relative:
        why = "its name holds ::, which would be taken for a chained URL; rename it"
    url = str(fs.unstrip_protocol(full))
    if why:
        size = int(info["size"] or 0) if info["type"] == "file" else 0  # else it is not its content's
        return InputFile(relative, url, size, why, UNREADABLE, "")
    kind, compression = _format(settings, relative)
    if info["size"] is None:
        raise InputError(f"input {settings.input_name}: the server gives no size for {url}; download it first")
    return InputFile(relative, url, int(info["size"]), stamp(fs, full, info), kind, compression)


def in_folder_names(paths: Iterable[str], column: str = "", besides: Collection[str] = ()) -> str:
    """Say which values stand in names of folders (`year=2010/`, Hive's partitions), where no column is read from.

    Args:
        paths: some files of an input.
        column: the column that is looked for; empty for all.
        besides: columns that the files have anyway.

    Returns:
        What stands there and how it becomes columns; empty if nothing does.
    """
    parts = (at for path in paths for at in _PARTITION.finditer(path))
    found = {at[1]: at[0] for at in parts if column in ("", at[1]) and at[1] not in besides}
    if not found:
        return ""
    stand = "stands" if len(found) == 1 else "stand"
    return (
        f"{', '.join(found)} {stand} in the names of folders ({'/'.join(found.values())}), which give no columns; "
        f"{_INTO_FILES}"
    )


def format_hint(name: str) -> str:
    """Return how a file of a format that is not read becomes documents, by its name in lower case; empty if unknown."""
    stem, last = posixpath.splitext(name)
    packed = posixpath.splitext(stem)[1] if last in COMPRESSIONS else ""
    return _CONVERTED.get(packed if packed in _CONVERTED else f"{packed}{last}", "")


def _format(settings: InputSettings, path: str) -> tuple[str, str]:
    """Return format and compression according to the extensions of the file's name."""
    stem, last = posixpath.splitext(path.lower())
    compression = COMPRESSIONS.get(last, "")
    extension = posixpath.splitext(stem)[1] if compression else last
    kind = FORMATS.get(extension, "") if settings.format == "auto" else settings.format
    if not kind:
        hint = f"; {found}" if (found := format_hint(path.lower())) else ""
        raise InputError(
            f"input {settings.input_name}: the format of {path} cannot be told from its name; known extensions are "
            f"{KNOWN}; set `format:` (text: a file is a document; jsonl; parquet), or a pattern that leaves it out"
            f"{hint}"
        )
    if kind == "parquet" and compression:
        raise InputError(
            f"input {settings.input_name}: {path} is a compressed Parquet file; Parquet compresses inside, "
            f"so unpack it ({compression} -d) first"
        )
    return kind, compression
