"""The report: whole, self-contained, escaped, true to the books, the same bytes twice."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import fsspec
import numpy as np
import pytest
from typer.testing import CliRunner

from pipeline.base.errors import ConfigError
from pipeline.cli import app
from pipeline.corpus.accounting import Accounting, compute_accounting
from pipeline.corpus.reader import Corpus
from pipeline.quality.report import Drift, FitSummary, coded, plots, render, write_report
from pipeline.quality.report.gather import Gathered, gather
from pipeline.quality.report.page import number, share
from pipeline.quality.report.rows import by_length, pearson, read_rows
from tests.conftest import write_config, write_jsonl
from tests.support.chromium import chromium
from tests.support.cli import pipeline
from tests.support.corpora import begin_without_packing

EVIL = "<script>alert(1)</script> ]]> <img src=x onerror=alert(1)> \u202egnp.exe\u202c \x1b[31mred & \"q\" 'a' </style>"
CSP = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
ADDRESSES = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}


class Page(HTMLParser):
    """Elements, attributes and visible text of a page; `wrong` closing tags."""

    VOID = frozenset({"meta", "link", "br", "img", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.text = ""
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.wrong += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.text += " "
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self.text += data


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A corpus with a hostile document, one in quarantine, one empty, in two languages."""
    folder = tmp_path_factory.mktemp("report")
    documents: list[dict[str, Any]] = [
        {"id": "evil", "lang": "eng_Latn", "title": EVIL, "text": f"{EVIL}. It is as good as it looks. Nothing else."},
        {"id": "two", "lang": "deu_Latn", "title": "t", "text": "Es ist kalt heute. Das Buch liegt dort. Danke."},
        {"id": "empty", "lang": "eng_Latn", "title": "t", "text": "   "},
    ]
    path = write_jsonl(folder / "in" / "a.jsonl", documents)
    with path.open("a") as file:
        file.write('{"id": "<b>broken</b> ' + "\u202e" + '", "text": \n')
    config = write_config(folder, autobleu={"sample": 1.0, "length_extra": 1, "length_factor": 1.0})
    done = CliRunner().invoke(app, ["run", str(config)])
    assert done.exit_code == 0, done.output
    return Corpus(str(folder / "out"))


@pytest.fixture(scope="module")
def full(made: Corpus) -> Gathered:
    """The same with measured and predicted fragility, as arrays, and hostile names."""
    found = gather(made, 10**6)
    rows, draw = found.rows, np.random.default_rng(0)
    noisy = draw.random((rows.read, 3)).astype(np.float32)
    mean = -noisy.mean(axis=1)
    scores = {
        **rows.scores,
        "fragility_bleu": mean / 2,
        "fragility_cosine": mean,
        "fragility_predicted_bleu": mean / 2 + 0.01,
        "fragility_predicted_cosine": 0.9 * mean,
        "weight": draw.random(rows.read).astype(np.float32),
    }
    shown = [{**row, "fragility_cosine": -0.1, "fragility_bleu": None, "text": EVIL} for row in rows.worst[:1]]
    rows = dataclasses.replace(
        rows, scores=scores, by_noise={"bleu_by_noise": noisy, "cosine_by_noise": noisy}, fragile=shown
    )
    accounting = dataclasses.replace(found.accounting, problems=[EVIL])
    accounting.warnings[EVIL] += 1
    accounting.misfits[EVIL] = 3
    return dataclasses.replace(found, rows=rows, accounting=accounting, name=EVIL, noise_levels=[0.1, 0.5, 0.9])


RVQ: dict[str, float | list[float]] = {
    "relative_error": [0.5, 0.3, 0.2],
    "codebooks": [1.0, 3.0],
    "autobleu": [5.0, 9.0],
    "autobleu_exact": 61.0,
}
FITS = [FitSummary("scaler", 100, 2, {"constant": 3.0}, "aaaa"), FitSummary("rvq", 100, 2, RVQ, "bbbb")]
FITS.append(FitSummary("predictor", 90, 2, {"pearson_cosine": 0.41, "held_out_rows": 9.0}, "cccc"))
DRIFT = [Drift("scaler", "shift <b>of</b> medians", 0.0, 0.4, True)]


