"""Both launchers give the same bytes; a worker that dies does not stop the others."""

from __future__ import annotations

import shutil
from pathlib import Path

from launchers import launch
from launchers.devices import devices
from pipeline.config import load_config
from pipeline.plan import make_plan
from pipeline.runs import RunRecord
from pipeline.store import Store
from pipeline.tasks import MAX_STARTS, Event, PartTask
from tests.conftest import MakeConfig, data_digests


def run(path: Path, *overrides: str) -> list[Event]:
    plan = make_plan(load_config(path, overrides))
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    return list(launch(plan, record.folder))


def test_inline_and_local_give_the_same_bytes(make_config: MakeConfig) -> None:
    path = make_config()
    run(path, "launcher=inline")
    expected = data_digests(path.parent / "out")
    assert {name.split("/")[0] for name in expected} == {"documents", "sentences", "embeddings", "status", "autobleu"}
    shutil.rmtree(path.parent / "out")
    events = run(path, "launcher=local", "encode.batch_tokens=333", "autobleu.batch_rows=5")
    assert not [event for event in events if event.kind == "failed"], events
    assert [event.kind for event in events].count("part") == [event.kind for event in events].count("segmented")
    assert data_digests(path.parent / "out") == expected


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
