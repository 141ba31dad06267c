"""spaCy's French, loaded in a tenth of the time.

Its module of exceptions compiles a pattern of 1.45 million characters: 266 kinds of words with a hyphen or an
apostrophe, each of which spells out the letters of all scripts. That takes 4.5 s of CPU in every process. Most of them
end alike, so an ending is written once behind all its beginnings: the same words match, and that takes 0.3 s.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any, cast

_MODULE = "spacy.lang.fr.tokenizer_exceptions"
_LONG = 100_000  # characters of a pattern
_HEAD, _BETWEEN, _TAIL = "(?iu)(?:", ")|(?:", ")"  # as spaCy puts the kinds together
_GROUP = re.compile(r"\([^()]*\)")
_ALPHABET = re.compile(r"\[[^\]]{1000,}\]")


def load() -> None:
    """Import spaCy's French exceptions, unless they are imported already."""
    if _MODULE in sys.modules:
        return
    compile_as_it_is: Any = re.compile

    def compile_shortened(pattern: Any, flags: Any = 0) -> re.Pattern[str]:
        if isinstance(pattern, str) and len(pattern) > _LONG:
            pattern = shortened(pattern)
        return cast("re.Pattern[str]", compile_as_it_is(pattern, flags))

    re.compile = compile_shortened  # type: ignore[assignment]
    try:
        importlib.import_module(_MODULE)
    finally:
        re.compile = compile_as_it_is


def shortened(pattern: str) -> str:
    """Return a pattern that matches what `pattern` does; `pattern` itself where it has another form than spaCy's.

    `(?iu)(?:A1…)|(?:A2…)|…`, where … begins with a class of very many characters, becomes `(?iu)(?:(?:A1|A2)…)|…`.
    """
    if not (pattern.startswith(_HEAD) and pattern.endswith(_TAIL)):
        return pattern
    beginnings: dict[str, list[str]] = {}  # ending → beginnings
    for kind in pattern[len(_HEAD) : -len(_TAIL)].split(_BETWEEN):
        if kind.count("(") != kind.count(")"):
            return pattern  # cut in the middle of a group
        found = _ALPHABET.search(kind)
        begin, end = (kind[: found.start()], kind[found.start() :]) if found else ("", kind)
        if {*"|()"} & {*_GROUP.sub("", begin)}:  # `a|b` would end before what follows
            begin, end = "", kind
        beginnings.setdefault(end, []).append(begin)
    kinds = (f"(?:{'|'.join(begins)}){end}" if begins != [""] else end for end, begins in beginnings.items())
    return "(?iu)" + "|".join(f"(?:{kind})" for kind in kinds)
