"""On PYTHONPATH this makes every process that is to encode a sentence with POISON die, as if for memory."""

from __future__ import annotations

import builtins
import os
import signal
from typing import Any

_build_class = builtins.__build_class__


def _deadly(function: Any, name: str, *bases: Any, **keywords: Any) -> Any:
    made = _build_class(function, name, *bases, **keywords)
    if name == "Encode" and made.__module__ == "stages.encode.encoder":
        prepare = made.prepare

        def deadly(self: Any, part: Any) -> Any:
            if any("POISON" in text for text in part["sentences.text"].to_pylist()):
                os.kill(os.getpid(), signal.SIGKILL)
            return prepare(self, part)

        made.prepare = deadly
    return made


builtins.__build_class__ = _deadly
