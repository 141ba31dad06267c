"""A finished corpus for readers; corpora that are dear to make are made once in a test run, and copied."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from launchers.launch import launch
from pipeline.config.load import load_config
from pipeline.corpus.runs import RunRecord, write_header
from pipeline.planning.plan import make_plan
from pipeline.storage.store import Store
from tests.conftest import sample_documents, write_config, write_jsonl

ROW_GROUP_ROWS = 32  # so that a part of 100 sentences has several


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A copy of the folder that `make` fills, which only the first worker of pytest-xdist to ask for it has to do."""
    mine = factory.getbasetemp()
    shared = (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / f"made-{name}"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            unfinished = factory.mktemp(name)
            make(unfinished)
            shutil.copytree(unfinished, shared.with_suffix(".part"), dirs_exist_ok=True)
            shared.with_suffix(".part").rename(shared)
    copy = factory.mktemp(name) / name
    shutil.copytree(shared, copy)
    return copy


def begin_without_packing(output: Path, packed: Collection[str] = ()) -> None:
    """Begin a corpus in which small files have chunks of their own, as in earlier versions; `packed`: which share."""
    write_header(Store(str(output)), "test", packed)


def make_corpus(folder: Path, until: str | None = None, **sections: Any) -> Path:
    """A finished corpus of 11 documents in parts of about 100 sentences; some have no title, half is not scored."""
    documents = [*sample_documents("libreoffice-eng", 5), *sample_documents("libreoffice-deu", 5)]
    for number, one in enumerate(documents):
        one["title"] = None if number % 3 else f"title {number}"
    end = {"id": "end", "lang": "eng_Latn", "title": "end", "text": "End of sequence."}
    write_jsonl(folder / "in.jsonl", [*documents, end])
    source = {"path": "in.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": ["title"]}
    settings = {"split": {"validation": 0.3, "test": 0.1}, "autobleu": {"sample": 0.5, "length_factor": 1.0}}
    path = write_config(folder, **({"input": [source]} | settings | sections))
    plan = make_plan(load_config(path), until=until)
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    assert not [event for event in launch(plan, record.folder) if event.kind == "failed"]
    return folder / "out"
