"""What the page finds in a corpus is what is there."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.quality.browse import find
from pipeline.quality.browse.find import Finder, GivenUpError, Question, Watch, values_of
from pipeline.quality.browse.shown import (
    COUNT,
    LONGEST,
    around,
    differences,
    looked_at,
    neighbours,
    shown_columns,
    shown_rows,
    shown_value,
    use_of,
)
from tests.conftest import write_config, write_jsonl
from tests.pipeline.quality.browse.expected import expected
from tests.support.cli import pipeline, said
from tests.support.corpora import ROW_GROUP_ROWS

LOWS = "autobleu < 60 or contains(text, 'the')"


@pytest.mark.parametrize("kept", [7, 5000])
@pytest.mark.parametrize("sort", [None, "autobleu", "text", "title", "chars", "row"])
def test_pages_follow_each_other_as_one_answer(
    corpus: Corpus, sort: str | None, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "KEPT", kept)
    for where in (None, LOWS, "chars < 0"):
        for descending in (False, True) if sort else (False,):
            question = Question(where, sort, descending)
            whole, finder, pages = expected(corpus, question), Finder(corpus), list[tuple[str, int]]()
            while True:
                found = finder.find(question, len(pages), 41, Watch())
                pages += found.places
                assert found.found >= min(len(pages) + 1, len(whole))  # says that there is a next page
                if len(found.places) < 41:
                    break
            assert pages == whole and found.whole and found.found == len(whole)
            assert found.read == (corpus.rows if where or sort else len(found.places))
            assert finder.find(question, 10, 5, Watch()).places == whole[10:15]  # backwards
            assert finder.find(question, corpus.rows, 5, Watch()).places == []


def test_a_page_reads_no_more_than_it_needs(corpus: Corpus) -> None:
    finder, watch = Finder(corpus), Watch()
    first = finder.find(Question("chars > 0"), 0, 10, watch)
    assert first.read == watch.read == ROW_GROUP_ROWS and not first.whole and len(first.places) == 10
    assert finder.find(Question("chars > 0"), 10, 10, watch).read == ROW_GROUP_ROWS  # nothing is read twice
    assert finder.find(Question("chars > 0"), 0, 10, watch, all_rows=True).found == corpus.rows
    last = f"part == '{corpus.parts[-1]}'"
    rows = corpus.to_arrow("row", where=last).num_rows
    assert finder.find(
        Question(last), 0, rows - 1, Watch()
    ).whole  # the page ends before its rows do, but all were read
    watch.give_up()
    with pytest.raises(GivenUpError):
        finder.find(Question("chars > 1"), 0, 10, watch)
    assert finder.find(Question("chars > 1"), 0, 10, Watch()).places == expected(corpus, Question("chars > 1"))[:10]


def test_questions_that_cannot_be_answered(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    finder = Finder(corpus)
    for question, message in (
        (Question("chars <"), "filter: expected a column"),
        (Question("autoblue < 3"), "did you mean autobleu"),
        (Question(sort="embedding"), "no order; choose another"),
        (Question(sort="weight"), "its stage has not run"),
    ):
        with pytest.raises(ConfigError, match=message):
            finder.find(question, 0, 10, Watch())
    monkeypatch.setattr(find, "DEEPEST", 50)
    with pytest.raises(ConfigError, match="end at row 50; reverse the order, or filter by chars"):
        finder.find(Question(sort="chars"), 45, 10, Watch())


def test_several_threads_ask_the_same(corpus: Corpus) -> None:
    finder, question, found = Finder(corpus), Question(LOWS), dict[int, Any]()
    whole = expected(corpus, question)

    def look(start: int) -> None:
        found[start] = finder.find(question, start, 10, Watch()).places

    threads = [threading.Thread(target=look, args=(start,)) for start in (40, 0, 90, 20, 10, 60)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(places == whole[start : start + 10] for start, places in found.items()) and len(found) == 6


def test_rows_documents_and_neighbours(corpus: Corpus) -> None:
    table = corpus.table("text", "doc_id", "position", "part", "row").to_pylist()
    places = [(one["part"], one["row"]) for one in table][::-17]
    assert [row["text"] for row in values_of(corpus, places, ("text",))] == [one["text"] for one in table][::-17]
    for at in (0, 40, len(table) - 1):
        one = table[at]
        document = looked_at(corpus, one["part"], one["row"])["document"]
        mine = [row for row in table if row["doc_id"] == one["doc_id"] and abs(row["position"] - one["position"]) <= 5]
        assert [row["row"] for row in document["rows"]] == [row["row"] for row in mine]
        assert document["id"] == one["doc_id"] and document["first"] == mine[0]["position"] + 1
        assert len(around(corpus, one["part"], one["row"], 10**9, 0)["rows"]) <= 51
        near = neighbours(corpus, one["part"], one["row"], None, None, Watch())
        exact = corpus.nearest((one["part"], one["row"]), COUNT).to_pylist()
        assert [(row["part"], row["row"], row["score"]) for row in near] == [
            (row["part"], row["row"], row["score"]) for row in exact
        ]
    with pytest.raises(CorpusError, match=f"has {corpus.reader(corpus.parts[0]).rows} rows; there is no row number"):
        looked_at(corpus, corpus.parts[0], 10**6)
    some = corpus.parts[1], 3
    index = corpus.build_index()
    assert neighbours(corpus, *some, None, index, Watch()) == neighbours(corpus, *some, None, None, Watch())
    assert {
        one["values"]["lang"]
        for one in neighbours(corpus, *some, corpus.condition("lang == 'deu_Latn'"), index, Watch())
    } == {"deu_Latn"}
    given_up = Watch()
    given_up.give_up()
    with pytest.raises(GivenUpError):
        neighbours(corpus, corpus.parts[0], 0, None, None, given_up)


def test_metadata_of_every_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each type: shown as JSON holds it, in order if it has one, nulls last, also while rows are thrown away."""
    monkeypatch.setattr(find, "KEPT", 4)
    kinds: dict[str, list[Any]] = {
        "whole": [3, -1, None, 2**60], "part of one": [0.5, None, -1e300, 7.25], "yes": [True, False, None, True],
        "day": ["2010-01-31", None, "1999-12-31", "2024-02-29"], "title": ["b", "ä", "", None],
        "moment": ["2010-01-31T10:00:00Z", "2009-01-31T10:00:00Z", None, "2024-02-29T23:59:59.5Z"],
        "tags": [["x", "<b>"], [], None, ["y"]],
        "publisher": [{"name": "x", "year": 1}, None, {"name": "y", "year": 2}, None],
    }  # fmt: skip
    documents = [
        {
            "id": str(at),
            "lang": "eng_Latn",
            "text": "One sentence. Another one.",
            **{name: values[at] for name, values in kinds.items()},
        }
        for at in range(4)
    ]
    write_jsonl(tmp_path / "in.jsonl", documents)
    keep = dict.fromkeys(kinds, "auto") | {"day": "date", "moment": "timestamp"}
    source = {"path": "in.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": keep}
    assert pipeline("run", write_config(tmp_path, input=[source], encode=None, autobleu=None)).returncode == 0
    corpus = Corpus(str(tmp_path / "out"))
    for name, values in kinds.items():
        for descending in (False, True):
            question = Question("position >= 0", name, descending)
            if name in ("tags", "publisher"):
                with pytest.raises(ConfigError, match="has no order"):
                    Finder(corpus).find(question, 0, 9, Watch())
                continue
            assert Finder(corpus).find(question, 0, 99, Watch()).places == expected(corpus, question)
        for row in shown_rows(corpus, expected(corpus, Question()), shown_columns(corpus, [name, "doc_id"])):
            value = values[int(row["values"]["doc_id"])]
            shown = {2**60: str(2**60)}.get(value, value) if isinstance(value, int) else value
            if name == "moment" and value:
                shown = value.replace("Z", "+00:00").replace(".5", ".500000")
            elif isinstance(value, (list, dict)):
                shown = json.dumps(value)
            assert row["values"][name] == shown
            json.dumps(row, allow_nan=False)


