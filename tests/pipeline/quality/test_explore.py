"""The interactive report: small, closed to foreign scripts, true to its sample; it opens and filters in a browser."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipeline import Corpus
from pipeline.base.errors import CorpusError
from pipeline.quality.explore import places as maps
from pipeline.quality.explore import policy, write_explorer
from pipeline.quality.explore.places import LEAST_PACMAP, MAP, placed, principal_components
from pipeline.quality.explore.sample import CAUSES, read_sample
from pipeline.quality.explore.sections import documents_data
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.chromium import Page, chromium
from tests.support.cli import pipeline
from tests.support.corpora import made_once
from tests.support.hostile import make_hostile_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(str(made_once(tmp_path_factory, "hostile", make_hostile_corpus) / "out"))


@pytest.fixture(scope="module")
def file(corpus: Corpus) -> Path:
    place = Path(corpus.url, "report/interactive.html")
    of_the_run = place.read_bytes()
    done = pipeline("report", corpus.url, "--interactive")
    assert done.returncode == 0, done
    assert place.read_bytes() == of_the_run
    return place


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">([^<]*)</script>', page)
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_page_is_closed_and_the_static_report_is_untouched(corpus: Corpus, file: Path) -> None:
    page = file.read_text("utf-8")
    assert page.count("<script") == 2 == page.count("</script>") and "<img" not in page and "onerror=w" in page
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    (allowed,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert allowed.replace("&#39;", "'") == policy(script, style) and "unsafe" not in allowed
    assert not re.search(r"innerHTML|insertAdjacent|document\.write|\beval\b|new Function|https?://", script)
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", page)
    assert [path.name for path in sorted(file.parent.iterdir())] == ["index.html", "interactive.html"]
    assert "<script" not in (file.parent / "index.html").read_text("utf-8")


def test_data_are_those_of_the_corpus(corpus: Corpus, file: Path) -> None:
    data = data_of(file.read_text("utf-8"))
    table = corpus.table("text", "lang", "source", "autobleu", "chars", "u", "decoded").sort_by("u").to_pylist()
    assert data["total"] == data["read"] == len(table) == len(data["text"])
    numbers = {one["name"]: one["values"] for one in data["numbers"]}
    for place, row in enumerate(table):
        assert data["lang"]["names"][data["lang"]["codes"][place]] == row["lang"]
        assert data["source"]["names"][data["source"]["codes"][place]] == row["source"]
        assert numbers["chars"][place] == row["chars"]
        shown = numbers["autobleu"][place]
        assert shown == (None if row["autobleu"] is None else pytest.approx(row["autobleu"], rel=1e-3))
        if row["text"].isalnum():
            assert data["text"][place] == row["text"]
        assert (data["causes"]["bits"][place] >> CAUSES.index("at most 25 characters") & 1) == (row["chars"] <= 25)
    assert any("window.hacked=1</script>" in one for one in data["text"])
    assert any("\\u202egnp.exe" in one for one in data["text"]) and data["map"]["rows"] == len(table)
    holds = {one["said"].split()[0]: one["holds"] for one in data["expected"]}
    assert holds == {"documents": True, "duplicate_sentences": False, "autobleu_mean_by_source": True}
    assert sum(row[1] for row in data["sources"]["rows"]) == len(table)
    assert data["sources"]["head"][:2] == ["tokens mean", "autobleu mean"]


def test_sentences_per_document(corpus: Corpus, file: Path) -> None:
    found = data_of(file.read_text("utf-8"))["documents"]
    counts = sorted(Counter(corpus.table("doc_id")["doc_id"].to_pylist()).values())
    assert found["whole"] and found["count"] == len(counts) and found["most"] == counts[-1]
    assert found["quartiles"] == np.quantile(counts, (0.25, 0.5, 0.75)).tolist()
    assert [sum(low <= one <= high for one in counts) for low, high, _ in found["bins"]] == [
        n for *_, n in found["bins"]
    ]
    assert sum(many for *_, many in found["bins"]) == len(counts) and found["bins"][0][0] <= counts[0]
    part = documents_data(corpus, 1)
    assert not part["whole"] and part["count"] < len(counts)


def test_samples_nest_and_fit_their_limit(corpus: Corpus, tmp_path: Path) -> None:
    whole = read_sample(corpus, 10**9)
    few = read_sample(corpus, 10**9, rows=60)
    assert 0 < few.rows < whole.rows == corpus.rows == whole.read
    assert few.table["text"].to_pylist() == whole.table["text"].to_pylist()[: few.rows]
    assert few.table["u"].to_pylist() == sorted(few.table["u"].to_pylist())
    place = write_explorer(corpus, str(tmp_path / "small.html"), 10**9, most_bytes=30_000)
    page = Path(place).read_text("utf-8")
    rows = len(data_of(page)["text"])
    assert len(page) < 80_000 and 10 < rows < whole.rows
    assert data_of(page)["text"] == whole.columns(rows)["text"]
    first = Path(write_explorer(corpus, str(tmp_path / "again.html"), 10**9, most_bytes=30_000)).read_bytes()
    assert first == page.encode()  # the same corpus gives the same bytes
    assert read_sample(corpus, 10**9, max_vectors=1).columns(whole.rows)["map"]["rows"] < whole.rows


def test_the_map_is_that_of_principal_components() -> None:
    draw = np.random.default_rng(0)
    flat = draw.normal(size=(200, 2)) * (10, 3)
    basis, _ = np.linalg.qr(draw.normal(size=(16, 2)))
    vectors = (flat @ basis.T + 5).astype(np.float32)
    vectors[7, 3] = np.nan
    found = placed(vectors)
    row, explained = found.place, found.explained
    assert row[7].tolist() == [-1, -1] and (np.delete(row, 7, 0) >= 0).all() and row.max() <= MAP
    assert sum(explained) == pytest.approx(1) and explained[0] == pytest.approx(100 / 109, abs=0.03)
    known = np.delete(np.arange(200), 7)
    distances = np.linalg.norm(flat[known[:50], None] - flat[known[None, 50:100]], axis=2)
    shown = np.linalg.norm(row[known[:50], None].astype(float) - row[known[None, 50:100]], axis=2)
    assert np.corrcoef(distances.ravel(), shown.ravel())[0, 1] > 0.999  # flat, so distances stay
    assert not found.pacmap and found.instead == "PaCMAP, which also keeps together what is near, needs 500."
    assert (placed(np.ones((9, 4), np.float32)).place == -1).all()  # all the same
    assert (placed(np.ones((LEAST_PACMAP, 4), np.float32)).place == -1).all()
    assert (placed(np.zeros((2, 4), np.float32)).place == -1).all()  # too few


def strands(rows: int = 600, dim: int = 24) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Embeddings in 30 groups that their first two principal components mix, and the group of each."""
    draw = np.random.default_rng(0)
    group = draw.integers(0, 30, rows)
    centres = draw.normal(size=(30, dim))
    return (centres[group] + draw.normal(size=(rows, dim)) * 0.4).astype(np.float32), group


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModuleNotFoundError("No module named 'pacmap'"), "it needs pip install 'sonar-pipeline[map]'."),
        (ImportError("Numba needs NumPy 2.3 or less.\nGot <b>2.9"), "NumPy 2.3 or less.\\nGot <b>2.9"),
        (RuntimeError("cannot cache function 'f': no locator available"), "cannot cache function 'f'"),
    ],
)
def test_without_pacmap_the_map_is_linear_and_says_so(
    monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def fails(_: object) -> None:
        raise error

    monkeypatch.setattr(maps, "by_pacmap", fails)
    vectors, _ = strands()
    found = placed(vectors)
    components, _ = principal_components(vectors)
    assert not found.pacmap and told in found.instead
    assert np.corrcoef(found.place[:, 0], components[:, 0])[0, 1] > 0.9999


@pytest.mark.slow  # Numba compiles for up to 20 s
def test_pacmap_keeps_neighbours_together_and_repeats_itself() -> None:
    pytest.importorskip("pacmap", reason="the extra [map] is not installed")
    vectors, group = strands()
    vectors[5] = np.nan
    found = placed(vectors)
    assert found.pacmap and not found.instead and found.place[5].tolist() == [-1, -1]
    assert found.place.max() <= MAP and (np.delete(found.place, 5, 0) >= 0).all()
    assert (placed(vectors).place == found.place).all()

    def kept(points: npt.NDArray[Any]) -> float:
        """Return the share of points whose nearest one is of the same group."""
        far = np.linalg.norm(points[:, None].astype(float) - points[None], axis=2)
        np.fill_diagonal(far, np.inf)
        return float((group[far.argmin(axis=1)] == group).mean())

    linear = principal_components(np.nan_to_num(vectors))[0][:, :2]
    assert kept(found.place) > 0.9 > kept(linear) + 0.3


def test_without_embeddings_or_sentences(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-eng", 1))
    path = write_config(tmp_path, encode=None, autobleu=None)
    assert pipeline("run", path).returncode == 0
    data = data_of(Path(write_explorer(Corpus(str(tmp_path / "out")), None, 10**9)).read_text("utf-8"))
    assert data["map"]["rows"] == 0 and "autobleu" not in {one["name"] for one in data["numbers"]}
    assert set(data["decoded"]) == {None}
    write_jsonl(tmp_path / "none/in/a.jsonl", [{"id": "1", "lang": "eng_Latn", "title": "t", "text": " "}])
    assert pipeline("run", write_config(tmp_path / "none")).returncode == 0
    with pytest.raises(CorpusError, match="has no sentence yet"):
        write_explorer(Corpus(str(tmp_path / "none/out")), None, 10**9)


def shown(page: Page) -> int:
    return int(re.sub(r"\D", "", page.js("document.getElementById('shown').textContent")))


def middle(page: Page, selector: str, index: int = 0) -> tuple[float, float, float, float]:
    page.js(
        f"document.querySelectorAll({selector!r})[{index}].scrollIntoView({{block: 'center', behavior: 'instant'}})"
    )
    page.settle()
    rectangle = f"document.querySelectorAll({selector!r})[{index}].getBoundingClientRect()"
    left, top, width, height = page.js(f"(r => [r.left, r.top, r.width, r.height])({rectangle})")
    return left, top, width, height


@pytest.mark.slow  # a browser starts
def test_in_a_browser(corpus: Corpus, file: Path) -> None:
    """From file://: nothing logged, asked for, or run of others; histograms, map, groups and search filter."""
    data = data_of(file.read_text("utf-8"))
    rows, scores = len(data["text"]), next(one["values"] for one in data["numbers"] if one["name"] == "autobleu")
    with chromium() as browser:
        for width, height, dark in ((1280, 900, False), (400, 800, True)):
            page = browser.page()
            page.look(width, height, dark=dark)
            page.open(file)
            assert shown(page) == rows and page.js("document.documentElement.scrollWidth <= innerWidth")
            body = page.js("getComputedStyle(document.body).backgroundColor")
            assert body == ("rgb(23, 23, 26)" if dark else "rgb(253, 253, 254)")
            left, top, wide, high = middle(page, "#numbers canvas")
            page.drag((left + 1, top + high / 2), (left + wide / 2, top + high / 2))
            limits = page.js("[...document.querySelectorAll('.limits')[0].children].map(one => one.value)")
            low, end, kept = *map(float, limits), shown(page)
            near = [sum(one is not None and low - 0.01 <= one <= to for one in scores) for to in (end - 0.1, end + 0.1)]
            assert near[0] <= kept <= near[1] and 0 < kept < rows
            page.js("document.getElementById('clear').click()")
            page.settle()
            assert shown(page) == rows
            german = data["lang"]["codes"].count(data["lang"]["names"].index("deu_Latn"))
            page.js("[...document.querySelectorAll('.pick')].find(one => one.title === 'deu_Latn').click()")
            page.settle()
            assert shown(page) == german
            page.js("document.querySelector('.chip').click()")
            page.settle()
            search = "(i => { i.value = 'window.hacked SCRIPT'; i.dispatchEvent(new Event('input')); })"
            page.js(f"{search}(document.getElementById('search'))")
            page.settle()
            found = [row for row in range(rows) if all(
                word in f"{data['text'][row]}\n{data['decoded'][row] or ''}\n{data['document'][row]}".lower()
                for word in ("window.hacked", "script")
            )]  # fmt: skip
            assert shown(page) == len(found) > 0
            listed = page.js("document.getElementById('rows').textContent")
            assert page.js("document.getElementById('name').textContent").startswith("</script><script>window")
            assert "<script>window.hacked=1</script>" in listed and "\\u202egnp.exe" in listed
            assert page.js("document.querySelectorAll('#rows mark').length") > 0
            page.js("document.getElementById('clear').click()")
            left, top, wide, high = middle(page, "#map")
            page.drag((left + 2, top + 2), (left + wide / 2, top + high - 2))
            assert 0 < shown(page) < rows
            page.mouse("mousePressed", left + wide / 2, top + 3)
            page.mouse("mouseReleased", left + wide / 2, top + 3)
            page.settle()
            assert shown(page) == rows
            assert page.js("document.querySelectorAll('script, img, svg, iframe').length") == 2
            assert page.js("typeof window.hacked") == "undefined"
            assert page.messages == [] and page.requests == [file.resolve().as_uri()]
            refused = "try { document.body.innerHTML = '<b>x</b>'; 'done' } catch (error) { error.name }"
            assert page.js(refused) == "TypeError"  # no text becomes markup


def test_scores_that_are_equal_everywhere_are_told(tmp_path: Path) -> None:
    """They have no histogram, and were left out without a word."""
    documents = [
        {"id": name, "lang": "eng_Latn", "title": "t", "text": text} for name, text in (("1", "A b."), ("2", "C d."))
    ]
    write_jsonl(tmp_path / "in/a.jsonl", documents)
    path = write_config(tmp_path, autobleu={"sample": 1.0, "length_extra": 1, "length_factor": 1.0}, report={})
    assert pipeline("run", path).returncode == 0
    out = tmp_path / "out"
    done = pipeline("report", out, "--interactive")
    assert done.returncode == 0 and "out/report/index.html is that of an earlier report" in done.stdout, done
    data = data_of((out / "report/interactive.html").read_text("utf-8"))
    assert "characters 4" in data["constants"] and "characters" not in {one["label"] for one in data["numbers"]}
    shown = {one["label"] for one in data["numbers"]} | {one.rpartition(" ")[0] for one in data["constants"]}
    assert "AutoBLEU" in shown, "whether it varies or not"
    done = pipeline("report", out)
    told = f"interactive.html is that of an earlier report: pipeline report {out} --interactive writes it again"
    assert done.returncode == 0 and told in done.stdout, done


@contextmanager
def explored(folder: Path, sections: dict[str, Any]) -> Iterator[Any]:
    """The interactive report, in a browser, of the corpus of what lies in a folder."""
    assert pipeline("run", write_config(folder, **sections)).returncode == 0
    file = folder / "page.html"
    write_explorer(Corpus(str(folder / "out")), str(file), 10**9)
    with chromium() as browser:
        page = browser.page()
        page.look(1280, 900)
        page.open(file)
        yield page


@pytest.mark.slow  # a browser starts
@pytest.mark.parametrize("sections", [{}, {"encode": None, "autobleu": None}])
def test_equal_sentences_in_a_browser(tmp_path: Path, sections: dict[str, Any]) -> None:
    """No column varies and there is one language: charts and their heading are left out, the sentences are shown."""
    write_jsonl(
        tmp_path / "in/a.jsonl", [{"id": "1", "lang": "eng_Latn", "title": "t", "text": "Thanks a lot.\n\n" * 9}]
    )
    with explored(tmp_path, sections) as page:
        assert page.messages == [] and shown(page) == 9
        assert page.js("document.querySelectorAll('#rows li').length") == 9
        assert page.js("document.getElementById('map-section').hidden")
        assert page.js("document.getElementById('columns-section').hidden")


@pytest.mark.slow  # a browser starts
def test_the_cell_of_the_longest_sentences_in_a_browser(tmp_path: Path) -> None:
    """It has no upper limit, and none that is infinite is shown."""
    text = "\n\n".join(["word " * count + "end." for count in (2, 7, 60, 70)])
    write_jsonl(tmp_path / "in/a.jsonl", [{"id": "1", "lang": "eng_Latn", "title": "t", "text": text}])
    sections: dict[str, Any] = {"segment": {"method": "spacy"}, "autobleu": {"sample": 1.0}}
    with explored(tmp_path, sections) as page:
        page.js("[...document.querySelectorAll('#heat button')].at(-1).click()")
        page.settle()
        assert shown(page) == 2 and page.js("document.querySelector('.chip').textContent") == "characters: 201 – 354 ×"
        assert page.messages == []
