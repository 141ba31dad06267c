"""Reads YAML that people write or send within limits, so that a small text can neither hang nor crash a program.

Anchors can make a few lines stand for billions of values, brackets can nest deeper than Python's recursion limit, and a
number can be longer than Python reads. All of that is a `yaml.YAMLError` here, with the line.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from yaml.reader import ReaderError

_Fast: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml: ten times as fast
MOST_BYTES = 4 << 20
DEEPEST = 50
MOST_DIGITS = 1000  # of a number; Python writes none of more than 4300, and 16 to a power has more than 10 to it
MOST_VALUES = 100_000  # when every alias is written out
_INTEGER = re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0b[01_]+|[0-9][0-9_:]*)")
_INT = "tag:yaml.org,2002:int"
_SURROGATE = re.compile("[\ud800-\udfff]")


def load_yaml(text: str, loader: type[yaml.SafeLoader] = _Fast) -> Any:
    """Return the values of a text. Raises `yaml.YAMLError` for a text that is not YAML or exceeds the limits."""
    try:
        _check(text, _Fast)
    except (yaml.MarkedYAMLError, ReaderError, UnicodeEncodeError):
        _check(text, yaml.SafeLoader)  # whose error shows the line
    try:
        return yaml.load(text, Loader=loader)  # a SafeLoader: makes nothing but plain values
    except (ValueError, OverflowError, RecursionError) as error:  # a number too long, a date that is none
        raise yaml.YAMLError(f"a value cannot be read: {error}") from error
    except (KeyError, AttributeError, TypeError) as error:  # as PyYAML raises for `!!bool maybe`, `!!timestamp 1`
        raise yaml.YAMLError(f"a value is not of the type that its tag (!!…) says: {error}") from error


def _check(text: str, loader: type[yaml.SafeLoader]) -> None:
    """Raises `yaml.YAMLError` for a text that is too long, nests too deeply or holds too much, before it is built."""
    if len(text) > MOST_BYTES:
        raise yaml.YAMLError(f"it has {len(text)} characters; at most {MOST_BYTES} are read")
    sizes: dict[str, int] = {}  # of what anchors stand for, with all their aliases written out
    open_: list[tuple[str | None, int]] = []  # anchors around, and the values before each
    values = 0
    for event in yaml.parse(text, Loader=loader):
        line = f"line {event.start_mark.line + 1}" if event.start_mark else ""
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if anchor in (name for name, _ in open_):
                raise yaml.YAMLError(f"{line}: *{anchor} refers to itself")
            values += sizes.get(str(anchor), 1)
        elif isinstance(event, yaml.ScalarEvent):
            values += 1
            if anchor:
                sizes[anchor] = 1
            long = len(event.value) > MOST_DIGITS
            if long and (event.tag == _INT or (event.implicit[0] and _INTEGER.fullmatch(event.value))):
                raise yaml.YAMLError(f"{line}: a number has more than {MOST_DIGITS} digits")
            if _SURROGATE.search(event.value):
                raise yaml.YAMLError(
                    f"{line}: a text has a surrogate (\\ud800 to \\udfff), which is no character; write the character "
                    "itself, or as \\U with eight digits"
                )
        elif isinstance(event, yaml.CollectionStartEvent):
            values += 1
            open_.append((anchor, values))
            if len(open_) > DEEPEST:
                raise yaml.YAMLError(f"{line}: values are nested more than {DEEPEST} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            name, before = open_.pop()
            if name:
                sizes[name] = values - before + 1
        if values > MOST_VALUES:
            raise yaml.YAMLError(f"{line}: it holds more than {MOST_VALUES} values, aliases written out")
