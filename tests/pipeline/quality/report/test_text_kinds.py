"""Kinds of text that are encoded badly, and how often the most fragile sentences are of them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pipeline.quality.report.page import Table
from pipeline.quality.report.rows import ReportRows
from pipeline.quality.report.sections import _kinds_of_the_fragile
from pipeline.quality.report.text_kinds import (
    CODE,
    DIGITS,
    IDENTIFIER,
    KINDS,
    REFERENCE,
    SCRIPT,
    URL,
    kind_bits,
    kinds_of,
)


@pytest.mark.parametrize(
    ("text", "lang", "kinds"),
    [
        ("See https://a.org/x for more.", "eng_Latn", {URL}),
        ("Write to someone@example.org today.", "eng_Latn", {URL}),
        ("As was shown before [12, 13].", "eng_Latn", {REFERENCE}),
        ("It was shown (Smith and Jones, 2001).", "eng_Latn", {REFERENCE}),
        ("The house was built (in 1950) there.", "eng_Latn", set()),
        ("Set kernel_param_set before.", "eng_Latn", {IDENTIFIER}),
        ("The part A1B2C3D4 is missing in the box.", "eng_Latn", {IDENTIFIER}),
        ("1234 5678 is 90", "eng_Latn", {DIGITS}),
        ("for (i = 0; i < n; i++) { x[i] = 0; }", "eng_Latn", {CODE}),
        ("Это русский текст.", "eng_Latn", {SCRIPT}),
        ("Это русский текст.", "rus_Cyrl", set()),
        ("今日はとても天気がいいです", "jpn_Jpan", set()),
        ("天气很好", "zho_Hans", set()),
        ("날씨가 좋다", "kor_Hang", set()),
        ("A plain sentence of words, in 1999.", "eng_Latn", set()),
        ("", "eng_Latn", set()),
        ("words", "without a script", set()),
    ],
)
def test_kinds_by_pattern(text: str, lang: str, kinds: set[str]) -> None:
    assert kinds_of(text, lang) == kinds


def test_the_table_says_how_much_more_often_the_most_fragile_are_of_a_kind() -> None:
    texts = ["See https://a.org/x for more."] * 10 + ["A plain sentence of words."] * 190
    fragility = np.full(len(texts), -0.9, np.float32)
    fragility[:8] = -0.1  # eight of ten links are among the ten most fragile
    fragility[-2:] = -0.2
    fields = {one.name: None for one in dataclasses.fields(ReportRows)}
    bits = kind_bits(texts, ["eng_Latn"] * len(texts))
    rows = ReportRows(**{**fields, "scores": {"fragility_cosine": fragility}, "kinds": bits})  # type: ignore[arg-type]
    (table,) = _kinds_of_the_fragile(rows)
    assert isinstance(table, Table) and "10 of 200" in table.title
    by_kind = {str(row[0]): list(row[1:]) for row in table.rows}
    assert list(by_kind) == [*KINDS, "none of these"]
    assert by_kind[URL] == ["5\u202f%", "80\u202f%", "8", "16.0"]
    assert by_kind["none of these"] == ["95\u202f%", "20\u202f%", "2", "0.2"]
    assert by_kind[CODE] == ["0\u202f%", "0\u202f%", "0", "–"]
