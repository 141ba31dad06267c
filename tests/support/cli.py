"""The commands as a person types them: in this process, which has imported everything, or in one of their own."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from pipeline.base.messages import PACKAGES
from pipeline.cli import app, main

PIPELINE = str(Path(sys.executable).parent / "pipeline")


@functools.cache
def _commands() -> object:
    """All commands with their options, which a process otherwise makes of functions each time."""
    return typer.main.get_command(app)


def pipeline(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Exit code and output of a command in this process. What a process of its own would change is put back."""
    command = ["pipeline", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    collections, levels = gc.get_threshold(), {name: logging.getLogger(name).level for name in PACKAGES}
    handlers = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.setattr(sys, "argv", command)
            patch.setattr("pipeline.cli.app", _commands())
            patch.setenv("PYDANTIC_DISABLE_PLUGINS", "__all__")
            with pytest.raises(SystemExit) as ended:
                main()
    finally:
        for sign, handler in handlers.items():
            signal.signal(sign, handler)
        gc.set_threshold(*collections)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    return subprocess.CompletedProcess(command, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def pipeline_process(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, for what depends on that, with more variables in its environment."""
    command = [PIPELINE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=os.environ | (env or {}))


def warnings_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines that a command wrote on standard error, without those that say, on a slow machine, what takes long."""
    return [line for line in done.stderr.splitlines() if not line.endswith(" …")]


def said(done: subprocess.CompletedProcess[str]) -> str:
    """Everything that a command printed."""
    return done.stdout + done.stderr
