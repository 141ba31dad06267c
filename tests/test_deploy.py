"""The files of deploy/: that they fit the package, its commands and metrics, and each other."""

from __future__ import annotations

import json
import re
import shlex
from configparser import ConfigParser
from pathlib import Path

import yaml
from typer.main import get_command

from launchers.ray_metrics import COUNTERS
from pipeline.cli import app
from pipeline.config.load import load_config
from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
# of a RayJob and what is in it, as KubeRay's API reference (ray.io/v1) names them
FIELDS = {
    "spec": {"entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"},
    "rayClusterSpec": {"rayVersion", "headGroupSpec", "workerGroupSpecs"},
    "headGroupSpec": {"rayStartParams", "template"},
    "workerGroupSpecs": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"},
}


def test_the_rayjob_runs_a_command_of_the_pipeline_on_a_corpus_yaml(tmp_path: Path) -> None:
    config, job = yaml.safe_load_all((DEPLOY / "kuberay-rayjob.yaml").read_text("utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    cluster = spec["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    for name, found in (("spec", spec), ("rayClusterSpec", cluster), ("headGroupSpec", cluster["headGroupSpec"]),
                        ("workerGroupSpecs", workers)):  # fmt: skip
        assert found.keys() <= FIELDS[name], name
    pinned = re.search(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert pinned and cluster["rayVersion"] == pinned[1]

    program, command, file, *options = shlex.split(spec["entrypoint"])
    assert program == "pipeline"
    get_command(app).commands[command].make_context(command, [file, *options])  # type: ignore[attr-defined]
    images = set()
    for pods in (cluster["headGroupSpec"], workers):
        pod = pods["template"]["spec"]
        (container,) = pod["containers"]
        images.add(container["image"])
        mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert mounted.keys() == {one["name"] for one in pod["volumes"]}
        assert f"{mounted['config']}/corpus.yaml" == file
        assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    assert len(images) == 1
    path = tmp_path / "corpus.yaml"
    path.write_text(config["data"]["corpus.yaml"], "utf-8")
    output = load_config(path).output
    assert output.startswith("s3://") and "s3" in _defaults("Dockerfile")["EXTRAS"].split(",")


def _defaults(file: str) -> dict[str, str]:
    """Return the build arguments that an image of deploy/ is built with if none is given."""
    text = (DEPLOY / file).read_text("utf-8")
    return dict(re.findall(r"^(?:ARG |    )([A-Z_]+)=(\S*)$", text, re.MULTILINE))


def test_images_are_built_alike() -> None:
    """By the same arguments, of extras that are there, with a Python and the PyTorch that the package is pinned to."""
    docker = _defaults("Dockerfile")
    python = docker.pop("PYTHON")
    assert docker == _defaults("Apptainer.def") and docker.keys() == {"TORCH", "TORCH_INDEX", "EXTRAS"}
    assert f"From: python:{python}-slim\n" in (DEPLOY / "Apptainer.def").read_text("utf-8")
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    assert f"Programming Language :: Python :: {python}" in setup["metadata"]["classifiers"]
    assert set(docker["EXTRAS"].split(",")) <= setup["options.extras_require"].keys()
    assert re.search(r"^torch==[\d.]+$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)


def test_images_copy_every_folder_of_the_package() -> None:
    """And send nothing else to the builder."""
    docker = (DEPLOY / "Dockerfile").read_text("utf-8")
    copied = {name.removeprefix("./") for line in re.findall(r"^COPY (?!--from)(.*) \./\S*$", docker, re.MULTILINE)
              for name in line.split()}  # fmt: skip
    sent = re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8"), re.MULTILINE)
    apptainer = re.findall(r"^    (\S+) /src/\1$", (DEPLOY / "Apptainer.def").read_text("utf-8"), re.MULTILINE)
    packages = {"pipeline", "stages", "launchers", "conf"}
    assert copied == set(sent) == set(apptainer) >= packages
    assert all((ROOT / name).exists() for name in copied)


def test_the_dashboard_draws_metrics_that_a_run_has() -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text("utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    drawn = {name for one in expressions for name in re.findall(r"ray_pipeline_\w+", one)}
    assert drawn == {f"ray_pipeline_{name}_total" for name in COUNTERS}
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(set(places)) == len(dashboard["panels"])
