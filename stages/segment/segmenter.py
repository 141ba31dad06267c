"""Documents to sentences: the same text, cut; nothing is dropped, and every sentence knows where it stood.

A sentence is a slice of its document in Unicode NFC, in which runs of white space and control characters are one space.
The slices of a document follow each other and hold all of its other characters. Blank lines always end a sentence,
single line ends do not. Memory: 150 bytes for each character of the documents that are worked on at once, about two
million characters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.segment import marks
from stages.segment.characters import cluster_ends
from stages.segment.methods import Method, SpacyMethod, make_method
from stages.segment.normal import Normal, normalised
from stages.segment.pieces import Limits, Pieces, merge_fragments
from stages.segment.settings import SegmentSettings
from stages.segment.text import Text

LONGEST = 1_000_000  # characters; a longer document is looked at in windows
TOGETHER = 2_000_000  # characters worked on at once

# Where a window may end, best first: at a blank line, a line's end, a sentence's, a word's.
_WINDOW_ENDS = (
    marks.PARAGRAPH_END,
    re.compile(r"[\n\r\x85\u2028]"),
    re.compile(rf"[{re.escape(marks.SPACED_FINAL)}]\s|[{re.escape(marks.FINAL)}]"),
    re.compile(r"\s"),
)


@dataclass(frozen=True)
class Segmented:
    """The sentences of a batch of documents, one row each, in order."""

    document: NDArray[np.int32]  # index into the batch
    paragraph: NDArray[np.int32]  # number of the paragraph in its document
    start: NDArray[np.int64]  # offsets into the document's text, in Unicode code points
    end: NDArray[np.int64]
    text: pa.Array  # string
    chars: NDArray[np.int32]  # of `text`
    tokens: NDArray[np.int32]  # of `text`, language tag and </s> included
    cap_splits: int  # sentences that the cap had to break
    hard_cuts: int  # rows that end without punctuation or white space
    over_cap: int  # single characters that alone have more than max_tokens tokens; all other rows keep the cap


class Window(NamedTuple):
    """A document, or a part of a very long one: which, from which character on, and its text."""

    document: int
    offset: int
    normal: Normal


class Segmenter:
    """Segments batches of documents; it caches what it loads, so make one per process.

    `CardError` is raised if the SaT model does not load.

    Args:
        settings: the section `segment`.
        count_tokens: texts → how many tokens the encoder makes of each, language tag and `</s>` included; it is called
            once for every two million characters, and again for what the cap breaks.
        device: where networks compute: `cpu`, `cuda:0`, `mps`.
    """

    def __init__(
        self, settings: SegmentSettings, count_tokens: Callable[[Sequence[str]], list[int]], device: str = "cpu"
    ) -> None:
        self.settings = settings
        self._limits = Limits(
            settings.max_chars if settings.capped else None,
            settings.max_tokens if settings.capped else None,
            count_tokens,
        )
        self._method = make_method(settings, device)
        self._languages = settings.languages
        self._rules = SpacyMethod()  # of the documents in other languages

    def segment(self, texts: Sequence[str], langs: Sequence[str]) -> Segmented:
        """Cut documents in languages given by SONAR codes (`eng_Latn`) into sentences; a batch may mix languages.

        Raises UnicodeEncodeError for lone surrogates; the readers quarantine documents that have any.
        """
        by_rules = [
            self._languages is not None and lang not in self._languages and marks.has_sentence_ends(text)
            for text, lang in zip(texts, langs, strict=True)
        ]
        found = [
            self._segment(group, langs, self._rules if rules else self._method)
            for rules in sorted({*by_rules}) or [False]
            for group in _groups(_normalised(texts, [one is rules for one in by_rules]))
        ]
        return _in_order(_joined(found)) if len({*by_rules}) > 1 else _joined(found)

    def _segment(self, windows: list[Window], langs: Sequence[str], method: Method) -> Segmented:
        text = Text([window.normal.text for window in windows])
        found = method.find(text, [langs[window.document] for window in windows])
        pieces = Pieces(text, found.cut, self._limits)
        over_cap = found.fit(pieces)
        if self.settings.min_chars:
            merge_fragments(pieces, self.settings.min_chars)
        ends = found.paragraph_ends(text, pieces)
        owner = text.owner(pieces.last)
        document = np.array([window.document for window in windows])[owner]
        start, end = text.ink[pieces.first] - text.edges[owner], text.ink[pieces.last] + 1 - text.edges[owner]
        rows = np.searchsorted(owner, np.arange(len(windows) + 1))
        for window, low, high in zip(windows, rows[:-1], rows[1:], strict=True):
            start[low:high] = window.offset + window.normal.original(start[low:high])
            end[low:high] = window.offset + window.normal.original(end[low:high])
        return Segmented(
            document=document.astype(np.int32),
            paragraph=_numbers(ends, document),
            start=start,
            end=end,
            text=pa.array(pieces.written, pa.string()),
            chars=pieces.chars.astype(np.int32),
            tokens=pieces.tokens.astype(np.int32),
            cap_splits=pieces.cap_splits,
            hard_cuts=int(pieces.hard[pieces.last].sum()),
            over_cap=over_cap,
        )


def _normalised(texts: Sequence[str], chosen: Sequence[bool]) -> Iterator[Window]:
    for document, text in enumerate(texts):
        if chosen[document]:
            for start, end in _windows(text):
                yield Window(document, start, normalised(text[start:end]))


def _windows(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while len(text) - start > LONGEST:
        end = start + LONGEST
        for pattern in _WINDOW_ENDS:
            found = [match.end() for match in pattern.finditer(text, start + LONGEST // 2, end)]
            if found:
                end = found[-1]
                break
        else:
            end = start + max(
                (place for place in cluster_ends(text[start : end + 1]) if place <= LONGEST), default=LONGEST
            )
        while marks.EXTENDS.match(text, end) and end > start + LONGEST // 2:
            end -= 1
        yield start, end
        start = end
    yield start, len(text)


def _groups(windows: Iterable[Window]) -> Iterator[list[Window]]:
    group: list[Window] = []
    characters = 0
    for window in windows:
        if group and characters + len(window.normal.text) > TOGETHER:
            yield group
            group, characters = [], 0
        group.append(window)
        characters += len(window.normal.text)
    yield group


def _in_order(found: Segmented) -> Segmented:
    """Return the sentences with the rows of each document at its place in the batch."""
    order = np.argsort(found.document, kind="stable")
    return replace(
        found,
        document=found.document[order],
        paragraph=found.paragraph[order],
        start=found.start[order],
        end=found.end[order],
        text=found.text.take(pa.array(order)),
        chars=found.chars[order],
        tokens=found.tokens[order],
    )


def _numbers(ends: NDArray[np.bool_], document: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the number of each row's paragraph in its document, from the rows that end one."""
    before: NDArray[np.int64] = np.cumsum(ends) - ends
    return (before - before[np.searchsorted(document, document)]).astype(np.int32)


def _joined(parts: list[Segmented]) -> Segmented:
    """Join groups one after the other; a document may continue from one to the next, and its paragraphs with it."""
    if len(parts) == 1:
        return parts[0]
    for before, after in pairwise(parts):
        if len(before.document) and len(after.document) and before.document[-1] == after.document[0]:
            after.paragraph[after.document == after.document[0]] += before.paragraph[-1] + 1
    return Segmented(
        document=np.concatenate([part.document for part in parts]),
        paragraph=np.concatenate([part.paragraph for part in parts]),
        start=np.concatenate([part.start for part in parts]),
        end=np.concatenate([part.end for part in parts]),
        text=pa.concat_arrays([part.text for part in parts]),
        chars=np.concatenate([part.chars for part in parts]),
        tokens=np.concatenate([part.tokens for part in parts]),
        cap_splits=sum(part.cap_splits for part in parts),
        hard_cuts=sum(part.hard_cuts for part in parts),
        over_cap=sum(part.over_cap for part in parts),
    )
