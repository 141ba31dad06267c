"""Measures exact duplicates: hashes of made-up sentences, and their comparison over a whole corpus; and semantic ones.

    python -m benchmarks.duplicates --sentences 10000000
    python -m benchmarks.duplicates --cluster 16384 --dim 1024 --device cpu

Parts are written as segmenting leaves them; a fifth of the sentences occurs before. Workers hash them, and one process
compares them. CPU time is of all threads, with reading and writing of files; memory is the most of the process that
compares, and what it had before. A cluster of semantic duplicates is made-up embeddings about a 64th as many centres.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.machine import console, describe_cpu
from pipeline.config.load import load_config
from pipeline.corpus.receipts import PartRef, commit
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.states import PartState
from pipeline.run.duplicates import compare_parts
from pipeline.run.worker import PartWorker
from pipeline.storage import layout
from pipeline.storage.store import Store
from stages.device import describe
from stages.duplicates.hashing import hash_texts
from stages.duplicates.semantic import similar

PART, DOCUMENT = 100_000, 20  # sentences
REPEATED = 0.2
WORDS = np.asarray(
    [f"{stem}{end}" for stem in ("work", "read", "sail", "build") for end in ("er", "ing", "s", "ed", "")]
)
CONFIG = """name: duplicates
output: out
input: [{path: "*.jsonl", lang: eng_Latn}]
segment: {method: spacy-capped, model: sonar-tiny}
duplicates: {}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print sentences per second of CPU, and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, default=10_000_000)
    parser.add_argument("--folder", help="where the parts are written for the time of the measurement")
    parser.add_argument("--cluster", type=int, help="compare so many embeddings with each other instead")
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    out = console()
    if options.cluster:
        compare_cluster(out, options.cluster, options.dim, options.device)
        return
    with tempfile.TemporaryDirectory(prefix="duplicates-", dir=options.folder) as name:
        Path(name, "corpus.yaml").write_text(CONFIG)
        count = -(-options.sentences // PART)
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            characters = pool.apply(write, (name, count))
        out.print(
            f"{describe_cpu()}; {count * PART:,} sentences of {characters:.0f} characters; load "
            f"{os.getloadavg()[0]:.0f}"
        )
        table = Table("what", "CPU seconds", "sentences/s", "GB before", "GB at most")
        for what, function in (("hash, in memory", hash_alone), ("hash", hash_parts), ("compare", compare)):
            with context.Pool(1) as pool:
                before, seconds, peak = pool.apply(function, (name, count))
            table.add_row(what, f"{seconds:.1f}", f"{count * PART / seconds:,.0f}", f"{before:.2f}", f"{peak:.2f}")
        out.print(table)


def write(folder: str, count: int) -> float:
    """Write parts as segmenting leaves them; return the mean length of a sentence."""
    config = load_config(Path(folder, "corpus.yaml"))
    characters = 0
    for number in range(count):
        texts = texts_of(number)
        characters += sum(map(len, texts))
        at = np.arange(PART, dtype=np.int32)
        zeros = pa.array(np.zeros(PART, np.int32))
        sentences = {"doc": at // DOCUMENT, "position": at % DOCUMENT, "paragraph": zeros, "text": texts}
        sentences |= {"lang": ["eng_Latn"] * PART, **dict.fromkeys(("start", "end", "chars", "tokens"), zeros)}
        first = np.arange(0, PART, DOCUMENT, dtype=np.int32)
        documents = {
            "doc": np.arange(len(first)),
            "doc_id": [f"https://example.org/{number}/{one}" for one in range(len(first))],
            "subdocument": np.zeros(len(first)),
            **dict.fromkeys(("lang", "split", "source"), ["eng_Latn"] * len(first)),
            "lang_confidence": pa.nulls(len(first), pa.float32()),
            "text_hash": np.zeros(len(first)),
            "first_row": first,
            "rows": np.full(len(first), DOCUMENT),
        }
        tables = {
            "sentences": pa.table(sentences | {"u": np.zeros(PART)}),
            "documents": pa.table(documents).select(layout.schema("documents").names),
        }
        ref = _ref(number)
        commit(
            Store(config.output), stage=SEGMENT, part=ref.part, fingerprint=ref.fingerprint, recipe="", inputs={},
            families={name: table.cast(layout.schema(name)) for name, table in tables.items()}, counts={}, seconds={},
            device="cpu",
        )  # fmt: skip
    return characters / count / PART


def texts_of(number: int) -> list[str]:
    """Return the sentences of a part, about 100 characters long."""
    random = np.random.default_rng(number)
    words = WORDS[random.integers(0, len(WORDS), (PART, 14))]
    serial = np.where(random.random(PART) < REPEATED, random.integers(0, PART, PART), number * PART + np.arange(PART))
    return [f"{one[0].capitalize()} {at} {' '.join(one[1:])}." if at >= PART else f"The {at} {' '.join(WORDS)}."
            for one, at in zip(words.tolist(), serial.tolist(), strict=True)]  # fmt: skip


def _ref(number: int) -> PartRef:
    return PartRef(part=layout.part_name("0" * 12, number), fingerprint=f"{number:032x}")


def hash_alone(folder: str, count: int) -> tuple[float, float, float]:
    """Hash the texts of one part as often as there are parts."""
    texts = pa.chunked_array([pa.array(texts_of(0))])
    return _measured(lambda: [hash_texts(texts, "light") for _ in range(count)])


def hash_parts(folder: str, count: int) -> tuple[float, float, float]:
    """Let a worker visit every part."""
    worker = PartWorker(load_config(Path(folder, "corpus.yaml")), "cpu", ("hashes",))
    return _measured(lambda: [worker.visit(_ref(number)) for number in range(count)])


def compare(folder: str, count: int) -> tuple[float, float, float]:
    """Compare all parts."""
    config = load_config(Path(folder, "corpus.yaml"))
    assert config.duplicates
    settings = config.duplicates
    worker = PartWorker(config, "cpu", ())
    visits = [worker.visit(_ref(number)) for number in range(count)]
    parts = [PartState(_ref(number), "0" * 12, one.receipts, ("duplicates",)) for number, one in enumerate(visits)]
    return _measured(lambda: compare_parts(Store(config.output), config, settings, parts))


def compare_cluster(out: Console, count: int, dim: int, device: str) -> None:
    """Print how long semantic duplicates of one cluster take.

    Args:
        out: where it is printed.
        count: embeddings.
        dim: their width.
        device: where they are compared.
    """
    random = np.random.default_rng(0)
    centres = random.normal(size=(count // 64 + 1, dim)).astype(np.float32)
    near = centres[random.integers(0, len(centres), count)]
    embeddings = (near + 0.22 * random.normal(size=near.shape)).astype(np.float16)
    similar(embeddings[:1000], 0.95, device)
    started = time.perf_counter()
    before, seconds, peak = _measured(lambda: similar(embeddings, 0.95, device))
    wall = time.perf_counter() - started
    out.print(
        f"{describe(device)}, {describe_cpu()}; {count:,} embeddings of {dim}: {wall:.2f} s, {seconds:.2f} s of CPU, "
        f"{count**2 / wall / 1e6:,.0f} million cosines/s, {peak:.2f} GB at most ({before:.2f} before); load "
        f"{os.getloadavg()[0]:.0f}"
    )


def _measured(work: object) -> tuple[float, float, float]:
    before, began = _peak(), os.times()
    assert callable(work)
    work()
    ended = os.times()
    return before, ended.user + ended.system - began.user - began.system, _peak()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
