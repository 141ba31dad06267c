"""Two distributions fill conf/: the code with cards and configurations, and the models with what is large."""

from __future__ import annotations

import subprocess
from configparser import ConfigParser
from pathlib import Path

import yaml

from tests.conftest import ROOT

LARGE = (".safetensors", ".gz", ".model")
OF_NONE = {"LICENSE", "README.md", "pyproject.toml", "setup.cfg", "__init__.py"}  # what builds the second; the package


def _setup(folder: Path) -> ConfigParser:
    setup = ConfigParser()
    setup.read(folder / "setup.cfg", "utf-8")
    return setup


CODE, MODELS = _setup(ROOT), _setup(ROOT / "conf")


def _files(setup: ConfigParser) -> set[str]:
    """Return what a distribution takes from conf/."""
    found = set()
    for package, patterns in setup["options.package_data"].items():
        if package.partition(".")[0] == "conf":
            folder = ROOT / package.replace(".", "/")
            found |= {path for pattern in patterns.split(", ") for path in folder.glob(pattern) if path.is_file()}
    return {path.relative_to(ROOT / "conf").as_posix() for path in found}


def test_each_file_is_in_one_of_them() -> None:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "conf"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    tracked = {name.removeprefix("conf/") for name in names if name} - OF_NONE
    code, models = _files(CODE), _files(MODELS)
    assert not code & models
    assert code | models == tracked
    assert not [name for name in code if name.endswith(LARGE) or (ROOT / "conf" / name).stat().st_size > 10_000]


def test_both_have_the_same_version_and_name_each_other_with_it() -> None:
    version = CODE["metadata"]["version"]
    assert MODELS["metadata"]["version"] == version
    assert MODELS["options"]["install_requires"] == f"{CODE['metadata']['name']}=={version}"
    assert CODE["options.extras_require"]["models"] == f"{MODELS['metadata']['name']}=={version}"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == version


def test_a_checkout_needs_no_index_for_the_second() -> None:
    extras = CODE["options.extras_require"]
    assert [extra for extra, names in extras.items() if "sonar-pipeline-models" in names] == ["models"]
    assert "[models]" not in extras["all"]


def test_both_carry_the_licence() -> None:
    assert (ROOT / "conf/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
