"""How often tests kill, and what holds for a corpus whose run was killed and resumed."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.reader import Corpus
from tests.conftest import data_digests
from tests.support.cli import pipeline
from tests.support.processes import start

USUAL = 3
KILLS = int(os.environ.get("PIPELINE_KILLS", USUAL))  # of each launcher
EVERY = KILLS >= 30  # commands are killed before each of their changes, otherwise before fewer than KILLS of them


def killed(
    prepare: Callable[[], Sequence[object]], below: Path | str, changes: int, module: str | None = None
) -> Iterator[str]:
    """Kill a command before its changes, each time from its beginning; yields what was done, for messages.

    Args:
        prepare: makes what is there before the command, and gives its arguments.
        below: the folder or `s3://` URL of the changes that count.
        changes: that it makes at least, so that a count that sees none is found.
        module: what is run instead of `pipeline`.
    """
    tried, name = 0, ""
    some = {max(1, changes * one // max(1, KILLS - 1)) for one in range(1, max(2, KILLS))}
    for change in itertools.count(1) if EVERY else sorted(some):
        arguments = prepare()
        name = " ".join(map(str, arguments))
        process = start(*arguments, die_before=(change, below), module=module)
        if process.wait() != -signal.SIGKILL:  # it made fewer
            assert process.returncode == (arguments[0] == "verify"), process.communicate()[0]  # which found something
            break
        tried += 1
        yield f"killed before change {change} of {name}"
    assert tried >= (changes if EVERY else 1), f"only {tried} changes of {name} were seen"
    print(f"{tried} kills, 0 differences: {name}")


def files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def check_resumed(path: Path, output: Path | str, expected: dict[str, str], launcher: str) -> None:
    """The same command again brings everything, and leaves nothing that it does not vouch for."""
    last = pipeline("run", path, "--launcher", launcher, "--set", f"output={output}")
    assert last.returncode == 0, last
    assert data_digests(output) == expected
    corpus = Corpus(str(output))
    accounting = compute_accounting(corpus.store, corpus.chunks)
    assert accounting.complete and not accounting.problems
    families = {name.partition("/")[0] for name in expected}
    assert sum(len(corpus.store.find(family)) for family in families) == len(expected), "killed attempts left files"
