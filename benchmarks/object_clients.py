"""fsspec's clients of object stores, as a corpus uses them, against obstore (Rust's `object_store`), on one S3.

    python -m benchmarks.object_clients                         needs obstore: pip install obstore
    python -m benchmarks.object_clients --latency 0 --errors 0  what the clients themselves cost

The operations are those of `pipeline.storage.store.Store`: receipts that one writer creates, whole data files, pieces
of them, listings, deletions; obstore does each by its own function for it, with its retries as they are. Each client
works in a process of its own; the S3 is moto's behind `tests/faults/s3_proxy.py`, which waits, refuses requests (503)
and loses answers that were carried out. After a lost answer, a receipt that was created is there: `disowned` counts
writers that were told otherwise about their own. `repeated` is what the client says it repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
from rich.table import Table

from benchmarks.machine import console, describe_cpu
from pipeline.storage.retry import take_retry_counts
from pipeline.storage.store import Store
from tests.faults.s3_proxy import S3Proxy
from tests.support.s3 import moto

BUCKET = "corpus"
CLIENTS = {"fsspec": "s3fs, by pipeline.storage", "obstore": "obstore"}
RECEIPT, PIECE = 2_000, 1 << 16  # bytes


class Obstore:
    """What a benchmark needs of a `Store`, by obstore."""

    def __init__(self, endpoint: str) -> None:
        self._api: Any = import_module("obstore")
        self._store = import_module("obstore.store").S3Store(
            BUCKET, endpoint=endpoint, client_options={"allow_http": True}, virtual_hosted_style_request=False
        )

    def create(self, path: str, data: bytes) -> bool:
        """Write a whole file unless the name exists; a writer whose answer was lost recognises its own."""
        try:
            self._api.put(self._store, path, data, mode="create")
        except self._api.exceptions.AlreadyExistsError:
            return self.read(path) == data
        return True

    def write(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        self._api.put(self._store, path, data)

    def read(self, path: str) -> bytes:
        """Return the bytes of a file."""
        return bytes(self._api.get(self._store, path).bytes())

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a file from `start` to before `end`."""
        return bytes(self._api.get_range(self._store, path, start=start, end=end))

    def listing(self, folder: str) -> dict[str, float]:
        """Return path → modification time of the files below a folder."""
        pages = self._api.list(self._store, prefix=folder)
        return {one["path"]: one["last_modified"].timestamp() for page in pages for one in page}

    def delete(self, path: str) -> None:
        """Delete a file."""
        self._api.delete(self._store, path)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    if options.client:
        print(json.dumps(measure(options)))
        return
    out = console()
    table = Table(
        title=f"{options.latency * 1000:.0f} ms a request, {options.errors:.1%} refused, as many answers lost"
    )
    for name in ("operation", *(f"{name}: {unit}" for name in CLIENTS for unit in ("s", "CPU s"))):
        table.add_column(name, justify="left" if name == "operation" else "right")
    found = {}
    with tempfile.TemporaryDirectory(prefix="object-clients-") as folder:
        for name in CLIENTS:
            with (
                moto(Path(folder) / "moto.log") as good,
                S3Proxy(good, latency=options.latency, refused=options.errors, lost=options.errors) as bad,
            ):
                os.environ |= {
                    "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
                    "AWS_ENDPOINT_URL": bad.url,
                }  # fmt: skip
                fsspec.filesystem("s3", endpoint_url=good).mkdir(BUCKET)
                found[name] = _in_process(name, arguments) | {"requests": bad.requests}
    out.print(f"{describe_cpu()}; {', '.join(f'{name}: {what}' for name, what in CLIENTS.items())}")
    for operation in found["fsspec"]["seconds"]:
        cells = (f"{value:.2f}" for name in CLIENTS for value in found[name]["seconds"][operation])
        table.add_row(operation, *cells)
    out.print(table)
    for name, one in found.items():
        out.print(
            f"{name}: {one['requests']} requests, repeated {one['repeated']}, disowned {one['disowned']}, winners of "
            f"the same name {one['winners']}, {one['megabytes']:.0f} MB"
        )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Work with one client in this process; return seconds of clock and CPU of each operation, and counts."""
    seconds: dict[str, tuple[float, float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start, cpu = time.perf_counter(), time.process_time()
        result = work()
        seconds[name] = time.perf_counter() - start, time.process_time() - cpu
        return result

    store = timed("client made, first file written", lambda: _begun(options.client))
    receipts = {f"receipts/{one:05d}.json": f"{one}".zfill(RECEIPT).encode() for one in range(options.receipts)}
    created = timed(f"{len(receipts)} receipts created", lambda: [store.create(*one) for one in receipts.items()])
    with ThreadPoolExecutor(16) as pool:
        same = [f"same/{one}" for one in range(4) for _ in range(16)]
        won = timed(
            "16 threads create the same 4 names",
            lambda: list(pool.map(lambda at: store.create(same[at], f"{at}".encode()), range(len(same)))),
        )
        data = os.urandom(options.megabytes << 20)
        paths = [f"data/{one}" for one in range(options.files)]
        timed(
            f"{len(paths)} files of {options.megabytes} MiB written, 4 at once",
            lambda: list(pool.map(lambda path: store.write(path, data), paths)),
        )
    timed("… read whole", lambda: _expect([store.read(path) == data for path in paths]))
    starts = [one * PIECE % (len(data) - PIECE) for one in range(options.receipts)]
    timed(
        f"{len(starts)} pieces of 64 KiB read",
        lambda: _expect([store.read_range(paths[0], at, at + PIECE) == data[at : at + PIECE] for at in starts]),
    )
    listed = timed("receipts listed 20 times", lambda: [store.listing("receipts") for _ in range(20)][-1])
    _expect([len(listed) == len(receipts)])
    timed("receipts deleted", lambda: [store.delete(path) for path in receipts])
    return {
        "seconds": seconds,
        "disowned": created.count(False),
        "winners": sum(won),
        "repeated": take_retry_counts().total() if options.client == "fsspec" else "unknown",
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _begun(client: str) -> Any:
    store = Obstore(os.environ["AWS_ENDPOINT_URL"]) if client == "obstore" else Store(f"s3://{BUCKET}")
    store.write("first", b"first")
    return store


def _expect(right: list[bool]) -> None:
    if not all(right):
        raise SystemExit("the store gave back something else")


def _in_process(client: str, arguments: Sequence[str] | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.object_clients", *(sys.argv[1:] if arguments is None else arguments)]
    done = subprocess.run([*command, "--client", client], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{client} failed: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.object_clients",
        description="fsspec's S3 client, as a corpus uses it, against obstore.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--latency", type=float, default=0.05, help="seconds that each request waits")
    parser.add_argument("--errors", type=float, default=0.01, help="share of requests refused, and of answers lost")
    parser.add_argument("--receipts", type=int, default=200, help="small files, and pieces that are read")
    parser.add_argument("--files", type=int, default=8, help="data files")
    parser.add_argument("--megabytes", type=int, default=40, help="MiB of each")
    parser.add_argument("--client", choices=list(CLIENTS), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
