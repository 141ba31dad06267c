"""Random histories of a corpus: whatever becomes of its inputs and settings, it is what an empty folder would become.

A history is a row of changes: documents are inserted, changed, moved, deleted, purged and given again, files come, go
and are touched, settings change, a run is killed, `gc` deletes, files are damaged and mended. After every few changes
the corpus must have the bytes of one that is made anew from the inputs as they are now, and nothing that was purged.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import Corpus
from pipeline.corpus.accounting import compute_accounting
from pipeline.maintenance.verify import check
from pipeline.run.options import RunOptions
from pipeline.storage.store import Store
from tests.conftest import data_digests, write_config
from tests.support.cli import pipeline
from tests.support.kills import KILLS, USUAL
from tests.support.runs import run

pytestmark = pytest.mark.faults
WORDS = ("river", "stone", "light", "paper", "garden", "window", "letter", "table", "music", "water", "road", "cloud")
ROUNDS = 4
AUTOBLEU = {"sample": 0.3, "length_extra": 1, "length_factor": 1.0}
SETTINGS: dict[str, list[Any]] = {  # values of sections, between which histories change
    "segment": [{"method": "spacy-capped", "max_chars": cap, "max_document_sentences": 25} for cap in (50, 80)],
    "autobleu": [None, AUTOBLEU, AUTOBLEU | {"sample": 0.6}, AUTOBLEU | {"beam": 2}],
    "noise": [None, {}],
    "language": [None, {}],
    "duplicates": [None, {}, {"near": {}}],
    "duplicate_ids": ["keep-first", "keep-all"],
}
FAMILIES = ("documents", "sentences", "embeddings", "status", "autobleu", "quarantine", "receipts", "chunks")
ATTEMPT = re.compile(r"-[0-9a-f]{6}(?=\.)")  # the random part of a file's name
MARK = re.compile(r"Zq\d{4}")  # a word that stands in one version of one document


class History:
    """Documents in files, and the corpus of them. `done`: the changes so far, for messages."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.out, self.random = folder, folder / "out", random.Random(seed)
        self.done: list[tuple[str, ...]] = []
        self.marks: dict[str, set[str]] = {}  # of each id that ever was
        self.purged: set[str] = set()
        self.versions = 0
        self.written = 1_700_000_000
        self.settings = {name: self.random.choice(values) for name, values in SETTINGS.items()}
        endings = [self.random.choice(["jsonl", "jsonl.gz", "jsonl.zst", "parquet"]) for _ in range(2)]
        self.files = {
            f"{number}.{ending}": [self._document() for _ in range(6)] for number, ending in enumerate(endings)
        }
        for name in self.files:
            self._write(name)

    def change(self) -> None:
        """Change something at random."""
        changes: list[Callable[[str], str]] = [
            *(self._insert, self._insert, self._edit, self._edit, self._delete, self._move, self._again, self._touch),
            *(self._file, self._purge, self._purge, self._set, self._set, self._kill, self._collect, self._damage),
        ]
        chosen = self.random.choice(changes)
        self.done.append((chosen.__name__, chosen(self.random.choice(sorted(self.files)))))

    def bring_up_to_date(self, output: Path) -> str:
        return run(self.config(), f"output={output}", options=RunOptions(accept_removal=True))

    def config(self) -> Path:
        source = {"path": "in/*", "id": "id", "lang": {"column": "lang"}, "keep": ["title"]}
        return write_config(self.folder, input=[source], part_sentences=100, chunk_bytes=1 << 16, **self.settings)

    def _document(self, name: str | None = None) -> dict[str, str]:
        self.versions += 1
        mark, name = f"Zq{self.versions:04d}", name or f"d{self.versions}"
        self.marks.setdefault(name, set()).add(mark)
        lines = [f"The {self.random.choice(WORDS)} of {mark} sees the {self.random.choice(WORDS)}." for _ in range(50)]
        text = " ".join(lines[: self.random.choice([0, 1, 3, 12, 50])])
        return {"id": name, "lang": self.random.choice(["eng_Latn", "deu_Latn"]), "title": f"on {mark}", "text": text}

    def _write(self, name: str) -> None:
        path, documents = self.folder / "in" / name, self.files[name]
        path.parent.mkdir(exist_ok=True)
        data = "".join(f"{json.dumps(one)}\n" for one in documents).encode()
        if name.endswith("parquet"):
            pq.write_table(pa.Table.from_pylist(documents), path, row_group_size=4)
        elif name.endswith("gz"):
            path.write_bytes(gzip.compress(data, mtime=0))
        else:
            path.write_bytes(pa.compress(data, "zstd", asbytes=True) if name.endswith("zst") else data)
        self.written += 10
        os.utime(path, (self.written, self.written))

    def _insert(self, file: str) -> str:
        documents = self.files[file]
        documents.insert(self.random.choice([0, len(documents)]), self._document())
        self._write(file)
        return file

    def _edit(self, file: str) -> str:
        documents = self.files[file]
        at = self.random.randrange(len(documents))
        changed = self._document(documents[at]["id"])
        key = self.random.choice(["text", "title", "lang"])
        documents[at] = documents[at] | {key: changed[key]}
        self._write(file)
        return f"{key} of {documents[at]['id']}"

    def _delete(self, file: str) -> str:
        documents = self.files[file]
        gone = documents.pop(self.random.randrange(len(documents)))["id"] if len(documents) > 2 else "nothing"
        self._write(file)
        return gone

    def _move(self, file: str) -> str:
        documents, other = self.files[file], self.random.choice(sorted(self.files))
        if len(documents) > 2:
            self.files[other].append(documents.pop(self.random.randrange(len(documents))))
        self._write(file)
        self._write(other)
        return f"{file} to {other}"

    def _again(self, file: str) -> str:
        """Give an id once more that is there, or that was purged."""
        name = self.random.choice(sorted(self.marks))
        self.files[file].append(self._document(name))
        self._write(file)
        return name

    def _touch(self, file: str) -> str:
        self._write(file)
        return file

    def _file(self, file: str) -> str:
        if len(self.files) > 2:
            del self.files[file]
            (self.folder / "in" / file).unlink()
            return f"{file} gone"
        name = f"{self.versions}.jsonl"
        self.files[name] = [self._document() for _ in range(3)]
        self._write(name)
        return f"{name} new"

    def _purge(self, file: str) -> str:
        if not (self.out / "corpus.json").exists():
            return "nothing yet"
        name = self.random.choice(self.files[file])["id"]
        (self.folder / "ids.txt").write_text(f"{name}\n")
        done = pipeline("purge", self.out, "--ids", self.folder / "ids.txt")
        self.purged |= {name} if done.returncode == 0 else set()
        return f"{name}: {done.returncode}"

    def _set(self, file: str) -> str:
        name = self.random.choice(sorted(SETTINGS))
        self.settings[name] = self.random.choice(SETTINGS[name])
        return f"{name}: {self.settings[name]}"

    def _kill(self, file: str) -> str:
        """Begin a run that is killed before one of its first changes to the store."""
        at = self.random.randint(1, 25)
        process = multiprocessing.get_context("fork").Process(target=_killed, args=(self, at))
        process.start()
        process.join(60)
        process.kill()  # a fork of a process with threads may hang, which is as good a place to be killed at
        process.join()
        return f"before change {at}: {process.exitcode}"

    def _collect(self, file: str) -> str:
        done = pipeline("gc", self.out, "--delete", "--yes") if (self.out / "corpus.json").exists() else None
        return "nothing yet" if done is None else str(done.returncode)

    def _damage(self, file: str) -> str:
        found = [path for name in FAMILIES for path in (self.out / name).rglob("*") if path.is_file()]
        found.sort(key=lambda path: ATTEMPT.sub("", str(path)))
        if not found:
            return "nothing yet"
        path = self.random.choice(found)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
        pipeline("verify", self.out, "--repair")
        return str(path.relative_to(self.out))


