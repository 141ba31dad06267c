"""What users have today, as a process that encodes on request: the official package, or its way of working rebuilt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.flops import Shape
from benchmarks.reference_worker import EMBEDDINGS
from benchmarks.sample import Sentences
from stages.sonar.card import ModelCard

Order = Literal["arrival", "characters"]
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Request:
    """How the reference is asked to encode."""

    order: Order
    batch: int
    format: str


DEFAULT = Request("arrival", 5, "float32")


class ReferenceError(RuntimeError):
    """The process did not start, or ended in an error."""


def write_job(folder: Path, card: ModelCard, size: Shape, sentences: Sentences) -> None:
    """Write what the process needs next to the model: numbers, and a text file for each language."""
    places = sentences.by_language()
    for lang, rows in places.items():
        (folder / f"{lang}.txt").write_text("".join(sentences.texts[row] + "\n" for row in rows), encoding="utf-8")
    job = {
        "name": "benchmark",
        **asdict(size),
        "vocab_size": card.vocab_size,
        "max_tokens": card.max_tokens,
        "languages": list(card.languages),
        "with_sentences": list(places),
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")


class Reference:
    """A running reference process; use it in a `with`. Raises ReferenceError with what it printed last."""

    def __init__(self, kind: Literal["official", "rebuilt"], python: str, folder: Path, threads: int) -> None:
        self.kind = kind
        self.folder = folder
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
        environment.pop("MKL_CBWR", None)  # our stages set it for themselves
        command = [python, "-m", "benchmarks.reference_worker", kind, str(folder), str(threads)]
        self._log = folder / f"{kind}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        self.versions: dict[str, str] = self._answer()

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *error: object) -> None:
        self._pipe(self._process.stdin).close()
        self._process.wait()
        self._pipe(self._process.stdout).close()

    def seconds(self, way: Request) -> float:
        """Encode all sentences."""
        return float(self._ask({"encode": asdict(way)}))

    def embeddings(self, sentences: Sentences) -> npt.NDArray[np.float32]:
        """Return what it made of the sentences the last time, in their order."""
        stored: npt.NDArray[np.float32] = np.load(self.folder / EMBEDDINGS)
        found = np.empty_like(stored)
        found[[row for rows in sentences.by_language().values() for row in rows]] = stored
        return found

    def rates(self, rows: int, shapes: Sequence[tuple[int, int]], format: str) -> list[float]:
        """Measure FLOP/s of matmuls in this process."""
        return [float(rate) for rate in self._ask({"rates": {"rows": rows, "shapes": shapes, "format": format}})]

    def _ask(self, request: dict[str, Any]) -> Any:
        stdin = self._pipe(self._process.stdin)
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        line = self._pipe(self._process.stdout).readline()
        if not line:
            self._process.wait()
            last = self._log.read_text(encoding="utf-8", errors="replace").strip().split("\n")[-1]
            raise ReferenceError(f"the {self.kind} reference ended: {last}")
        return json.loads(line)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None  # Popen was given PIPE
        return pipe


def rebuilt(folder: Path, threads: int) -> Reference:
    """Return the way of working rebuilt, in this Python."""
    return Reference("rebuilt", sys.executable, folder, threads)
