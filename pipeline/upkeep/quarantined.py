"""What `pipeline quarantine` shows: the records that could not be used, by reason, each with its place and its error.

Reads only the lists that the chunk receipts name, one chunk at a time, and stops when it has the examples it wants; the
counts are those of the receipts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from pipeline.corpus import Corpus
from pipeline.errors import ConfigError, visible
from pipeline.inputs import Chunk
from pipeline.show import number, plain, size
from pipeline.state.states import ChunkState
from pipeline.state.sums import CHUNK, counted

SHOWN = 3  # records a reason


@dataclass(frozen=True)
class Bad:
    """A row of a chunk's list; `place`: file or URL, and where in it."""

    place: str
    records: int
    reason: str
    error: str
    payload: bytes


def show_quarantine(console: Console, corpus: Corpus, reason: str | None = None, most: int = SHOWN) -> None:
    """At most so many records of each reason, or of one. Raises `ConfigError` for a reason that no record has."""
    counts = counted(corpus.chunks.total, CHUNK, "quarantined")
    if not counts:
        console.print(f"Nothing is in the quarantine of {corpus.url}.", markup=False, highlight=False)
        return
    if reason is not None and reason not in counts:
        raise ConfigError(f"--reason {reason}: no record was set aside for it; there are: {', '.join(sorted(counts))}")
    wanted = {reason: counts[reason]} if reason is not None else dict(counts.most_common())
    for name, found in examples(corpus, wanted, most).items():
        console.print(Text(f"{name}: {number(counts[name])}", style="bold"))
        for one in found:
            _show(console, one)
        rest = counts[name] - sum(one.records for one in found)
        if rest > 0:
            console.print(
                Text(f"  … and {number(rest)} more: --reason '{name}' --most {max(20, most * 10)}", style="dim")
            )
    unreadable = int(corpus.chunks.total[f"{CHUNK}/bytes_unreadable"])
    total = f"{number(sum(counts.values()))} records in quarantine, {size(unreadable)} could not be decoded"
    console.print(
        f"{total}; all of them: {corpus.url}/quarantine/*.parquet", markup=False, highlight=False, soft_wrap=True
    )


def _show(console: Console, one: Bad) -> None:
    more = f" ({number(one.records)} records)" if one.records > 1 else ""
    console.print(Text(f"  {visible(one.place)}{more}"), soft_wrap=True)
    console.print(Text(f"    {visible(one.error)}"), soft_wrap=True)
    if one.payload:
        console.print(
            Text(f"    {plain(one.payload.decode('utf-8', 'replace').strip(), console.width - 5)}", style="dim")
        )


def examples(corpus: Corpus, wanted: dict[str, int], most: int) -> dict[str, list[Bad]]:
    """At most so many records of each reason (`wanted`: how many there are), in the order of the input."""
    found: dict[str, list[Bad]] = {reason: [] for reason in wanted}
    if not wanted:
        return found
    for state in sorted(corpus.chunks, key=lambda state: (state.chunk.input, state.chunk.path, state.chunk.start)):
        if state.receipt and any(len(found[reason]) < most for reason in wanted.keys() & state.receipt.quarantined):
            for one in _listed(corpus, state):
                if one.reason in found and len(found[one.reason]) < most:
                    found[one.reason].append(one)
        if all(len(found[reason]) >= min(most, count) for reason, count in wanted.items()):
            break
    return found


def _listed(corpus: Corpus, state: ChunkState) -> Iterator[Bad]:
    if not (state.receipt and state.receipt.quarantine):
        return
    with corpus.store.open(state.receipt.quarantine.path) as handle:
        table: pa.Table = pq.read_table(handle, columns=["record", "records", "doc_id", "reason", "error", "payload"])
    for row in table.to_pylist():
        if row["doc_id"] in corpus.tombstones.ids:
            continue
        place = _location(state.chunk) + row["record"][len(state.chunk.path) :]
        yield Bad(place, row["records"], row["reason"], row["error"], row["payload"])


def _location(chunk: Chunk) -> str:
    """The input file, as a person gives it to another program."""
    return chunk.url.removeprefix("file://")
