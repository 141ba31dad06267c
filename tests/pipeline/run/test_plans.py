"""Plans that the inputs bring: a run embeds them once, copies them with their documents, and refuses what it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import Corpus
from pipeline.maintenance.verify import check
from stages.arrow import embedding_matrix
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings
from stages.stage import whole
from tests.conftest import data_digests, write_config
from tests.pipeline.run.test_copying import assert_same, in_place, receipts, rows_made
from tests.support.cli import pipeline, said
from tests.support.kills import files
from tests.support.language_models import write_language_model
from tests.support.planned import INPUTS, SETTINGS, documents, expected_plans, write_planned
from tests.support.runs import run

TIMES = 6


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The corpus.yaml of a corpus that is made."""
    path = write_planned(tmp_path, TIMES)
    run(path)
    return path


def rows(corpus: Corpus) -> list[dict[str, Any]]:
    names = ("doc_id", "position", "paragraph", "lang", "plan", "plan_embedding")
    return [row for number in range(len(corpus.parts)) for row in corpus.table(*names, part=number).to_pylist()]


def test_every_paragraph_with_a_plan_has_it_in_its_first_row(path: Path, tmp_path: Path) -> None:
    corpus = Corpus(str(tmp_path / "out"))
    found: dict[str, list[str]] = {}
    before: tuple[str, int] | None = None
    vectors, texts, langs = [], [], []
    for row in rows(corpus):
        begins = before != (row["doc_id"], row["paragraph"])
        before = row["doc_id"], row["paragraph"]
        assert begins or row["plan"] is None
        if begins:
            found.setdefault(row["doc_id"], []).append(row["plan"] or "")
        vector = np.asarray(row["plan_embedding"], np.float16)
        assert vector.any() == (row["plan"] is not None)
        if row["plan"] is not None:
            vectors.append(vector)
            texts.append(row["plan"])
            langs.append(row["lang"])
    assert found == expected_plans(TIMES) and any(one[0] > "\u4e00" for one in texts)
    encode = Encode(EncodeSettings(model="sonar-tiny"))
    encode.setup("cpu")
    again = whole(encode, corpus_table(texts, langs)).families["embeddings"]["embedding"]
    assert (np.stack(vectors).view(np.uint16) == embedding_matrix(again).view(np.uint16)).all()


def corpus_table(texts: list[str], langs: list[str]) -> Any:
    import pyarrow as pa

    return pa.table({"sentences.text": texts, "sentences.lang": langs})


def test_the_end_of_a_run_counts_plans_and_a_second_run_does_nothing(path: Path, tmp_path: Path) -> None:
    before = data_digests(tmp_path / "out")
    shown = run(path)
    plans = [one for several in expected_plans(TIMES).values() for one in several]
    assert f"{sum(map(bool, plans))} of {len(plans)} paragraphs have one; {2 * TIMES} beyond the last" in shown
    assert "some documents have more plans than paragraphs (column topics)" in " ".join(shown.split())
    assert before == data_digests(tmp_path / "out") and len(list((tmp_path / "out/plans").rglob("*.parquet"))) == 2
    assert check(Corpus(str(tmp_path / "out")), lambda done: None) == []


def test_the_parts_of_a_long_document_have_their_own_plans(tmp_path: Path) -> None:
    run(write_planned(tmp_path, 2, segment={"method": "spacy-capped", "max_document_sentences": 2}))
    found: dict[str, dict[int, str]] = {}
    for row in rows(Corpus(str(tmp_path / "out"))):
        if row["plan"]:
            assert found.setdefault(row["doc_id"], {}).setdefault(row["paragraph"], row["plan"]) == row["plan"]
    expected = expected_plans(2)
    assert found == {
        name: {at: one for at, one in enumerate(plans) if one} for name, plans in expected.items() if any(plans)
    }


