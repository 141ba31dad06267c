"""The site builds strictly, fetches nothing from elsewhere, and its reference pages are complete."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_command

from pipeline.cli import app
from pipeline.config.run_config import RunConfig
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    offline = os.environ | {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(command, cwd=ROOT, env=offline, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        text = page.read_text("utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)="?((?:https?:)?//[^" >]+)', text)
        assert not [url for url in loaded if "canonical" not in url], f"{page.name}: {loaded}"
        assert 'class="mermaid"' not in text  # for which the theme fetches a script
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\"?(https?:)?//|@import", sheet.read_text("utf-8")), sheet


def test_every_setting_is_in_the_reference(hooks: ModuleType) -> None:
    schema = RunConfig.model_json_schema()
    page = hooks.configuration()
    sections = re.split(r"^## ", page, flags=re.M)[1:]
    assert len(sections) == 1 + len(schema["$defs"])
    tables = {one.splitlines()[0]: re.findall(r"^\| `(\w+)` \|", one, re.M) for one in sections}
    assert tables.pop("Top level") == list(RunConfig.model_fields)
    assert sorted(map(sorted, tables.values())) == sorted(sorted(one["properties"]) for one in schema["$defs"].values())
    for line in page.splitlines():
        if re.match(r"\| `\w+` \|", line):
            cells = re.split(r"(?<!\\) \| ", line.strip("| "))
            assert len(cells) == 5 and all(cells) and cells[3] in ("meaning", "execution"), line
    assert "| `max_chars` | integer ≥ 10 | `200` | meaning |" in page
    assert "| `parts_in_flight` | integer ≥ 1, ≤ 16 | `3` | execution |" in page


def test_every_command_and_option_is_in_the_reference(hooks: ModuleType) -> None:
    page = hooks.commands()
    for command in get_command(app).commands.values():
        section = page.partition(f"### `pipeline {command.name}`\n")[2].partition("\n### ")[0]
        assert bool(section) != command.hidden
        for option in command.params if not command.hidden else ():
            assert option.param_type_name == "argument" or f"`{option.opts[0]}`" in section, option.name


def test_a_diagram_without_its_picture_fails_the_build(hooks: ModuleType) -> None:
    class File:
        src_uri = "guides/x.md"

    class Page:
        file = File()

    with pytest.raises(SystemExit, match="has no picture"):
        hooks.on_page_markdown("```mermaid\nflowchart LR\n  nobody --> drew\n```\n", Page())
    assert hooks.on_page_markdown("no diagram", Page()) == "no diagram"


def test_every_picture_is_of_a_diagram(hooks: ModuleType) -> None:
    sources = [found[1] for page in (ROOT / "docs").rglob("*.md") for found in hooks.FENCE.finditer(page.read_text())]
    assert {path.name for path in hooks.DIAGRAMS.glob("*.svg")} == {hooks.diagram_of(one) for one in sources}
