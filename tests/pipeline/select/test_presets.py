"""Sections `language` and `noise` of a corpus without embeddings, and published rules over their columns."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline import Corpus
from pipeline.conditions.expression import parse
from pipeline.config.load import load_config
from pipeline.config.select import SelectSettings
from pipeline.storage import layout
from stages.noise.settings import PRESETS
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said


@pytest.fixture
def wrongly_stated(tmp_path: Path) -> Path:
    """Two English documents, a German one that is said to be English, and one that says one thing again and again."""
    right = [one | {"id": f"right {at}"} for at, one in enumerate(sample_documents("postgresql-eng", 2))]
    wrong = sample_documents("libreoffice-deu", 1)[0] | {"id": "wrong", "lang": "eng_Latn"}
    text = "It is the same paragraph that you have read before.\n\n" * 40
    again = {"id": "again", "lang": "eng_Latn", "title": "again", "text": text}
    write_jsonl(tmp_path / "in/a.jsonl", [*right, wrong, again])
    stages = {"encode": None, "autobleu": None, "language": {}, "noise": {}}
    return write_config(tmp_path, **stages, select={"preset": "gopher-repetition", "where": "not lang_differs"})


def test_a_corpus_without_embeddings_is_judged_and_selected_from(wrongly_stated: Path, tmp_path: Path) -> None:
    done = pipeline("run", wrongly_stated)
    assert done.returncode == 0, said(done)
    assert "judged sentences are in another language than stated" in done.stdout
    corpus = Corpus(str(tmp_path / "out"))
    rows = corpus.to_arrow("doc_id", "lang_differs", "doc_duplicate_5gram_chars", "digit_share").to_pylist()
    differ = {one["doc_id"] for one in rows if one["lang_differs"]}
    assert differ == {"wrong"}
    assert all((one["doc_duplicate_5gram_chars"] > 0.9) == (one["doc_id"] == "again") for one in rows)
    shown = pipeline("select", wrongly_stated)
    assert shown.returncode == 0, said(shown)
    lines = {line.split("  ")[0].strip("– "): line for line in shown.stdout.splitlines()}
    assert " 40 " in lines["doc_duplicate_line_share <= 0.3"] and " 0 " in lines["doc_top_4gram_chars <= 0.16"]
    assert sum(one["lang_differs"] for one in rows) == int(lines["(not lang_differs)"].split()[-2])


@pytest.mark.parametrize("where", ["u < 0.5) or (u >= 0", "(u < 0.5", "u < 0.5) (", "u < 'a)"])
def test_a_condition_beside_a_preset_cannot_end_its_parentheses(wrongly_stated: Path, where: str) -> None:
    """`a) or (b` made the rules of the preset optional."""
    select = SelectSettings.model_validate({"preset": "fineweb", "where": where})
    assert select.where == where, "it is refused as it was written"
    path = write_config(wrongly_stated.parent, noise={}, select={"preset": "fineweb", "where": where})
    done = pipeline("plan", path)
    told = done.stdout + done.stderr
    assert done.returncode == 2 and f"  {where}\n" in told and "^" in told, done
    whole = SelectSettings.model_validate({"preset": "fineweb", "where": "u < 0.5 or (`a)` == ')')"})
    assert str(whole.where).endswith(" and (u < 0.5 or (`a)` == ')'))")


def test_a_preset_is_its_rules(wrongly_stated: Path) -> None:
    select = load_config(wrongly_stated).select
    assert select is not None and select.preset is None
    assert select.where == f"{PRESETS['gopher-repetition']} and (not lang_differs)"
    again = SelectSettings.model_validate(select.model_dump())
    assert again == select and "preset" not in select.model_dump()
    several = SelectSettings.model_validate({"preset": ["fineweb", "c4-lines"]})
    assert several.where == f"{PRESETS['fineweb']} and {PRESETS['c4-lines']}"


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"preset": "gopher-qualty"}, r"preset gopher-qualty: did you mean gopher-quality\? there are: gopher-quality"),
        ({"preset": ["fineweb", 3]}, "preset 3: there are: gopher-quality"),
        ({"preset": [["fineweb"]]}, r"preset \['fineweb'\]: did you mean fineweb"),
        ({"preset": []}, r"preset \[\]: there are: gopher-quality"),
        ({"preset": "fineweb", "where": True}, "select.where"),
        ({"preset": "fineweb", "where": " "}, "select.where"),
    ],
)
def test_unknown_presets_are_told(wrongly_stated: Path, section: dict[str, object], message: str) -> None:
    done = pipeline("plan", write_config(wrongly_stated.parent, select=section))
    assert done.returncode == 2
    assert re.search(message, " ".join(said(done).split())), said(done)


def test_presets_need_the_columns_of_noise(wrongly_stated: Path) -> None:
    done = pipeline("plan", write_config(wrongly_stated.parent, select={"preset": "fineweb"}))
    assert done.returncode == 2 and "doc_terminal_share" in said(done), said(done)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_condition(name: str) -> None:
    schema = layout.schema("noise")
    columns = {one.name: one.type for one in schema} | {"lang": pa.string(), "text": pa.string()}
    assert parse(PRESETS[name], columns).clauses


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("Here are five plain words.", True),
        ("Only four words here.", False),
        ("These five words end without", False),
        ('She answered me with the "world"', True),
        ("She said: “I shall come too.”", True),
        ("Please enable JavaScript to view this.", False),
        ("Turn on JAVASCRIPT in your browser.", False),
        ("你 们 都 在 家。", True),
    ],
)
def test_the_lines_that_c4_keeps(text: str, stays: bool) -> None:
    """Five words, a terminal mark or an end quotation mark, and no "Javascript", whatever its case (section 2.2)."""
    types = {"sentence_words": pa.int32(), "text": pa.string()}
    row = pa.table({"sentence_words": pa.array([len(text.split())], pa.int32()), "text": [text]})
    assert row.filter(parse(PRESETS["c4-lines"], types).expression).num_rows == stays