def page_of(full: Gathered) -> str:
    return render(full, FITS, DRIFT, [(f"autobleu >= 30 {EVIL}", 4)])


def check_page(text: str) -> Page:
    page = Page(text)
    assert page.wrong == []
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert ("meta", "content", CSP) in page.attributes
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in ADDRESSES:
            assert value is not None and value.startswith(("#", "data:")), (tag, name, value)
            assert not value.startswith("#") or value[1:] in page.ids, value
    assert not re.search(r"url\((?!#)|@import|@font-face", text)
    return page


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_every_section_is_well_formed_and_asks_for_nothing(full: Gathered) -> None:
    page = check_page(page_of(full))
    for anchor in ("accounting", "lengths", "embeddings", "autobleu", "fragility", "prediction", "codes", "examples"):
        assert anchor in page.ids
    assert {"select", "fits", "throughput", "provenance"} <= set(page.ids)
    assert "correlates with measured fragility by 0.41 (Pearson" in plain(page.text)
    assert "0.410 on the 9 held out" in plain(page.text)
    assert "Later data has drifted from the fits: scaler" in plain(page.text)


def test_what_is_of_a_part_of_the_sentences_says_so(full: Gathered) -> None:
    assert "What follows of" not in page_of(full)
    partial = dataclasses.replace(full, rows=dataclasses.replace(full.rows, total=full.rows.read + 1000))
    shown = plain(Page(page_of(partial)).text)
    read, total = partial.rows.read, plain(number(partial.rows.total))
    assert f"Figures of languages, scores, weights and noise are from the first {read} of {total} sentences" in shown
    assert shown.count(f", in {read} sentences") == 2, "of the languages, and of fragility"


def test_text_from_strangers_is_shown_not_obeyed(full: Gathered) -> None:
    text = page_of(full)
    assert "<script" not in text and "<img" not in text and "<b>" not in text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)
    shown = Page(text).text
    assert (
        shown.count("<script>alert(1)</script> ]]> <img src=x onerror=alert(1)> \\u202egnp.exe\\u202c \\x1b[31mred")
        >= 5
    )
    assert "<b>broken</b>" in shown


def test_numbers_are_those_of_the_books(made: Corpus, tmp_path: Path) -> None:
    place = write_report(made, str(tmp_path / "sub" / "report.html"))
    shown = plain(check_page(Path(place).read_text("utf-8")).text)
    accounting: Accounting = compute_accounting(made.store, made.chunks)
    dropped, quarantined = sum(accounting.dropped.values()), sum(accounting.quarantined.values())
    assert (accounting.documents_in, accounting.kept, dropped, quarantined) == (4, 2, 1, 1)
    assert "The accounting balances: 4 documents in = 2 kept + 1 dropped + 1 quarantined." in shown
    for reason in (*accounting.dropped, *accounting.quarantined):
        assert reason in shown
    assert f"sentences {accounting.sentences} in {accounting.parts} part" in shown
    mean = accounting.counts["autobleu"]["score_sum"] / accounting.counts["autobleu"]["scored"]
    assert f"AutoBLEU, mean {mean:.1f}" in shown


def test_curves_of_codebooks() -> None:
    assert FITS[1].curve("relative_error") == ([1, 2, 3], [0.5, 0.3, 0.2])
    assert FITS[1].curve("autobleu") == ([1, 3], [5, 9])
    assert FITS[0].curve("autobleu") is None


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [
        (0, 5, "0 %"),
        (5, 5, "100 %"),
        (1, 8, "12 %"),
        (1, 10**9, "< 0.01 %"),
        (3, 1000, "0.30 %"),
        (99_999, 10**5, "99.99 %"),
    ],
)
def test_shares(part: int, whole: int, expected: str) -> None:
    assert plain(share(part, whole)) == expected


def test_problems_are_not_called_balance(full: Gathered) -> None:
    shown = plain(Page(page_of(full)).text)
    assert "3 values did not fit its type and became null." in shown
    assert "The accounting does not balance: 1 problem below." in shown and "The accounting balances" not in shown


def test_one_part_is_not_all_parts(full: Gathered) -> None:
    one = dataclasses.replace(full.accounting, parts=1, open_parts=Counter(), open_chunks=0)
    assert "The part has every stage: " in plain(Page(page_of(dataclasses.replace(full, accounting=one))).text)


