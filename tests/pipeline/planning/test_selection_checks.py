"""A selection that can keep no sentence is refused before anything is computed, also if it is typed."""

from __future__ import annotations

import pytest

from tests.conftest import MakeConfig
from tests.support.cli import pipeline, warnings_of


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("chars > 80", "`chars > 80` keeps no sentence, because sentences have from 1 to 80 characters"),
        ("chars >= 10 and tokens > 5000", "`tokens > 5000` keeps no sentence, because sentences have from 1 to"),
        ("lang == 'xyz_Latn'", "`lang == 'xyz_Latn'` keeps no sentence, because the languages are"),
        ("split == 'test'", "`split == 'test'` keeps no sentence, because all documents are in train or validation"),
    ],
)
def test_it_says_which_clause_keeps_no_sentence(make_config: MakeConfig, where: str, told: str) -> None:
    path = make_config(split={"validation": 0.2, "test": 0.0})
    for command in ("plan", "run"):
        done = pipeline(command, path, "--set", f"select={where}")
        assert done.returncode == 2 and told in done.stderr and "--set select" in done.stderr, done.stderr
        assert not (path.parent / "out").exists()


@pytest.mark.parametrize(
    "where", ["chars == 80", "chars < 10 or lang == 'xyz_Latn'", "lang == 'deu_Latn'", "split == 'validation'"]
)
def test_nothing_is_said_of_what_may_be(make_config: MakeConfig, where: str) -> None:
    done = pipeline("plan", make_config(), "--set", f"select={where}")
    assert done.returncode == 0 and not warnings_of(done), done.stderr
