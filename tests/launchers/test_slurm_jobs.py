"""Jobs on a real SLURM (tests/slurm/start.sh): arrays, order, signals, requeue, refusals."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launchers.slurm import jobs
from launchers.slurm.sbatch import WARNING
from launchers.slurm.site import SlurmAwayError, SlurmError, ask, site
from pipeline.base.errors import ConfigError
from pipeline.config.launcher import LauncherSettings

pytestmark = pytest.mark.usefixtures("slurm")
WORKER = f"""
import json, os, signal, sys, time
from launchers.slurm import jobs
def say(**more):
    facts = dict(task=jobs.this_task(), restarts=jobs.restarts(), argv=sys.argv[2:], cwd=os.getcwd(), **more)
    print(json.dumps(facts), flush=True)
def warned(*_):
    say(event="warned", left=jobs.seconds_left())
    jobs.requeue()
def asked(*_):
    say(event="asked")
    sys.exit(3)
signal.signal(signal.{WARNING.name}, warned)
signal.signal(signal.SIGTERM, asked)
say(event="start", left=jobs.seconds_left(), cpus=os.environ.get("SLURM_CPUS_PER_TASK"), word=os.environ.get("WORD"),
    locale=os.environ.get("LC_ALL"))
seconds = float(sys.argv[1])
if seconds < 0:
    sys.exit(1)
end = time.monotonic() + seconds
while time.monotonic() < end and not (jobs.restarts() and seconds > 10):  # the second time there is less to do
    time.sleep(0.1)
