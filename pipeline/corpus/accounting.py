"""The accounting of a corpus: everything that went in is in a part, dropped with a reason, or in quarantine.

It is read only from receipts (or the ledgers that add them up), after the work, so what counts is what a worker
committed, not what it claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.base.formats import number
from pipeline.config.stages import STAGES
from pipeline.corpus.counters import CHUNK, MISFITS, Counters, busy_seconds, by_detail, stages_of, whole_counts
from pipeline.corpus.receipts import REPEATED
from pipeline.corpus.recipe_match import LISTED_PARTS
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.states import ChunkState, States, problems_in, total_of
from pipeline.inputs.column_types import ColumnType
from pipeline.storage.store import Store


@dataclass
class Accounting:
    """Totals over a view, and what is wrong with them."""

    chunks: int = 0
    documents_in: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    sentences: int = 0
    parts: int = 0
    bytes_read: int = 0
    bytes_unreadable: int = 0
    counts: dict[str, dict[str, float]] = field(default_factory=dict)  # by stage
    rows: Counter[str] = field(default_factory=Counter)  # sentences, by stage
    seconds: dict[str, float] = field(default_factory=dict)  # by stage, without waiting
    data_bytes: Counter[str] = field(default_factory=Counter)  # by family
    data_sentences: Counter[str] = field(default_factory=Counter)  # how many sentences these files describe, by family
    repeated: int = 0  # requests to the store that had to be sent again
    open_chunks: int = 0
    open_parts: Counter[str] = field(default_factory=Counter)  # by stage
    warnings: Counter[str] = field(default_factory=Counter)  # text → parts of a stage that it was raised for
    kept_types: dict[str, ColumnType] = field(default_factory=dict)  # of metadata columns, in all parts
    misfits: Counter[str] = field(default_factory=Counter)  # metadata column → values that did not fit its type

    problems: list[str] = field(default_factory=list)

    @property
    def duplicates(self) -> str:
        """How many sentences and documents repeat earlier ones, in words; empty if they were not compared."""
        of = {"sentences": self.sentences, "documents": int(self.counts.get(SEGMENT, {}).get("documents", 0))}

        def told(stage: str) -> str:
            found = self.counts[stage]
            shares = [f"{number(found[unit])} of {number(of[unit])} {unit} ({found[unit] / of[unit]:.1%})"
                      for unit in of if unit in found]  # fmt: skip
            return " and ".join(shares)

        verbs = {"duplicates": "repeat earlier ones", "near": "nearly do", "semantic": "mean the same as earlier ones"}
        return "; ".join(f"{told(stage)} {verb}" for stage, verb in verbs.items() if stage in self.counts)

    @property
    def complete(self) -> bool:
        """Whether every chunk is segmented and every part has every stage."""
        return not self.open_chunks and not self.open_parts


def compute_accounting(store: Store, chunks: Sequence[ChunkState]) -> Accounting:
    """Add up the receipts of a view and check that they agree with each other.

    Up to 20 000 parts, this also checks that their files exist; for larger corpora, `pipeline verify` does that.
    """
    accounting = _accounting_of(total_of(chunks))
    accounting.kept_types = chunks.kept_types if isinstance(chunks, States) else {}
    accounting.problems = problems_in(chunks)
    if accounting.parts <= LISTED_PARTS:
        accounting.problems += _missing_files(store, chunks)
    return accounting


def _accounting_of(total: Counters) -> Accounting:
    def chunk(name: str) -> int:
        return int(total.get(f"{CHUNK}/{name}", 0))

    accounting = Accounting(
        chunks=chunk("chunks"),
        documents_in=chunk("documents_in"),
        kept=chunk("kept"),
        dropped=whole_counts(total, CHUNK, "dropped"),
        quarantined=whole_counts(total, CHUNK, "quarantined"),
        sentences=chunk("sentences"),
        parts=chunk("parts"),
        bytes_read=chunk("bytes_read"),
        bytes_unreadable=chunk("bytes_unreadable"),
        repeated=int(sum(total.get(f"{owner}/counts/{REPEATED}", 0) for owner in (CHUNK, *STAGES))),
        open_chunks=int(total.get(f"{SEGMENT}/left", 0)),
        data_bytes=whole_counts(total, CHUNK, "bytes"),
    )
    accounting.data_sentences.update(dict.fromkeys(accounting.data_bytes, accounting.sentences))
    of_segment = by_detail(total, SEGMENT, "counts")
    accounting.misfits.update(
        {key.removeprefix(MISFITS): int(count) for key, count in of_segment.items() if key.startswith(MISFITS)}
    )
    for stage in stages_of(total):
        stored = whole_counts(total, stage, "bytes")
        accounting.data_bytes.update(stored)
        accounting.data_sentences.update(dict.fromkeys(stored, int(total.get(f"{stage}/rows", 0))))
        accounting.warnings.update(
            {f"{stage}: {text}": parts for text, parts in whole_counts(total, stage, "warnings").items()}
        )
        left = int(total.get(f"{stage}/left", 0))
        if left and stage != SEGMENT:
            accounting.open_parts[stage] = left
        if f"{stage}/parts" in total:
            accounting.rows[stage] = int(total[f"{stage}/rows"])
            accounting.counts[stage] = by_detail(total, stage, "counts")
            accounting.seconds[stage] = busy_seconds(by_detail(total, stage, "seconds"))
    return accounting


def _missing_files(store: Store, chunks: Sequence[ChunkState]) -> Iterator[str]:
    present: dict[str, set[str]] = {}
    for one in chunks:
        files = [one.receipt.quarantine] if one.receipt and one.receipt.quarantine else []
        files += [file for part in one.parts for done in part.receipts.values() for file in done.files]
        for file in files:
            if file.family not in present:  # one listing of each family
                present[file.family] = set(store.find(file.family))
            if file.path not in present[file.family]:
                todo = f"pipeline verify {store.url} --repair, then pipeline run"
                yield f"{file.path} is missing, though a receipt vouches for it; {todo}"
