"""Prints tables of the accounting, and of figures that may be wider than the terminal. Text of documents is data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pipeline.base.errors import visible
from pipeline.base.formats import Figures, counted, number, plain, size
from pipeline.base.messages import warn
from pipeline.corpus.accounting import Accounting

Line = tuple[Sequence[str], Sequence[str], bool]  # texts, figures, whether it is printed dim
_WIDEST = 10_000  # columns: as wide as a table wants to be


def show_accounting(console: Console, accounting: Accounting, title: str) -> None:
    """Show where every document and sentence went.

    Args:
        console: where the table is printed.
        accounting: the numbers of the corpus.
        title: the line above the table.
    """
    table = Table(title=escape(visible(title)), title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")

    def add(what: str, text: str) -> None:
        table.add_row(what, Figures(text))

    segment, encode = accounting.counts.get("segment", {}), accounting.counts.get("encode", {})
    add(
        "documents",
        f"{number(accounting.documents_in)} in = {number(accounting.kept)} kept + "
        f"{_reasons(accounting.dropped)} dropped + {_reasons(accounting.quarantined)} quarantined",
    )
    if accounting.quarantined:
        lost = f"{size(accounting.bytes_unreadable)} could not be decoded; " if accounting.bytes_unreadable else ""
        hint = "" if accounting.kept else "; are `text:` and `id:` the right columns?"
        add("quarantine", f"{lost}pipeline quarantine shows each record, where and why{hint}")
    if accounting.kept_types:
        add("metadata", ", ".join(_kept(accounting)))
    tokens = segment.get("tokens", 0) / accounting.sentences if accounting.sentences else 0
    extra = [
        f"{number(segment[key])} {label}"
        for key, label in (("cap_splits", "split by the cap"), ("hard_cuts", "cut without a boundary"))
        if segment.get(key)
    ]
    add(
        "sentences",
        f"{number(accounting.sentences)} in {counted(accounting.parts, 'part')}, {tokens:.1f} tokens on average"
        + (f", {', '.join(extra)}" if extra else ""),
    )
    if encode:
        finite = accounting.rows["encode"] - encode["non_finite"]
        stored, norm = accounting.data_bytes["embeddings"], encode["norm_sum"] / max(1, finite)
        add(
            "embeddings",
            f"{size(stored)} FP16, norm {norm:.3f}, {number(encode['duplicates_saved'])} duplicates not computed, "
            f"{number(encode['truncated'])} truncated, {number(encode['non_finite'])} not finite",
        )
    language = accounting.counts.get("language")
    if language:
        differ, judged = language["differ"], language["judged"]
        add(
            "language",
            f"{number(differ)} of {counted(int(judged), 'judged sentence')} are in another language than stated"
            + (f" ({differ / judged:.1%})" if judged else ""),
        )
    if accounting.duplicates:
        add("duplicates", accounting.duplicates)
    plans = accounting.counts.get("plans")
    if plans:
        add(
            "plans",
            f"{number(plans['plans'])} of {counted(int(plans['paragraphs']), 'paragraph')} have one; "
            f"{number(plans['left_over'])} beyond the last paragraph, {number(plans['truncated'])} truncated, "
            f"{number(plans['non_finite'])} not finite"
            + (
                f"; the model read {number(plans['tokens_read'])} tokens and wrote {number(plans['tokens_written'])}; "
                f"{number(plans['empty'])} empty, {number(plans['cut'])} of a paragraph that was cut"
                if "tokens_read" in plans
                else ""
            ),
        )
    score = accounting.counts.get("autobleu")
    if score and score["scored"]:
        add(
            "autobleu",
            f"{score['score_sum'] / score['scored']:.1f} on average over {number(score['scored'])} sentences; "
            f"{number(score['stopped_at_length'])} stopped at the length bound",
        )
    fragile = accounting.counts.get("fragility", {})
    if fragile.get("scored"):
        scores = [f"{name} {fragile[f'fragility_{name}_sum'] / fragile['scored']:.3f}" for name in ("bleu", "cosine")]
        add("fragility", f"{', '.join(scores)} on average over {number(fragile['scored'])} sentences")
    for stage, counts in accounting.counts.items():
        if counts.get("out_of_memory"):
            add("memory", _halvings(stage, counts))
    if accounting.repeated:
        add("storage", f"{counted(accounting.repeated, 'request')} had to be repeated")
    done = {stage: accounting.counts[stage].get("scored", accounting.rows[stage]) for stage in accounting.seconds}
    rates = [
        f"{stage} {number(done[stage] / seconds)}/s" for stage, seconds in accounting.seconds.items() if seconds > 0
    ]
    if any(done.values()):
        add("speed", ", ".join(rates) + " (sentences per second of work)")
    console.print(table)
    for warning, parts in accounting.warnings.most_common():
        warn(console, Text(f"warning: {plain(warning, 600)} ({counted(parts, 'part')})", style="yellow"))
    for problem in accounting.problems:
        warn(console, Text(f"wrong: {problem}", style="bold red"))


def show_unfinished(console: Console, accounting: Accounting) -> None:
    """Show what is not done yet, if there is anything."""
    if accounting.open_chunks:
        warn(console, f"not segmented yet: {counted(accounting.open_chunks, 'chunk')}")
    for stage, count in accounting.open_parts.items():
        warn(console, f"no {stage} yet: {counted(count, 'part')}")


def _kept(accounting: Accounting) -> Iterator[str]:
    """Return the columns that the inputs keep, each with its type, and how many values did not fit it."""
    for name, kind in accounting.kept_types.items():
        lost = {path: count for path, count in accounting.misfits.items() if f"{path}.".startswith(f"{name}.")}
        told = "; ".join(
            f"{counted(count, 'value')} did not fit and {'is' if count == 1 else 'are'} null"
            + (f" ({path})" if path != name else "")
            for path, count in lost.items()
        )
        yield plain(f"{name} {kind}" + (f" ({told})" if told else ""), 200)


def _halvings(stage: str, counts: dict[str, float]) -> str:
    times = "once" if counts["out_of_memory"] == 1 else f"{number(counts['out_of_memory'])} times"
    limits = [
        f"{key.removeprefix('least.')} {number(value)}" for key, value in counts.items() if key.startswith("least.")
    ]
    return f"{stage} ran out of device memory {times} and went on with {', '.join(limits)}"


def _reasons(counter: dict[str, int]) -> str:
    total = sum(counter.values())
    inside = ", ".join(f"{key} {number(value)}" for key, value in sorted(counter.items()))
    return f"{number(total)} ({inside})" if total else "0"


def print_columns(
    console: Console,
    heads: Sequence[str],
    titles: Sequence[str],
    lines: Iterable[Line],
    *,
    right: Collection[str] = (),
    padding: int = 1,
) -> None:
    """Print a table; if the terminal is too narrow for all figures, several, each with the first columns.

    Args:
        console: where it is printed.
        heads: titles of the columns of texts, which come first.
        titles: titles of the columns of figures.
        lines: the rows.
        right: those of `heads` whose column is aligned to the right.
        padding: blanks between columns.
    """
    lines = list(lines)
    start, end = 0, 0
    while not end or end < len(titles):
        start, end = end, len(titles)
        while True:
            table = Table(box=None, padding=(0, padding, 0, 0), header_style="bold")
            for head in heads:
                aligned: JustifyMethod = "right" if head in right else "left"
                table.add_column(escape(head), justify=aligned, vertical="bottom", overflow="fold")
            for title in titles[start:end]:
                table.add_column(escape(title), justify="right", vertical="bottom", no_wrap=True)
            for texts, figures, dim in lines:
                table.add_row(*map(Figures, texts), *figures[start:end], style="dim" if dim else None)
            wide = console.options.update(width=_WIDEST)
            if end <= start + 1 or Measurement.get(console, wide, table).maximum <= console.width:
                break
            end -= 1
        console.print(table)
        if not titles:
            return
