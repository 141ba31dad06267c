"""Reading the documents: their blocks of code, and the commands and settings that they name."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from pipeline.config.run_config import RunConfig
from tests.conftest import ROOT

PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block. `mark`: the comment in front of it, which says what tests do with it (run, file, output of)."""

    page: Path
    line: int
    info: str
    mark: str
    text: str

    @property
    def language(self) -> str:
        return self.info.split(" ")[0]

    def commands(self) -> Iterator[str]:
        """Command lines of `pipeline`: after a $ in a session, or as they stand in shell scripts."""
        prompt = r"^\$ +" if self.language == "console" else r"^"
        if self.language in ("console", "sh"):
            joined = self.text.replace("\\\n", " ")
            yield from (found[1].strip() for found in re.finditer(prompt + r"(pipeline .*)$", joined, re.M))


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """The fenced blocks of a page."""
    text = page.read_text("utf-8")
    return tuple(
        Block(page, text.count("\n", 0, found.start()) + 1, found["info"].strip(), found["mark"] or "", found["text"])
        for found in _BLOCK.finditer(text)
    )


@cache
def inline_code(page: Path) -> tuple[str, ...]:
    """What stands between backticks outside of blocks, also over a line's end."""
    text = _BLOCK.sub("", page.read_text("utf-8"))
    return tuple(" ".join(found[1].split()) for found in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text))


def commands(page: Path) -> list[list[str]]:
    """Every command line of `pipeline` on a page, split into words; comments and redirections are left out."""
    lines = [line for block in blocks(page) for line in block.commands()]
    lines += [code for code in inline_code(page) if code.startswith("pipeline ")]
    return [shlex.split(re.split(r" [|>] ", line)[0], comments=True)[1:] for line in lines]


def settings(page: Path) -> list[list[str]]:
    """Settings that a page shows, as lists of `--set` values that must be accepted together."""
    found = [[f"{key}={_flow(value)}" for key, value in mapping.items()] for mapping in fragments(page)]
    for command in commands(page):
        pairs = itertools.pairwise(command)
        found.append([value for option, value in pairs if option == "--set"])
    return [one for one in found if one]


def fragments(page: Path) -> Iterator[dict[str, object]]:
    """Parts of a corpus.yaml: blocks of YAML without a title, and sections in the running text."""
    texts = [block.text for block in blocks(page) if block.info == "yaml"]
    texts += [code for code in inline_code(page) if re.match(r"[a-z]+: \S", code)]
    for text in texts:
        value = yaml.safe_load(text) if "…" not in text and "N}" not in text else None
        if isinstance(value, dict) and value.keys() <= RunConfig.model_fields.keys():
            yield value


def keys(page: Path) -> list[str]:
    """Settings that the running text names, such as `encode.batch_tokens`."""
    sections = "|".join(RunConfig.model_fields)
    return [code for code in inline_code(page) if re.fullmatch(rf"({sections})\.[a-z_]+(\.[a-z_]+)*", code)]


def _flow(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6).removesuffix("...\n").strip()
