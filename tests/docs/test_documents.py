"""What the documents say is true of the program: commands, options, settings, messages, links, and the tutorial."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pipeline.cli import app
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from tests.conftest import ROOT
from tests.docs.documents import PAGES, Block, blocks, commands, keys, settings
from tests.support.cli import pipeline

EVERYTHING = ROOT / "conf/sample-full.yaml"
PROGRAM = get_command(app)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_have_these_options(page: Path) -> None:
    known = PROGRAM.commands
    for words in commands(page):
        if not words or words[0] in ("COMMAND", "…", "--version"):
            continue
        command = known.get(words[0])
        assert command, f"{name_of(page)}: there is no command {words[0]}"
        if len(words) == 1:  # only its name, in running text
            continue
        try:
            command.make_context(words[0], list(words[1:]))
        except Exception as error:
            if type(error).__name__ != "MissingParameter":  # options alone, in running text
                raise AssertionError(f"{name_of(page)}: pipeline {' '.join(words)}: {error}") from error


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_are_accepted(page: Path, tmp_path: Path) -> None:
    for overrides in settings(page):
        load_config(EVERYTHING, overrides)
    for block in blocks(page):
        if block.info == "yaml" and re.search(r"^name:", block.text, re.M):
            path = tmp_path / "corpus.yaml"
            path.write_text(block.text, "utf-8")
            load_config(path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_settings_that_the_text_names_exist(page: Path) -> None:
    schema = RunConfig.model_json_schema()
    for key in keys(page):
        assert _has(schema, schema, key.split(".")), f"{name_of(page)}: there is no setting {key}"


def _has(schema: dict[str, Any], field: dict[str, Any], path: list[str]) -> bool:
    choices = [field, field.get("items", {}), *field.get("anyOf", ()), *field.get("oneOf", ())]
    if not path:
        return True
    for one in choices:
        definition = schema["$defs"][one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        if path[0] in definition.get("properties", {}):
            return _has(schema, definition["properties"][path[0]], path[1:])
    return False


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Of pages that the site does not have; those of the site are checked when it is built."""
    if page.is_relative_to(ROOT / "docs"):
        return
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{name_of(page)}: there is no {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_the_text_names_exist(page: Path) -> None:
    folders = "benchmarks|conf|docs|launchers|pipeline|stages|tests"
    for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", page.read_text("utf-8")):
        assert (ROOT / path).exists(), f"{name_of(page)}: there is no {path}"


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 160
    assert max(map(len, lines)) <= 100


@cache
def _messages() -> str:
    """Return every text in the source, with … for values."""
    found: list[str] = []
    for folder in ("pipeline", "launchers", "stages"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def test_messages_of_the_troubleshooting_page_exist() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    headings = re.findall(r"^### `(.+)`$", page, re.M)
    assert len(headings) >= 20
    missing = [one for one in headings if one not in _messages()]
    assert not missing, f"no such message in the source: {missing}"


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the quickstart, after its commands have run and printed what it says."""
    folder = tmp_path_factory.mktemp("quickstart")
    _follow(ROOT / "docs/quickstart.md", folder)
    return folder


def test_the_quickstart_runs(quickstart: Path) -> None:
    assert (quickstart / "runs/letters/corpus.json").exists() and (quickstart / "english.csv").exists()


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "quickstart"], ids=name_of)
def test_commands_run_on_its_corpus_and_print_what_the_page_says(page: Path, quickstart: Path) -> None:
    _follow(page, quickstart)


def _follow(page: Path, folder: Path) -> None:
    """Do what the comments in front of blocks say: write a file, run a block, compare its output apart from numbers."""
    printed: dict[str, str] = {}
    for block in blocks(page):
        if block.mark.startswith("file: "):
            path = folder / block.mark.removeprefix("file: ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, "utf-8")
        elif re.match("run( with .+)?$", block.mark) and block.language == "python":
            if all(importlib.util.find_spec(name) for name in block.mark[9:].split(", ") if name):
                with contextlib.chdir(folder):
                    exec(compile(block.text, f"{name_of(page)}:{block.line}", "exec"), {"__name__": "__main__"})
        elif block.mark == "run":
            printed |= _run(block, folder)
        elif block.mark.startswith("output of: "):
            actual = {_masked(line) for line in printed[block.mark.removeprefix("output of: ")].splitlines()}
            for line in block.text.splitlines():
                assert _masked(line) in actual, f"{name_of(page)}: the program does not print: {line}"


def _run(block: Block, folder: Path) -> dict[str, str]:
    printed = {}
    for line in block.commands():
        with contextlib.chdir(folder):
            done = pipeline(*shlex.split(line)[1:])
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        printed[line] = done.stdout
    assert printed, f"{name_of(block.page)}:{block.line} is to be run, but has no command"
    return printed


def _masked(line: str) -> str:
    return " ".join(re.sub(r"\d[\d .,]*", "#", line).split())
