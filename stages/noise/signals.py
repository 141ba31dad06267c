"""Signals of noise by Arrow's regular expressions (RE2) and NumPy, on the CPU: about 0.03 ms per sentence.

Shares are of a sentence's characters without white space, except `uppercase_share` and `other_script_share`, which are
of its letters. A document's paragraphs stand for the lines of Gopher's and FineWeb's rules, and its words for theirs;
characters of n-grams are those of their words, without the spaces between them. A word is part of a duplicate n-gram if
the n-gram stood earlier in the document.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.noise.settings import DUPLICATE_NGRAMS, TOP_NGRAMS, NoiseSettings
from stages.stage import Computed, HostStage

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

URL = r"(?:https?://|ftp://|www\.)\S+|\b[\w.+-]+@[\w-]+\.[\w.-]+"
MARKUP = r"<[/!a-zA-Z][^<>]*>|&[a-zA-Z]+;|&#[0-9]+;|\[\[|\]\]|\{\{|\}\}|\\[a-zA-Z]+\{|```|\]\("
IDENTIFIER = (
    r"\b\w+\(\)|\b\w+(?:_+\w+)+\b|\b[a-z0-9]+(?:[A-Z][a-z0-9]+)+\b|(?:\.{0,2}/[\w.-]+){2,}|\b0x[0-9a-fA-F]+\b"
    r"|\b[0-9a-f]{12,}\b|(?:^|\s)--?[a-z][\w-]*"
)
_APART = r"[^\p{L}\p{M}\p{N}_]"  # what no word holds; RE2's \b takes every letter that is not ASCII for it
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
BULLET = r"^\s*[-*•‣▪●–]\s"
ELLIPSIS = r"(?:…|\.\.\.)$"
TERMINAL = r"[.!?…。！？।։؟\"'”’»」』]$"
SHORT = 30  # characters of a short line, at most
_SCRIPTS = {  # names of RE2 for those of ISO 15924
    "Arab": "Arabic", "Armn": "Armenian", "Beng": "Bengali", "Cyrl": "Cyrillic", "Deva": "Devanagari",
    "Ethi": "Ethiopic", "Geor": "Georgian", "Grek": "Greek", "Gujr": "Gujarati", "Guru": "Gurmukhi", "Hang": "Hangul",
    "Hans": "Han", "Hant": "Han", "Hebr": "Hebrew", "Khmr": "Khmer", "Knda": "Kannada", "Laoo": "Lao", "Latn": "Latin",
    "Mlym": "Malayalam", "Mymr": "Myanmar", "Olck": "Ol_Chiki", "Orya": "Oriya", "Sinh": "Sinhala", "Taml": "Tamil",
    "Telu": "Telugu", "Tfng": "Tifinagh", "Thai": "Thai", "Tibt": "Tibetan",
}  # fmt: skip
_SEVERAL = {"Jpan": r"\p{Han}\p{Hiragana}\p{Katakana}ー", "Hang": r"\p{Hangul}\p{Han}"}


class Noise(HostStage):
    """The noise stage; see `NoiseSettings`."""

    def __init__(self, settings: NoiseSettings) -> None:
        self.settings = settings

    def prepare(self, part: pa.Table) -> Computed:
        """Compute all signals of the part."""
        text, langs = part["sentences.text"].combine_chunks(), part["sentences.lang"].combine_chunks()
        doc = part["sentences.doc"].to_numpy().astype(np.int64)
        paragraph = part["sentences.paragraph"].to_numpy().astype(np.int64)
        apart = np.zeros(len(doc), np.bool_)  # whether white space is before the sentence
        apart[1:] = part["sentences.start"].to_numpy()[1:] > part["sentences.end"].to_numpy()[:-1]
        columns = _sentences(text, langs) | _documents(text, doc, paragraph, apart)
        return Computed({"noise": pa.table({name: pa.array(one, pa.float32()) for name, one in columns.items()})})


def _count(text: pa.Array, pattern: str) -> Floats:
    """Return (rows,) how often the pattern occurs."""
    found: Floats = pc.count_substring_regex(text, pattern).to_numpy(zero_copy_only=False).astype(np.float64)
    return found


def _ratio(part: Floats, whole: Floats) -> Floats:
    """Return part / whole; 0 where there is nothing."""
    return np.divide(part, whole, out=np.zeros_like(part, np.float64), where=whole > 0)


def _totals(of: Ints, documents: int, values: Floats) -> Floats:
    """Return (documents,) the sum of the values of each; `of`: the document of every value."""
    found: Floats = np.bincount(of, values, documents).astype(np.float64)
    return found


def _covered(text: pa.Array, pattern: str, visible: Floats) -> Floats:
    """Return (rows,) the share of visible characters in matches of the pattern."""
    left = _count(pc.replace_substring_regex(text, pattern, " "), r"\S")
    return _ratio(visible - left, visible)


def _sentences(text: pa.Array, langs: pa.Array) -> dict[str, Floats]:
    """Return the signals of sentences."""
    visible, letters = _count(text, r"\S"), _count(text, r"\p{L}")
    found = {
        "sentence_words": _count(text, r"\S+"),
        "digit_share": _ratio(_count(text, r"\p{Nd}"), visible),
        "punctuation_share": _ratio(_count(text, r"[\p{P}\p{S}]"), visible),
        "uppercase_share": _ratio(_count(text, r"\p{Lu}"), letters),
        "other_script_share": np.zeros(len(text)),
        "url_share": _covered(text, URL, visible),
        "markup_share": _covered(text, MARKUP, visible),
        "identifier_share": _covered(text, IDENTIFIER, visible),
    }
    encoded = langs.dictionary_encode()
    numbers = encoded.indices.to_numpy()
    for number, lang in enumerate(encoded.dictionary.to_pylist()):
        rows = np.flatnonzero(numbers == number)
        own = characters_of(lang[-4:])
        if own and len(rows):
            rest = pc.replace_substring_regex(text.take(pa.array(rows)), own, "")
            found["other_script_share"][rows] = _ratio(_count(rest, r"\p{L}"), letters[rows])
    return found


def characters_of(script: str) -> str | None:
    """Return a pattern of characters of a script by its ISO 15924 code; None for a script that is not known here."""
    inside = _SEVERAL.get(script) or (rf"\p{{{_SCRIPTS[script]}}}" if script in _SCRIPTS else None)
    return rf"[{inside}]+" if inside else None


def _documents(text: pa.Array, doc: Ints, paragraph: Ints, apart: Flags) -> dict[str, Floats]:
    """Return the signals of documents, for each of their sentences."""
    _, of = np.unique(doc, return_inverse=True)
    documents = int(of.max()) + 1 if len(of) else 0

    word_count = _totals(of, documents, _count(text, r"\S+"))
    stop_words = np.zeros(documents)
    for word in STOP_WORDS:
        there = pc.match_substring_regex(text, rf"(?i)(?:^|{_APART}){word}(?:$|{_APART})")
        stop_words += _totals(of, documents, there.to_numpy(zero_copy_only=False).astype(np.float64)) > 0
    found = {
        "doc_words": word_count,
        "doc_word_length": _ratio(_totals(of, documents, _count(text, r"\S")), word_count),
        "doc_symbol_ratio": np.maximum(
            *(_ratio(_totals(of, documents, _count(text, symbol)), word_count) for symbol in ("#", r"…|\.\.\."))
        ),
        "doc_alphabetic_share": _ratio(_totals(of, documents, _count(text, r"[^\s\p{L}]*\p{L}\S*")), word_count),
        "doc_stop_words": stop_words,
    }
    found |= _lines(text, of, paragraph, apart, documents) | _ngrams(text, of, documents)
    return {name: values[of] for name, values in found.items()}


def _lines(text: pa.Array, of: Ints, paragraph: Ints, apart: Flags, documents: int) -> dict[str, Floats]:
    """Return the signals of documents by paragraph, which stand for lines.

    `of`: the document of every sentence; `apart`: whether white space is before it.
    """
    new = np.ones(len(of), np.bool_)
    new[1:] = (of[1:] != of[:-1]) | (paragraph[1:] != paragraph[:-1])
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(of))[: len(starts)]
    owner = of[starts]
    chars = pc.utf8_length(text).to_numpy(zero_copy_only=False).astype(np.float64)
    chars += apart & ~new  # a paragraph has the spaces between its sentences
    length = np.add.reduceat(chars, starts) if len(starts) else np.zeros(0)
    first, last = text.take(pa.array(starts)), text.take(pa.array(ends - 1))
    sentences = text.to_pylist()
    seen: set[tuple[int, str]] = set()
    again = np.zeros(len(starts))
    for number, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        line = (int(owner[number]), " ".join(sentences[start:end]))
        again[number] = line in seen
        seen.add(line)

    def share(values: Floats) -> Floats:
        return _ratio(_totals(owner, documents, values), _totals(owner, documents, np.ones(len(owner))))

    return {
        "doc_bullet_share": share(_count(first, BULLET)),
        "doc_ellipsis_share": share(_count(last, ELLIPSIS)),
        "doc_terminal_share": share(_count(last, TERMINAL)),
        "doc_short_share": share((length <= SHORT).astype(np.float64)),
        "doc_duplicate_line_share": share(again),
        "doc_duplicate_line_chars": _ratio(
            _totals(owner, documents, again * length), _totals(owner, documents, length)
        ),
    }


def _ngrams(text: pa.Array, of: Ints, documents: int) -> dict[str, Floats]:
    """Return the shares of characters in the most frequent n-grams and in repeated ones."""
    lists = pc.split_pattern_regex(pc.utf8_trim_whitespace(text), r"\s+")
    words = pc.list_flatten(lists)
    owner = of[pc.list_parent_indices(lists).to_numpy()]
    chars = pc.utf8_length(words).to_numpy(zero_copy_only=False).astype(np.float64)
    numbers = words.dictionary_encode().indices.to_numpy().astype(np.uint64)
    whole = _totals(owner, documents, chars)
    found: dict[str, Floats] = {}
    hashes = numbers.copy()
    for n in range(2, max(DUPLICATE_NGRAMS) + 1):
        if len(hashes) < 2:
            hashes = hashes[:0]
        else:
            with np.errstate(over="ignore"):  # of the n words from each place on
                hashes = hashes[:-1] * np.uint64(0x9E3779B97F4A7C15) + numbers[n - 1 :]
            hashes ^= hashes >> np.uint64(29)
        inside = owner[: len(hashes)] == owner[len(owner) - len(hashes) :]
        if n in TOP_NGRAMS:
            found[f"doc_top_{n}gram_chars"] = _ratio(_most(hashes, inside, owner, chars, n, documents), whole)
        if n in DUPLICATE_NGRAMS:
            repeated = np.zeros(len(owner) + 1, np.int64)
            again = np.flatnonzero(inside)[_repeats(owner[: len(hashes)][inside], hashes[inside])]
            np.add.at(repeated, again, 1)
            np.add.at(repeated, again + n, -1)
            covered = np.cumsum(repeated[:-1]) > 0
            found[f"doc_duplicate_{n}gram_chars"] = _ratio(_totals(owner, documents, chars * covered), whole)
    return found


def _repeats(owner: Ints, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return which n-grams stood earlier in the same document."""
    order = np.lexsort((np.arange(len(owner)), hashes, owner))
    again = np.zeros(len(owner), np.bool_)
    same = (owner[order][1:] == owner[order][:-1]) & (hashes[order][1:] == hashes[order][:-1])
    again[order[1:]] = same
    return again