say(event="end")
"""
Submit = Callable[..., tuple[str, ...]]


@pytest.fixture
def submit(tmp_path: Path) -> Iterator[Submit]:
    """`jobs.submit` of a worker that says what it sees; whatever is left at the end is cancelled."""
    started: list[str] = []

    def run(*arguments: object, settings: LauncherSettings | None = None, **more: Any) -> tuple[str, ...]:
        command = [sys.executable, "-c", WORKER, *map(str, arguments)]
        made = jobs.submit(command, settings or slurm(), tmp_path / "logs", "test", **more)
        started.extend(made)
        return made

    yield run
    jobs.cancel(started)
    until(lambda: not jobs.alive(started))


def slurm(**keys: object) -> LauncherSettings:
    return LauncherSettings.model_validate({"kind": "slurm", "time": "10", "memory": "100M", **keys})


def until(done: Callable[[], object], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)


def said(tmp_path: Path, job: str) -> list[dict[str, object]]:
    lines = [line for file in jobs.log_files(tmp_path / "logs", job) for line in file.read_text().splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_an_array_runs_odd_arguments_arrive_and_the_folder_is_private(submit: Submit, tmp_path: Path) -> None:
    odd = ["two words", "it's", '"$HOME"', "`id`", "*", "a\nb", "", "ü€", "\\"]
    (array,) = submit(0, *odd, tasks=3)
    until(lambda: not jobs.alive([array]))
    for task in range(3):
        start, end = said(tmp_path, f"slurm-{array}_{task}")
        assert start["task"] == f"slurm-{array}_{task}" and start["restarts"] == 0
        assert start["argv"] == odd and start["cwd"] == str(Path.cwd())
        assert isinstance(start["left"], float) and 500 < start["left"] <= 600
        assert end["event"] == "end"
    assert jobs.states([array]) == {f"{array}_{task}": "COMPLETED" for task in range(3)}
    assert stat.S_IMODE((tmp_path / "logs").stat().st_mode) == 0o700
    assert len(said(tmp_path, array)) == 6


def test_more_tasks_than_an_array_may_have_are_several_arrays(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    most = site().max_array_size
    assert most == 50  # as start.sh says
    arrays = submit(0, tasks=most + 3, settings=slurm(array_parallelism=2, sbatch={"begin": "now+1hour"}))
    found = jobs.states(arrays)
    assert len(arrays) == 2 and len(found) == most + 3 and {one.split(" ")[0] for one in found.values()} == {"PENDING"}
    assert "%1" in ask("squeue", "-h", "-j", ",".join(arrays), "-o", "%i")  # two at once, of both together
    assert jobs.alive(arrays)
    jobs.cancel(arrays)
    until(lambda: not jobs.alive(arrays))
    assert set(jobs.states(arrays).values()) == {"CANCELLED"}
    jobs.cancel(arrays)  # once more does no harm


def test_a_held_job_waits_for_what_comes_first(submit: Submit, tmp_path: Path) -> None:
    def reason(job: str) -> str:
        return ask("squeue", "-h", "-j", job, "-o", "%r").strip()

    (job,) = submit(0, hold=True)
    with jobs.held(job, slurm()):
        assert reason(job) == "JobHeldUser" and not said(tmp_path, job)
    until(lambda: not jobs.alive([job]))
    assert [one["event"] for one in said(tmp_path, job)] == ["start", "end"]
    (job,) = submit(0, hold=True)
    with pytest.raises(ConfigError, match="first"), jobs.held(job, slurm()):
        raise ConfigError("first")
    until(lambda: not jobs.alive([job]))
    assert jobs.states([job]) == {job: "CANCELLED"} and not said(tmp_path, job)
    theirs = slurm(sbatch={"hold": True})
    (job,) = submit(0, hold=True, settings=theirs)
    with jobs.held(job, theirs):
        pass
    assert reason(job) == "JobHeldUser"
    jobs.cancel([job])
    with pytest.raises(SlurmError, match=rf"`scontrol release {job}` lets it start"), jobs.held(job, slurm()):
        until(lambda: not jobs.alive([job]))  # it ended meanwhile, so it cannot start


def test_what_comes_after_runs_after_a_failure_too(submit: Submit, tmp_path: Path) -> None:
    first = submit(-1, tasks=2)
    (second,) = submit(0, after=first, small=True)
    until(lambda: not jobs.alive([second]))
    assert set(jobs.states(first).values()) == {"FAILED"}
    assert jobs.states([second]) == {second: "COMPLETED"}
    assert said(tmp_path, second)[0]["task"] == f"slurm-{second}"


def test_a_requeued_task_starts_again_before_what_comes_after(submit: Submit, tmp_path: Path) -> None:
    (array,) = submit(60, tasks=2)
    (gate,) = submit(0, after=[array], small=True)
    until(lambda: len(said(tmp_path, array)) == 2)
    for task in range(2):  # the last one's own id is that of the array
        ask("scontrol", "requeue", f"{array}_{task}")
    until(lambda: not jobs.alive([gate]))
    for task in range(2):
        seen = said(tmp_path, f"{array}_{task}")
        assert [(one["event"], one["restarts"]) for one in seen] == [
            ("start", 0), ("asked", 0), ("start", 1), ("end", 1),
        ]  # fmt: skip


def test_a_more_urgent_job_preempts_and_the_task_starts_again(submit: Submit, tmp_path: Path) -> None:
    (array,) = submit(60, tasks=1, settings=slurm(gres="seat:1"))
    until(lambda: said(tmp_path, array))
    (other,) = submit(1, settings=slurm(partition="urgent", gres="seat:1"))
    until(lambda: not jobs.alive([array]))
    assert [one["event"] for one in said(tmp_path, other)] == ["start", "end"]
    assert [one["event"] for one in said(tmp_path, array)] == ["start", "asked", "start", "end"]


def test_a_task_is_warned_of_its_time_limit_and_queues_itself_again(submit: Submit, tmp_path: Path) -> None:
    (array,) = submit(300, tasks=2, settings=slurm(time="2", partition="short"))
    until(lambda: not jobs.alive([array]))
    for task in range(2):
        start, warned, asked, again, end = said(tmp_path, f"{array}_{task}")
        assert isinstance(warned["left"], float) and 15 < warned["left"] < 110
        assert (start["event"], asked["event"], again["event"], end["event"]) == ("start", "asked", "start", "end")
        assert again["restarts"] == 1
    assert set(jobs.states([array]).values()) == {"COMPLETED"}


def test_options_and_lines_reach_the_job_and_not_the_gate(submit: Submit, tmp_path: Path) -> None:
    settings = slurm(
        cpus_per_task=2, setup=("export WORD='a b'",), sbatch={"comment": "it's", "mem_per_cpu": "50M"}, memory=None
    )
    (job,) = submit(5, settings=settings)
    (gate,) = submit(5, settings=settings, small=True)
    until(lambda: said(tmp_path, job) and said(tmp_path, gate))
    assert (said(tmp_path, job)[0]["cpus"], said(tmp_path, job)[0]["word"]) == ("2", "a b")
    assert said(tmp_path, gate)[0]["cpus"] == "1"
    facts = ask("scontrol", "show", "job", job, "-o")
    assert "Comment=it's" in facts and "MinMemoryCPU=50M" in facts
    assert "MinMemoryNode=2G" in ask("scontrol", "show", "job", gate, "-o")


def test_a_job_submits_another_with_none_of_its_own_resources(tmp_path: Path) -> None:
    inner = (
        "import sys; from pathlib import Path; from launchers.slurm import jobs\n"
        "from pipeline.config.launcher import LauncherSettings\n"
        "settings = LauncherSettings(kind='slurm', time='5', sbatch={'mem-per-cpu': '50M'})\n"
        "print(*jobs.submit(['env'], settings, Path(sys.argv[1]) / 'inner', 'inner', tasks=1))"
    )
    (job,) = jobs.submit([sys.executable, "-c", inner, str(tmp_path)], slurm(), tmp_path, "outer", small=True)
    until(lambda: not jobs.alive([job]))
    (log,) = jobs.log_files(tmp_path, job)
    array = log.read_text().split()[-1]
    until(lambda: not jobs.alive([array]))
    seen = dict(line.split("=", 1) for line in jobs.log_files(tmp_path / "inner", array)[0].read_text().splitlines())
    assert seen["SLURM_ARRAY_JOB_ID"] == array and seen["SLURM_MEM_PER_CPU"] == "50"
    assert "SLURM_MEM_PER_NODE" not in seen and "SLURM_CPUS_PER_TASK" not in seen


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"partition": "gpu"}, "'gpu' does not exist on cluster test; its partitions: main, short, several, urgent"),
        ({"gate_partition": "cpu"}, "launcher.gate_partition 'cpu' does not exist"),
        (
            {"partition": "short", "time": "1:00:00"},
            "launcher.time 1:00:00 is above the limit of partition short, 5 min",
        ),
        ({"account": "nobody"}, "Invalid account or account/partition combination specified"),
        ({"qos": "gold"}, "Invalid qos specification"),
        ({"constraint": "a100"}, "Invalid feature specification"),
        ({"gres": "gpu:8"}, r"Invalid generic resource \(gres\) specification"),
        ({"gpus_per_node": 8}, r"Invalid generic resource \(gres\) specification"),
        ({"memory": "9000G"}, "Requested node configuration is not available.*--mem=9000G"),
        ({"cpus_per_task": 999}, "SLURM refuses the jobs that the section launcher describes"),
        ({"sbatch": {"colour": "blue"}}, "unrecognized option '--colour=blue'"),
        ({"sbatch": {"open_mode": "truncate"}}, "launcher.sbatch.open_mode: the pipeline sets --open-mode itself"),
        ({"sbatch": {"mem": "1G"}}, "launcher.sbatch.mem: give it as launcher.memory"),
    ],
)
def test_refused_before_anything_is_queued(keys: dict[str, object], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        jobs.check(slurm(**keys))


def test_a_long_time_and_a_short_partition_for_gates_are_accepted() -> None:
    jobs.check(slurm(time="20:00:00", tasks=1000, gate_partition="short", sbatch={"exclusive": True, "nice": 5}))


def test_a_refused_array_takes_those_before_it_back(tmp_path: Path) -> None:
    with pytest.raises(SlurmError, match="Invalid qos specification"):
        jobs.submit(["true"], slurm(qos="gold"), tmp_path, tmp_path.name, tasks=60)
    assert not ask("squeue", "-h", "-n", tmp_path.name, "-o", "%A")


def test_without_slurm_it_says_where_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"no SLURM on this machine.*login node.*--launcher local"):
        jobs.check(slurm())


def test_a_silent_controller_is_no_dead_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nMessageTimeout=2\n")
    monkeypatch.setenv("SLURM_CONF", str(conf))
    with pytest.raises(ConfigError, match="SLURM does not answer"):
        jobs.check(slurm())
    with pytest.raises(SlurmError, match="squeue"):
        jobs.alive(["1"])


@pytest.fixture
def prints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, submit: Submit) -> Iterator[Callable[..., None]]:
    """Puts lines before what SLURM's commands print, or in its place."""
    real = {command: shutil.which(command) for command in ("squeue", "sacct", "sinfo")}

    def change(said: str, instead: bool = False) -> None:
        for command, place in real.items():
            then = "" if instead else f'exec {place} "$@"'
            (tmp_path / command).write_text(f"#!/bin/sh\n{said}\n{then}\n")
            (tmp_path / command).chmod(0o755)

    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        yield change


