"""Implements `pipeline quarantine`: shows the records that could not be used, by reason, each with its place and its
error.

Only the lists that the chunk receipts name are read, one chunk at a time, until there are enough examples; the counts
are those of the receipts.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from pipeline.base.errors import visible
from pipeline.base.formats import counted, number, plain, size
from pipeline.base.messages import print_plain
from pipeline.corpus.counters import CHUNK, whole_counts
from pipeline.corpus.quarantine import QuarantinedRecord, check_reason, quarantined_records
from pipeline.corpus.reader import Corpus

SHOWN = 3  # records per reason


def show_quarantine(console: Console, corpus: Corpus, reason: str | None = None, most: int = SHOWN) -> None:
    """Show some records of each reason.

    Args:
        console: where they are shown.
        corpus: the corpus.
        reason: show only records of this reason; None for all reasons.
        most: how many records of each reason are shown.

    Raises:
        ConfigError: if no record has this reason.
    """
    counts = whole_counts(corpus.chunks.total, CHUNK, "quarantined")
    if not counts:
        console.print(f"Nothing is in the quarantine of {corpus.url}.", markup=False, highlight=False)
        return
    check_reason(reason, counts)
    wanted = {reason: counts[reason]} if reason is not None else dict(counts.most_common())
    for name, found in quarantined_records(corpus, wanted, most).items():
        console.print(Text(f"{name}: {number(counts[name])}", style="bold"))
        for one in found:
            _show(console, one)
        rest = counts[name] - sum(one.records for one in found)
        if rest > 0:
            console.print(
                Text(f"  … and {number(rest)} more: --reason '{name}' --most {max(20, most * 10)}", style="dim")
            )
    unreadable = int(corpus.chunks.total[f"{CHUNK}/bytes_unreadable"])
    total = f"{counted(sum(counts.values()), 'record')} in quarantine, {size(unreadable)} could not be decoded"
    print_plain(console, f"{total}; all of them: {corpus.url}/quarantine/**/*.parquet")


def _show(console: Console, one: QuarantinedRecord) -> None:
    more = f" ({number(one.records)} records)" if one.records > 1 else ""
    console.print(Text(f"  {visible(one.place)}{more}"), soft_wrap=True)
    console.print(Text(f"    {visible(one.error)}"), soft_wrap=True)
    if one.payload:
        console.print(
            Text(f"    {plain(one.payload.decode('utf-8', 'replace').strip(), console.width - 5)}", style="dim")
        )
