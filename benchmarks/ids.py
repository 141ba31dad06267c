"""Measures the comparison of ids over a whole corpus: CPU seconds, memory and bytes on disk, for made-up documents.

Documents of a few bytes in JSONL files, `--twice` of them with an id that an earlier file has. The first figures are
of reading and comparing all of them; then one file more is added, and only that one is read.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import describe_cpu
from pipeline.config.load import load_config
from pipeline.inputs import plan_inputs
from pipeline.run.compare_ids import compare_ids
from pipeline.storage.store import Store

CONFIG = """name: ids
output: out
input: [{path: in/*.jsonl, id: id, lang: eng_Latn}]
duplicate_ids: keep-first
segment: {method: spacy-capped}
encode: {model: sonar-tiny}
launcher: inline
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line for all files and one for a file that is added."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--file", type=int, default=1_000_000, help="documents in a file")
    parser.add_argument("--twice", type=float, default=0.001, help="share of ids that an earlier file has")
    args = parser.parse_args(arguments)
    print(describe_cpu())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        (folder / "corpus.yaml").write_text(CONFIG)
        files = -(-args.documents // args.file)
        for number in range(files):
            _write(folder, number, args.file, args.twice)
        _measure(folder, f"{files * args.file} documents in {files} files")
        _write(folder, files, args.file, args.twice)
        _measure(folder, f"{args.file} more")


def _write(folder: Path, number: int, count: int, twice: float) -> None:
    every = round(1 / twice) if twice else 0
    with (folder / f"in/{number:06}.jsonl").open("w") as file:
        for row in range(count):
            of = 0 if every and row % every == 0 else number
            file.write(f'{{"id": "https://example.org/{of}/{row}", "text": "A."}}\n')


def _measure(folder: Path, what: str) -> None:
    config = load_config(folder / "corpus.yaml")
    chunks = plan_inputs(config.input, config.chunk_bytes)
    before, said = os.times(), list[str]()
    compare_ids(Store(config.output), config, chunks, said.append)
    after = os.times()
    seconds = after.user + after.system - before.user - before.system
    stored = sum(path.stat().st_size for path in Path(config.output).rglob("*") if path.is_file())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{what}: {seconds:.1f} s of CPU, {peak:.2f} GB at most, {stored / 1e6:.0f} MB on disk; {'; '.join(said)}")


if __name__ == "__main__":
    main()