def test_a_notice_of_the_site_is_not_taken_for_a_job(submit: Submit, prints: Callable[..., None]) -> None:
    (job,) = submit(0, hold=True)
    prints("echo 'site notice: <b> | maintenance | on Monday'")
    assert jobs.states([job]) == {job: "PENDING (JobHeldUser)"} and jobs.alive([job])
    assert site().partitions == {"main": 86400.0, "short": 300.0, "several": 3600.0, "urgent": 3600.0}


@pytest.mark.parametrize(
    ("said", "told"), [("true", "it printed nothing"), ("echo 502 '|' gateway", r"it printed '502 \| gateway'")]
)
def test_a_job_that_a_list_lacks_is_not_over(said: str, told: str, submit: Submit, prints: Callable[..., None]) -> None:
    (job,) = submit(0, hold=True)
    prints(said, instead=True)
    for asked in (jobs.alive, jobs.states):
        with pytest.raises(SlurmError, match=rf"squeue does not list job {job}, which SLURM has; {told}"):
            asked(["999999", job])
    assert not jobs.alive(["999999"]) and jobs.states(["999999", "999998"]) == {}
    with pytest.raises(ConfigError, match=f"sinfo names no partition; {told}"):
        site()


@pytest.fixture
def sbatch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, submit: Submit) -> Iterator[Callable[[str], None]]:
    """Puts a script in the place of sbatch, which finds the real one as $REAL."""
    real = shutil.which("sbatch")

    def change(script: str) -> None:
        (tmp_path / "sbatch").write_text(f"#!/bin/bash\nREAL={real}\n{script}\n")
        (tmp_path / "sbatch").chmod(0o755)

    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        yield change


