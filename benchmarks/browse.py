"""Measures `pipeline browse` over a made-up corpus: how soon pages come, and what they cost.

    python -m benchmarks.browse --sentences 5000000

Parts are written as a run writes them: sentences of about 110 characters in documents of 20, half of them with an
AutoBLEU and a decoded text, and embeddings. The real command serves them. A page is measured from the request to the
last byte of the answer, CPU time and memory are those of the server. Each question is asked once, in this order, of a
server that was asked nothing before; files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import yaml
from rich.table import Table

from benchmarks.duplicates import DOCUMENT, PART, texts_of
from benchmarks.machine import console, describe_cpu
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.receipts import ChunkReceipt, PartRef, Receipt, commit, commit_chunk
from pipeline.corpus.recipes import SEGMENT, part_fingerprint, segment_part_fingerprint
from pipeline.corpus.runs import RunRecord
from pipeline.corpus.view import View
from pipeline.inputs import Chunk, order_chunks, plan_inputs
from pipeline.storage import layout
from pipeline.storage.store import Store
from stages.arrow import embedding_array

CHUNK_BYTES = 1 << 16
LANGUAGES = ("eng_Latn", "deu_Latn", "zho_Hans")
COLUMNS = "lang\tautobleu\tchars\tdoc_id"
QUESTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("the first page", {}),
    ("a page in the middle", {"start": "half"}),
    ("filter: autobleu < 5", {"where": "autobleu < 5"}),
    ("… its second page", {"where": "autobleu < 5", "start": 50}),
    ("… all of it counted", {"where": "autobleu < 5", "all": 1}),
    ("filter that only the last row satisfies", {"where": "position == 19 and autobleu > 99.99 and chars < 60"}),
    ("order: autobleu", {"sort": "autobleu"}),
    ("… its second page", {"sort": "autobleu", "start": 50}),
    ("order: text", {"sort": "text"}),
    ("filter and order: German, autobleu", {"where": "lang == 'deu_Latn' and autobleu < 50", "sort": "autobleu"}),
    ("filter and order: text with 77, chars", {"where": "contains(text, '77')", "sort": "chars", "down": 1}),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print seconds by the clock and of CPU for each question, and the server's memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=5_000_000)
    parser.add_argument("--dim", type=int, default=64, help="width of the embeddings")
    parser.add_argument("--folder", help="where the corpus is written for the time of the measurement")
    options = parser.parse_args(arguments)
    out = console()
    with tempfile.TemporaryDirectory(prefix="browse-", dir=options.folder) as name:
        url = write(Path(name), -(-options.sentences // PART), options.dim)
        out.print(f"{describe_cpu()}; load {os.getloadavg()[0]:.0f}")
        out.print(ask_all(url, -(-options.sentences // PART) * PART))


def write(folder: Path, count: int, dim: int) -> str:
    """Write a corpus of so many parts, each a chunk of its own; return its URL."""
    config = _configure(folder, count)
    store = Store(config.output)
    view = View.of(config, order_chunks(plan_inputs(config.input, config.chunk_bytes), config.seed))
    for number, (chunk, print_) in enumerate(view.chunks):
        _write_part(store, view, chunk, print_, number, dim)
    RunRecord(store, config, view).close({"done": True})
    return config.output


def _configure(folder: Path, count: int) -> RunConfig:
    (folder / "in").mkdir()
    with (folder / "in/made-up.jsonl").open("wb") as file:
        file.truncate(CHUNK_BYTES * count)  # a hole: nothing is read from it
    value = {
        "name": "made-up",
        "output": "out",
        "input": [{"path": "in/*.jsonl", "lang": "eng_Latn"}],
        "chunk_bytes": CHUNK_BYTES,
        "segment": {"method": "spacy-capped"},
        "encode": {"model": "sonar-tiny"},
        "autobleu": {"sample": 0.5},
    }
    (folder / "corpus.yaml").write_text(yaml.safe_dump(value))
    return load_config(folder / "corpus.yaml")


def _write_part(store: Store, view: View, chunk: Chunk, print_: str, number: int, dim: int) -> None:
    part, digests = layout.part_name(chunk.id, 0), dict[str, str]()
    families = _families(number, dim)
    for stage, names in ((SEGMENT, ("sentences", "documents")), ("encode", ("embeddings", "status")),
                         ("autobleu", ("autobleu",))):  # fmt: skip
        inputs = {} if stage == SEGMENT else {name: digests[name] for name in view.reads[stage]}
        recipe = view.segment[chunk.input] if stage == SEGMENT else view.stages[stage]
        mine = segment_part_fingerprint(print_, 0) if stage == SEGMENT else part_fingerprint(recipe, inputs)
        receipt = _commit(store, stage, part, mine, fingerprint(recipe), inputs, {one: families[one] for one in names})
        digests |= receipt.columns
    documents = PART // DOCUMENT
    commit_chunk(store, ChunkReceipt(
        chunk=chunk.id, fingerprint=print_, recipe=fingerprint(view.segment[chunk.input]), input=chunk.input,
        source=chunk.source, stamp=chunk.stamp, take=chunk.take,
        parts=[PartRef(part=part, fingerprint=segment_part_fingerprint(print_, 0))], documents_in=documents,
        kept=documents, dropped={}, quarantined={}, quarantine=None, sentences=PART, counts={}, bytes_read=chunk.bytes,
        bytes_unreadable=0, seconds=1.0, created=time.time(),
    ))  # fmt: skip


def _commit(
    store: Store, stage: str, part: str, print_: str, recipe: str, inputs: dict[str, str], families: dict[str, pa.Table]
) -> Receipt:
    receipt, _ = commit(
        store, stage=stage, part=part, fingerprint=print_, recipe=recipe, inputs=inputs, families=families,
        counts={"documents": PART // DOCUMENT} if stage == SEGMENT else {},
        seconds={}, device="cpu",
    )  # fmt: skip
    return receipt


def _families(number: int, dim: int) -> dict[str, pa.Table]:
    """Return the tables of one part."""
    random = np.random.default_rng(number)
    texts = texts_of(number)
    at = np.arange(PART, dtype=np.int32)
    chars = np.fromiter(map(len, texts), np.int32, PART)
    zeros = np.zeros(PART, np.int32)
    of_document = np.repeat(random.integers(0, len(LANGUAGES), PART // DOCUMENT), DOCUMENT)
    langs = [LANGUAGES[one] for one in of_document]
    scored = random.random(PART) < 0.5
    scores = pa.array(random.beta(3, 1, PART).astype(np.float32) * 100, mask=~scored)
    decoded = pa.array([f"{text[:-8]}." if one else None for text, one in zip(texts, scored, strict=True)])
    first = np.arange(0, PART, DOCUMENT, dtype=np.int32)
    sentences = {
        "doc": at // DOCUMENT, "position": at % DOCUMENT, "paragraph": zeros, "text": texts, "lang": langs,
        "start": zeros, "end": chars, "chars": chars, "tokens": chars // 4, "u": random.random(PART),
    }  # fmt: skip
    documents = {
        "doc": np.arange(len(first)), "doc_id": [f"https://example.org/{number}/{one}" for one in range(len(first))],
        "subdocument": np.zeros(len(first)), "lang": langs[::DOCUMENT],
        "lang_confidence": pa.nulls(len(first), pa.float32()), "split": ["train"] * len(first),
        "source": [f"made-up-{number}"] * len(first), "text_hash": np.zeros(len(first)), "first_row": first,
        "rows": np.full(len(first), DOCUMENT),
    }  # fmt: skip
    plain = {
        "sentences": pa.table(sentences),
        "documents": pa.table(documents),
        "status": pa.table({"status": np.zeros(PART, np.uint8)}),
        "autobleu": pa.table({"autobleu": scores, "decoded": decoded}),
    }
    vectors = random.standard_normal((PART, dim), np.float32).astype(np.float16)
    cast = {name: table.select(layout.schema(name).names).cast(layout.schema(name)) for name, table in plain.items()}
    embedding = pa.table({"embedding": embedding_array(vectors)})
    return cast | {"embeddings": embedding.cast(layout.schema("embeddings", width=dim))}


def ask_all(url: str, rows: int) -> Table:
    """Start the server, ask it, and return what the answers cost."""
    table = Table("what", "seconds", "CPU seconds", "rows looked at", "found", "MB")
    began = time.monotonic()
    command = [sys.executable, "-m", "pipeline.cli", "browse", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        server.stdout.readline()
        address = server.stdout.readline().strip()
        table.add_row(
            "start", f"{time.monotonic() - began:.2f}", *_cost(server.pid, 0.0)[0:1], "", "", _memory(server.pid)
        )
        try:
            first: dict[str, Any] = {}
            for what, asked in QUESTIONS:
                asked = asked | {"start": rows // 2} if asked.get("start") == "half" else asked
                found = _ask(table, server.pid, address, what, "rows", {"columns": COLUMNS, "count": 50} | asked)
                first = first or found["rows"][0]
            place = {"part": first["part"], "row": first["row"]}
            _ask(table, server.pid, address, "one row, with its document", "row", place)
            _ask(table, server.pid, address, "its nearest sentences", "nearest", place)
        finally:
            server.send_signal(signal.SIGINT)
    return table


def _ask(table: Table, pid: int, address: str, what: str, path: str, asked: dict[str, Any]) -> dict[str, Any]:
    began, before = time.monotonic(), float(_cost(pid, 0.0)[1])
    with urlopen(f"{address}{path}?{urlencode(asked)}") as answer:  # our own server
        last = answer.read().decode().splitlines()[-1]
    seconds = time.monotonic() - began
    done: dict[str, Any] = json.loads(last)["done"]
    read, found = (f"{done[name]:,}" if name in done else "" for name in ("read", "found"))
    table.add_row(what, f"{seconds:.2f}", _cost(pid, before)[0], read, found, _memory(pid))
    return done


def _cost(pid: int, before: float) -> tuple[str, str]:
    """Return the seconds of CPU that a process has taken since then, and in all."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return f"{seconds - before:.2f}", f"{seconds:.4f}"


def _memory(pid: int) -> str:
    """Return the MB that a process has for itself, at most so far (mapped files are the page cache's)."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return f"{next(float(line[1]) / 1000 for line in lines if line[0] == 'RssAnon:'):,.0f}"


if __name__ == "__main__":
    main()