def test_only_the_plans_of_a_changed_document_are_embedded_again(path: Path, tmp_path: Path) -> None:
    out, before = tmp_path / "out", receipts(tmp_path / "out")
    _, texts = documents(TIMES)
    texts[1]["topics"] = ["Another window"]
    (tmp_path / "in/texts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in texts))
    run(path)
    made, copied = rows_made(out, before)
    assert made["plans"] == 3 and copied["plans"] > 3 and not made["encode"]  # the sentences are the same
    assert_same(out, in_place(path, out))
    (tmp_path / "ids.txt").write_text("eng_Latn-001\n")
    assert pipeline("purge", path, "--ids", tmp_path / "ids.txt").returncode == 0
    run(path)
    assert "Another window" not in [row["plan"] for row in rows(Corpus(str(out)))]
    assert check(Corpus(str(out)), lambda done: None) == []


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        ({"plans": {"column": "topic"}}, "plans.column is 'topic', which no input keeps; kept are: answer, topics"),
        (
            {"plans": {"column": "answer"}},
            "answer of a document in in/*.parquet is 52; allowed are string and list<string>",
        ),
        ({"plans": {}}, "plans: give column: NAME, of plans that the inputs bring, or lm: CARD"),
        ({"plans": {"column": "topics", "lm": "smollm2"}}, "plans: give column: NAME, of plans that the inputs bring"),
        ({"plans": {"column": "topics", "prompt": "{text}"}}, "plans: only lm reads prompt, and column is given"),
        ({"plans": {"lm": "gpt9"}}, "plans.lm is gpt9"),
        (
            {"plans": {"lm": "gpt2", "prompt": "About {name}: {text}"}},
            "'About {name}: {text}' is no prompt: write {text}",
        ),
        ({"plans": {"lm": "gpt2", "prompt": "{{text}} {text}"}}, "is no prompt: write {text} once"),
        ({"plans": {"lm": "gpt2", "max_tokens": 0}}, "plans.max_tokens is 0"),
        ({"encode": None}, "plans needs what encode makes"),
        ({"plans": None, "scaler": {}, "train": {"plans": "column"}}, "add a section `plans: {column: NAME}`"),
        (
            {"scaler": {}, "train": {"plans": "column", "model": "lcm-token-lm-tiny"}},
            "lcm-token-lm-tiny models tokens, and plans are concepts",
        ),
        (
            {"scaler": {}, "rvq": {"units": 8}, "train": {"plans": "column", "model": "lcm-quant-c-tiny"}},
            "lcm-quant-c-tiny models codes, and plans of a column have none; give headline",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_work_starts(tmp_path: Path, sections: dict[str, Any], what: str) -> None:
    path = write_planned(tmp_path, 1, **sections)
    for command in ("plan", "run"):
        done = pipeline(command, path)
        assert done.returncode == 2 and what in said(done).replace(f"{tmp_path}/", ""), said(done)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Any]:
    """The section `plans` of a small network, whose plans are nonsense, but always the same."""
    texts = [str(one["text"]) for several in documents(TIMES) for one in several]
    return {"lm": str(write_language_model(tmp_path, texts)), "prompt": "About: {text}\n", "max_tokens": 12}


def test_a_language_model_writes_the_plans(tmp_path: Path, written: dict[str, Any]) -> None:
    path = write_planned(tmp_path, TIMES, plans=written, scaler={})
    shown = " ".join(run(path).split())
    corpus = Corpus(str(tmp_path / "out"))
    begun = [row for row in rows(corpus) if row["plan"] is not None]
    paragraphs = sum(map(len, expected_plans(TIMES).values()))
    assert f"{len(begun)} of {paragraphs} paragraphs have one; 0 beyond the last" in shown and begun
    assert f"; {paragraphs - len(begun)} empty, 0 of a paragraph that was cut" in shown
    before, digests = receipts(tmp_path / "out"), data_digests(tmp_path / "out")
    assert "Nothing to do" in run(path) and check(corpus, lambda done: None) == []
    trained = "train={model: lcm-one-tower-tiny, plans: column, steps: 2, batch_concepts: 128, validation_concepts: 0}"
    assert "step 2 of 2" in said(pipeline("train", path, "--set", trained))
    asked = said(pipeline("plan", path, "--set", "plans.prompt=On {text}"))
    assert "plans.prompt" in " ".join(asked.split()) and data_digests(tmp_path / "out") == digests
    run(path, "plans.prompt=On {text}")
    made, copied = rows_made(tmp_path / "out", before)
    assert made == {"plans": corpus.rows} and not any(copied.values())
    (tmp_path / "ids.txt").write_text("eng_Latn-001\n")
    assert pipeline("purge", path, "--ids", tmp_path / "ids.txt").returncode == 0
    other = by_paragraph(Corpus(str(tmp_path / "out")))
    run(path, "plans.prompt=On {text}")
    corpus = Corpus(str(tmp_path / "out"))
    assert by_paragraph(corpus) == {key: one for key, one in other.items() if key[0] != "eng_Latn-001"}
    assert check(corpus, lambda done: None) == []


def by_paragraph(corpus: Corpus) -> dict[tuple[str, int], str]:
    return {(row["doc_id"], row["paragraph"]): row["plan"] for row in rows(corpus) if row["plan"]}


@pytest.mark.faults
def test_killed_while_a_language_model_writes(tmp_path: Path, written: dict[str, Any]) -> None:
    path = write_planned(tmp_path, 6 * TIMES, plans=written, part_sentences=100)
    run(path, f"output={tmp_path / 'whole'}")
    whole = files(tmp_path / "whole/receipts/plans")
    for least in (1, whole // 2):
        with subprocess.Popen([sys.executable, "-m", "pipeline", "run", str(path)], stderr=subprocess.DEVNULL) as one:
            while one.poll() is None and files(tmp_path / "out/receipts/plans") < least:
                time.sleep(0.01)
            one.kill()
    run(path)
    assert whole > 2 and data_digests(tmp_path / "out") == data_digests(tmp_path / "whole")


def test_a_declared_type_that_holds_no_texts_is_refused(tmp_path: Path) -> None:
    done = pipeline("plan", write_planned(tmp_path, 1, input=[INPUTS[1] | {"keep": {"topics": "int64"}}]))
    assert done.returncode == 2 and "keep says that topics is int64; allowed are string and list<string>" in said(done)


def test_a_corpus_may_keep_a_column_of_that_name_where_nothing_makes_it(tmp_path: Path) -> None:
    entry = [INPUTS[1] | {"keep": ["topics", "plan"]}]
    path = write_planned(tmp_path, 1, input=entry)
    texts = [one | {"plan": "mine"} for one in documents(1)[1]]
    (tmp_path / "in/texts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in texts))
    done = pipeline("plan", path)
    assert done.returncode == 2 and "keep names plan, which the corpus itself uses" in said(done)
    run(write_config(tmp_path, **(SETTINGS | {"input": entry, "plans": None})))
    corpus = Corpus(str(tmp_path / "out"))
    assert set(corpus.table("plan", part=0)["plan"].to_pylist()) == {"mine"}