def in_the_queue(tmp_path: Path) -> list[str]:
    lines = ask("squeue", "-h", "-o", "%A|%o").splitlines()
    return [job for job, _, script in (line.partition("|") for line in lines) if script.startswith(str(tmp_path))]


LOST = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


@pytest.mark.parametrize(
    "script",
    [
        'echo "Checking job 4711 of your allocation"; exec $REAL "$@"',
        f'$REAL "$@" >/dev/null; {LOST}',
        '$REAL "$@" >/dev/null; echo ok',
    ],
)
def test_the_job_that_slurm_took_is_known_whatever_sbatch_says(
    script: str, submit: Submit, sbatch: Callable[[str], None], tmp_path: Path
) -> None:
    sbatch(script)
    (job,) = submit(0, hold=True)
    assert in_the_queue(tmp_path) == [job] and job != "4711"
    assert [one.name for one in (tmp_path / "logs").iterdir()] == [f"{job}_submission.sh"]


def test_an_array_whose_answer_is_lost_is_found_when_its_tasks_run(
    submit: Submit, sbatch: Callable[[str], None], tmp_path: Path
) -> None:
    running = f"$(cat {tmp_path}/logs/*.log | grep -c start) -ge 2"
    sbatch(f'$REAL "$@" >/dev/null; until [ {running} ]; do sleep 0.2; done; {LOST}')
    (array,) = submit(5, tasks=2)
    assert set(jobs.states([array])) == {f"{array}_0", f"{array}_1"}