def test_of_a_corpus_that_is_half_done_each_family_has_its_own_sentences(tmp_path: Path) -> None:
    begin_without_packing(tmp_path / "out")
    path = write_config(tmp_path, autobleu=None)
    for name, text, options in (("a", "It is cold. It is late.", ()), ("b", "Go on. " * 40, ("--until", "segment"))):
        write_jsonl(tmp_path / f"in/{name}.jsonl", [{"id": name, "lang": "eng_Latn", "title": "", "text": text}])
        assert pipeline("run", path, *options).returncode == 0
    corpus = Corpus(str(tmp_path / "out"))
    assert (corpus.rows, len(corpus.parts)) == (42, 2)
    page = plain(check_page(Path(write_report(corpus)).read_text("utf-8")).text)
    stored = sum(file.stat().st_size for file in (tmp_path / "out/embeddings").rglob("*.parquet"))
    each = re.search(r"\bembeddings +\S+ [kM]?B +([0-9.]+)", page)
    assert each and float(each[1]) == pytest.approx(stored / 2, abs=0.1)
    assert "Every embedding of the 2 so far is finite and of a whole sentence." in page


def test_the_same_corpus_gives_the_same_bytes_in_its_own_folder(made: Corpus) -> None:
    place = write_report(made)
    assert place == f"{made.url}/report/index.html"
    first = Path(place).read_bytes()
    assert write_report(Corpus(made.url)) == place
    assert Path(place).read_bytes() == first
    assert [path.name for path in Path(place).parent.iterdir()] == ["index.html"]


