"""The doctor finds what is there and what is missing, says what to do, and never prints a secret."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from launchers import local
from launchers.slurm.jobs import describe
from pipeline.doctor import examine
from pipeline.doctor.checks import Check, requirements, room, writable
from pipeline.doctor.machine import devices, libraries, memory, open_files, ray
from tests.conftest import TINY_CARD, MakeConfig
from tests.support.cli import pipeline


def found(path: Path | None, name: str) -> list[Check]:
    return [check for check in examine(path, None) if check.name == name]


def test_one_thread_is_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, said in ((1, ", 1 thread;"), (2, ", 2 threads;")):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        assert said in f"{next(devices()).found};"


def test_a_configuration_that_fits_this_machine(make_config: MakeConfig) -> None:
    path = make_config(encode={"model": "sonar-tiny"})
    checks = list(examine(path, None))
    assert not [check for check in checks if check.level == "bad"]
    (one,) = (check for check in checks if check.name == "input")
    assert one.level == "good" and "3 files" in one.found and "deu_Latn" in one.found
    (model,) = (check for check in checks if check.name == "model")
    assert model.level == "good" and "encoder, decoder, tokenizer here" in model.found
    (output,) = (check for check in checks if check.name == "output")
    assert output.level == "good" and not (path.parent / "out").exists(), "looking leaves no trace"
    assert not list(path.parent.glob(".doctor*")) and not list(path.parent.glob(".*.tmp"))


@pytest.mark.parametrize(
    ("change", "name", "level", "words"),
    [
        ({"input": [{"path": "nothing/*", "lang": "eng_Latn"}]}, "input", "bad", "nothing matches"),
        ({"input": [{"path": "in/*.jsonl", "lang": "eng_Lat"}]}, "input", "bad", "does not know lang eng_Lat"),
        ({"input": [{"path": "in/*.jsonl", "lang": "eng_Latn", "text": "body"}]}, "input", "bad", "not usable"),
        ({"input": [{"path": "s3://corpus/in", "lang": "eng_Latn"}]}, "input", "bad", "NoCredentialsError"),
        ({"input": [{"path": "s3://corpus/in", "lang": "eng_Latn"}]}, "S3", "bad", "no credentials found"),
        ({"output": "/proc/corpus"}, "output", "bad", "/proc/corpus"),
        ({"encode": {"model": "none.yaml"}}, "model", "bad", "none.yaml is not there"),
        ({"encode": {"model": "sonar"}}, "model", "warn", "to fetch encoder (3.1 GB)"),
        ({"encoder": {}}, "config", "bad", "did you mean encode?"),
        ({"select": "autobleuu >= 30"}, "config", "bad", "autobleuu"),
        ({"scaler": {}, "train": {"model": "lcm-none"}}, "config", "bad", "lcm-none"),
        ({"scaler": {}, "train": {"model": "lcm-quant-d-tiny"}}, "config", "bad", "add a section `rvq:"),
    ],
)
def test_what_does_not_fit(
    make_config: MakeConfig,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: dict[str, object],
    name: str,
    level: str,
    words: str,
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    path = make_config()
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | change))
    checks = found(path, name)
    assert [check.level for check in checks] == [level], checks
    assert words in checks[0].found
    assert checks[0].todo or ";" in checks[0].found  # what to do


def test_of_a_model_the_files_that_its_stage_needs(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    path = make_config(encode={"model": "sonar"}, autobleu={"model": "sonar-finetuned"})
    assert [check.found for check in found(path, "model")] == [
        "sonar: to fetch encoder (3.1 GB), tokenizer (4.9 MB)",
        "sonar-finetuned: to fetch decoder (~3.3 GB), tokenizer (4.9 MB)",
    ]


def test_model_files_that_are_missing_or_of_another_size(make_config: MakeConfig, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    card = yaml.safe_load(TINY_CARD.read_text("utf-8"))
    (folder / "card.yaml").write_text(yaml.safe_dump(card))
    for role, file in card["files"].items():
        if role != "decoder":
            (folder / file["path"]).write_bytes((TINY_CARD.parent / file["path"]).read_bytes())
    path = make_config(encode={"model": str(folder / "card.yaml")})
    (check,) = found(path, "model")
    assert check.level == "bad" and f"missing decoder at {folder / 'dec.pt'}" in check.found
    (folder / "dec.pt").write_bytes(b"half")
    (check,) = found(path, "model")
    assert check.level == "bad" and "has 4 bytes, not 472643" in check.found


def test_without_a_configuration_every_model_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    models = {check.found.split(":")[0]: check for check in found(None, "model")}
    assert models["sonar-tiny"].level == "good"
    assert models["sonar"].level == "note" and models["sonar"].todo == "pipeline models sonar --fetch"


def test_credentials_are_found_and_not_printed(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIASECRETIDENTITY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecretindeed")
    shown = pipeline("doctor", make_config(), "--no-ray")
    assert shown.returncode == 0, shown
    assert "credentials found in environment variables" in shown.stdout
    assert "SECRET" not in shown.stdout + shown.stderr and "verysecret" not in shown.stdout + shown.stderr
    assert "\x1b" not in shown.stdout and re.search(r"^✓ config ", shown.stdout, re.MULTILINE)
    assert "A run can work on this machine" in shown.stdout
    refused = pipeline("doctor", tmp_path / "nowhere.yaml", "--no-ray")
    assert refused.returncode == 1 and "✗ config" in refused.stdout and not refused.stderr


def test_a_torch_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:  # no longer than this: plugins of pytest use torch after the test
        without.setitem(sys.modules, "torch", None)
        checks = {check.name: check for check in examine(None, None)}
    assert checks["libraries"].level == "bad" and "do not load: torch (ModuleNotFoundError" in checks["libraries"].found
    assert checks["libraries"].todo == "pip install --force-reinstall torch"
    assert "CPU" not in checks and checks["memory"].level == "good"


def test_gpus_that_torch_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$1" in *name) echo "NVIDIA H100"; echo "NVIDIA H100";; *) echo 550.54; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (check,) = (check for check in devices() if check.name == "GPU")
    assert check.level == "warn" and "2 × NVIDIA H100, driver 550.54, but torch" in check.found


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 524288))
    assert open_files() == Check("warn", "open files", "a process may open 1 024 files", "ulimit -n 65536")


def test_a_ray_that_does_not_start() -> None:
    def fails() -> tuple[float, dict[str, float]]:
        raise RuntimeError("no answer in 90 s")

    check = ray(fails, needed=True)
    assert check.level == "bad" and "no answer in 90 s" in check.found and "--launcher inline" in check.todo
    assert ray(fails, needed=False).level == "warn"
    assert ray(lambda: (4.2, {"CPU": 2.0, "GPU": 1.0}), needed=True).found.endswith("in 4 s and finds 2 CPUs, 1 GPUs")


@pytest.mark.slow
def test_ray_is_started_for_real() -> None:
    seconds, resources = local.start_ray(timeout=600)  # of a busy machine
    assert seconds > 0 and resources["CPU"] >= 1
    with pytest.raises(RuntimeError, match="no answer in 0 s"):
        local.start_ray(timeout=0.1)


def test_a_ray_that_is_too_slow_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = f"""
import pathlib, sys
seen = pathlib.Path({str(tmp_path / "seen")!r})
if len(seen.read_text() if seen.exists() else "") < 2:
    seen.open("a").write("1")
    sys.exit("Exception: The current node timed out during startup. Perhaps")
