"""Implements `pipeline retry --quarantined`: segments chunks with quarantined records again, after the cause was fixed.

Receipts are never changed, so those of such chunks and of the segmentation of their parts are deleted, and a run does
the rest: parts that come out the same are recognised by the digests of their columns and keep their embeddings and
scores, others get new ones. The chunk's receipt is deleted last: a retry that was interrupted is continued where it
stopped. What was compared over the whole corpus (ids, duplicates) is deleted before them, and is compared again: the
fingerprint of a chunk does not tell that a retry brought another document in. Cost: that of three plans, of segmenting
those chunks, and of these comparisons; memory holds the receipts of those chunks alone.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.base.errors import ConfigError, DamagedError
from pipeline.base.formats import Figures, counted, number
from pipeline.base.parallel import in_parallel, prefetch
from pipeline.config.run_config import RunConfig
from pipeline.coordination.lock import locked
from pipeline.corpus.ledger import forget
from pipeline.corpus.quarantine import check_reason
from pipeline.corpus.reader import Corpus
from pipeline.corpus.receipts import ChunkReceipt, read_chunk_receipt
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.runs import check_corpus
from pipeline.corpus.states import ChunkState, States
from pipeline.planning.plan import make_plan
from pipeline.planning.removal import view_change
from pipeline.run.compare_ids import forget_ids
from pipeline.run.options import RunOptions
from pipeline.run.run import Backend, run
from pipeline.storage import layout
from pipeline.storage.store import Store
from stages.duplicates.settings import DuplicatesSettings, NearDuplicatesSettings, SemanticDuplicatesSettings


def retry(console: Console, config: RunConfig, reason: str | None, options: RunOptions, backend: Backend) -> None:
    """Segment chunks with quarantined records again, run, and show the result.

    Args:
        console: where the result is shown.
        config: the configuration of the corpus.
        reason: only records with this reason; None for all reasons.
        options: the options of the run that follows.
        backend: carries out the run; `CorpusError` is raised if the run fails, or another one is under way.

    Raises:
        ConfigError: if no record has this reason, or documents would leave the corpus.
    """
    store = Store(config.output)
    check_corpus(store)
    with locked(store, "retry", backend.jobs_alive):
        plan = make_plan(config)
        change = view_change(store, plan.view)
        if change and change.needs_consent:
            raise ConfigError(change.refusal("first run pipeline run with --accept-removal, then retry"))
        receipts = quarantined_receipts(store, plan.chunks)
        before, open_now = _reasons(quarantined_receipts(store, Corpus(config.output).chunks)), _reasons(receipts)
        check_reason(reason, open_now)
        again = [one for one in receipts if (reason in one.quarantined if reason is not None else one.quarantined)]
        chunks = {one.chunk for one in again}
        forget_ids(store, plan.config, [one.chunk for one in plan.chunks if one.chunk.id in chunks] if chunks else [])
        wide = _corpus_wide(store) if again else []
        forget(store, chunks | {layout.part_owner(layout.data_owner(path)[0]) for path in wide})
        in_parallel(store.delete, wide)
        in_parallel(lambda receipt: _forget(store, receipt), again)
    records = sum(sum(one.quarantined.values()) for one in again)
    console.print(
        f"{counted(len(again), 'chunk')} with {counted(records, 'record')} in quarantine to segment again; what a run "
        "set aside is tried again too",
        highlight=False,
    )
    try:
        run(console, config, options, backend)
    finally:
        if backend.submit is None:
            _show(console, before, _reasons(quarantined_receipts(store, make_plan(config).chunks)))


def quarantined_receipts(store: Store, chunks: Sequence[ChunkState]) -> list[ChunkReceipt]:
    """Return the receipts of all chunks with quarantined records, even if receipts of their parts are gone already.

    For a chunk that is to be segmented again because documents were purged, this is its previous receipt.
    """
    assert isinstance(chunks, States)  # those of a whole corpus
    found = [one.receipt for one in chunks.quarantined() if one.receipt]
    left = {one for (some,) in chunks.unsegmented().columns("id") for one in some}
    paths = [path for path in store.find("chunks") if layout.data_owner(path)[0] in left] if left else []
    newest: dict[str, tuple[tuple[bool, float], ChunkReceipt | None]] = {}
    for receipt in prefetch(lambda path: read_chunk_receipt(store, path), paths):
        chunk = chunks[chunks.by_id[receipt.chunk]]
        present = receipt.fingerprint == chunk.fingerprint
        if present or (receipt.stamp, receipt.take) == (chunk.chunk.stamp, chunk.chunk.take):
            rank = (present, receipt.created)
            if receipt.chunk not in newest or newest[receipt.chunk][0] < rank:
                newest[receipt.chunk] = rank, receipt if receipt.quarantined else None
    return found + [receipt for _, receipt in newest.values() if receipt]


def _corpus_wide(store: Store) -> list[str]:
    """Return the paths of the receipts of all stages that compare the whole corpus."""
    stages = (DuplicatesSettings, NearDuplicatesSettings, SemanticDuplicatesSettings)
    return [path for stage in stages for path in store.find(f"receipts/{stage.name}")]


def _reasons(receipts: Sequence[ChunkReceipt]) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in receipts:
        found.update(one.quarantined)
    return found


def _forget(store: Store, receipt: ChunkReceipt) -> None:
    """Delete the receipt of a chunk and those of its parts; and those of earlier versions that differ only in purged
    documents, from whose rows the chunk would be written again.
    """
    for path in store.find("chunks", prefix=f"{receipt.chunk[:2]}/{receipt.chunk}."):
        with contextlib.suppress(DamagedError):
            other = read_chunk_receipt(store, path)
            alike = all(getattr(other, one) == getattr(receipt, one) for one in ("recipe", "stamp", "take"))
            if alike and other.fingerprint != receipt.fingerprint:
                store.delete(path)
    for ref in reversed(receipt.parts):
        store.delete(layout.receipt_path(SEGMENT, ref.part, ref.fingerprint))
    store.delete(layout.chunk_receipt_path(receipt.chunk, receipt.fingerprint))


def _show(console: Console, before: Counter[str], after: Counter[str]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), title="\nQuarantine", title_justify="left")
    for column in ("reason", "before", "after"):
        table.add_column(column, justify="left" if column == "reason" else "right", overflow="fold")
    for name in sorted(before | after):
        table.add_row(Text(name), Figures(number(before[name])), Figures(number(after[name])))
    table.add_row("all", Figures(number(before.total())), Figures(number(after.total())))
    console.print(table)
