"""The signals of noise, against plain loops over words, and on text whose noise is known."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from stages.noise.settings import (
    DOCUMENT_COLUMNS,
    DUPLICATE_NGRAMS,
    PRESETS,
    SENTENCE_COLUMNS,
    TOP_NGRAMS,
    NoiseSettings,
)
from stages.noise.signals import Noise, characters_of
from stages.sonar.card import load_card
from stages.stage import whole


def signals(
    texts: Sequence[str],
    docs: Sequence[int] | None = None,
    paragraphs: Sequence[int] | None = None,
    lang: str | Sequence[str] = "eng_Latn",
    apart: int = 1,
) -> pa.Table:
    """Return the signals of sentences that have `apart` characters of white space between them."""
    ends = np.cumsum([len(text) + apart for text in texts], dtype=np.int32) - apart
    part = pa.table(
        {
            "sentences.text": pa.array(texts, pa.string()),
            "sentences.lang": pa.array([lang] * len(texts) if isinstance(lang, str) else lang, pa.string()),
            "sentences.doc": pa.array(docs or [0] * len(texts), pa.int32()),
            "sentences.paragraph": pa.array(paragraphs or list(range(len(texts))), pa.int32()),
            "sentences.start": pa.array(ends - [len(text) for text in texts], pa.int32()),
            "sentences.end": pa.array(ends, pa.int32()),
        }
    )
    table = whole(Noise(NoiseSettings()), part).families["noise"]
    assert table.column_names == [*SENTENCE_COLUMNS, *DOCUMENT_COLUMNS]
    return table


def of(text: str, column: str, lang: str = "eng_Latn") -> float:
    return round(signals([text], lang=lang)[column][0].as_py(), 4)


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("Room 101, floor 3", "digit_share", 4 / 14),
        ("١٢٣ abc", "digit_share", 0.5),
        ("Hm… (no)!", "punctuation_share", 4 / 8),
        ("LOUD and quiet", "uppercase_share", 4 / 12),
        ("see https://example.org/a?b=c or mail a.b@example.org", "url_share", 40 / 49),
        ("a <b>bold</b> &amp; <br/> b", "markup_share", 17 / 23),
        ("call set_user_name() or fooBarBaz", "identifier_share", 24 / 30),
        ("a plain sentence, e.g. this one", "identifier_share", 0),
        ("Ничего here", "other_script_share", 6 / 10),
        ("one two  three", "sentence_words", 3),
        ("…", "uppercase_share", 0),
        ("", "digit_share", 0),
    ],
)
def test_what_a_sentence_has(text: str, column: str, expected: float) -> None:
    assert of(text, column) == pytest.approx(expected, abs=1e-4)


def test_symbols_are_hashes_or_ellipses_not_their_sum() -> None:
    """Gopher: "a symbol-to-word ratio greater than 0.1 for either the hash symbol or the ellipsis"."""
    assert of("#one #two three… four... five# six … seven # ...", "doc_symbol_ratio") == pytest.approx(4 / 10)


def test_stop_words_are_whole_words() -> None:
    assert of("Andächtig, übeto, ofé, thé, «bandé», to_do, have2, with\u0301", "doc_stop_words") == 0
    assert of("The “to”-of—and; that\tHAVE with.", "doc_stop_words") == 7


@pytest.mark.parametrize(
    ("text", "lang", "expected"),
    [
        ("Ничего", "rus_Cyrl", 0),
        ("東京タワーへ行く", "jpn_Jpan", 0),
        ("한국어", "kor_Hang", 0),
        ("한국어", "eng_Latn", 1),
        ("नमस्ते", "hin_Deva", 0),
        ("abc", "hin_Deva", 1),
        ("हिन्दी में भी लिखी थीं word", "hin_Deva", 1 / 3),  # whose vowel signs are no letters
    ],
)
def test_scripts_of_languages(text: str, lang: str, expected: float) -> None:
    assert of(text, "other_script_share", lang) == pytest.approx(expected, abs=1e-4)


def test_every_script_of_sonar_is_known() -> None:
    scripts = {lang[-4:] for lang in load_card("sonar").languages}
    assert len(scripts) > 20 and not [one for one in scripts if characters_of(one) is None]


def naive(texts: Sequence[str], docs: Sequence[int]) -> dict[int, dict[str, float]]:
    """The n-gram signals of each document by loops over its words."""
    words: dict[int, list[str]] = defaultdict(list)
    for text, doc in zip(texts, docs, strict=True):
        words[doc] += text.split()
    found: dict[int, dict[str, float]] = {}
    for doc, here in words.items():
        total = sum(map(len, here))
        values: dict[str, float] = {}
        for n in TOP_NGRAMS:
            counts = Counter(tuple(here[at : at + n]) for at in range(len(here) - n + 1))
            most = max(counts.values(), default=0)
            longest = max((sum(map(len, gram)) for gram, count in counts.items() if count == most), default=0)
            values[f"doc_top_{n}gram_chars"] = most * longest / total if most > 1 else 0.0
        for n in DUPLICATE_NGRAMS:
            seen: set[tuple[str, ...]] = set()
            covered: set[int] = set()
            for at in range(len(here) - n + 1):
                gram = tuple(here[at : at + n])
                covered |= set(range(at, at + n)) if gram in seen else set()
                seen.add(gram)
            values[f"doc_duplicate_{n}gram_chars"] = sum(len(here[at]) for at in covered) / total
        found[doc] = values
    return found


def test_ngrams_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(3)
    vocabulary = ["a", "bb", "ccc", "dddd", "eeeee", "ff"]
    texts = [" ".join(rng.choice(vocabulary[: 2 + at % 5], int(rng.integers(1, 15)))) for at in range(120)]
    docs = np.sort(rng.integers(0, 17, 120)).tolist()
    table, expected = signals(texts, docs), naive(texts, docs)
    for row, doc in enumerate(docs):
        for column, value in expected[doc].items():
            assert table[column][row].as_py() == pytest.approx(value, abs=1e-6), (doc, column)
    assert any(value > 0 for values in expected.values() for value in values.values())


def test_lines_are_paragraphs() -> None:
    texts = [
        "- One item.",
        "It goes on.",
        "- Two items...",
        "Home",
        "Home",
        "A longer line that ends without a stop",
    ]
    table = signals([*texts, "Of another."], [*[5] * 6, 9], [0, 0, 1, 2, 3, 4, 0])
    first = {name: table[name][0].as_py() for name in table.column_names}
    assert first["doc_bullet_share"] == pytest.approx(2 / 5) and first["doc_ellipsis_share"] == pytest.approx(1 / 5)
    assert first["doc_terminal_share"] == pytest.approx(2 / 5) and first["doc_short_share"] == pytest.approx(4 / 5)
    assert first["doc_duplicate_line_share"] == pytest.approx(1 / 5)
    chars = [len(text) for text in texts]
    assert first["doc_duplicate_line_chars"] == pytest.approx(4 / (sum(chars) + 1))  # a space inside the first line
    assert first["doc_words"] == sum(len(text.split()) for text in texts)
    assert table["doc_words"].to_pylist()[:6] == [first["doc_words"]] * 6 and table["doc_words"][6].as_py() == 2


def test_a_line_has_one_bullet_at_most() -> None:
    table = signals(["* * * * *", "- – Twice.", "A line.", "*** and more", "-- an option"])
    assert table["doc_bullet_share"][0].as_py() == pytest.approx(2 / 5)


@pytest.mark.parametrize("mark", [".", "。", "।", "؟", "۔", "።", "။", "។", "།", "։", "᱾"])
def test_lines_end_with_the_marks_of_their_script(mark: str) -> None:
    table = signals([f"five words are in it{mark}", "five words are in it"])
    assert table["doc_terminal_share"][0].as_py() == 0.5
    (rule,) = [one for one in PRESETS["c4-lines"].split(" and ") if one.startswith("matches(")]
    pattern = rule.removeprefix("matches(text, '").removesuffix("')")
    assert pc.match_substring_regex(pa.array([f"in it{mark}", f"in it{mark}”", "in it"]), pattern).to_pylist() == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("texts", "apart", "short"),
    [
        (["It is fifteen..", "And so is this."], 1, 0),  # 31 characters with the space between them
        (["It is fifteen..", "And so is this."], 2, 0),  # white space is written as one space
        (["It is fifteen..", "And so is this."], 0, 1),
        (["It is fifteen..", "And so is thi."], 1, 1),
    ],
)
def test_the_length_of_a_paragraph_has_the_spaces_between_its_sentences(
    texts: list[str], apart: int, short: int
) -> None:
    assert signals(texts, paragraphs=[0, 0], apart=apart)["doc_short_share"][0].as_py() == short


def test_a_part_without_rows_and_one_of_equal_sentences() -> None:
    assert signals([]).num_rows == 0
    table = signals(["The same words again."] * 50)
    assert table["doc_duplicate_line_share"][0].as_py() == pytest.approx(0.98)
    assert table["doc_duplicate_10gram_chars"][0].as_py() > 0.9