def test_a_job_whose_submission_is_interrupted_is_cancelled(
    submit: Submit, sbatch: Callable[[str], None], tmp_path: Path
) -> None:
    sbatch(f'$REAL "$@" && touch {tmp_path}/sent; sleep 60')

    def interrupt() -> None:
        until((tmp_path / "sent").exists)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # these tests may run where it is ignored
    try:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            submit(0, hold=True)
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    until(lambda: not in_the_queue(tmp_path))


def test_refusals_without_a_word_and_a_slurm_that_is_away(
    submit: Submit, sbatch: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch("exit 3")
    with pytest.raises(SlurmError, match=r"SLURM refuses job test: sbatch: it ended with code 3"):
        submit(0, hold=True)
    away = f"echo x >> {tmp_path}/tried; [ $(wc -l < {tmp_path}/tried) -lt 3 ] && {{ {LOST}; }}"
    sbatch(f'{away}\nexec $REAL "$@"')
    with pytest.raises(SlurmAwayError, match=r"SLURM does not take job test at present: sbatch: .*Socket timed out"):
        submit(0, hold=True)
    assert not in_the_queue(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "1")  # a job waits until it is taken
    monkeypatch.setattr("launchers.slurm.sbatch.PAUSE", 0.1)
    (job,) = submit(0, hold=True)
    assert in_the_queue(tmp_path) == [job] and len((tmp_path / "tried").read_text().split()) == 3
    jobs.cancel([job])
    late = f'if mkdir {tmp_path}/first; then (sleep 5; $REAL "$@"; touch {tmp_path}/late) >/dev/null 2>&1 & {LOST}; fi'
    sbatch(f'{late}\nuntil [ -e {tmp_path}/late ]; do sleep 0.1; done; exec $REAL "$@"')
    (job,) = submit(0, hold=True)  # SLURM took the first one after it had shown that there was none
    assert in_the_queue(tmp_path) == [job]


def test_a_job_has_the_locale_of_its_user(submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    (job,) = submit(0)
    until(lambda: not jobs.alive([job]))
    assert said(tmp_path, job)[0]["locale"] == "en_US.UTF-8"


def test_without_arrays_each_task_is_a_job(submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    switched_off = dataclasses.replace(site(), max_array_size=0)
    monkeypatch.setattr(jobs, "site", lambda patience=0.0: switched_off)
    jobs.check(slurm())
    tasks = submit(0, tasks=3, settings=slurm(array_parallelism=2))
    assert len(tasks) == 2
    until(lambda: not jobs.alive(tasks))
    assert [said(tmp_path, one)[0]["task"] for one in tasks] == [f"slurm-{one}" for one in tasks]


def test_jobs_that_slurm_has_forgotten_and_processes_outside_of_it() -> None:
    assert not jobs.alive([]) and not jobs.alive(["999999"]) and jobs.states(["999999"]) == {}
    if "SLURM_JOB_ID" not in os.environ:
        assert jobs.this_task() is None and jobs.seconds_left() is None and jobs.restarts() == 0
        with pytest.raises(SlurmError, match="not in a SLURM job"):
            jobs.requeue()
