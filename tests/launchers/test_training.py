"""Models trained on a real SLURM and a real Ray: interrupted, robbed of a process, refused."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from launchers.dispatch import slurm_cluster, train
from launchers.restart import FRUITLESS, RestartPolicy
from launchers.slurm import jobs, training
from launchers.slurm.site import SlurmError, ask
from launchers.slurm.training import srun, submit
from pipeline.base.errors import CorpusError
from pipeline.config.launcher import LauncherSettings, seconds_of
from pipeline.config.load import load_config
from pipeline.monitor.trainings import cancel_trainings, show_trainings
from pipeline.storage.store import Store
from pipeline.training.checkpoint import interrupted
from pipeline.training.run import check
from pipeline.training.status import TrainingStatus, read_job, record_failure, training_status
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.launchers.ray_cluster import processes_of, running_cluster
from tests.support.cli import PIPELINE

STEPS = 300
CARD = {"name": "small", "licence": "MIT", "description": "for tests", "kind": "base", "model_dim": 32, "heads": 2,
        "inner_dim": 64, "layers": 2, "context": 16}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus.yaml of a corpus that is complete, but for its model."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, count in (("libreoffice-eng", 12), ("libreoffice-deu", 8)):
        write_jsonl(folder / "in" / f"{name}.jsonl", sample_documents(name, count))
    (folder / "card.yaml").write_text(yaml.safe_dump(CARD))
    path = write_config(
        folder, autobleu=None, scaler={}, split={"validation": 0.25},
        train={"model": "card.yaml", "steps": STEPS, "batch_concepts": 64, "micro_concepts": 32, "log_every": 1,
               "validate_every": 0, "checkpoint_every": 10_000, "processes": 2},
        launcher={"kind": "inline", "inside": "inline", "time": "10", "memory": "3G", "cpus_per_task": 2},
    )  # fmt: skip
    subprocess.run([PIPELINE, "run", path, "--until", "scaler"], check=True, timeout=600)
    return path


@pytest.fixture(scope="module")
def uninterrupted(corpus: Path) -> list[tuple[int, float, float]]:
    """Step, loss and gradient of every step on this machine."""
    train(Console(), load_config(corpus, ["train.name=here"]))
    return losses(corpus, "here")


def losses(corpus: Path, name: str) -> list[tuple[int, float, float]]:
    lines = (corpus.parent / f"out/train/{name}/metrics.jsonl").read_text().splitlines()
    return [(one["step"], one["loss"], one["norm"]) for one in map(json.loads, lines) if one["kind"] == "train"]


def until(done: Callable[[], object], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


class Job:
    """A training that was given to SLURM."""

    def __init__(self, corpus: Path, name: str, *overrides: str) -> None:
        self.store = Store(str(corpus.parent / "out"))
        config = load_config(corpus, [f"train.name={name}", "launcher.kind=slurm", *overrides])
        run = submit(Console(), config)
        assert run == f"train/{name}"
        self.run = run
        found = read_job(self.store, run)
        assert found
        self.id, self.folder = found.id, Path(found.folder)

    @property
    def log(self) -> str:
        return "".join(log.read_text() for log in jobs.log_files(self.folder, self.id))

    def standing(self) -> TrainingStatus:
        return training_status(self.store, self.run)

    def over(self) -> bool:
        return not jobs.alive([self.id])


@pytest.fixture
def submitted(corpus: Path, slurm: None) -> Iterator[Callable[..., Job]]:
    """`Job`s of the corpus, which are cancelled at the end."""
    started: list[Job] = []

    def start(name: str, *overrides: str) -> Job:
        started.append(Job(corpus, name, *overrides))
        return started[-1]

    def are_cancelled() -> bool:
        left = [job.id for job in started if not job.over()]
        jobs.cancel(left)  # again: a job may queue itself again just when it is cancelled
        time.sleep(0.5 if left else 0)
        return not left

    yield start
    until(are_cancelled)


def test_a_requeued_job_goes_on_and_gives_the_same_losses(
    corpus: Path, submitted: Callable[..., Job], uninterrupted: list[tuple[int, float, float]]
) -> None:
    job = submitted("requeued")
    until(lambda: re.search(r"^step \d+ of", job.log, re.MULTILINE))
    with pytest.raises(CorpusError, match=f"is being trained by SLURM job {job.id}"):
        Job(corpus, "requeued")
    record_failure(job.store, job.run, "of an earlier start")
    ask("scontrol", "requeue", job.id)
    until(lambda: job.standing().steps)
    saved = job.standing().steps
    assert 0 < saved < STEPS
    until(job.over)
    assert job.standing().finished and not job.standing().failed, job.log
    assert [step for step, _, _ in losses(corpus, "requeued")] == list(range(1, STEPS + 1))
    assert losses(corpus, "requeued") == uninterrupted


def test_a_job_that_comes_back_is_cancelled_again(corpus: Path, submitted: Callable[..., Job]) -> None:
    """A training near its time limit may queue itself again just when it is cancelled."""
    job = submitted("comes-back")
    until(lambda: re.search(r"^step \d+ of", job.log, re.MULTILINE))
    came_back: list[str] = []

    def cancel(asked: Sequence[str]) -> None:
        jobs.cancel(asked)
        if not came_back:
            came_back.extend(asked)
            ask("scontrol", "requeue", *asked)

    said = Console(record=True, width=200)
    assert cancel_trainings(said, job.store, replace(slurm_cluster(), cancel=cancel))
    assert came_back == [job.id]
    assert f"SLURM job {job.id} is cancelled" in said.export_text()
    time.sleep(3)
    assert job.over()
    assert cancel_trainings(said, job.store, slurm_cluster())  # nothing is left to cancel


@pytest.mark.parametrize("how", ["a job of more weight", "SIGTERM, then SIGKILL"])
def test_a_job_preempted_in_the_middle_of_a_checkpoint(
    corpus: Path, submitted: Callable[..., Job], tmp_path: Path, how: str
) -> None:
    """Shares are there and no marker: afterwards the same weights, the same losses, and nothing half written.

    Each step is saved. Processes are halted in the middle of that, so that SLURM cannot be too late, and go on once
    they have been told.
    """
    (corpus.parent / "wide.yaml").write_text(yaml.safe_dump(CARD | {"name": "wide", "model_dim": 256, "layers": 4}))
    name = "preempted-" + re.sub("[^a-z]", "", how.lower())
    same = ("train.model=wide.yaml", "train.steps=24", "train.checkpoint_every=1", "train.keep_checkpoints=2")
    train(Console(quiet=True), load_config(corpus, ["train.name=undisturbed", *same]))
    job = submitted(name, *same, "launcher.partition=main", "launcher.gres=seat:1")
    until(lambda: job.standing().steps)
    workers = processes_of("pipeline.training.worker", job.run)

    def send(sign: signal.Signals) -> None:
        for process in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, sign)

    def halted() -> list[str]:
        """The checkpoint in the middle of which all processes stand still; if there is none, they go on."""
        send(signal.SIGSTOP)
        begun = interrupted(job.store, job.run)
        if not begun:
            send(signal.SIGCONT)
        return begun

    until(lambda: halted() or job.over())
    assert interrupted(job.store, job.run), job.log
    other: tuple[str, ...] = ()
    if how == "a job of more weight":
        urgent = LauncherSettings.model_validate(
            {"kind": "slurm", "time": "10", "memory": "100M", "partition": "urgent", "gres": "seat:1"}
        )
        other = jobs.submit(["sleep", "1"], urgent, tmp_path / "logs", "urgent")
    else:
        for sign in ("TERM", "KILL"):
            ask("scancel", f"--signal={sign}", "--full", job.id)
    if how == "a job of more weight":
        until(lambda: not jobs.alive(other))
    send(signal.SIGCONT)
    until(lambda: job.standing().finished or job.over())
    if not job.standing().finished:  # SLURM queues again what it took, not what was killed
        assert how == "SIGTERM, then SIGKILL", job.log
        job = submitted(name, *same)
    until(job.over)
    assert job.standing().finished, job.log
    assert losses(corpus, name) == losses(corpus, "undisturbed")
    weights = [corpus.parent / f"out/train/{one}/model.safetensors" for one in (name, "undisturbed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert not interrupted(job.store, job.run), "what was half written is still there"


def test_a_lost_process_is_started_again_in_the_same_job(
    corpus: Path, submitted: Callable[..., Job], uninterrupted: list[tuple[int, float, float]]
) -> None:
    job = submitted("robbed", "train.checkpoint_every=50")
    until(lambda: job.standing().steps)
    os.kill(processes_of("pipeline.training.worker", job.run)[-1], signal.SIGKILL)
    until(job.over)
    assert job.standing().finished and "starting again from step" in job.log, job.log
    assert losses(corpus, "robbed") == uninterrupted


@pytest.mark.usefixtures("slurm")
def test_what_srun_starts_on_two_nodes_meets_and_trains(
    corpus: Path, uninterrupted: list[tuple[int, float, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, url = check(Console(), load_config(corpus, ["train.name=nodes"])), str(corpus.parent / "out")
    checked.begin(2)
    run = checked.run
    for name, value in (("NODELIST", "localhost,127.0.0.1"), ("ID", "4321")):
        monkeypatch.setenv(f"SLURM_JOB_{name}", value)
    command = srun(["-m", "pipeline.training.worker", url, run], processes=1)
    assert command[:2] == ["srun", "--nodes=2"]
    on_each = command[command.index("bash") :]
    nodes = [subprocess.Popen(on_each, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    shown = [node.communicate(timeout=600)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], shown
    assert losses(corpus, "nodes") == uninterrupted


@pytest.mark.parametrize("ends", [True, False])
def test_a_job_that_slurm_takes_away_is_no_failure(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """Of a lost node, SLURM ends srun first and then the job, which it queues again itself."""
    monkeypatch.setattr(training, "ENDS_WITHIN", 5.0 if ends else 0.2)
    steps = itertools.count()

    def refused() -> None:
        if ends:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        raise SlurmError("scontrol: Job is pending execution for job 7")

    monkeypatch.setattr(jobs, "requeue", refused)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.nullcontext() if ends else pytest.raises(SlurmError, match="pending execution"):
            training._run_in_job(
                Console(quiet=True), ["true"], lambda: TrainingStatus("train/x", next(steps), 9, False)
            )
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def in_a_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """This process as that of job 7, which takes 400 s and is soon over; and what was asked of SLURM."""
    asked: list[str] = []
    left = itertools.chain([400.0], itertools.repeat(50.0))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(training, "WARN_EVERY", 0.05)
    monkeypatch.setattr(jobs, "seconds_left", lambda: next(left))
    monkeypatch.setattr(jobs, "requeue", lambda: asked.append("requeue"))
    before = signal.getsignal(signal.SIGTERM)
    yield asked
    signal.signal(signal.SIGTERM, before)


def test_who_misses_the_warning_before_the_time_limit_is_warned_again(
    in_a_job: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def heard(*command: str) -> str:
        in_a_job.append(" ".join(command))
        if len(in_a_job) == 3:
            (tmp_path / "heard").touch()
        return ""

    monkeypatch.setattr(training, "ask", heard)
    steps, command = itertools.count(), ["bash", "-c", f"until [ -e {tmp_path}/heard ]; do sleep 0.01; done"]
    training._run_in_job(Console(quiet=True), command, lambda: TrainingStatus("train/x", next(steps), 9, False))
    warnings = ["scancel --signal=USR2 7"] * (len(in_a_job) - 1)
    assert len(warnings) >= 3 and in_a_job == [*warnings, "requeue"]


@pytest.mark.parametrize(
    ("reason", "new", "again"), [("TimeLimit", 1, True), ("TimeLimit", 0, False), ("None", 1, False)]
)
def test_what_is_saved_at_the_time_limit_itself_is_gone_on_with(
    in_a_job: list[str], monkeypatch: pytest.MonkeyPatch, reason: str, new: int, again: bool
) -> None:
    """SLURM ends a job in the same way if somebody cancels it, and says so."""
    monkeypatch.setattr(training, "ask", lambda *command: f"{reason}\n" if command[0] == "squeue" else "")
    steps, command = itertools.count(step=new), ["bash", "-c", f"kill -TERM {os.getpid()}; exit 143"]
    training._run_in_job(Console(quiet=True), command, lambda: TrainingStatus("train/x", next(steps), 9, False))
    assert in_a_job == ["requeue"] * again


def test_near_the_time_limit_it_saves_and_queues_itself_again(submitted: Callable[..., Job]) -> None:
    """The limit is lowered when the first step is done, so that the test does not ask how fast this machine starts."""
    job = submitted("long", "launcher.time=50", "train.steps=1000000")
    until(lambda: re.search(r"^step \d+ of", job.log, re.MULTILINE))
    used = seconds_of(ask("squeue", "--noheader", "--format=%M", "--jobs", job.id).strip())
    ask("scontrol", "update", f"JobId={job.id}", f"TimeLimit={int(used / 60) + 2}")
    until(lambda: "queued again" in job.log)
    assert job.standing().steps


def test_a_process_that_gives_up_says_why_and_is_not_started_again(submitted: Callable[..., Job]) -> None:
    job = submitted("hopeless", "train.parallel=fsdp", "train.processes=null")  # one process, as the job finds out
    until(job.over)
    assert "there is one process" in job.standing().failed and job.log.count("srun: error") <= 1, (
        job.standing(),
        job.log,
    )
    command = [PIPELINE, "logs", job.store.url, "--training", "hopeless"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert job.standing().failed in shown and f"{job.id}.log:" in shown and "step 0 of" in shown, shown


@pytest.fixture
def container(tmp_path: Path) -> str:
    """The command that runs another in a container whose image has a `python` that is nowhere else."""
    program = shutil.which("ch-run")
    if not program:
        assert not os.environ.get("PIPELINE_TESTS_NEED_SLURM"), "no ch-run here, see tests/slurm/start.sh"
        pytest.skip("no ch-run here")
    image = tmp_path / "image"
    binds: list[str] = []
    for place in sorted(Path("/").iterdir()):
        if place.is_dir() and place.name not in ("dev", "proc", "sys", "tmp"):  # these are always there
            (image / place.name).mkdir(parents=True)
            binds += ["-b", f"{place.resolve()}:{place}"]
    for name in ("dev", "proc", "sys", "tmp", "only-here"):
        (image / name).mkdir(parents=True)
    python = image / "only-here/python"
    python.write_text(f'#!/bin/sh\necho in the container\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return shlex.join(
        [
            "env",
            "USER=root",
            program,
            "--no-passwd",
            f"--set-env=PATH=/only-here:{os.environ['PATH']}",
            *binds,
            str(image),
            "--",
        ]
    )


def test_a_run_on_slurm_in_containers_ends_with_a_trained_model(corpus: Path, slurm: None, container: str) -> None:
    output = corpus.parent / "chain"
    command = [PIPELINE, "run", corpus, "--launcher", "slurm", "--set", f"output={output}", "--set", "train.steps=20"]
    subprocess.run([*command, "--set", f"launcher.container={container}"], check=True)
    until(lambda: list(output.glob("train/*/job.json")))
    job = read_job(Store(str(output)), "train/card")
    assert job
    until(lambda: not jobs.alive([job.id]))
    assert training_status(Store(str(output)), "train/card").finished
    logs = {file: file.read_text().count("in the container") for file in output.glob("jobs/*/*.log")}
    assert len(logs) > 3 and logs.pop(Path(job.folder, f"{job.id}.log")) >= 2, logs  # the job, and what srun starts
    assert min(logs.values()) >= 1, logs
    shown = subprocess.run([PIPELINE, "status", output], capture_output=True, text=True)
    assert "train/card: trained, 20 steps" in shown.stdout and shown.returncode == 0, shown
    again = [PIPELINE, "train", corpus, "--fresh", "--launcher", "slurm", "--set", f"output={output}"]
    for wrong in ("train_nodes=50", f"folder={output}/50%"):  # SLURM would refuse the job: the model stays
        refused = subprocess.run([*again, "--set", f"launcher.{wrong}"], capture_output=True, text=True)
        assert refused.returncode == 2 and "launcher" in refused.stderr, refused
        assert training_status(Store(str(output)), "train/card").finished
    # SLURM goes away between its check of the job and the job
    (corpus.parent / "bin").mkdir()
    gone = corpus.parent / "bin/sbatch"
    gone.write_text(f"""#!/bin/sh
