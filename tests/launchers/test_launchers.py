"""Both launchers give the same bytes; a worker that dies does not stop the others."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from launchers.devices import devices
from pipeline.config.load import load_config
from pipeline.corpus.runs import RunRecord
from pipeline.planning.plan import make_plan
from pipeline.run.tasks import MAX_STARTS, PartTask
from pipeline.storage.store import Store
from stages.sonar.card import load_card
from tests.conftest import TINY_CARD, MakeConfig, data_digests
from tests.support.runs import events_of as run

FORKS: list[int] = []


def _note_forks(event: str, _: object) -> None:
    """Those that go on in Python; what `subprocess` forks, as Ray does, becomes another program at once."""
    if event == "os.fork":
        FORKS.append(os.getpid())


sys.addaudithook(_note_forks)


def test_forks_are_seen() -> None:
    FORKS.clear()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert [os.getpid()] == FORKS


@pytest.mark.slow
def test_inline_and_local_give_the_same_bytes(make_config: MakeConfig) -> None:
    """And without a fork: CUDA, once this process has looked for GPUs, would not work in a child that is forked."""
    FORKS.clear()
    path = make_config()
    run(path, "launcher=inline")
    expected = data_digests(path.parent / "out")
    assert {name.split("/")[0] for name in expected} == {"documents", "sentences", "embeddings", "status", "autobleu"}
    shutil.rmtree(path.parent / "out")
    events = run(path, "launcher=local", "encode.batch_tokens=333", "autobleu.batch_rows=5")
    assert not [event for event in events if event.kind == "failed"], events
    assert [event.kind for event in events].count("part") == [event.kind for event in events].count("segmented")
    assert data_digests(path.parent / "out") == expected
    assert not FORKS


def test_a_part_that_kills_its_worker_is_set_aside(make_config: MakeConfig) -> None:
    path = make_config()
    run(path, "launcher=inline")
    plan = make_plan(load_config(path, ["encode.precision=float32"]))
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    ref = plan.parts_to_visit()[0]
    for number in range(MAX_STARTS):  # as the workers that died left it
        Store(plan.config.output).create(f"{record.folder}/starts/{ref.part}-{number}", b"")
    event = PartTask(plan.config, record.folder, devices()[0], plan.stages)(ref)
    assert event.kind == "failed" and "is set aside" in event.error


def test_a_model_that_does_not_load_stops_the_run(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    wrong = {"path": str(load_card(str(TINY_CARD)).path("tokenizer")), "sha256": "0" * 64}
    card = {"base": str(TINY_CARD.absolute()), "name": "wrong", "files": {"encoder": wrong}}
    (tmp_path / "wrong.yaml").write_text(yaml.safe_dump(card))
    events = run(path, "launcher=inline", f"encode.model={tmp_path / 'wrong.yaml'}", "autobleu=null")
    (failed,) = [event for event in events if event.kind == "failed"]
    assert failed.fatal and failed.error.startswith("encode cannot start: card wrong: encoder file"), failed.error
