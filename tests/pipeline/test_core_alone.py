"""The core without its extras: what only reads a corpus works, and what computes says at once what to install."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from pipeline import Corpus
from pipeline.base.extras import BY_NAME, FOR, PACKAGES, missing_extras, missing_package
from tests.conftest import ROOT, sample_documents, write_config, write_jsonl
from tests.support import trainings
from tests.support.corpora import made_once, make_corpus

# Python takes a module that is None for one that is not installed.
WITHOUT = """
import contextlib, io, json, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
from pipeline import cli
from typer.testing import CliRunner
from pipeline.base.errors import PipelineError
for line in sys.stdin:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        sys.argv = ["pipeline", *json.loads(line)]
        try:
            cli.main()
        except SystemExit as exit:
            code = exit.code
    print(json.dumps([code, said.getvalue()]), flush=True)
"""


def without_extras(commands: list[list[str]]) -> list[tuple[int, str]]:
    """Exit code and output of commands where no package of any extra is installed."""
    packages = json.dumps([name for names in PACKAGES.values() for name in names])
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, packages], cwd=ROOT, text=True, capture_output=True, check=True,
        input="\n".join(map(json.dumps, commands)),
    )  # fmt: skip
    return [(code, said) for code, said in map(json.loads, done.stdout.splitlines())]


@pytest.mark.slow
def test_readers_work_and_a_run_says_what_to_install(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    corpus = str(made_once(tmp_path_factory, "core", make_corpus) / "out")
    write_jsonl(tmp_path / "in" / "one.jsonl", sample_documents("libreoffice-eng", 1))
    config = str(write_config(tmp_path, report={}))
    readers = [
        ["status", corpus], ["inspect", corpus], ["select", corpus, "--where", "chars > 20"], ["files", corpus],
        ["sql", corpus], ["verify", corpus], ["logs", corpus], ["quarantine", corpus], ["models"],
        ["schema"], ["plan", config], ["export", corpus, "--format", "parquet", "--to", str(tmp_path / "parquet")],
        ["export", corpus, "--format", "numpy", "--to", str(tmp_path / "numpy")],
    ]  # fmt: skip
    computing = [
        ["run", config],
        ["report", corpus],
        ["export", corpus, "--format", "sonar-llm", "--to", str(tmp_path / "llm")],
        ["doctor"],
        ["browse", corpus],
        ["export", corpus, "--format", "hub", "--to", str(tmp_path / "hub"), "--push", "me/mine"],
    ]
    answers = without_extras(readers + computing)
    for command, (code, said) in zip(readers, answers, strict=False):
        assert code == 0, (command, said)
    assert list((tmp_path / "parquet").rglob("*.parquet"))
    run, report, export, doctor, browse, hub = answers[len(readers) :]
    assert run[0] == 2 and "torch, transformers" in run[1] and "pip install 'sonar-pipeline[encode,report]'" in run[1]
    assert not (tmp_path / "out").exists(), "work was begun"
    assert report[0] == 1 and "The package matplotlib is not installed here; for plots:" in report[1]
    assert export[0] == 1 and "The package torch is not installed here" in export[1]
    assert doctor[0] == 1
    assert browse[0] == 2 and "pip install 'sonar-pipeline[browse]'" in browse[1]
    assert hub[0] == 2 and "pip install 'sonar-pipeline[report,hub]'" in hub[1] and not (tmp_path / "hub").exists()


def test_a_corpus_with_an_index_and_a_model_is_kept_in_order(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = made_once(tmp_path_factory, "trainings", trainings.make_corpus) / "corpus.yaml"
    trainings.trained(config, "m", steps=2, checkpoint_every=1, evaluate_sentences=0)
    corpus = config.parent / "out"
    damaged = tmp_path / "damaged"
    shutil.copytree(corpus, damaged)
    (share, *_) = damaged.glob("train/m/checkpoints/*/*.safetensors")
    share.write_bytes(b"other")
    (tmp_path / "ids.txt").write_text(Corpus(str(corpus)).documents(0)["doc_id"][0].as_py() + "\n")
    verify, gc, purge, wrong = without_extras(
        [
            ["verify", str(corpus)], ["gc", str(corpus)],
            ["purge", str(corpus), "--ids", str(tmp_path / "ids.txt"), "--dry-run"], ["verify", str(damaged)],
        ]
    )  # fmt: skip
    assert verify[0] == gc[0] == purge[0] == 0, (verify, gc, purge)
    assert "train/m" in purge[1]
    assert wrong[0] == 1 and share.name in wrong[1]


def test_extras_are_those_of_the_package() -> None:
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    core = setup["options"]["install_requires"]
    for extra, packages in PACKAGES.items():
        assert (f"sonar-pipeline[{extra}]" in extras["all"]) == (extra not in BY_NAME) and extra in FOR
        for name in packages:
            distribution = {"faiss": "faiss-cpu", "mlflow": "mlflow-skinny"}.get(name, name)
            assert distribution in extras[extra] and f"\n{distribution}" not in core


def test_modules_of_no_extra_are_left_to_python() -> None:
    assert missing_package(ModuleNotFoundError("No module named 'odd'", name="odd")) is None
    assert "[train]" in str(missing_package(ModuleNotFoundError(name="tensorboard.summary")))
    assert missing_extras(set(PACKAGES) - set(BY_NAME)) is None  # all are installed here