case " $* " in *--test-only*) ;; *) export SLURM_CONF=/nowhere ;; esac
exec {shutil.which("sbatch")} "$@"
""")
    gone.chmod(0o755)
    path = os.environ | {"PATH": f"{gone.parent}{os.pathsep}{os.environ['PATH']}"}
    refused = subprocess.run(again, capture_output=True, text=True, env=path)
    assert refused.returncode and "/nowhere" in refused.stderr, refused
    assert training_status(Store(str(output)), "train/card").finished


@pytest.mark.cluster
def test_ray_starts_its_workers_again_when_one_is_lost(
    corpus: Path, uninterrupted: list[tuple[int, float, float]]
) -> None:
    run, store = "train/over-ray", Store(str(corpus.parent / "out"))
    with running_cluster() as slurm_cluster:
        process = slurm_cluster.python(
            "-m", "pipeline.cli", "train", str(corpus), "--launcher", "ray", "--address", slurm_cluster.address,
            "--set", "train.name=over-ray", "--set", "train.checkpoint_every=50",
        )  # fmt: skip
        until(
            lambda: (
                process.poll() is not None or (store.exists(f"{run}/run.json") and training_status(store, run).steps)
            )
        )
        os.kill(processes_of(slurm_cluster.token["RAY_AUTH_TOKEN"], "RayTrainWorker")[-1], signal.SIGKILL)
        shown, _ = process.communicate(timeout=600)
    assert process.returncode == 0 and f"trained in {STEPS} steps" in shown and f"{store.url}/{run}" in shown, shown
    assert losses(corpus, "over-ray") == uninterrupted
    assert not [path for path in store.find(run) if "/ray-" in path]


def test_patience_ends_with_starts_that_bring_nothing(tmp_path: Path) -> None:
    steps = iter([0, 0, 10, 10, 20, *[20] * FRUITLESS])
    policy = RestartPolicy(lambda: TrainingStatus("train/x", next(steps), 100, False))
    for _ in range(4 + FRUITLESS - 1):
        policy.lost("killed")
    with pytest.raises(CorpusError, match=f"lost {FRUITLESS} times before a checkpoint beyond step 20 .*: killed"):
        policy.lost("killed")
    store = Store(str(tmp_path))
    store.write("train/x/run.json", json.dumps({"settings": {"steps": 5}}).encode())
    record_failure(store, "train/x", "the loss is NaN")
    with pytest.raises(CorpusError, match="the loss is NaN"):
        RestartPolicy(lambda: training_status(store, "train/x")).lost("code 1")
    assert not show_trainings(Console(quiet=True), store, slurm_cluster())
