"""What `pipeline verify` shows and does."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from pipeline.base.formats import counted, number, size
from pipeline.console.progress import RowProgress
from pipeline.corpus.reader import Corpus
from pipeline.maintenance.compare import compare_corpora
from pipeline.maintenance.verify import check, repair, total_bytes

SHOWN = 20


def verify_corpus(console: Console, corpus: Corpus, mend: bool) -> bool:
    """Read everything again; True if all is as the receipts say."""
    with RowProgress(console, total_bytes(corpus), "bytes", "read") as progress:
        wrong = check(corpus, progress.add)
    for one in wrong[:SHOWN]:
        console.print(Text(f"wrong: {one.path} {one.what}", style="bold red"))
    if len(wrong) > SHOWN:
        console.print(f"and {counted(len(wrong) - SHOWN, 'mistake')} more")
    if not wrong:
        files = f"{size(total_bytes(corpus))} in {counted(len(corpus.parts), 'part')}"
        console.print(f"All is as the receipts say: {number(corpus.rows)} sentences, {files}.", highlight=False)
    elif mend:
        done = counted(repair(corpus, wrong), "receipt")
        anew = "pipeline run makes anew what they vouched for, pipeline train the models"
        console.print(f"{done} deleted: {anew}", highlight=False)
    else:
        console.print("pipeline verify --repair deletes their receipts, so that they are made anew", highlight=False)
    return not wrong


def compare_with(console: Console, one: Corpus, other: Corpus) -> bool:
    """Compare two corpora; True if they are the same by what is promised."""
    result = compare_corpora(one, other)
    for what in result.wrong[:SHOWN]:
        console.print(Text(f"wrong: {what}", style="bold red"))
    if len(result.wrong) > SHOWN:
        console.print(f"and {counted(len(result.wrong) - SHOWN, 'difference')} more")
    for name, parts in sorted(result.differing.items()):
        console.print(f"{name}: other bytes in {counted(parts, 'part')}", markup=False, highlight=False)
    if not result.differing and not result.wrong:
        console.print(f"The same bytes in all {counted(result.parts, 'part')}.", highlight=False)
    elif not result.wrong:
        console.print(f"The same by what is promised of GPUs: the least cosine is {result.least_cosine:.7f}.")
    return not result.wrong