@pytest.mark.parametrize(("value", "shown"), [(math.nan, "NaN"), (-math.inf, "-inf"), (None, None), (0.5, 0.5)])
def test_what_is_not_a_number_is_not_shown_as_null(value: float | None, shown: object) -> None:
    assert shown_value(value, 9) == shown


def test_purged_documents_are_not_shown(corpus: Corpus, grouped: Path, tmp_path: Path) -> None:
    """Their rows are still in files, and other rows have other numbers, until the next run."""
    copy = tmp_path / "copy"
    shutil.copytree(grouped, copy)
    gone = corpus.documents(1)["doc_id"][0].as_py()
    (tmp_path / "ids.txt").write_text(f"{gone}\n")
    assert pipeline("purge", copy, "--ids", tmp_path / "ids.txt").returncode == 0
    left = Corpus(str(copy))
    table = left.to_arrow("text", "doc_id", "part", "row").to_pylist()
    assert 0 < len(table) == left.rows < corpus.rows and gone not in {one["doc_id"] for one in table}
    for question in (Question(), Question("chars > 0"), Question(sort="chars")):
        places = Finder(left).find(question, 0, corpus.rows, Watch()).places
        assert places == expected(left, question) and len(places) == left.rows
    for one in table[:: len(table) // 9]:
        found = looked_at(left, one["part"], one["row"])
        assert found["values"]["doc_id"] == found["document"]["id"] == one["doc_id"]
        assert [row["row"] for row in table if row["doc_id"] == one["doc_id"]].index(one["row"]) + 1 in range(
            found["document"]["first"], found["document"]["last"] + 1
        )


def test_the_selection_keeps_the_rows_of_the_filter(corpus: Corpus) -> None:
    for where in ("chars >= 10", "autobleu < 60", "autobleu < 60 and chars > 20\n and not lang == 'deu_Latn'",
                  "not autobleu < 60", "autobleu is null or autobleu < 60"):  # fmt: skip
        use = use_of(corpus, corpus.condition(where))
        selected = yaml.safe_load(use["select"])["select"]
        assert corpus.to_arrow("part", "row", where=selected).equals(corpus.to_arrow("part", "row", where=where))
        done = pipeline("select", corpus.url, "--where", selected)
        assert done.returncode == 0, said(done)
        kept = re.search(r"sentences kept +([\d ]+?)  ", done.stdout)
        assert kept and int(kept[1].replace(" ", "")) == corpus.to_arrow("row", where=where).num_rows
    assert (
        "Sentences without autobleu never satisfy the filter"
        in use_of(corpus, corpus.condition("autobleu < 60"))["remark"]
    )
    several = use_of(corpus, corpus.condition(LOWS))
    assert "autobleu can be null" in several["remark"] and yaml.safe_load(several["select"]) == {"select": LOWS}
    assert use_of(corpus, None)["select"] == "" and shlex.split(several["inspect"])[-1] == LOWS
    for odd in ('text == "$(id) `id` !"', r"text == '\\'"):
        assert shlex.split(use_of(corpus, corpus.condition(odd))["inspect"])[-1] == odd


def test_differences_are_marked_by_words_and_signs() -> None:
    assert differences("The ship arrived.", "The sheep arrived.") == (
        [["=", "The "], ["-", "ship"], ["=", " arrived."]],
        [["=", "The "], ["+", "sheep"], ["=", " arrived."]],
    )
    assert differences("今天天气很好。", "今天气候很好。")[1] == [["=", "今天气"], ["+", "候"], ["=", "很好。"]]
    assert differences("क्षेत्र में", "क्षेत्रों में")[0][0] == ["-", "क्षेत्र"]  # vowel signs belong to their word
    for text, decoded in (("", ""), ("a", ""), ("", "b"), ("x\u202ey 1.5", "x y 15"), ("w " * LONGEST, "v")):
        mine, other = differences(text, decoded)
        assert "".join(piece for _, piece in mine) == text and "".join(piece for _, piece in other) == decoded


# The command: a real server on the loopback device
