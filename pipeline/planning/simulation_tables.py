"""Prints the tables of `pipeline plan --simulate`; three significant digits are enough."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.base.errors import ConfigError, visible
from pipeline.base.formats import duration, number, size
from pipeline.planning.pilot_size import LARGE_PART
from pipeline.planning.requests import Requests, month_dollars
from pipeline.planning.simulation import (
    AT_ONCE,
    BY_PAPER,
    BY_SCHEMA,
    DERIVED,
    LIST_KEYS,
    REQUEST_SECONDS,
    Simulation,
    StageCost,
    Storage,
)
from pipeline.planning.tables import large

GPUS = (8, 64, 512)
PADDING = (0, 2, 0, 0)


def gpus_of(text: str | None) -> tuple[int, ...]:
    """Parse `8,64,1000`. Raises `ConfigError` for anything else."""
    if text is None:
        return GPUS
    found = [int(one) if one.strip().isdecimal() else 0 for one in text.split(",")]
    if min(found) < 1:
        raise ConfigError(f"--gpus {text}: give numbers of GPUs, for instance --gpus 8,64,1000")
    return tuple(found)


def show_simulation(console: Console, found: Simulation, gpus: Sequence[int]) -> None:
    """Print all tables; they fit a terminal of 80 columns.

    Args:
        console: where the tables are printed.
        found: the simulation.
        gpus: numbers of GPUs, each a column of the table of times.
    """
    at = found.size
    console.print(
        f"[bold]{escape(visible(found.config.name))}[/] with {large(at.documents)} documents, "
        f"{large(at.sentences)} sentences, {size(at.sentences * at.input_bytes)} of input",
        highlight=False,
    )
    console.print(f"({at.origin})", highlight=False)
    _stages(console, found)
    _objects(console, found)
    _storage(console, found)
    _time(console, found, gpus)
    _requests(console, found)


def span(hours: float) -> str:
    """Format a long time: `42 s`, `31 h`, `12 days`, `1 170 years`."""
    if hours < 2:
        return duration(hours * 3600)
    if hours < 72:
        return f"{hours:.0f} h"
    days = hours / 24
    return f"{number(days)} days" if days < 1000 else f"{number(days / 365.25)} years"


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} – {high}"


def _table(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> None:
    """Print a table: the first column, and the last `texts - 1` of the others, hold words, the others numbers."""
    table = Table(box=None, padding=PADDING, title=f"\n{title}", title_justify="left")
    for place, column in enumerate(columns):
        words = place == 0 or place > len(columns) - texts
        table.add_column(column, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for row in rows:
        table.add_row(*row)
    console.print(table, highlight=False)


def _stages(console: Console, found: Simulation) -> None:
    rows = []
    for one in found.stages:
        times = f" × {one.times}" if one.times > 1 else ""
        rate = _between(*(f"{number(each)}" for each in one.rates)) if one.rates else "–"
        hours = _between(*(large(each) for each in one.hours)) if one.hours else "–"
        rows.append([one.stage, f"{large(one.rows)}{times}", rate, hours, _origin(one, found)])
    columns = ("stage", "sentences", "sentences/s", "worker-hours", "where the rate comes from")
    _table(console, "Work of one worker (a GPU, or a machine without GPUs)", columns, rows, texts=2)
    beside = next((one for one in found.stages if one.beside and one.hours), None)
    low, high = found.device_hours()
    if beside and beside.hours and high:
        each = _between(*(f"{beside.hours[0] / one:.2g}" for one in (high, low)))
        console.print(f"Segmenting goes on beside the rest; it keeps up with {each} processes per worker.")


def _origin(one: StageCost, found: Simulation) -> str:
    if not one.rates:
        return "no rate: run some parts first"
    if one.origin == BY_PAPER:
        model = found.config.encode.model if found.config.encode else ""
        other = "" if model.startswith("sonar") and model != "sonar-tiny" else f", not of {escape(model)}"
        return f"LCM paper: SONAR, one GPU{other}"
    if one.origin == DERIVED:
        return f"decoding at the speed of autobleu, ÷ {one.times}"
    return f"measured here: {one.parts} part{'s' * (one.parts != 1)}, {escape(one.origin)}"


def _objects(console: Console, found: Simulation) -> None:
    launcher = found.config.launcher
    each = found.config.chunk_bytes
    rows = [
        ["chunks", large(found.chunks), f"of {size(each)} of input; compressed files of about that size are best"],
        [
            "parts",
            large(found.parts),
            f"of up to {number(found.config.part_sentences)} sentences, one remainder per chunk",
        ],
        ["data files", large(found.files), f"{len(found.storage)} families"],
        ["receipts", large(found.receipts), f"{len(found.stages)} stages per part, one per chunk"],
        ["ledger rows", large(found.chunks), f"one per finished chunk, in {found.ledgers} files or more"],
        [
            "shards",
            large(found.claims(launcher.tasks)),
            f"of {launcher.tasks} tasks (launcher.tasks): {launcher.chunks_per_claim} chunks each, fewer at the end",
        ],
    ]
    _table(console, "Counts", ("", "number", ""), rows, texts=2)
    if (larger := found.with_larger_parts()) is not None:
        before, after = (_work(one).total for one in (found, larger))
        console.print(
            f"With part_sentences: {LARGE_PART}, chunk_bytes: {larger.config.chunk_bytes} and "
            f"launcher.chunks_per_claim: {larger.config.launcher.chunks_per_claim}, set before the first run: "
            f"{large(larger.parts)} parts, {large(larger.files)} data files, {large(larger.receipts)} receipts, "
            f"{large(larger.claims(launcher.tasks))} shards, and {large(after)} requests in place of {large(before)}.",
            highlight=False,
        )


def _storage(console: Console, found: Simulation) -> None:
    rows = [[one.family, large(one.rows), f"{one.each:.1f}", size(one.total), _source(one)] for one in found.storage]
    each = found.bytes / found.size.sentences
    rows.append(["all", large(found.size.sentences), f"{each:.1f}", size(found.bytes), ""])
    _table(console, "Storage", ("family", "rows", "bytes per row", "in all", "from"), rows, texts=2)
    console.print(f"On S3 Standard, about {_dollars(month_dollars(found.bytes))} a month.", highlight=False)


def _source(one: Storage) -> str:
    if one.origin != BY_SCHEMA:
        return "measured here"
    return {
        "embeddings": "schema, FP16 × 0.85",
        "codes": "schema, bits of a code",
        "documents": "schema, raw, without ids and metadata",
    }.get(one.family, "schema, raw")


def _time(console: Console, found: Simulation, gpus: Sequence[int]) -> None:
    low, high = found.device_hours()
    if not high:
        console.print("\nTime: no rate of any stage is known; run some parts first", highlight=False)
        return
    columns = ("GPUs", "time", "written per second", "array tasks", "starts of each")
    rows = [
        [
            number(one),
            _between(span(low / one), span(high / one)),
            _between(*(f"{size(found.bytes / hours / 3600 * one)}" for hours in (high, low))),
            number(found.tasks(one)),
            _between(*(number(found.starts(hours / one)) for hours in (low, high))),
        ]
        for one in gpus
    ]
    on_cpu = sorted({one.origin for one in found.stages if one.rates and one.origin.startswith("cpu")})
    _table(console, f"Time: {_between(large(low), large(high))} hours of a worker, over", columns, rows)
    if found.unknown:
        console.print(f"Without {', '.join(found.unknown)}, whose rates are not known.", highlight=False)
    if on_cpu:
        console.print(
            f"Rates of {', '.join(on_cpu)} stand in for those of a GPU here; run some parts on one to see its own."
        )
    nodes = found.config.launcher.gpus_per_node or 1
    console.print(
        f"An array task has {nodes} GPU{'s' * (nodes != 1)} (launcher.gpus_per_node) and starts again after "
        f"{found.config.launcher.time} (launcher.time). Fits see the pilot only, and are not counted. If nodes differ "
        f"in speed by a tenth, the last of {number(found.tasks(gpus[-1]))} tasks ends after "
        f"{span(found.makespan(found.tasks(gpus[-1]), high / gpus[-1]))}.",
        highlight=False,
    )


def _dollars(value: float) -> str:
    return f"${value:.2f}" if value < 10 else f"${number(float(f'{value:.3g}'))}"


def _work(found: Simulation) -> Requests:
    """Return the requests of all tasks, in which each works for as long as the slower rates say."""
    tasks = found.config.launcher.tasks
    return found.requests(tasks, found.device_hours()[1] / (tasks * (found.config.launcher.gpus_per_node or 1)))


def _requests(console: Console, found: Simulation) -> None:
    high = found.device_hours()[1]
    work = _work(found)
    a_part = found.part_requests.total
    waiting = a_part * REQUEST_SECONDS
    share = f"{waiting * found.parts / (high * 3600):.2%}" if high else "–"
    planning = 1 + 2 * found.ledgers
    listing, reading = found.lists * REQUEST_SECONDS, found.receipts / AT_ONCE * REQUEST_SECONDS
    rows = [
        [
            "plan, when all is done",
            large(planning),
            span(planning * REQUEST_SECONDS / 3600),
            "ledgers: footer, columns",
        ],
        [
            "list every receipt",
            large(found.lists),
            span(listing / 3600),
            f"verify, gc: {number(LIST_KEYS)} keys per LIST",
        ],
        ["read every receipt", large(found.receipts), span(reading / 3600), f"verify, gc: {AT_ONCE} at a time"],
        ["the work itself", large(work.total), span(work.total * REQUEST_SECONDS / 3600), ""],
    ]
    rows[-1][3] = f"{a_part:.0f} per part, {share} of the workers' time; {_dollars(work.dollars)} on S3"
    title = f"Requests to an object store, {REQUEST_SECONDS * 1000:.0f} ms each"
    _table(console, title, ("", "requests", "time", ""), rows, texts=2)