print('{{"CPU": 2.0}}')
"""
    monkeypatch.setattr(local, "_TRIAL", slow)
    assert local.start_ray()[1] == {"CPU": 2.0}
    monkeypatch.setattr(local, "_TRIAL", slow.replace("< 2", "< 9"))
    with pytest.raises(RuntimeError, match="timed out during startup"):
        local.start_ray()
    assert len((tmp_path / "seen").read_text()) == 2 + 3


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pipeline.doctor.machine.installed", lambda name: None if name in ("jinja2", "ray", "s3fs") else "1"
    )
    checks = {check.name: check for check in libraries()}
    assert checks["libraries"].level == "bad" and checks["libraries"].found.startswith("missing: jinja2;")
    assert checks["libraries"].todo.endswith(" jinja2")
    assert (checks["[encode]"].level, checks["[ray]"].level) == ("good", "note")
    assert checks["[s3]"] == Check(
        "note", "[s3]", "not installed (for s3:// URLs): s3fs", "pip install 'sonar-pipeline[s3]'"
    )
    assert ray(None, needed=True).level == "bad"


@pytest.mark.parametrize(("free", "level"), [(0.5e9, "bad"), (5e9, "warn"), (500e9, "good")])
def test_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, level: str) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    check = room("disk", tmp_path / "not" / "yet", dim=1024)
    assert check.level == level and bool(check.todo) == (level != "good")
    assert level != "good" or "room for about 264 million sentences of 1024 dimensions" in check.found


def test_a_container_that_may_use_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.doctor.machine._container_limit", lambda: 500_000_000)
    check = memory()
    assert check.level == "bad" and "this container may use 500.0 MB" in check.found


def test_a_place_where_a_second_writer_wins_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert writable("output", str(tmp_path), "here").level == "good" and not list(tmp_path.iterdir())
    monkeypatch.setattr("pipeline.storage.store.Store.create", lambda *_: True)  # a store that ignores If-None-Match
    check = writable("output", str(tmp_path), "here")
    assert check.level == "bad" and "If-None-Match" in check.todo


def test_requirements_are_those_of_the_package() -> None:
    needed = requirements()
    assert "pyarrow" in needed[""] and "torch" in needed["encode"] and "s3fs" in needed["s3"]


def test_a_slurm_that_answers_takes_the_jobs_of_a_file_or_says_why_not(make_config: MakeConfig, slurm: None) -> None:
    (check,) = (one for one in examine(None, None, describe) if one.name == "SLURM")
    partitions = "partitions main (24 h), short (5 min), several (1 h), urgent (1 h), by default main"
    assert check.level == "good" and partitions in check.found
    assert "arrays of up to 50 tasks; keeps accounts" in check.found
    fits = examine(make_config(launcher={"kind": "slurm", "time": "1:00:00"}), None, describe)
    assert [one.found.endswith("takes the jobs of this file") for one in fits if one.name == "SLURM"] == [True]
    wrong = examine(make_config(launcher={"kind": "slurm", "partition": "gpu"}), None, describe)
    assert [(one.level, "'gpu' does not exist" in one.found) for one in wrong if one.name == "SLURM"] == [("bad", True)]


def test_no_slurm_where_a_file_asks_for_it(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    checks = examine(make_config(launcher={"kind": "slurm"}), None, describe)
    assert [(one.level, "no sbatch on PATH" in one.found) for one in checks if one.name == "SLURM"] == [("bad", True)]
    assert [one.level for one in examine(None, None, describe) if one.name == "SLURM"] == ["note"]


def test_one_text_file_that_cannot_be_used_does_not_stop_a_run(make_config: MakeConfig, tmp_path: Path) -> None:
    """A text file is one document, so several are looked at."""
    for name, data in (("a", b"\xff\xff"), ("b", b"A good text."), ("c", b"Another one.")):
        (tmp_path / f"{name}.txt").write_bytes(data)
    (check,) = found(make_config(input=[{"path": "*.txt", "lang": "eng_Latn"}]), "input")
    assert check.level == "warn" and "the first 3: 2 documents in eng_Latn; not usable: not UTF-8 (1)" in check.found
