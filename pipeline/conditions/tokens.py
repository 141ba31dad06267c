"""Splits a condition (`pipeline/conditions/expression.py`) into tokens, and shows where in the text an error is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from rich.cells import cell_len

from pipeline.base.errors import ConfigError, visible

_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null"})
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>[-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<name>(?:[^\W\d]\w*|`[^`]+`)(?:\.(?:[^\W\d]\w*|`[^`]+`))*)
    |(?P<sign><=|>=|==|!=|<>|[<>=()\[\],])""",
    re.VERBOSE | re.DOTALL,
)
_PLAIN = re.compile(r"[^\W\d]\w*")
EXCERPT = 72  # characters shown of a line with a mistake: it fits a terminal, and the carets stand where they should
_ESCAPES = {"\\\\": "\\", "\\'": "'", '\\"': '"', "\\n": "\n", "\\t": "\t", "\\r": "\r"}


def is_plain_name(name: str) -> bool:
    """Return whether a column's name stands in a condition as it is, without backquotes."""
    return bool(_PLAIN.fullmatch(name)) and name.lower() not in _KEYWORDS | {"true", "false"}


class ExpressionError(ConfigError):
    """A condition that cannot be understood; the message shows the place of the error."""


@dataclass(frozen=True)
class Token:
    """A piece of a condition. `value`: the number, the text without its quotes, the name, or the sign.

    path: the words of a name: those of `meta.year` are `meta` and `year`.
    """

    kind: Literal["number", "text", "boolean", "name", "keyword", "sign", "end"]
    value: Any
    start: int
    end: int
    path: tuple[str, ...] = ()


class ConditionTokens:
    """The tokens of a condition, consumed one after the other. `origin` begins the error messages."""

    def __init__(self, text: str, origin: str) -> None:
        self.text, self.origin = text, origin
        self._tokens = self._split()
        self._next = 0

    def peek(self) -> Token:
        """Return the next token without consuming it."""
        return self._tokens[self._next]

    def take(self) -> Token:
        """Consume the next token and return it."""
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def took(self, kind: str, value: str) -> bool:
        """Consume the next token if it is of this kind and value, and say whether it was."""
        found = self.peek().kind == kind and self.peek().value == value
        self._next += found
        return found

    def need(self, sign: str, why: str) -> Token:
        """Consume this sign. Raises `ExpressionError` if another token comes next."""
        if not (self.peek().kind == "sign" and self.peek().value == sign):
            self.fail(self.peek(), f"expected {sign} {why}")
        return self.take()

    def fail(self, at: Token, what: str, more: str = "") -> NoReturn:
        """Raise an error that shows the token's line with carets under the token.

        Args:
            at: the token that is wrong.
            what: what is wrong with it.
            more: a remark that is added as another line.

        Raises:
            ExpressionError: always.
        """
        first = self.text.rfind("\n", 0, at.start) + 1
        line = self.text[first:].partition("\n")[0]
        start, end = at.start - first, min(at.end - first, len(line))
        low = max(0, min(start - EXCERPT // 2, len(line) - EXCERPT))
        high = low + EXCERPT
        before = "…" * (low > 0) + _shown(line[low:start])
        inside, after = _shown(line[start : min(end, high)]), _shown(line[end:high]) + "…" * (high < len(line))
        carets = " " * cell_len(before) + "^" * max(1, cell_len(inside))
        lines = [visible(f"{self.origin}: {what}"), f"  {before}{inside}{after}", f"  {carets}"]
        raise ExpressionError("\n".join([*lines, visible(more)] if more else lines))

    def _split(self) -> list[Token]:
        tokens, position = [], 0
        while position < len(self.text):
            found = _TOKEN.match(self.text, position)
            if not found:
                sign = self.text[position]
                problem = "is not closed" if sign in "'\"`" else "means nothing here"
                named = sign if sign.isprintable() else f"the character U+{ord(sign):04X}"
                self.fail(Token("sign", sign, position, position + 1), f"{named} {problem}")
            position = found.end()
            if found.lastgroup != "space":
                tokens.append(_token(found))
        return [*tokens, Token("end", "", position, position + 1)]


def _shown(text: str) -> str:
    """Make text safe for a terminal, character for character, so that carets stay under their place."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def _token(found: re.Match[str]) -> Token:
    raw, start, end = found[0], found.start(), found.end()
    match found.lastgroup:
        case "number":
            digits = raw.replace("_", "")
            whole = len(digits) <= 30 and not re.search(r"[.eE]", digits)
            return Token("number", int(digits) if whole else float(digits), start, end)
        case "text":
            value = re.sub(r"\\.", lambda pair: _ESCAPES.get(pair[0], pair[0]), raw[1:-1], flags=re.DOTALL)
            return Token("text", value, start, end)
        case "name" if raw.lower() in _KEYWORDS:
            return Token("keyword", raw.lower(), start, end)
        case "name" if raw.lower() in ("true", "false"):
            return Token("boolean", raw.lower() == "true", start, end)
        case "name":
            path = tuple(word.strip("`") for word in re.findall(r"`[^`]+`|[^.`]+", raw))
            return Token("name", ".".join(path), start, end, path)
        case _:
            return Token("sign", raw, start, end)
