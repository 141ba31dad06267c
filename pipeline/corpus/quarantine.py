"""Reads the quarantined records of a corpus from the lists that its chunk receipts name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pipeline.base.errors import ConfigError
from pipeline.corpus.reader import Corpus
from pipeline.corpus.states import ChunkState
from pipeline.inputs import Chunk, root_of
from pipeline.inputs.chunk import PACKED
from pipeline.storage import layout
from pipeline.storage.records import read_table


@dataclass(frozen=True)
class QuarantinedRecord:
    """A row of a chunk's list; `place`: file or URL, and where in it."""

    place: str
    records: int
    reason: str
    error: str
    payload: bytes


def check_reason(reason: str | None, known: Collection[str]) -> None:
    """Raise `ConfigError` for a reason for which no record is quarantined. `known`: the reasons of some records."""
    if reason is not None and reason not in known:
        raise ConfigError(
            f"--reason {reason}: no record is quarantined for this reason; reasons are: "
            f"{', '.join(sorted(known)) or 'none at all'}"
        )


def quarantined_records(corpus: Corpus, wanted: dict[str, int], most: int) -> dict[str, list[QuarantinedRecord]]:
    """Return some quarantined records of each reason, in the order of the input.

    Args:
        corpus: the corpus.
        wanted: reason → how many records there are of it.
        most: how many records of each reason are returned.

    Returns:
        Reason → records.
    """
    found: dict[str, list[QuarantinedRecord]] = {reason: [] for reason in wanted}
    if not wanted:
        return found
    for state in sorted(
        corpus.chunks.quarantined(), key=lambda state: (state.chunk.input, state.chunk.path, state.chunk.start)
    ):
        if state.receipt and any(len(found[reason]) < most for reason in wanted.keys() & state.receipt.quarantined):
            for one in _listed(corpus, state):
                if one.reason in found and len(found[one.reason]) < most:
                    found[one.reason].append(one)
        if all(len(found[reason]) >= min(most, count) for reason, count in wanted.items()):
            break
    return found


def _listed(corpus: Corpus, state: ChunkState) -> Iterator[QuarantinedRecord]:
    if not (state.receipt and state.receipt.quarantine):
        return
    names = ("record", "records", "doc_id", "reason", "error", "payload")
    remedy = "pipeline verify --repair, then pipeline run make it again"
    table = read_table(corpus.store, state.receipt.quarantine.path, layout.schema("quarantine"), remedy, names)
    for row in table.to_pylist():
        if row["doc_id"] in corpus.tombstones.ids:
            continue
        place = _location(state.chunk, row["record"])
        yield QuarantinedRecord(place, row["records"], row["reason"], row["error"], row["payload"])


def _location(chunk: Chunk, record: str) -> str:
    """Return the input file, as a person gives it to another program, and where in it the record stands."""
    below = record if chunk.format == PACKED else record[len(chunk.path) :]
    return root_of(chunk).removeprefix("file://") + below
