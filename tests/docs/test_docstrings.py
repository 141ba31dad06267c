"""Public functions with three parameters or more describe each of them, what they return, and what they raise."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import ROOT
from tests.docs.docstrings import left_out, public_functions

WHOLE = """
class Source(Protocol):
    def rows(self, part: str, first: int, last: int) -> int:
        '''Return rows.

        Args:
            part: the part.
            first: the first row.
            last: the row after the last one.

        Returns:
            Their number.
        '''


class File:
    def rows(self, part: str, first: int, last: int) -> int:
        '''Return rows, as a source does.'''
        return 0

    def _private(self, a: int, b: int, c: int) -> int: ...


def small(a: int, b: int) -> int: ...
"""
LACKING = """
def find(a: int, b: int, *c: int, **d: int) -> int:
    '''Find it.

    Args:
        a: a number.
    '''
    try:
        raise KeyError(a)
    except KeyError:
        raise ValueError(b) from None
"""


def test_public_functions_describe_their_parameters_results_and_errors() -> None:
    assert list(left_out(list(public_functions(ROOT)))) == []


def test_what_a_docstring_leaves_out_is_named(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages/whole.py").write_text(WHOLE)
    assert list(left_out(list(public_functions(tmp_path)))) == []
    (tmp_path / "stages/lacking.py").write_text(LACKING)
    [found] = left_out(list(public_functions(tmp_path)))
    assert found == "stages/lacking.py:2 find: b, *c, **d, Returns, Raises ValueError"
