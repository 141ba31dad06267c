"""Another version of the code, of a library, of a model or of the settings is told apart, and named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from pipeline.config.load import load_config
from pipeline.coordination.identity import LIBRARIES, differences, identity
from stages.sonar.card import load_card
from tests.conftest import ROOT, TINY_CARD, MakeConfig

PRINT = (
    "import json, sys; from pipeline.config.load import load_config; "
    "from pipeline.coordination.identity import identity; "
    "print(json.dumps(identity(load_config(sys.argv[1]))))"
)


def elsewhere(path: Path, sources: Path) -> dict[str, str]:
    """The identity that a process with other sources finds."""
    environment = os.environ | {"PYTHONPATH": str(sources)}
    command = [sys.executable, "-c", PRINT, str(path)]
    done = subprocess.run(command, env=environment, cwd=sources, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_other_sources(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    ours = identity(load_config(path))
    for package in ("pipeline", "stages", "launchers", "conf"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, tmp_path / "sources" / package, ignore=ignore)
    assert differences(ours, elsewhere(path, tmp_path / "sources")) == []
    with (tmp_path / "sources/stages/device.py").open("a") as file:
        file.write("# one more line\n")
    (line,) = differences(ours, elsewhere(path, tmp_path / "sources"))
    assert line.startswith("code is ") and line.endswith(f"instead of {ours['code']}")


def test_other_model_and_settings(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    card = load_card(str(TINY_CARD))
    file = {"path": str(card.path("encoder")), "sha256": "0" * 64}
    mine = {"base": str(TINY_CARD.absolute()), "name": card.name, "files": {"encoder": file}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    ours = identity(load_config(path))
    other = identity(load_config(path, [f"encode.model={tmp_path / 'mine.yaml'}", "segment.max_chars=90"]))
    named = {line.split(" is ")[0] for line in differences(ours, other)}
    assert "recipe of encode" in named and any(line.startswith("recipe of segment over") for line in named)
    assert named <= {name for name in ours if name.startswith("recipe")}
    faster = identity(load_config(path, ["encode.batch_tokens=77", f"output={tmp_path / 'elsewhere'}"]))
    assert differences(ours, faster) == [], "settings of execution make no difference"


def test_versions_are_there(make_config: MakeConfig) -> None:
    ours = identity(load_config(make_config()))
    assert set(LIBRARIES) <= ours.keys() and ours["torch"] != "not installed"
    (line,) = differences(ours, ours | {"torch": "1.0"})
    assert line == f"torch is 1.0 instead of {ours['torch']}"