def _killed(history: History, at: int) -> None:
    changes = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def called(*values: Any, **named: Any) -> Any:
            nonlocal changes
            changes += 1
            if changes == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*values, **named)

        return called

    for name in ("write", "create", "delete"):
        setattr(Store, name, counted(getattr(Store, name)))
    history.bring_up_to_date(history.out)


@pytest.mark.parametrize("seed", range(KILLS if KILLS > USUAL else 0))  # a minute for ten: only in `make faults`
def test_a_corpus_does_not_show_its_history(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    for _ in range(ROUNDS):
        for _ in range(history.random.randint(1, 3)):
            history.change()
        try:
            _compare(history)
        except BaseException as error:
            error.add_note("\n".join(f"{name} {what}" for name, what in history.done))
            raise


def _compare(history: History) -> None:
    out, anew = history.out, history.folder / "anew"
    history.bring_up_to_date(out)
    shutil.rmtree(anew, ignore_errors=True)
    if (out / "tombstones").exists():
        shutil.copytree(out / "tombstones", anew / "tombstones")
    history.bring_up_to_date(anew)
    assert data_digests(out) == data_digests(anew)
    found, wanted = (compute_accounting(Store(str(one)), Corpus(str(one)).chunks) for one in (out, anew))
    assert found.complete and not found.problems
    books = ("documents_in", "kept", "dropped", "quarantined")
    assert [getattr(found, one) for one in books] == [getattr(wanted, one) for one in books]
    assert check(Corpus(str(out)), lambda done: None) == []
    assert not _marks(out) & {mark for name in history.purged for mark in history.marks[name]}
    assert "Nothing to do." in history.bring_up_to_date(out)


def _marks(folder: Path) -> set[str]:
    """Return the marks in all files of a corpus."""
    found: set[str] = set()
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError, pa.ArrowException):  # what is not Parquet, or damaged
            table = pq.read_table(path)
            found |= set(MARK.findall(str(table.drop_columns(list({"embedding"} & {*table.column_names})).to_pylist())))
        if path.is_file():
            found |= set(MARK.findall(path.read_bytes().decode("utf-8", "replace")))
    return found
