"""Receipts at scale: seconds and memory of `plan` and `status` over a made-up corpus of millions of parts.

    python -m benchmarks.plan_scale --chunks 714286          # 5 million parts
    python -m benchmarks.plan_scale --chunks 3000000 --fresh # nothing is done yet

The inputs are real files with holes instead of text, so that everything is planned as in a run. Of the chunks, all are
in ledgers, which the real writer wrote, but for a tail that has receipts only, of which every second chunk waits to be
encoded. Each command is measured in a process of its own: wall time with imports, and the peak of its memory. `pass` is
what `select`, `index` and `export` do first: the receipts of all parts, in the order of their names. `retry` is what
`pipeline retry` does before it deletes receipts: one of a thousand chunks has records in quarantine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table

from benchmarks import command_line
from benchmarks.machine import console, describe_cpu
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.corpus.counters import counters_of
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.ledger import row_of, write_rows
from pipeline.corpus.receipts import ChunkReceipt, DataFile, PartRef, Receipt
from pipeline.corpus.recipes import SEGMENT, part_fingerprint, segment_part_fingerprint
from pipeline.corpus.runs import RunRecord
from pipeline.corpus.view import View
from pipeline.inputs import Chunk, order_chunks, plan_inputs
from pipeline.storage import layout
from pipeline.storage.store import Store

CHUNKS_A_FILE = 1000
ROWS = 100_000  # sentences per part
LANGUAGES = ("eng_Latn", "deu_Latn", "fra_Latn", "rus_Cyrl", "zho_Hans")
QUARANTINED = 1000  # chunks of which one has records in quarantine
COMMANDS = ("plan", "status", "pass", "retry")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    out = console()
    out.print(f"{describe_cpu()}; {options.chunks} chunks of {options.parts} parts, {options.tail} of them in the tail")
    with tempfile.TemporaryDirectory(prefix="plan-scale-", dir=options.folder) as name:
        folder = Path(name)
        started = time.monotonic()
        config = make_up(folder, options.chunks, 0 if options.fresh else options.parts, options.tail)
        out.print(f"made in {time.monotonic() - started:.0f} s; {_size(folder / 'out'):.0f} MB on disk")
        table = Table()
        for column in ("command", "seconds", "CPU seconds", "peak MB", "what it says"):
            table.add_column(column, justify="left" if column in ("command", "what it says") else "right")
        for command in COMMANDS[:1] if options.fresh else COMMANDS:
            seconds, cpu, peak, said = measured(command, config)
            table.add_row(command, f"{seconds:.1f}", f"{cpu:.1f}", f"{peak:.0f}", said)
        out.print(table)


def make_up(folder: Path, chunks: int, parts: int, tail: int) -> Path:
    """Make a corpus of so many chunks with so many parts each (0: nothing is done yet). Returns its corpus.yaml."""
    config = _configure(folder, chunks)
    if parts:
        listed = order_chunks(plan_inputs(config.input, config.chunk_bytes), config.seed)
        view = View.of(config, listed)
        store = Store(config.output)
        RunRecord(store, config, view).close({"done": True})
        entries = iter(view.chunks)
        for number in range(tail):
            chunk, print_ = next(entries)
            for path, data in _receipts(view, chunk, print_, parts, done=number % 2 == 0):
                Path(store.url, path).parent.mkdir(parents=True, exist_ok=True)
                Path(store.url, path).write_text(data)
        write_rows(store, _rows(view, entries, parts))
    return folder / "corpus.yaml"


def _configure(folder: Path, chunks: int) -> RunConfig:
    size = 1 << 16
    (folder / "in").mkdir()
    for number, first in enumerate(range(0, chunks, CHUNKS_A_FILE)):
        with (folder / f"in/{number:06d}.jsonl").open("wb") as file:
            file.truncate(size * min(CHUNKS_A_FILE, chunks - first))
    value = {
        "name": "made-up",
        "output": "out",
        "input": [{"path": "in/*.jsonl", "lang": "eng_Latn"}],
        "chunk_bytes": size,
        "segment": {"method": "spacy-capped", "max_chars": 200},
        "encode": {},
        "autobleu": {},
    }
    (folder / "corpus.yaml").write_text(yaml.safe_dump(value))
    return load_config(folder / "corpus.yaml")


def _made_up(
    view: View, chunk: Chunk, print_: str, parts: int, quarantined: int = 0
) -> tuple[ChunkReceipt, list[dict[str, Receipt]]]:
    """Return receipts as a run leaves them."""
    columns = {stage: _columns(families) for stage, families in WRITES.items()}
    every: list[dict[str, Receipt]] = []
    for number in range(parts):
        part = layout.part_name(chunk.id, number)
        digests: dict[str, str] = {}
        receipts: dict[str, Receipt] = {}
        for stage, families in WRITES.items():
            inputs = {} if stage == SEGMENT else {name: digests[name] for name in view.reads[stage]}
            recipe = view.segment[chunk.input] if stage == SEGMENT else view.stages[stage]
            mine = segment_part_fingerprint(print_, number) if stage == SEGMENT else part_fingerprint(recipe, inputs)
            files = [
                DataFile(family=one, path=layout.data_path(one, part, mine), rows=ROWS, bytes=9999, digest=mine)
                for one in families
            ]
            digests |= dict.fromkeys(columns[stage], mine)
            receipts[stage] = Receipt(
                stage=stage,
                part=part,
                fingerprint=mine,
                recipe=fingerprint(recipe),
                inputs=inputs,
                files=files,
                columns=dict.fromkeys(columns[stage], mine),
                rows=ROWS,
                counts=_counts(stage),
                seconds={"read": 0.1, "prepare": 1.0, "wait": 2.0, "compute": 30.0, "finish": 0.5, "commit": 0.3},
                device="NVIDIA H100",
                created=1.7e9 + number,
            )
        every.append(receipts)
    refs = [PartRef(part=one[SEGMENT].part, fingerprint=one[SEGMENT].fingerprint) for one in every]
    receipt = ChunkReceipt(
        chunk=chunk.id,
        fingerprint=print_,
        recipe=fingerprint(view.segment[chunk.input]),
        input=chunk.input,
        source=chunk.source,
        stamp=chunk.stamp,
        take=chunk.take,
        parts=refs,
        documents_in=1010 * parts,
        kept=1000 * parts,
        dropped={"empty": 10 * parts - quarantined},
        quarantined={"not UTF-8": quarantined} if quarantined else {},
        quarantine=None,
        sentences=ROWS * parts,
        counts={},
        bytes_read=chunk.bytes,
        bytes_unreadable=0,
        seconds=12.5,
        created=1.7e9,
    )
    return receipt, every


WRITES = {SEGMENT: ("documents", "sentences"), "encode": ("embeddings", "status"), "autobleu": ("autobleu",)}


def _columns(families: Sequence[str]) -> list[str]:
    return [f"{family}.{name}" for family in families for name in layout.schema(family, width=1).names]


def _counts(stage: str) -> dict[str, float]:
    if stage == SEGMENT:
        return {"documents": 1000.0, "tokens": 25.0 * ROWS, "cap_splits": 17.0, "hard_cuts": 3.0}
    if stage == "encode":
        return {"norm_sum": 0.3 * ROWS, "duplicates_saved": 31.0, "truncated": 2.0, "non_finite": 0.0}
    bleu = {f"bleu.{lang}.{number}": 1000.0 + number for lang in LANGUAGES for number in range(10)}
    return {"scored": 1000.0, "score_sum": 70_000.0, "stopped_at_length": 4.0, **bleu}


def _receipts(view: View, chunk: Chunk, print_: str, parts: int, done: bool) -> Iterator[tuple[str, str]]:
    receipt, every = _made_up(view, chunk, print_, parts)
    for part in every:
        for stage, one in part.items():
            if done or stage == SEGMENT:
                yield layout.receipt_path(stage, one.part, one.fingerprint), one.model_dump_json()
    yield layout.chunk_receipt_path(chunk.id, print_), receipt.model_dump_json()


def _rows(view: View, entries: Iterator[tuple[Chunk, str]], parts: int) -> Iterator[dict[str, Any]]:
    """Return rows as `fold` makes them; those after the first of a kind are its texts with other names."""
    firsts: dict[bool, tuple[str, str, dict[str, Any]]] = {}
    for number, (chunk, print_) in enumerate(entries):
        quarantined = number % QUARANTINED == 0
        if quarantined not in firsts:
            receipt, every = _made_up(view, chunk, print_, parts, parts * quarantined)
            row = row_of(receipt, every, counters_of(receipt, ((part, ()) for part in every)))
            firsts[quarantined] = chunk.id, print_, row
            yield row
            continue
        first, first_print, row = firsts[quarantined]
        yield row | {
            "chunk": chunk.id,
            "fingerprint": bytes.fromhex(print_),
            "prints": os.urandom(len(row["prints"])),
            "stamp": chunk.stamp,
            "receipts": row["receipts"].replace(first, chunk.id).replace(first_print, print_),
        }


def measured(command: str, config: Path) -> tuple[float, float, float, str]:
    """Return seconds, seconds of CPU, peak of resident memory in MB, and what came out, of a command in its own
    process.
    """
    started = time.monotonic()
    arguments = [sys.executable, "-m", "benchmarks.plan_scale", "--measure", command, str(config)]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, check=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    return time.monotonic() - started, said["cpu"], said["peak"] / 1e3, said["said"]


def _measure(command: str, path: str) -> None:
    config = load_config(Path(path))
    if command == "plan":
        from pipeline.planning.plan import make_plan

        plan = make_plan(config)
        left = ", ".join(f"{stage} {work.done} done {work.left} left" for stage, work in plan.work.items())
        said = f"nothing to do: {plan.nothing_to_do}; {left}"
    elif command == "pass":
        from pipeline.config.select import SelectSettings
        from pipeline.corpus.reader import Corpus
        from pipeline.select.selection import Selection

        corpus = Corpus(config.output)
        said = f"{len(corpus.parts)} parts, {Selection(corpus, SelectSettings()).digest}"
    elif command == "retry":
        from pipeline.corpus.reader import Corpus
        from pipeline.planning.plan import make_plan
        from pipeline.run.retry import quarantined_receipts

        store = Store(config.output)
        again = quarantined_receipts(store, make_plan(config).chunks)
        before = quarantined_receipts(store, Corpus(config.output).chunks)
        said = f"{len(again)} chunks to segment again, {len(before)} before"
    else:
        from pipeline.corpus.accounting import compute_accounting
        from pipeline.corpus.reader import Corpus

        corpus = Corpus(config.output)
        accounting = compute_accounting(corpus.store, corpus.chunks)
        said = f"{accounting.parts} parts, {accounting.sentences} sentences, {len(accounting.problems)} problems"
    with contextlib.suppress(ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        print(json.dumps({"peak": peak * 1.024, "cpu": time.process_time(), "said": said}))


def _size(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def _parser() -> argparse.ArgumentParser:
    parser = command_line("plan_scale", "Seconds and memory of plan and status over a made-up corpus.")
    parser.add_argument("--chunks", type=int, default=714_286)
    parser.add_argument("--parts", type=int, default=7, help="parts of each chunk")
    parser.add_argument("--tail", type=int, default=500, help="chunks that are in no ledger")
    parser.add_argument("--fresh", action="store_true", help="plan a corpus of which nothing is done")
    parser.add_argument("--folder", type=Path, help="where the corpus is made; a temporary folder if not given")
    return parser


if __name__ == "__main__":
    if "--measure" in sys.argv:
        _measure(*sys.argv[2:4])
    else:
        main()
