"""`select`: which rows are used and what they belong to, against plain loops over rows; the counts; what is refused."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.select import SelectSettings
from pipeline.console.progress import RowProgress
from pipeline.select.command import SelectOptions, select_corpus, selection_of
from pipeline.select.selection import Counts, PartSelection, Selection
from pipeline.storage import layout
from tests.conftest import write_config
from tests.support.cli import pipeline
from tests.support.corpora import ROW_GROUP_ROWS, make_corpus

SCALAR = ("doc", "chars", "u", "lang", "title", "status", "autobleu")
Row = dict[str, Any]
Keep = Callable[[Row], bool]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with several row groups a part; every tenth row of its first part is said to be not finite."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
        url = make_corpus(tmp_path_factory.mktemp("select"))
        path = next(url.glob(f"status/*/{Corpus(str(url)).parts[0]}.*"))
        status = pq.read_table(path)["status"].to_numpy().copy()
        status[::10] = 2
        path.write_bytes(layout.to_parquet(pa.table({"status": status}, layout.schema("status"))))
    return url


@pytest.fixture
def corpus(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
    return Corpus(str(finished))


@dataclass
class Expected:
    """What plain loops find in a part: sequences as (doc, piece, rows), and the counts."""

    sequences: list[tuple[int, int, list[int]]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)


def expect(corpus: Corpus, part: str, clauses: dict[str, Keep], broken: str, least: int) -> Expected:
    """`clauses`: text → whether a row satisfies it."""
    result = Expected()
    counts = result.counts
    reasons = ("not finite", *clauses, "left out with their document", "in documents or sequences too short")
    counts.removed = dict.fromkeys(reasons, 0)
    documents: dict[int, list[tuple[int, Row]]] = {}
    for number, row in enumerate(corpus.table(*SCALAR, part=part).to_pylist()):
        documents.setdefault(row["doc"], []).append((number, row))
    for doc, rows in documents.items():
        runs: list[list[int]] = [[]]
        for number, row in rows:
            failed = next((text for text, keep in clauses.items() if not keep(row)), None)
            failed = "not finite" if row["status"] == 2 else failed
            if failed:
                counts.removed[failed] += 1
                runs.append([])
            else:
                runs[-1].append(number)
        runs = [run for run in runs if run]
        found = sum(map(len, runs))
        if broken == "drop-documents" and found < len(rows):
            counts.removed[reasons[-2]] += found
            runs = []
        if broken == "drop-sentences" and runs:
            runs = [[number for run in runs for number in run]]
        short = [run for run in runs if len(run) < least]
        counts.removed[reasons[-1]] += sum(map(len, short))
        runs = [run for run in runs if len(run) >= least]
        result.sequences += [(doc, piece, run) for piece, run in enumerate(runs)]
        left = sum(map(len, runs))
        counts.sentences += len(rows)
        counts.kept += left
        counts.documents += 1
        counts.whole += left == len(rows)
        counts.dropped += left == 0
        counts.shortened += 0 < left < len(rows)
        counts.pieces += len(runs)
    return result


def sequences(chosen: PartSelection) -> list[tuple[int, int, list[int]]]:
    """Runs joined to sequences, by loops."""
    found: list[tuple[int, int, list[int]]] = []
    for doc, piece, first, rows in zip(chosen.doc, chosen.piece, chosen.first_row, chosen.rows, strict=True):
        if not found or found[-1][:2] != (doc, piece):
            found.append((int(doc), int(piece), []))
        found[-1][2].extend(range(first, first + rows))
    return found


CONDITIONS: list[dict[str, Keep]] = [
    {},
    {"chars >= 30": lambda row: row["chars"] >= 30, "lang != 'deu_Latn'": lambda row: row["lang"] != "deu_Latn"},
    {
        "(autobleu is null or autobleu >= 1)": lambda row: row["autobleu"] is None or row["autobleu"] >= 1,
        "u < 0.9": lambda row: row["u"] < 0.9,
    },
    {
        "title is not null": lambda row: row["title"] is not None,
        "startswith(title, 'title 3')": lambda row: row["title"].startswith("title 3"),
    },
]


@pytest.mark.parametrize("least", [1, 4])
@pytest.mark.parametrize("broken", ["split-documents", "drop-sentences", "drop-documents"])
@pytest.mark.parametrize("clauses", CONDITIONS, ids=lambda clauses: " and ".join(clauses) or "all")
def test_rows_and_counts_are_those_of_plain_loops(
    corpus: Corpus, clauses: dict[str, Keep], broken: Any, least: int
) -> None:
    settings = SelectSettings(where=" and ".join(clauses) or None, broken=broken, min_sentences=least)
    total = Counts()
    for chosen in Selection(corpus, settings):
        expected = expect(corpus, chosen.part, clauses, broken, least)
        assert sequences(chosen) == expected.sequences
        assert chosen.counts == expected.counts
        assert chosen.row_numbers.tolist() == [row for _, _, rows in expected.sequences for row in rows]
        assert chosen.sequence_rows.tolist() == [len(rows) for _, _, rows in expected.sequences]
        total.add(expected.counts)
    assert len(corpus.parts) > 3 and total.removed["not finite"] > 5
    with RowProgress(Console(file=io.StringIO()), corpus.rows) as progress:
        assert Selection(corpus, settings).count(progress) == total
    assert total.sentences == corpus.rows == total.kept + sum(total.removed.values())


def test_conditions_remove_something_and_leave_something(corpus: Corpus) -> None:
    for clauses in CONDITIONS[1:]:
        total = Counts()
        for chosen in Selection(corpus, SelectSettings(where=" and ".join(clauses))):
            total.add(chosen.counts)
        assert total.kept > 0 and all(total.removed[text] > 0 for text in clauses), total


def test_a_digest_names_the_selection(corpus: Corpus, finished: Path) -> None:
    settings = SelectSettings(where="chars >= 30")
    digest = Selection(corpus, settings).digest
    assert re.fullmatch("[0-9a-f]{32}", digest)
    assert Selection(Corpus(str(finished)), settings).digest == digest
    others = [
        SelectSettings(where="chars >= 31"),
        SelectSettings(where="chars >= 30", broken="drop-documents"),
        SelectSettings(where="chars >= 30", min_sentences=2),
        SelectSettings(),
    ]
    assert len({digest, *(Selection(corpus, one).digest for one in others)}) == 5


@pytest.mark.parametrize(
    ("where", "remedy"),
    [
        ("chars > 3 and autobleu >= 30", r"\(autobleu is null or autobleu >= 30\)"),
        ("not autobleu < 30", r"autobleu is not null and not autobleu < 30"),
        ("title == 'a' or chars > 3", r"\(title is null or \(title == 'a' or chars > 3\)\)"),
    ],
)
def test_what_null_means_must_be_said_where_there_is_null(corpus: Corpus, where: str, remedy: str) -> None:
    selection = Selection(corpus, SelectSettings(where=where), "--where")
    with pytest.raises(ConfigError, match=f"^--where: .*is null in .*{remedy}"):
        list(selection)


def test_what_null_means_need_not_be_said_where_every_finite_row_has_a_value(tmp_path: Path) -> None:
    corpus = Corpus(str(make_corpus(tmp_path, autobleu={"sample": 1.0, "length_factor": 1.0})))
    counts = [chosen.counts for chosen in Selection(corpus, SelectSettings(where="autobleu >= 1"))]
    scores = corpus.table("autobleu")["autobleu"].to_numpy()
    assert sum(one.kept for one in counts) == int((scores >= 1).sum()) < corpus.rows


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("autoblue >= 30", "did you mean autobleu?"),
        ("chars >=", "expected a column, a number or a text"),
        ("fragility_bleu < -0.4", "there is no column fragility_bleu"),
        ("embedding > 1", "not one value per row"),
    ],
)
def test_conditions_that_make_no_sense_are_refused(corpus: Corpus, where: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Selection(corpus, SelectSettings(where=where))
    assert words in str(caught.value) and str(caught.value).startswith("select.where")


def test_documents_that_do_not_cover_the_part_are_noticed(tmp_path: Path) -> None:
    corpus = Corpus(str(make_corpus(tmp_path, autobleu=None)))
    path = next(tmp_path.glob(f"out/documents/*/{corpus.parts[0]}.*"))
    documents = pq.read_table(path)
    rows = documents["rows"].to_numpy() + np.int32(1)
    wrong = documents.set_column(documents.column_names.index("rows"), documents.field("rows"), pa.array(rows))
    path.write_bytes(layout.to_parquet(wrong))
    with pytest.raises(CorpusError, match="do not cover its"):
        Selection(corpus, SelectSettings()).part(corpus.parts[0])


def test_the_section_of_the_file_the_run_and_the_command_line(tmp_path: Path) -> None:
    where = "chars >= 30"
    url = str(make_corpus(tmp_path, autobleu=None, select=where))
    corpus = Corpus(url)
    assert selection_of(url, corpus, SelectOptions()).settings == SelectSettings(where=where)
    source = {"path": "in.jsonl", "lang": "eng_Latn"}
    later = write_config(tmp_path, input=[source], select={"where": where, "broken": "drop-sentences"})
    settings = selection_of(str(later), corpus, SelectOptions(min_sentences=3)).settings
    assert settings == SelectSettings(where=where, broken="drop-sentences", min_sentences=3)
    assert selection_of(url, corpus, SelectOptions(where="chars > 1")).settings == SelectSettings(where="chars > 1")
    for rules, words in (
        (SelectOptions(broken="drop"), "--broken drop: .*'drop-sentences', 'split-documents' or 'drop-documents'"),
        (SelectOptions(min_sentences=0), "--min-sentences 0: .*greater than or equal to 1"),
        (SelectOptions(where=""), "--where"),
    ):
        with pytest.raises(ConfigError, match=words):
            selection_of(url, corpus, rules)


def test_the_table_shows_the_counts(corpus: Corpus) -> None:
    shown = io.StringIO()
    select_corpus(Console(file=shown, width=80), corpus.url, corpus, SelectOptions(where="chars >= 30 and chars < 0"))
    table = {tuple(re.split("  +", line.strip())[:2]) for line in shown.getvalue().splitlines()}
    short = sum(row["chars"] < 30 and row["status"] != 2 for row in corpus.table("chars", "status").to_pylist())
    assert ("– chars >= 30", str(short)) in table and ("sentences kept", "0") in table
    assert "documents  11 in = 0 whole + 0 with sentences missing + 11 left out" in shown.getvalue()


def test_a_corpus_that_is_not_finished(tmp_path: Path) -> None:
    url = make_corpus(tmp_path, until="segment")
    shown = pipeline("select", url, "--where", "chars >= 30")
    assert shown.returncode == 0 and "sentences kept" in shown.stdout, shown
    too_early = pipeline("select", url, "--where", "autobleu is null")
    assert too_early.returncode == 2 and "its stage has not run on all parts" in too_early.stderr, too_early
