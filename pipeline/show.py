"""What commands print: tables of a plan, of the books, of quality. Text of documents is data, never markup."""

from __future__ import annotations

import math

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from pipeline.errors import STEERS
from pipeline.inspect.quality import QUANTILES, Quality, Row, Score
from pipeline.inspect.quality import Group as QualityGroup
from pipeline.plan import Plan
from pipeline.state.books import Books
from pipeline.state.reasons import StageWork


def number(value: float) -> str:
    """1234567 → `1 234 567`."""
    return f"{value:,.0f}".replace(",", " ")


def counted(value: float, noun: str) -> str:
    """`1 part`, `1 234 parts`."""
    return f"{number(value)} {noun}{'s' * (value != 1)}"


def size(value: float) -> str:
    """Bytes in words: `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Seconds in words: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{number(whole // 3600)} h {whole % 3600 // 60:02d} min"


def plain(text: str, width: int) -> str:
    """One line of a document's text that cannot steer a terminal, cut to `width` characters."""
    safe = STEERS.sub(" ", text)
    return safe if len(safe) <= width else safe[: width - 1] + "…"


def show_plan(console: Console, plan: Plan) -> None:
    """The table of `pipeline plan`."""
    table = Table(title=f"Plan for {escape(plan.config.output)}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("stage", "done", "to do", "sentences to do", "measured", "time"):
        table.add_column(column, justify="right" if column != "stage" else "left", overflow="fold")
    unknown = bool(plan.chunks_to_segment())
    for work in plan.work.values():
        table.add_row(*_plan_row(work, unknown))
    console.print(table)
    reasons = Table(box=None, show_header=False, padding=(0, 2, 0, 0), title="\nWhy", title_justify="left")
    for work in plan.work.values():
        for reason, count in (+work.reasons).most_common(4):
            reasons.add_row(work.stage, f"{escape(reason)} ({counted(count, _unit(work))})")
    if reasons.row_count:
        console.print(reasons)
    if plan.nothing_to_do:
        console.print("Nothing to do.")


def _plan_row(work: StageWork, unknown: bool) -> tuple[str, ...]:
    more = " + what segmenting brings" if unknown and work.stage not in ("segment", "scaler") else ""
    return (
        work.stage,
        counted(work.done, _unit(work)),
        counted(work.left, _unit(work)),
        number(work.sentences_left) + more,
        f"{'about ' * work.guessed}{number(work.rate)}/s" if work.rate else "–",
        duration(work.seconds_left) if work.seconds_left else "–",
    )


def _unit(work: StageWork) -> str:
    return {"segment": "chunk", "scaler": "fit"}.get(work.stage, "part")


def show_books(console: Console, books: Books, title: str) -> None:
    """Where every document and sentence went."""
    table = Table(title=escape(title), title_justify="left", box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    segment, encode = books.counts.get("segment", {}), books.counts.get("encode", {})
    table.add_row(
        "documents",
        f"{number(books.documents_in)} in = {number(books.kept)} kept + {_reasons(books.dropped)} dropped + "
        f"{_reasons(books.quarantined)} quarantined",
    )
    if books.quarantined:
        lost = f"{size(books.bytes_unreadable)} could not be decoded; " if books.bytes_unreadable else ""
        hint = "" if books.kept else "; are `text:` and `id:` the right columns?"
        table.add_row("quarantine", f"{lost}pipeline quarantine shows each record, where and why{hint}")
    tokens = segment.get("tokens", 0) / books.sentences if books.sentences else 0
    extra = [
        f"{number(segment[key])} {label}"
        for key, label in (("cap_splits", "split by the cap"), ("hard_cuts", "cut without a boundary"))
        if segment.get(key)
    ]
    table.add_row(
        "sentences",
        f"{number(books.sentences)} in {counted(books.parts, 'part')}, {tokens:.1f} tokens on average"
        + (f", {', '.join(extra)}" if extra else ""),
    )
    if encode:
        stored, norm = books.data_bytes["embeddings"], encode["norm_sum"] / max(1, books.rows["encode"])
        table.add_row(
            "embeddings",
            f"{size(stored)} FP16, norm {norm:.3f}, {number(encode['duplicates_saved'])} duplicates not computed, "
            f"{number(encode['truncated'])} truncated, {number(encode['non_finite'])} not finite",
        )
    score = books.counts.get("autobleu")
    if score and score["scored"]:
        table.add_row(
            "autobleu",
            f"{score['score_sum'] / score['scored']:.1f} on average over {number(score['scored'])} sentences; "
            f"{number(score['stopped_at_length'])} stopped at the length bound",
        )
    fragile = books.counts.get("fragility", {})
    if fragile.get("scored"):
        scores = [f"{name} {fragile[f'fragility_{name}_sum'] / fragile['scored']:.3f}" for name in ("bleu", "cosine")]
        table.add_row("fragility", f"{', '.join(scores)} on average over {number(fragile['scored'])} sentences")
    for stage, counts in books.counts.items():
        if counts.get("out_of_memory"):
            table.add_row("memory", _halvings(stage, counts))
    if books.repeated:
        table.add_row("storage", f"{counted(books.repeated, 'request')} had to be repeated")
    done = {stage: books.counts[stage].get("scored", books.rows[stage]) for stage in books.seconds}
    rates = [f"{stage} {number(done[stage] / seconds)}/s" for stage, seconds in books.seconds.items() if seconds > 0]
    table.add_row("speed", ", ".join(rates) + " (sentences per second of work)")
    console.print(table)
    for warning, parts in books.warnings.most_common():
        console.print(Text(f"warning: {plain(warning, 600)} ({counted(parts, 'part')})", style="yellow"))
    for problem in books.problems:
        console.print(Text(f"wrong: {problem}", style="bold red"))


def show_open(console: Console, books: Books) -> None:
    """What is not done yet, if anything."""
    if books.open_chunks:
        console.print(f"not segmented yet: {counted(books.open_chunks, 'chunk')}")
    for stage, count in books.open_parts.items():
        console.print(f"no {stage} yet: {counted(count, 'part')}")


def _halvings(stage: str, counts: dict[str, float]) -> str:
    times = "once" if counts["out_of_memory"] == 1 else f"{number(counts['out_of_memory'])} times"
    limits = [
        f"{key.removeprefix('least.')} {number(value)}" for key, value in counts.items() if key.startswith("least.")
    ]
    return f"{stage} ran out of device memory {times} and went on with {', '.join(limits)}"


def _reasons(counter: dict[str, int]) -> str:
    total = sum(counter.values())
    inside = ", ".join(f"{escape(key)} {number(value)}" for key, value in sorted(counter.items()))
    return f"{number(total)} ({inside})" if total else "0"


def show_quality(console: Console, quality: Quality, bleu: dict[str, float] | None, *, lengths: bool = True) -> None:
    """AutoBLEU by language and by length. `bleu`: corpus BLEU by language, None where it is not that of these rows.

    Two quantiles are left out where there are not 100 columns.
    """
    narrow = console.width < 100
    tables = [("language", quality.by_lang, bleu), ("characters", quality.by_length, None)]
    for title, groups, of_lang in tables if lengths else tables[:1]:
        table = Table(box=None, padding=(0, 1 if narrow else 2, 0, 0))
        table.add_column(title, no_wrap=True)
        rows = [_quality_cells(group, of_lang) for group in groups]
        for column in rows[0] if rows else ():
            if not (narrow and column in ("p25", "p75")):
                header = column.replace(" ", "\n") if narrow else column
                table.add_column(header, justify="right", vertical="bottom", no_wrap=True)
        for group, cells in zip(groups, rows, strict=True):
            shown = (cell for column, cell in cells.items() if not (narrow and column in ("p25", "p75")))
            table.add_row(escape(group.name), *shown)
        console.print(Group("", table))
    if quality.rows_read < quality.rows:
        console.print(f"(from {number(quality.rows_read)} of {number(quality.rows)} rows; --max-rows reads more)")


def _quality_cells(group: QualityGroup, bleu: dict[str, float] | None) -> dict[str, str]:
    """Column → cell."""

    def shown(value: float, form: str = ".1f") -> str:
        return "–" if math.isnan(value) else f"{value:{form}}"

    cells = {"sentences": number(group.sentences), "tokens": shown(group.tokens), "scored": number(group.scored)}
    if bleu is not None:
        cells["corpus BLEU"] = shown(bleu.get(group.name, float("nan")))
    cells["mean"] = shown(group.mean)
    cells |= {f"p{share:.0%}"[:-1]: shown(value) for share, value in zip(QUANTILES, group.quantiles, strict=True)}
    return cells | {"below 20": shown(group.poor, ".0%")}


def show_scores(console: Console, scores: list[Score]) -> None:
    """Every column of scores, where there are more than AutoBLEU's."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("score", "scored", "mean", *(f"p{share:.0%}"[:-1] for share in QUANTILES)):
        table.add_column(column, justify="left" if column == "score" else "right", no_wrap=True)
    for one in scores:
        form = ".1f" if one.name == "autobleu" else ".3f"
        table.add_row(one.name, number(one.scored), *(f"{value:{form}}" for value in (one.mean, *one.quantiles)))
    if any(one.name != "autobleu" for one in scores):
        console.print(Group("", table))


def show_rows(console: Console, title: str, rows: list[Row]) -> None:
    """Sentences with what came back from their embeddings."""
    console.print(Group("", Text(title, style="bold")))
    width = max(40, console.width - 12)
    for row in rows:
        console.print(Text(f"{row.autobleu:6.1f}  ", style="bold") + Text(plain(row.text, width)))
        console.print(Text(f"     →  {plain(row.decoded, width)}", style="dim"))
        console.print(Text(f"        {row.lang}, part {row.part}, row {row.row}", style="dim italic"))
