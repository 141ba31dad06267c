"""Damaged files: no command ends in a traceback, none is silently wrong, and what can be repaired is.

`PIPELINE_KILLS=30` looks at every case of `damage.py`, otherwise at a selection.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.conftest import ROOT
from tests.faults.damage import DAMAGE, KINDS, Damaged
from tests.support.kills import KILLS
from tests.support.processes import start

SELECTED = [
    ("header", "deleted"), ("view", "bit"), ("chunks", "deleted"), ("settings", "truncated"), ("progress", "empty"),
    ("ledger", "truncated"), ("lease", "empty"), ("receipt", "bit"), ("record of codebooks", "other"),
    ("runs of an index", "bit"), ("parts of an index", "bit"), ("record of a training", "deleted"), ("weights", "bit"),
    ("purged documents", "deleted"), ("purged documents", "same"), ("codebooks", "same"), ("embeddings", "bit"),
    ("duplicates", "bit"), ("view of an older run", "deleted"),
]  # fmt: skip
CASES = [(kind, damage) for kind in KINDS for damage in DAMAGE] if KILLS >= 30 else SELECTED
PAGE = ROOT / "docs/damage.md"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    return Damaged(tmp_path_factory.mktemp("damaged"))


@pytest.mark.faults
@pytest.mark.parametrize(("kind", "damage"), CASES)
def test_damage_is_told_and_mended(whole: Damaged, kind: str, damage: str) -> None:
    if not whole.possible(kind, damage):
        pytest.skip("there is only one file of this kind")
    seen = whole.look(kind, damage)
    assert not seen.tracebacks and not seen.wrong, seen


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["view", "ledger", "lease", "receipt", "record of a training", "scaler", "share"])
def test_a_pipe_in_the_place_of_a_file_holds_no_command(whole: Damaged, kind: str) -> None:
    for command in (("status",), ("inspect",), ("run",), ("train",), ("gc",), ("verify",), ("verify", "--repair")):
        if command != ("verify", "--repair"):  # which mends what the one before found
            assert whole.possible(kind, "deleted")
            path = whole.damaged(kind)
            path.unlink()
            os.mkfifo(path)
        process = start(command[0], whole.config, *command[1:])
        code, shown = process.wait(), process.communicate()[0]
        assert code in (0, 1) and "Traceback" not in shown, (command, shown)
        if command == ("verify",):
            assert code == 1 and "a pipe, not a file" in shown and "cannot be read" not in shown, shown
    assert "cannot be read" not in shown, shown


def test_the_selection_is_of_this_table() -> None:
    assert all(kind in KINDS and damage in DAMAGE for kind, damage in SELECTED) and len(KINDS) * len(DAMAGE) >= 160


def test_the_page_has_every_kind_and_no_silent_difference() -> None:
    """The page is of this table: a kind or a damage that is new is not in it until it is made again."""
    text = PAGE.read_text("utf-8")
    rows = [re.split(r" *\| *", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    figures = {row[0]: row[1] for row in rows if len(row) == 2}
    table = {row[0]: row[1:] for row in rows if len(row) == 1 + len(DAMAGE)}
    assert table.pop("file") == list(DAMAGE) and table.pop("---")
    assert list(table) == [f"{kind} (`{pattern}`)" for kind, pattern in KINDS.items()]
    cells = [cell for row in table.values() for cell in row if cell]
    assert all(re.fullmatch(r"`[s·][i·][v·][r·][t·][T·x] [=~!]`", cell) for cell in cells)
    assert int(figures["damages"]) == len(cells) and int(figures["kinds of files"]) == len(KINDS)
    assert figures["tracebacks"] == figures["commands that ended with code 0 and another result"] == "0"
    assert all(table[f"{kind} (`{KINDS[kind]}`)"] for kind, _ in SELECTED)
