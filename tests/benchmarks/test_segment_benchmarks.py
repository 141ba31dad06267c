"""The segmentation benchmarks run, at their smallest size; boundaries and scores are counted as they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.benchmarks import run

DOCUMENTS = (["He came.", "(She, too!)", "--"], ["Ça va ?", "Oui."])


def test_boundaries_and_their_bare_counterparts() -> None:
    from benchmarks.segment_accuracy import Gold, bare
    from benchmarks.segmentation import boundaries

    clean, without = Gold.of("clean", DOCUMENTS), Gold.of("bare", bare(DOCUMENTS))
    assert clean.texts == ["He came. (She, too!) --", "Ça va ? Oui."]
    assert clean.boundaries == [{7, 17}, {5}]  # characters before, white space left out; document ends are none
    assert without.texts == ["he came she too", "ça va oui"]
    assert without.boundaries == [{6}, {4}]  # the sentence that was punctuation only is gone
    assert boundaries("a  b\u00a0c ", [0, 1, 2, 3, 4, 7]) == {1, 2}


def test_scores_of_boundaries() -> None:
    from benchmarks.segment_accuracy import score

    one = score([{1, 2, 3}, set()], [{2, 3}, {4, 5}])
    assert (one.precision, one.recall, round(one.f1, 4)) == (2 / 3, 0.5, 0.5714)
    assert score([set()], [set()]).f1 == 0


def test_documents_of_a_conllu_file(tmp_path: Path) -> None:
    from benchmarks.segment_accuracy import read_conllu

    assert [*read_conllu(_conllu(tmp_path))] == [*DOCUMENTS]


def test_documents_of_many_treebanks(tmp_path: Path) -> None:
    from benchmarks.segment_accuracy import Gold, read_ud

    path = tmp_path / "ud.jsonl"
    lines = [
        {"lang": "zho_Hans", "treebank": "B", "sentences": ["好。", "不好。"], "spaces": ["", "\n"]},
        {"lang": "deu_Latn", "treebank": "A", "sentences": ["Ja.", "Nein."], "spaces": [" ", " "]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    found = read_ud(path)
    assert list(found) == [("deu_Latn", "A"), ("zho_Hans", "B")]
    gold = Gold.spaced("clean", [*found["deu_Latn", "A"], *found["zho_Hans", "B"]])
    assert gold.texts == ["Ja. Nein.", "好。不好。"] and gold.boundaries == [{3}, {2}]


@pytest.mark.slow
def test_accuracy_of_every_method(tmp_path: Path) -> None:
    out = run("segment_accuracy", "--conllu", str(_conllu(tmp_path)))
    assert "2 documents, clean 3 boundaries, bare 2 boundaries" in re.sub(r"\s+", " ", out)
    for method in ("spacy", "spacy-capped", "sat, sat-tiny", "sat-capped, sat-tiny", "spaCy's sentencizer", "wtpsplit"):
        assert re.search(rf"│ {method}.*│ +\d\.\d\d\d │", out), out
    scores = dict(re.findall(r"│ (spacy|spaCy's sentencizer) +│ +\d\.\d{3} │ +\d\.\d{3} │ +(\d\.\d{3})", out))
    assert set(scores) == {"spacy", "spaCy's sentencizer"}
    added = re.findall(r"│ (spacy-capped|sat-capped, sat-tiny) +│ (clean|bare) +│ +0 │ +0 │ +0 │", out)
    assert len(added) == 4  # nothing is longer than the cap


@pytest.mark.slow
def test_our_sat_finds_the_boundaries_of_wtpsplit() -> None:
    out = run("segment_sat", "--megabytes", "0.001", "--rounds", "1")  # fails where a boundary differs without excuse
    assert re.search(
        r"boundaries that differ at stride 64: \d+ \(\d+ tie, \d+ rounding, \d+ inside of a character, 0 UNEXP", out
    ), out
    assert re.search(r"│ wtpsplit's split, stride 64 +│.*│ +1\.00 │ +[1-9]\d* │ +0 │", out), out
    assert len(re.findall(r"│ ours, (?:stride 64|default stride) +│", out)) == 2


@pytest.mark.slow
def test_speed_of_rules_and_of_the_cap() -> None:
    out = run("segment_speed", "--megabytes", "0.001", "--rounds", "1", "--viterbi-kilobytes", "1")
    rows = re.findall(r"│ (\S.*?) +│ +[\d.e+-]+ │ +[\d.e+-]+ │ +[\d.e+-]+–[\d.e+-]+ │", out)
    assert len(rows) == 6 + 5, out
    assert rows[-1] == "wtpsplit's Viterbi, first 1 kB"
    assert len(re.findall(r"too long; \d+ pieces of at most (?:[1-9]?\d|1\d\d|200) characters", out)) == 2


@pytest.mark.slow
def test_sat_on_a_gpu_needs_few_packages() -> None:
    code = (
        "import sys, benchmarks.segment_gpu as one\n"
        "few = ['--rounds', '1', '--batch-tokens', '1024', '--call-tokens', '2000', '--profile']\n"
        "one.main(['--small', '--device', 'cpu', '--format', 'float32', *few])\n"
        "assert not {'ray', 'spacy', 'wtpsplit', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"sentences, 1024 tokens per batch, stride 382: \d+ sentences/s", done.stdout)) == 2
    assert len(re.findall(r"matmuls and attention take [1-9]\d\.\d% of", done.stdout)) == 2


def test_documents_for_the_gpu_have_the_sentences_that_were_asked_for() -> None:
    import numpy as np

    from benchmarks.segment_gpu import SENTENCE, documents

    calls = documents(5000, 78, 48_000, np.random.default_rng(1))
    assert sum(int(one.sum()) for one in calls) == 5000 * SENTENCE
    assert len(calls) == 3 and 40 < 5000 / sum(map(len, calls)) < 120


def _conllu(folder: Path) -> Path:
    lines = []
    for number, sentences in enumerate(DOCUMENTS):
        lines.append(f"# newdoc id = {number}")
        lines += [f"# text = {sentence}\n1\tword\t_\n" for sentence in sentences]
    path = folder / "gold.conllu"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path
