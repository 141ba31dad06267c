"""Fetches model files by URL once into a cache folder, and checks that they keep their bytes.

The file of `https://host/some/file.pt` is at `<cache>/host/some/file.pt`, where it can also be put by hand; the cache
is `PIPELINE_CACHE`, or `sonar-pipeline` below `XDG_CACHE_HOME` or `~/.cache`. A download goes to `….part`, is resumed
if the server allows that, and gets its name after the check. One process fetches, others wait.

Files of repositories on Hugging Face are taken from its own cache, if they are there, and else fetched by its library,
with the user's token (`HF_TOKEN`), mirror (`HF_ENDPOINT`) and `HF_HUB_OFFLINE`. They are kept here like all others.

If a card states no sha256, the digest of the first download is recorded beside the file (`….sha256`), which must keep
it from then on. Cost: the download, and once a day on each machine one read of the file at about 1 GB/s.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

Report = Callable[[int, int | None], None]  # bytes so far, bytes in all (None: the server does not say)

RETRY_PAUSES = (1.0, 3.0)  # seconds before another try; a try that got some bytes starts the row again
TIMEOUT = 60.0  # seconds without a byte
LINE_SECONDS = 10.0  # from one line of progress to the next
_BLOCK = 1 << 20
_ON_HUB = re.compile(
    r"https://huggingface\.co/(?P<repo_id>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<filename>[^?]+)"
)
_RECORDED = re.compile(rb"\s*([0-9a-fA-F]{64})(?=\s|\Z)")
RECORDED_BYTES = 64 << 20  # from this size on, the digest of a file is computed once a machine
RECORD_SECONDS = 86_400.0  # after which it is computed again


class FetchError(ValueError):
    """A file could not be fetched, or is not the one that was wanted."""


class UnavailableError(FetchError):
    """A file is not here and cannot be fetched; another copy of it would do."""


class _BrokeOffError(Exception):
    """The connection failed in a way that may pass."""


def cache_folder() -> Path:
    """Return the folder of fetched files."""
    chosen = os.environ.get("PIPELINE_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sonar-pipeline"


def cache_path(url: str) -> Path:
    """Return where the file of a URL is, fetched or not: a name that depends on the URL alone."""
    parts = urllib.parse.urlsplit(url)
    place = parts.netloc.rpartition("@")[2].replace(":", "_") or parts.scheme
    steps = [step for step in PurePosixPath(urllib.parse.unquote(parts.path)).parts if step not in ("/", "..")]
    if not steps:
        raise FetchError(f"{public(url)} names no file; give the URL of a file")
    if parts.query:
        steps.insert(-1, hashlib.sha256(parts.query.encode()).hexdigest()[:12])
    return cache_folder().joinpath(place, *steps)


def place_of(url: str) -> Path:
    """Return where the file of a URL is: in the cache, or in that of Hugging Face; where it will be once fetched."""
    own = cache_path(url)
    on_hub = None if own.is_file() else _ON_HUB.fullmatch(url)
    if on_hub is None:
        return own
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:  # it comes with the extras that use models
        return own
    found = try_to_load_from_cache(on_hub["repo_id"], on_hub["filename"], revision=on_hub["revision"])
    return Path(found) if isinstance(found, str) else own


def public(url: str) -> str:
    """Return a URL as it may appear in logs: without user, password and query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def checked_sha256(path: Path) -> str:
    """Return the SHA-256 of a file that this machine need not have read again.

    Eight processes of a node that load the same weights, again and again, read 6 GB once: the first one computes the
    digest and records it in a private folder of this machine, the others wait for it. A record holds for a day, and for
    the file as it is (device, inode, size, times of its content and of its inode). Small files are read each time.
    """
    facts = path.stat()
    if facts.st_size < RECORDED_BYTES:
        return sha256_of(path)
    version = (str(path.resolve()), facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    try:
        folder = _private_folder()
        record = folder / hashlib.sha256(repr(version).encode()).hexdigest()
        with _alone(record, quietly=True):
            if record.is_file() and 0 <= time.time() - record.stat().st_mtime < RECORD_SECONDS:
                data = record.read_bytes()
                found = data[:64].decode("ascii", "replace")
                if data == _sealed(found, version):
                    return found
            found = sha256_of(path)
            temporary = record.with_suffix(f".{os.getpid()}")
            temporary.write_bytes(_sealed(found, version))
            temporary.replace(record)
            return found
    except (OSError, _NotOursError):  # no folder for temporary files, or one that another user made
        return sha256_of(path)


def _sealed(digest: str, version: tuple[object, ...]) -> bytes:
    """Return a record of a digest, which ends with a digest of itself: a damaged one is made again."""
    return digest.encode() + hashlib.sha256(repr((digest, version)).encode()).hexdigest().encode()


class _NotOursError(Exception):
    """A folder is not one that this user alone may write to."""


def _private_folder() -> Path:
    """Return this user's folder of records on this machine."""
    folder = Path(tempfile.gettempdir()) / f"sonar-pipeline-checked-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise _NotOursError
    return folder


def fetch(url: str, *, sha256: str | None, size: int | None, report: Report | None = None) -> Path:
    """Return the path of a file, which is fetched if it is missing, and checked in any case.

    Args:
        url: the address.
        sha256: the digest that the card states; None if it states none.
        size: the number of bytes that the card states; None if it states none.
        report: shows the progress; None to print lines.

    Returns:
        The path in the cache.

    Raises:
        FetchError: if the file cannot be fetched or stored, or is not the one that the card states; the message says
            what to put where.
    """
    target = place_of(url)
    if not target.is_file():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _alone(target):
                if not target.is_file():
                    return _fetch(url, target, sha256, size, report or Lines(target.name))
        except OSError as error:
            remedy = "free some space, or point PIPELINE_CACHE to another folder"
            raise FetchError(f"{public(url)} cannot be stored at {target}: {error}; {remedy}") from error
    _check(target, target, sha256)
    return target


def _fetch(url: str, target: Path, sha256: str | None, size: int | None, report: Report) -> Path:
    part = target.with_name(target.name + ".part")
    if sha256 is None:
        part.unlink(missing_ok=True)  # nothing would show that its rest comes from another file
    try:
        if (on_hub := _ON_HUB.fullmatch(url)) and importlib.util.find_spec("huggingface_hub"):
            _download_from_hub(on_hub, part, report)
        else:
            _download(url, part, size, report, resumable=sha256 is not None)
    except UnavailableError as error:
        facts = [target.name, *([f"{size} bytes"] if size else []), *([f"sha256 {sha256}"] if sha256 else [])]
        raise UnavailableError(
            f"{public(url)} cannot be fetched: {error}. Put the file ({', '.join(facts)}) at {target}"
        ) from error
    try:
        _check(part, target, sha256)
    except FetchError:
        part.unlink()
        raise
    part.replace(target)
    return target


def _check(path: Path, target: Path, sha256: str | None) -> None:
    """Compare with the card, or with what was recorded for `target`; record it if there is neither."""
    found, record = (
        checked_sha256(path) if path == target else sha256_of(path),
        target.with_name(target.name + ".sha256"),
    )
    wanted = sha256 or recorded_sha256(record)
    if wanted is None:
        temporary = record.with_name(f"{record.name}.{os.getpid()}")
        temporary.write_text(f"{found}  {target.name}\n")
        temporary.replace(record)
        _say(f"{target.name}: sha256 {found}; its card states none, so this is recorded in {record} and required later")
    elif found != wanted:
        source = "the card says" if sha256 else f"{record} says"
        remedy = f"delete {target}" if path == target else "it was thrown away"
        or_record = "" if sha256 else f", or {record} is damaged"
        raise FetchError(
            f"{target.name} has sha256 {found} ({path.stat().st_size} bytes), {source} {wanted}; {remedy} and fetch it "
            f"again; if it stays so, another file is published now{or_record}"
        )


def recorded_sha256(record: Path) -> str | None:
    """Return the digest in a record that was made of a fetched file; None if there is no record.

    Raises FetchError if the record is damaged.
    """
    if not record.is_file():
        return None
    found = _RECORDED.match(record.read_bytes())
    if not found:
        raise FetchError(
            f"{record} is damaged: it holds no sha256 (64 hexadecimal digits); write there what the publisher states, "
            "or delete this record, and the digest of the present file is recorded"
        )
    return found[1].decode().lower()


def _download_from_hub(on_hub: re.Match[str], part: Path, report: Report) -> None:
    """Fetch a file of a repository on Hugging Face to `part`; its library resumes what was fetched before."""
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    from tqdm import tqdm

    class Told(tqdm):  # type: ignore[misc]  # it has no types
        """Tells `report` what the library's progress bar would show."""

        def __init__(self, *values: Any, **named: Any) -> None:
            named.pop("name", None)  # of a group of bars
            super().__init__(*values, **(named | {"disable": True}))
            self.n = named.get("initial") or 0  # which a bar that is not shown leaves out

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            report(int(self.n), None if self.total is None else int(self.total))

    folder = part.with_name(f".{part.name}")  # for its notes and what is not complete
    try:
        found = Path(
            hf_hub_download(
                on_hub["repo_id"], on_hub["filename"], revision=on_hub["revision"], local_dir=folder, tqdm_class=Told
            )
        )
    except RepositoryNotFoundError as error:  # or closed to this user
        raise UnavailableError(
            f"{constants.ENDPOINT} shows this user no repository {on_hub['repo_id']}; if it is private or gated, set "
            "HF_TOKEN or run hf auth login"
        ) from error
    except LocalEntryNotFoundError as error:
        away = f"{constants.ENDPOINT} does not answer ({error.__cause__ or 'no connection'})"
        raise UnavailableError("HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else away) from error
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        raise UnavailableError((str(error) or type(error).__name__).splitlines()[0].rstrip(".")) from error
    found.replace(part)
    shutil.rmtree(folder)


def _download(url: str, part: Path, size: int | None, report: Report, *, resumable: bool) -> None:
    """Complete `part`. `resumable`: a later check will find out if two files were mixed."""
    pauses, validator, furthest = list(RETRY_PAUSES), None, 0
    while True:
        start = part.stat().st_size if part.exists() and (resumable or validator) else 0
        if size and start == size:
            return
        reached = furthest = max(start, furthest)
        try:
            with _open(url, start, validator) as answer:
                if size and answer.total and size != answer.total:
                    raise UnavailableError(f"the server has {answer.total} bytes, the card says {size}")
                validator, reached = answer.validator, answer.start
                _make_room(part, (answer.total or 0) - answer.start)
                with part.open("r+b" if answer.start else "wb") as file:
                    file.seek(answer.start)
                    file.truncate()
                    for block in answer.blocks():
                        file.write(block)
                        reached += len(block)
                        report(reached, answer.total)
                    file.flush()
                    os.fsync(file.fileno())
                if answer.total is not None and reached < answer.total:
                    raise _BrokeOffError(f"the connection ended after {reached} of {answer.total} bytes")
                return
        except _BrokeOffError as error:
            pauses = list(RETRY_PAUSES) if reached > furthest else pauses
            if not pauses:
                raise UnavailableError(str(error)) from error
            _say(f"{part.stem}: {error}; trying again in {pauses[0]:.0f} s")
            time.sleep(pauses.pop(0))


@dataclass(frozen=True)
class _Answer:
    """An open remote file, from byte `start` on."""

    stream: Any
    start: int
    total: int | None
    validator: str | None  # what tells this version of the file from others

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes; raises _BrokeOffError if reading fails."""
        import http.client

        while True:
            try:
                block: bytes = self.stream.read(_BLOCK)
            except (OSError, http.client.HTTPException) as error:
                raise _BrokeOffError(f"the connection broke: {error or type(error).__name__}") from error
            if not block:
                return
            yield block


@contextlib.contextmanager
def _open(url: str, start: int, validator: str | None) -> Iterator[_Answer]:
    opened = _open_http if urllib.parse.urlsplit(url).scheme in ("http", "https") else _open_other
    answer = opened(url, start, validator)
    try:
        yield answer
    finally:
        answer.stream.close()


def _open_http(url: str, start: int, validator: str | None) -> _Answer:
    import http.client  # in milliseconds, and few commands fetch anything
    import urllib.error
    import urllib.request

    headers = {"User-Agent": "sonar-pipeline"}
    if start:
        headers |= {"Range": f"bytes={start}-"} | ({"If-Range": validator} if validator else {})
    try:
        stream = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return _open_http(url, 0, None)
        if error.code in (408, 429) or error.code >= 500:
            raise _BrokeOffError(f"the server answers {error.code} {error.reason}") from error
        raise UnavailableError(f"the server answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:  # no name, no route, refused, timed out
        raise _BrokeOffError(str(getattr(error, "reason", error)) or type(error).__name__) from error
    tag = stream.headers.get("ETag") or ""
    found = tag if tag and not tag.startswith("W/") else stream.headers.get("Last-Modified")
    span = stream.headers.get("Content-Range", "")  # bytes 5-99/100
    if stream.status == http.client.PARTIAL_CONTENT and span.startswith(f"bytes {start}-"):
        whole = span.rpartition("/")[2]
        return _Answer(stream, start, int(whole) if whole.isdigit() else None, found)
    length = stream.headers.get("Content-Length")
    return _Answer(stream, 0, int(length) if length else None, found)


def _open_other(url: str, start: int, validator: str | None) -> _Answer:
    try:
        files, path = fsspec.core.url_to_fs(url)
        facts = files.info(path)
        version = str(facts.get("ETag") or facts.get("mtime") or facts.get("LastModified") or "") or None
        resumed = start if version == validator or validator is None else 0
        stream = files.open(path, "rb")
        stream.seek(resumed)
    except Exception as error:  # each store has its own kinds
        raise UnavailableError(f"{type(error).__name__}: {error}") from error
    return _Answer(stream, resumed, facts.get("size"), version)


def _make_room(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise UnavailableError(f"it needs {needed} bytes more on the disk of {part.parent}, {free} are free")


@contextlib.contextmanager
def _alone(target: Path, quietly: bool = False) -> Iterator[None]:
    """Hold the lock of a file; the lock disappears with the process. `quietly`: say nothing while waiting."""
    with target.with_name(f".{target.name}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not quietly:
                _say(f"{target.name}: waiting for another process that fetches it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class Lines:
    """Reports progress as a line every ten seconds, for logs."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._began = self._last = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int | None) -> None:
        now = time.monotonic()
        self._first = done if self._first is None else self._first
        if now - self._last < LINE_SECONDS:
            return
        self._last = now
        rate = (done - self._first) / (now - self._began)
        left = f", {(total - done) / rate:.0f} s left" if total and rate > 0 else ""
        whole = f" of {total / 1e9:.2f}" if total else ""
        _say(f"fetching {self._name}: {done / 1e9:.2f}{whole} GB, {rate / 1e6:.1f} MB/s{left}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
