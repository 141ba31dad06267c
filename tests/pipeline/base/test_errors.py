"""Text of data in messages: nothing in it can steer a terminal."""

from __future__ import annotations

import pytest

from pipeline.base.errors import ConfigError, PipelineError, visible
from pipeline.inputs import InputError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("naïve 第三 👩‍👩‍👧 ภาษา", "naïve 第三 👩‍👩‍👧 ภาษา"),
        ("\x1b[31mred\x07\0", r"\x1b[31mred\x07\x00"),
        ("a\r\nb\u2028c\x85", r"a\r\nb\u2028c\x85"),
        ("\u202eevil\u2066", r"\u202eevil\u2066"),
        ("half \ud800", r"half \ud800"),
    ],
)
def test_what_steers_a_terminal_becomes_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert str(PipelineError(text.replace("\n", ""))) == shown.replace(r"\n", "")


def test_only_errors_of_inputs_are_always_one_line() -> None:
    assert str(ConfigError("a.yaml:1: one\na.yaml:2: two\x1b")) == "a.yaml:1: one\na.yaml:2: two\\x1b"
    assert str(InputError("no file a\nb")) == r"no file a\nb"
