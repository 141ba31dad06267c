"""Tests that are marked, called without pytest; they may have parameters, no fixtures.

python -m benchmarks.marked_tests FILE …
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks import stand_ins


def run_marked(files: Sequence[str], mark: str = "gpu") -> int:
    """Call the tests of some files that have a mark, with every value of their parameters. Returns how many failed.

    Files without such a test count as one that failed; so do all where pytest is installed, whose marks are others.
    """
    stand_ins.install("pytest")
    failed = 0
    for file in files:
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        tests = [
            one for name, one in vars(module).items() if name.startswith("test_") and mark in getattr(one, "marks", {})
        ]
        if not tests:
            failed += 1
            print(f"{file}: no test is marked {mark}, FAILED", flush=True)
        for test in tests:
            for title, call in _calls(test):
                try:
                    call()
                    print(f"{file}::{title} PASSED", flush=True)
                except stand_ins.SkippedError as reason:
                    print(f"{file}::{title} SKIPPED ({reason})", flush=True)
                except Exception:
                    failed += 1
                    print(f"{file}::{title} FAILED\n{traceback.format_exc()}", flush=True)
    return failed


def _calls(test: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    given = test.marks.get("parametrize")
    if not given:
        yield test.__name__, test
        return
    names, cases = given
    for case in cases:
        values = case if "," in names else (case,)
        bound = dict(zip(names.replace(" ", "").split(","), values, strict=True))
        yield f"{test.__name__}[{'-'.join(map(str, values))}]", partial(test, **bound)


if __name__ == "__main__":
    sys.exit(1 if run_marked(sys.argv[1:]) else 0)
