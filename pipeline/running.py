"""What `pipeline run` does with a plan: work, followed on the screen, then the books and what they say.

The books are closed from what is on disk, not from what workers said. Cost beside the work itself: reading every
receipt of the corpus once, and the scores of up to 500 000 rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape

from pipeline.books import keep_books, sweep
from pipeline.corpus import Corpus
from pipeline.errors import CorpusError
from pipeline.plan import Plan
from pipeline.progress import RunProgress
from pipeline.quality import corpus_bleu_of, measure, worst_rows
from pipeline.runs import RunRecord, newest_is
from pipeline.show import counted, show_books, show_open, show_quality, show_rows
from pipeline.store import Store
from pipeline.tasks import Event

Launch = Callable[[Plan, str], Iterator[Event]]  # plan, folder of the run → events
SHOWN_ROWS = 500_000


def run_plan(console: Console, plan: Plan, launch: Launch) -> None:
    """Do what the plan says and show the books. Raises `CorpusError` if some of it is not done, or does not balance.

    Ctrl-C comes through as `KeyboardInterrupt`, after the run's record is closed.
    """
    if plan.nothing_to_do:
        _make_newest(plan)
        console.print("Nothing to do.")
        if not _close_books(console, plan):
            raise CorpusError("the corpus is not whole: what is wrong stands above")
        return
    started = time.monotonic()
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    console.print(
        f"[bold]{escape(plan.config.name)}[/] → {escape(plan.config.output)}: {', '.join(plan.stages)} "
        f"({counted(len(plan.chunks_to_segment()), 'chunk')} to segment, "
        f"{counted(len(plan.parts_to_visit()), 'part')} waiting)"
    )
    failures: list[str] = []
    try:
        with RunProgress(console, plan) as progress:
            for event in launch(plan, record.folder):
                record.log(event.model_dump_json())
                progress.see(event)
                if event.kind == "failed":
                    failures.append(f"{event.where}: {event.error}")
    except KeyboardInterrupt:
        record.close({"done": False, "interrupted": True})
        raise
    complete = _close_books(console, plan, worst=3) and not failures
    seconds = time.monotonic() - started
    record.close({"done": complete, "failures": failures, "seconds": round(seconds, 1)})
    if not complete:
        raise CorpusError(f"the run failed; details: {plan.config.output}/{record.folder}/events.jsonl")
    console.print(f"Done in {seconds:.0f} s.", highlight=False)


def _make_newest(plan: Plan) -> None:
    """Make the plan's view the one that readers see (an older configuration may have been run last)."""
    store = Store(plan.config.output)
    if not newest_is(store, plan.view):
        RunRecord(store, plan.config, plan.view).close({"done": True})


def _close_books(console: Console, plan: Plan, worst: int = 0) -> bool:
    """Show the books and the quality. True if everything that the plan may do is on disk and balances."""
    corpus = Corpus(plan.config.output, plan.view)
    swept = sweep(corpus.store, corpus.chunks)
    books = keep_books(corpus.store, corpus.chunks)
    show_books(console, books, f"{plan.config.name} in {plan.config.output}")
    if swept:
        console.print(f"removed {counted(swept, 'file')} that an interrupted attempt left")
    if "autobleu" in corpus.columns:
        quality = measure(corpus, SHOWN_ROWS)
        show_quality(console, quality, corpus_bleu_of(books), lengths=False)
        if worst and quality.everything.scored:
            rows = worst_rows(corpus, worst, max_rows=SHOWN_ROWS)
            show_rows(console, f"Worst {worst} rows (pipeline inspect shows more)", rows)
    show_open(console, books)
    left = [stage for stage in plan.stages if books.open_parts.get(stage)]
    return not left and not (books.open_chunks and "segment" in plan.stages) and not books.problems