def test_a_corpus_without_a_sentence_has_books(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl", [{"id": "1", "lang": "eng_Latn", "title": "t", "text": " "}] * 2)
    CliRunner().invoke(app, ["run", str(write_config(tmp_path))])
    place = write_report(Corpus(str(tmp_path / "out")))
    shown = plain(check_page(Path(place).read_text("utf-8")).text)
    assert "2 documents in = 0 kept + 2 dropped + 0 quarantined" in shown


def test_any_url_and_the_command(made: Corpus) -> None:
    done = CliRunner().invoke(app, ["report", made.url, "--to", "memory://reports/one.html"])
    assert done.exit_code == 0, done.output
    assert "memory://reports/one.html" in done.output
    check_page(fsspec.filesystem("memory").cat_file("/reports/one.html").decode())


BROKEN = r"""[...document.querySelectorAll("td:not(.said)")].flatMap(cell => {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), found = [], range = document.createRange();
  for (let node; node = walker.nextNode();) for (const word of node.data.matchAll(/\w{2,20}/g)) {
    range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
    if (range.getClientRects().length > 1) found.push(word[0]); }
  return found; })"""


@pytest.mark.slow  # a browser starts
def test_tables_break_between_words_and_scroll_where_they_are_wide(full: Gathered, tmp_path: Path) -> None:
    rows = dataclasses.replace(
        full.rows,
        documents=dataclasses.replace(full.rows.documents, sources=["input-0dffe9:libreoffice-eng.jsonl"] * 2),
    )
    (tmp_path / "page.html").write_text(page_of(dataclasses.replace(full, rows=rows)))
    with chromium() as browser:
        page = browser.page()
        for width in (1280, 400):
            page.look(width, 900)
            page.open(tmp_path / "page.html")
            assert page.js(BROKEN) == []
            assert page.js("document.documentElement.scrollWidth <= innerWidth")
            wide = page.js(
                "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth)"
                ".map(one => one.textContent).filter(one => one.includes('tokens median')).length"
            )
            assert wide == (width == 400)


def test_a_folder_is_refused_and_kept(made: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; give the name of a file"):
        write_report(made, str(tmp_path))


def test_rows_are_those_of_the_corpus(made: Corpus) -> None:
    rows, table = read_rows(made), made.table("lang", "chars", "tokens", "autobleu", "decoded", "text")
    assert rows.read == rows.total == table.num_rows
    by_document = made.to_pandas("doc_id", "tokens", "split", "source").groupby("doc_id", sort=False)
    documents = rows.documents
    assert documents.sentences.tolist() == by_document.size().tolist()
    assert documents.tokens.tolist() == by_document["tokens"].sum().tolist()
    assert [documents.splits[place] for place in documents.split] == by_document["split"].first().tolist()
    assert [documents.sources[place] for place in documents.source] == by_document["source"].first().tolist()
    short = read_rows(made, 1).documents  # a row group is read at least
    assert short.sentences.tolist() == documents.sentences.tolist()
    assert [rows.langs[place] for place in rows.lang] == table["lang"].to_pylist()
    assert int(rows.starts.sum()) == 2
    np.testing.assert_array_equal(rows.scores["autobleu"], table["autobleu"].to_numpy())
    lowest = min(value for value in table["autobleu"].to_pylist() if value is not None)
    assert rows.worst[0]["autobleu"] == lowest
    assert len({row["text"] for row in rows.worst}) == len(rows.worst)
    vectors = np.concatenate([made.embeddings(part) for part in made.parts]).astype(np.float64)
    np.testing.assert_allclose(rows.norms, np.linalg.norm(vectors, axis=1), rtol=1e-5)


def test_values_by_length_against_numpy() -> None:
    draw = np.random.default_rng(1)
    lengths, values = draw.integers(1, 180, 5000), draw.normal(50, 20, 5000)
    values[::7] = np.nan
    bins = by_length(lengths, values)
    assert sum(one.count for one in bins) == np.isfinite(values).sum()
    width = bins[1].first - bins[0].first
    for one in bins[:-1]:
        inside = values[(lengths >= one.first) & (lengths < one.first + width) & np.isfinite(values)]
        assert one.mean == pytest.approx(inside.mean())
        assert (one.low, one.high) == pytest.approx(tuple(np.quantile(inside, (0.1, 0.9))))
    assert by_length(np.array([], np.int32), np.array([])) == []
    assert [one.count for one in by_length(np.array([3]), np.array([1.0])) if one.count] == [1]


def test_correlation_against_numpy() -> None:
    first = np.array([0.1, 0.4, np.nan, 0.3, 0.9])
    second = np.array([0.2, 0.5, 0.1, np.nan, 0.7])
    expected = np.corrcoef([0.1, 0.4, 0.9], [0.2, 0.5, 0.7])[0, 1]
    correlation, pairs = pearson(first, second)
    assert correlation == pytest.approx(expected) and pairs == 3
    assert np.isnan(pearson(first, np.full(5, 0.5))[0])


def test_plots_escape_and_repeat() -> None:
    values = np.linspace(0, 1, 50)
    series = {"<script>alert(1)</script> ]]>": values, "y": values**2}
    one = plots.histogram("a", series, "a < b & c", limits=(0, 1))
    root = ElementTree.fromstring(one)
    texts = {"".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"a < b & c", "<script>alert(1)</script> ]]>"} <= texts
    assert one == plots.histogram("a", series, "a < b & c", limits=(0, 1))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tiny_data_has_plots(count: int) -> None:
    ones = np.ones(count)
    bins = by_length(np.ones(count, np.int32), ones)
    for svg in (
        plots.histogram("a", {"n": ones}, "x"),
        plots.by_length("b", {"n": bins}, "y", top=1),
        plots.by_language("c", [("eng_Latn", bins[0])], "x"),
        plots.by_noise("d", [0.5], {"n": ones[:, None]}),
        plots.density("e", ones, ones),
        plots.curve("f", ([1.0], [0.4]), "x", "y", top=1),
    ):
        assert ElementTree.fromstring(svg).get("viewBox")


def test_an_axis_of_counts_has_whole_numbers() -> None:
    counted, measured = (
        plots.lines("p", {"one": plots.Line(places, (3, 4, 5), (1, 1, 1))}, "x", "y", top=10)
        for places in ((1, 2, 4), (0, 0.1, 0.4))
    )
    assert re.findall(r">([0-9.]+)<", counted)[:4] == ["1", "2", "3", "4"] and ">0.05<" in measured


def test_what_is_between_backticks_is_shown_as_code_and_everything_is_escaped() -> None:
    assert coded("`select` & <b>`a < b`</b>") == "<code>select</code> &amp; &lt;b&gt;<code>a &lt; b</code>&lt;/b&gt;"
