"""Signals of noise by Arrow's regular expressions (RE2) and NumPy, on the CPU: about 0.02 ms per sentence.

Regular expressions of several characters see only sentences with a sign that a match needs.

Shares are of a sentence's characters without white space, except `uppercase_share` and `other_script_share`, which are
of its letters. A document's paragraphs stand for the lines of Gopher's and FineWeb's rules, and its words for theirs;
characters of n-grams are those of their words, without the spaces between them. A word is part of a duplicate n-gram if
the n-gram stood earlier in the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.noise.characters import BYTES, ROWS, Characters, Flags, Floats, Ints
from stages.noise.settings import DUPLICATE_NGRAMS, END_MARKS, TOP_NGRAMS, NoiseSettings
from stages.stage import Computed, HostStage

URL = r"(?:https?://|ftp://|www\.)\S+|\b[\w.+-]+@[\w-]+\.[\w.-]+"
MARKUP = r"<[/!a-zA-Z][^<>]*>|&[a-zA-Z]+;|&#[0-9]+;|\[\[|\]\]|\{\{|\}\}|\\[a-zA-Z]+\{|```|\]\("
IDENTIFIER = (
    r"\b\w+\(\)|\b\w+(?:_+\w+)+\b|\b[a-z0-9]+(?:[A-Z][a-z0-9]+)+\b|(?:\.{0,2}/[\w.-]+){2,}|\b0x[0-9a-fA-F]+\b"
    r"|\b[0-9a-f]{12,}\b|(?:^|\s)--?[a-z][\w-]*"
)
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
BULLET = r"^\s*[-*•‣▪●–]\s"
ELLIPSIS = r"(?:…|\.\.\.)$"
TERMINAL = rf"[{END_MARKS}\"'”’»」』]$"
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
        counted = _counted(text, langs)
        columns = _sentences(text, counted) | _documents(text, doc, paragraph, apart, counted)
        return Computed({"noise": pa.table({name: pa.array(one, pa.float32()) for name, one in columns.items()})})


def _count(text: pa.Array, pattern: str) -> Floats:
    """Return (rows,) how often the pattern occurs."""
    found: Floats = pc.count_substring_regex(text, pattern).to_numpy(zero_copy_only=False).astype(np.float64)
    return found


def _matches(text: pa.Array, pattern: str) -> Floats:
    """Return (rows,) 1 where the pattern occurs, 0 elsewhere; `^` counts each mark of "* * *" as the first one."""
    found: Floats = pc.match_substring_regex(text, pattern).to_numpy(zero_copy_only=False).astype(np.float64)
    return found


def _ratio(part: Floats | Ints, whole: Floats) -> Floats:
    """Return part / whole; 0 where there is nothing."""
    return np.divide(part, whole, out=np.zeros_like(part, np.float64), where=whole > 0)


def _totals(of: Ints, documents: int, values: Floats | Ints | Flags) -> Floats:
    """Return (documents,) the sum of the values of each; `of`: the document of every value."""
    found: Floats = np.bincount(of, values, documents).astype(np.float64)
    return found


def _covered(text: pa.Array, pattern: str, visible: Floats, possible: Flags) -> Floats:
    """Return (rows,) the share of visible characters in matches of the pattern; `possible`: rows that may have some."""
    rows = np.flatnonzero(possible)
    found = np.zeros(len(visible))
    left = _count(pc.replace_substring_regex(text.take(pa.array(rows)), pattern, " "), r"\S")
    found[rows] = _ratio(visible[rows] - left, visible[rows])
    return found


def _counted(text: pa.Array, langs: pa.Array) -> dict[str, npt.NDArray[Any]]:
    """Return (…, rows) counts of each sentence, a few thousand sentences at a time."""
    counted = [_of_characters(text[one:end].to_pylist(), langs[one:end]) for one, end in pairwise(_edges(text))]
    return {name: np.concatenate([one[name] for one in counted], axis=-1) for name in counted[0]}


def _edges(text: pa.Array) -> list[int]:
    """Return where blocks of sentences begin and the last one ends: `ROWS` or about `BYTES` in each."""
    ends = np.cumsum(pc.binary_length(text).to_numpy(zero_copy_only=False), dtype=np.int64)
    edges = [0]
    while edges[-1] < len(text) or len(edges) == 1:
        begun = int(ends[edges[-1] - 1]) if edges[-1] else 0
        full = int(np.searchsorted(ends, begun + BYTES))
        edges.append(min(max(full, edges[-1] + 1), edges[-1] + ROWS, len(text)))
    return edges


def _of_characters(texts: list[str], langs: pa.Array) -> dict[str, npt.NDArray[Any]]:
    characters = Characters.of(texts)
    are, among, count = characters.are, characters.among, characters.count
    visible, letter = are(r"\S"), are(r"\p{L}")
    counted: dict[str, npt.NDArray[Any]] = {
        "visible": count(visible),
        "letters": count(letter),
        "words": count(characters.starts(visible)),
        "digits": count(are(r"\p{Nd}")),
        "punctuation": count(are(r"[\p{P}\p{S}]")),
        "uppercase": count(are(r"\p{Lu}")),
        "hashes": count(among("#")),
        "alphabetic": characters.words_with(visible, letter),
        "stop": characters.whole_words(are(r"[\p{L}\p{M}\p{N}_]"), STOP_WORDS),
        "address": count(among("/@")) > 0,
        "markup": count(among("<&[]{}\\`")) > 0,
        "dots": count(among("….")) > 0,
    }
    lower, upper, hexadecimal = are("[a-z0-9]"), are("[A-Z]"), are("[0-9a-f]")
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(hexadecimal)])
    signs = among("(_/-x")
    signs[1:] |= lower[:-1] & upper[1:]
    signs[: max(0, len(signs) - 11)] |= sums[12:] - sums[:-12] == 12
    counted["identifier"] = count(signs) > 0
    other = np.zeros(len(texts), np.int64)
    encoded: Any = langs.dictionary_encode()
    scripts = np.asarray([characters_of(lang[-4:]) or "" for lang in encoded.dictionary.to_pylist()])
    of_rows = scripts[encoded.indices.to_numpy()] if len(texts) else scripts
    for own in filter(None, set(of_rows.tolist())):
        rows = of_rows == own
        other[rows] = count(letter & ~are(own))[rows]
    return counted | {"other_script": other}


def may_have_address(text: pa.Array, signs: Flags) -> Flags:
    """Return (rows,) which sentences can have a match of `URL`. `signs`: (rows,) whether there is a slash or an @."""
    found: Flags = signs | pc.match_substring(text, "www.").to_numpy(zero_copy_only=False)
    return found


def _sentences(text: pa.Array, counted: Mapping[str, npt.NDArray[Any]]) -> dict[str, Floats]:
    """Return the signals of sentences."""
    visible, letters = (counted[name].astype(np.float64) for name in ("visible", "letters"))
    return {
        "sentence_words": counted["words"].astype(np.float64),
        "digit_share": _ratio(counted["digits"], visible),
        "punctuation_share": _ratio(counted["punctuation"], visible),
        "uppercase_share": _ratio(counted["uppercase"], letters),
        "other_script_share": _ratio(counted["other_script"], letters),
        "url_share": _covered(text, URL, visible, may_have_address(text, counted["address"])),
        "markup_share": _covered(text, MARKUP, visible, counted["markup"]),
        "identifier_share": _covered(text, IDENTIFIER, visible, counted["identifier"]),
    }


def characters_of(script: str) -> str | None:
    """Return a pattern of characters of a script by its ISO 15924 code; None for a script that is not known here."""
    inside = _SEVERAL.get(script) or (rf"\p{{{_SCRIPTS[script]}}}" if script in _SCRIPTS else None)
    return rf"[{inside}]+" if inside else None


def _documents(
    text: pa.Array, doc: Ints, paragraph: Ints, apart: Flags, counted: Mapping[str, npt.NDArray[Any]]
) -> dict[str, Floats]:
    """Return the signals of documents, for each of their sentences.

    Args:
        text: the sentences.
        doc: (rows,) the document of each.
        paragraph: (rows,) its paragraph.
        apart: (rows,) whether white space is before it.
        counted: what `_counted` returned.

    Returns:
        name → (rows,).
    """
    _, of = np.unique(doc, return_inverse=True)
    documents = int(of.max()) + 1 if len(of) else 0
    dots = np.flatnonzero(counted["dots"])
    ellipses = np.zeros(len(of))
    ellipses[dots] = _count(text.take(pa.array(dots)), r"…|\.\.\.")

    word_count = _totals(of, documents, counted["words"])
    stop_words = np.zeros(documents)
    for there in counted["stop"]:
        stop_words += _totals(of, documents, there) > 0
    found = {
        "doc_words": word_count,
        "doc_word_length": _ratio(_totals(of, documents, counted["visible"]), word_count),
        "doc_symbol_ratio": np.maximum(
            *(_ratio(_totals(of, documents, symbols), word_count) for symbols in (counted["hashes"], ellipses))
        ),
        "doc_alphabetic_share": _ratio(_totals(of, documents, counted["alphabetic"]), word_count),
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
        "doc_bullet_share": share(_matches(first, BULLET)),
        "doc_ellipsis_share": share(_matches(last, ELLIPSIS)),
        "doc_terminal_share": share(_matches(last, TERMINAL)),
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
    places = np.arange(len(numbers))  # where an n-gram begins that may occur again in its document
    for n in range(2, max(DUPLICATE_NGRAMS) + 1):
        places = places[places + n <= len(numbers)]
        places = places[owner[places] == owner[places + n - 1]]
        with np.errstate(over="ignore"):  # of the n words from each place on
            grown = hashes[places] * np.uint64(0x9E3779B97F4A7C15) + numbers[places + n - 1]
        hashes[places] = grown ^ (grown >> np.uint64(29))
        places, starts = _repeated(places, hashes, owner)  # an (n + 1)-gram occurs again only where its n-gram does
        if n in TOP_NGRAMS:
            found[f"doc_top_{n}gram_chars"] = _ratio(_most(places, starts, owner, chars, n, documents), whole)
        if n in DUPLICATE_NGRAMS:
            again = np.ones(len(places), np.bool_)
            again[starts] = False
            repeated = np.zeros(len(owner) + 1, np.int64)
            np.add.at(repeated, places[again], 1)
            np.add.at(repeated, places[again] + n, -1)
            covered = np.cumsum(repeated[:-1]) > 0
            found[f"doc_duplicate_{n}gram_chars"] = _ratio(_totals(owner, documents, chars * covered), whole)
    return found


def _repeated(places: Ints, hashes: npt.NDArray[np.uint64], owner: Ints) -> tuple[Ints, Ints]:
    """Return those places whose n-grams occur more than once in their document, and where groups of equal ones begin.

    Args:
        places: where n-grams begin, ascending among equal ones.
        hashes: (words,) of the n-gram at each place.
        owner: (words,) the document of each.

    Returns:
        Places, group after group, ascending in each; the indices of the first of each group.
    """
    order = places[np.lexsort((hashes[places], owner[places]))]  # stable
    new = np.ones(len(order), np.bool_)
    new[1:] = (owner[order[1:]] != owner[order[:-1]]) | (hashes[order[1:]] != hashes[order[:-1]])
    starts = np.flatnonzero(new)
    sizes = np.diff(np.append(starts, len(order)))
    several = np.repeat(sizes > 1, sizes)
    return order[several], np.flatnonzero(new[several])


def _most(places: Ints, starts: Ints, owner: Ints, chars: Floats, n: int, documents: int) -> Floats:
    """Return (documents,) the characters of the most frequent n-gram, times how often it occurs; 0 if none repeats.

    Of several that are equally frequent the one with the most characters counts, as in Gopher's rules.

    Args:
        places: where n-grams begin that occur again, group after group.
        starts: where groups begin.
        owner: (words,) the document of each.
        chars: (words,) how many characters each has.
        n: words in an n-gram.
        documents: how many documents there are.

    Returns:
        (documents,).
    """
    count = np.diff(np.append(starts, len(places)))
    first = places[starts]
    sums = np.concatenate([[0.0], np.cumsum(chars)])
    length = sums[first + n] - sums[first]
    best = np.lexsort((length, count, owner[first]))
    found = np.zeros(documents)
    found[owner[first[best]]] = (count * length)[best]  # the last of each document is its best
    return found