def _most(
    hashes: npt.NDArray[np.uint64], inside: npt.NDArray[np.bool_], owner: Ints, chars: Floats, n: int, documents: int
) -> Floats:
    """Return (documents,) the characters of the most frequent n-gram, times how often it occurs; 0 if none repeats.

    Of several that are equally frequent the one with the most characters counts, as in Gopher's rules.
    """
    places = np.flatnonzero(inside)
    if not len(places):
        return np.zeros(documents)
    sums = np.concatenate([[0.0], np.cumsum(chars)])
    order = places[np.lexsort((hashes[places], owner[places]))]
    new = np.ones(len(order), np.bool_)
    new[1:] = (owner[order][1:] != owner[order][:-1]) | (hashes[order][1:] != hashes[order][:-1])
    starts = np.flatnonzero(new)
    count = np.diff(np.append(starts, len(order)))
    first = order[starts]
    length = sums[first + n] - sums[first]
    best = np.lexsort((length, count, owner[first]))  # the last of each document is its best
    last = np.flatnonzero(np.append(owner[first[best]][1:] != owner[first[best]][:-1], True))
    chosen = best[last]
    found = np.zeros(documents)
    found[owner[first[chosen]]] = np.where(count[chosen] > 1, count[chosen] * length[chosen], 0.0)
    return found
