"""One place for what happened in a run: events by stage, part and worker, tracebacks, logs of jobs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.config.load import load_config
from pipeline.corpus import runs
from pipeline.corpus.runs import RunRecord, newest_view
from pipeline.corpus.states import read_state
from pipeline.planning.plan import make_plan
from pipeline.run.tasks import marks_of
from pipeline.storage.store import Store
from tests.conftest import MakeConfig, sample_documents, write_jsonl
from tests.support.cli import pipeline
from tests.support.records import change_record
from tests.support.workers import light, order_phase, start_worker

ODD = "odd[bold]\x1b[31m.jsonl"


def test_events_of_workers_by_stage_part_and_worker(make_config: MakeConfig, tmp_path: Path) -> None:
    path = light(make_config)
    write_jsonl(tmp_path / "in" / ODD, sample_documents("libreoffice-rus", 2))  # no document: unknown
    assert pipeline("run", path, "--until", "segment", "--launcher", "inline").returncode == 0
    store, run, folder = order_phase(path)
    chunks = enumerate(read_state(store, newest_view(store)))
    (shard, first), (_, second) = [one for one in chunks if not one[1].chunk.path.startswith("odd")][:2]
    aside, good = (one.parts[0].ref.part for one in (first, second))
    for number in range(3):
        store.write(f"{marks_of(run, 1, shard)}/starts/{aside}-{number}", b"")
    worker = start_worker(store, folder)
    assert worker.wait(600) == 0
    name = next(iter(store.find(f"{folder}/workers"))).rpartition("/")[2].removesuffix(".json")

    everything = pipeline("logs", path)
    assert everything.returncode == 0 and aside in everything.stdout and good in everything.stdout
    assert "Traceback" not in everything.stdout and name in everything.stdout
    encoded = pipeline("logs", path, "--stage", "encode", "--tail", "1")
    lines = [line for line in encoded.stdout.splitlines() if re.match(r"\d{4}-", line)]
    assert len(lines) == 1 and "earlier ones" in encoded.stdout, encoded
    failed = pipeline("logs", path, "--failed")
    assert aside in failed.stdout and good not in failed.stdout
    assert "Traceback" in failed.stdout and "AsideError" in failed.stdout and "3 times" in failed.stdout
    one = pipeline("logs", path, "--part", good)
    assert "receipt encode: " in one.stdout and "receipt segment: " in one.stdout and aside not in one.stdout, one
    receipt = next(path for path in store.find("receipts/encode") if good in path)
    change_record(Path(store.url, receipt), warnings=["[red]odd\x1b[2J"])
    assert "warning: [red]odd\\x1b[2J" in pipeline("logs", path, "--part", good).stdout
    mine = pipeline("logs", path, "--worker", name)
    assert mine.returncode == 0 and f"{name} on" in mine.stdout and "last heartbeat" in mine.stdout, mine
    first = pipeline("logs", path, "--run", store.folders("runs")[0], "--stage", "segment")
    assert "odd[bold]\\x1b[31m.jsonl  0 documents, 0" in first.stdout and "\x1b" not in first.stdout, first
    for arguments, code, words in (
        (("--stage", "code"), 2, "stages are: segment, language"),
        (("--worker", "nobody"), 1, f"it had: {name}"),
        (("--part", "0123456789ab-00000"), 1, "nothing is known of it"),
        (("--run", "2001"), 1, "no run; the newest"),
    ):
        refused = pipeline("logs", path, *arguments)
        assert refused.returncode == code and words in " ".join(refused.stderr.split()), refused


def test_events_are_there_before_a_run_ends(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(load_config(make_config()))
    record = RunRecord(Store(plan.config.output), plan.config, plan.view)
    record.log({"kind": "failed", "where": "early.jsonl", "error": "soon enough"})
    monkeypatch.setattr(runs, "MOST_EVENTS", 2)
    record.log({"kind": "failed", "where": "late.jsonl", "error": "with the others"})
    record.log({"kind": "failed", "where": "last.jsonl", "error": "not yet"})
    shown = pipeline("logs", plan.config.output).stdout
    assert "soon enough" in shown and "with the others" in shown and "not yet" not in shown
    record.close({"done": False})
    shown = pipeline("logs", plan.config.output).stdout
    assert [shown.count(name) for name in ("early.jsonl", "late.jsonl", "last.jsonl")] == [1, 1, 1]


@pytest.mark.usefixtures("slurm")
def test_the_log_of_a_slurm_task(make_config: MakeConfig) -> None:
    path = light(make_config)
    lines = "inside: inline\n  time: '5'\n  cpus_per_task: 1\n  memory: 2G\n  setup: [echo hello from the task]"
    path.write_text(path.read_text().replace("inside: inline", lines))
    assert pipeline("run", path, "--until", "segment", "--wait").returncode == 0
    shown = pipeline("logs", path)
    (name,) = set(re.findall(r"slurm-\d+_0", shown.stdout))
    assert "logs of jobs: " in shown.stdout
    log = pipeline("logs", path, "--worker", name.removeprefix("slurm-")).stdout
    assert "hello from the task" in log and f"{name.removeprefix('slurm-')}.log" in log


def test_why_a_run_ended_though_no_part_failed(make_config: MakeConfig) -> None:
    path = make_config(autobleu=None, rvq={"codebooks": 2, "units": 1000})
    failed = pipeline("run", path)
    assert failed.returncode == 1 and "1000" in failed.stderr, failed
    shown = pipeline("logs", path, "--failed").stdout
    assert "the run ended: " in shown and "1000" in shown and "nothing failed" not in shown, shown


def test_when_events_of_several_workers_come(make_config: MakeConfig) -> None:
    path = light(make_config)
    store, _, folder = order_phase(path)
    shown = pipeline("logs", path).stdout
    assert "workers write theirs at every heartbeat, 1 s apart; none has begun" in shown
    for name in ("7_0", "7_1"):
        store.write(f"{folder}/workers/{name}.json", b"{}")
    shown = pipeline("logs", path).stdout
    assert (
        "workers write theirs at every heartbeat, 1 s apart; 2 began: 7_0, 7_1" in shown and "half minute" not in shown
    )
