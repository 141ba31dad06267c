"""Comparing ways of segmenting: which documents, which scores, what is printed and plotted, what is refused."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError, PipelineError
from pipeline.cli import app
from pipeline.config.load import load_config
from pipeline.quality.compare import CompareOptions, compare
from pipeline.quality.compare.sample import take_sample
from pipeline.quality.compare.scores import Cut, Scored
from stages.segment.segmenter import Segmented
from tests.conftest import MakeConfig, write_jsonl

EVERYTHING = 10_000_000  # characters
BOTH = "spacy,spacy-capped"


def compared(config: Path, methods: str, plot: Path, *, characters: int = EVERYTHING, width: int = 80) -> str:
    """What the command prints."""
    printed = io.StringIO()
    options = CompareOptions(methods, characters, str(plot))
    compare(Console(file=printed, width=width), load_config(config), options, lambda: "cpu")
    return printed.getvalue()


def figures(printed: str) -> dict[str, list[float]]:
    """label → its numbers, of all tables; NaN where there is none."""
    rows = {}
    for line in printed.splitlines():
        label, *cells = re.split(r" {2,}", line.strip())
        numbers = [cell.removesuffix("%").replace(" ", "").replace("–", "nan") for cell in cells]
        with suppress(ValueError):
            rows[label] = [float(one) for one in numbers]
    return rows


def test_all_methods_in_80_columns_and_a_plot(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(name="a $corpus_1$ & <more>")
    plot = tmp_path / "made/here/plot.svg"
    printed = compared(config, "spacy,spacy-capped,sat,sat-capped", plot, characters=3000)
    assert max(len(line) for line in printed.splitlines() if not line.startswith(str(plot))) <= 80
    rows = figures(printed)
    sentences = rows["sentences"]
    assert len(sentences) == 4 and sentences[0] < sentences[1] and sentences[2] < sentences[3]
    over = rows["over 80 characters"]
    assert over[0] > 0 and over[2] > 0 and over[1] == over[3] == 0
    assert rows["longest"][1] <= 80 and rows["longest"][3] <= 80
    assert rows["broken by the cap"][0] == rows["broken by the cap"][2] == 0 < rows["broken by the cap"][1]
    by_length = [row for label, row in rows.items() if re.fullmatch(r"\d+(–\d+|\+)", label)]
    assert [sum(row[2 * method + 1] for row in by_length) for method in range(4)] == sentences
    assert all(0 <= row[2 * method] <= 100 or not row[2 * method + 1] for row in by_length for method in range(4))
    texts = [one.text or "" for one in ElementTree.parse(plot).iter() if one.tag.endswith("}text")]
    assert "AutoBLEU by sentence length: a $corpus_1$ & <more>" in texts
    for method, count in zip(("spacy", "spacy-capped", "sat", "sat-capped"), sentences, strict=True):
        assert f"{method} ({count:.0f} sentences)" in texts
    words = set(re.findall(r"[^\W\d_]{4,}", " ".join(texts)))
    assert words <= {
        *("AutoBLEU", "sentence", "length", "corpus", "more", "documents", "characters", "sonar", "space", "tiny"),
        *("greedy", "bands", "standard", "errors", "hollow", "fewer", "than", "sentences", "uncapped", "capped"),
        *("average", "spacy", "over"),
    }


def test_scores_are_those_of_a_run(make_config: MakeConfig, tmp_path: Path) -> None:
    settings = {"length_extra": 1, "length_factor": 1.0}
    sections = {
        "input": [{"path": "in/libreoffice-deu.jsonl", "id": "id", "lang": "deu_Latn"}],
        "segment": {"method": "spacy-capped", "max_chars": 80},
    }
    assert CliRunner().invoke(app, ["run", str(make_config(**sections, autobleu=settings))]).exit_code == 0
    table = pa.concat_tables(list(Corpus(str(tmp_path / "out")).scan("autobleu", "chars")))
    scores, chars = table["autobleu"].to_numpy(), table["chars"].to_numpy()
    config = make_config(**sections, autobleu=settings | {"sample": 0.1})  # which is not heeded
    rows = figures(compared(config, BOTH, tmp_path / "plot.png"))
    assert rows["sentences"][1] == len(scores) > 50
    assert rows["AutoBLEU, mean of sentences"][1] == pytest.approx(scores.mean(), abs=0.06)
    assert rows["weighted by characters"][1] == pytest.approx((scores * chars).sum() / chars.sum(), abs=0.06)
    inside = (chars > 20) & (chars <= 40)
    assert rows["21–40"][2:] == [pytest.approx(scores[inside].mean(), abs=0.06), inside.sum()]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_stages_that_are_not_in_the_file_have_their_defaults(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config(encode=None, autobleu=None, segment={"method": "spacy"})
    printed = compared(config, "spacy", tmp_path / "plot.pdf", characters=1500)
    assert "AutoBLEU by sonar-tiny, greedy" in printed
    assert (tmp_path / "plot.pdf").read_bytes().startswith(b"%PDF")


def test_sentences_that_the_encoder_truncates_are_counted(make_config: MakeConfig, tmp_path: Path) -> None:
    text = "nothing ends here " * 400
    write_jsonl(tmp_path / "in/long.jsonl", [{"id": "1", "text": text, "lang": "eng_Latn", "title": ""}])
    rows = figures(compared(make_config(), BOTH, tmp_path / "plot.svg"))
    assert rows["truncated by the encoder"] == [1, 0]
    assert rows["sentences"][0] == 1 and rows["longest"][1] <= 80


def test_the_sample_is_seeded_and_takes_a_share_of_every_chunk(make_config: MakeConfig, tmp_path: Path) -> None:
    config = load_config(make_config())
    whole = take_sample(config, EVERYTHING)
    assert len(whole.texts) == 14 and whole.characters == sum(map(len, whole.texts))
    some = take_sample(config, 3000)
    assert 2900 <= some.characters <= 3000
    assert {*some.langs} == {"eng_Latn", "deu_Latn"}
    for text in some.texts:
        begun = [one for one in whole.texts if one.startswith(text)]
        assert begun and (begun[0] == text or begun[0][len(text)].isspace())
    assert take_sample(config, 3000) == some
    assert take_sample(load_config(make_config(seed=1)), 3000).texts != some.texts


def test_no_more_than_the_beginnings_of_some_chunks_is_read(make_config: MakeConfig, tmp_path: Path) -> None:
    for number in range(50):
        documents = [{"id": "1", "text": f"{number} {'words ' * 300}", "lang": "eng_Latn"}]
        write_jsonl(tmp_path / f"in/{number}.jsonl", documents)
    sample = take_sample(load_config(make_config()), 5000)
    assert len({text.split()[0] for text in sample.texts}) == 32
    assert 4800 <= sample.characters <= 5000


def test_records_that_cannot_be_used_are_counted(make_config: MakeConfig, tmp_path: Path) -> None:
    documents = [{"id": "1", "text": "Good.", "lang": "eng_Latn"}, {"id": "2", "text": "Hola.", "lang": "xyz_Latn"}]
    file = write_jsonl(tmp_path / "in/some.jsonl", [*documents, {"id": "3", "text": " \n ", "lang": "eng_Latn"}])
    config = load_config(make_config())
    sample = take_sample(config, EVERYTHING)
    assert sample.texts == ["Good."] and sample.skipped == {"unknown language": 1, "no text": 1}
    write_jsonl(file, documents[1:])
    with pytest.raises(
        CorpusError, match=r"none of the sampled documents can be used.*unknown language 1.*xyz_Latn.*pipeline doctor"
    ):
        take_sample(load_config(make_config()), EVERYTHING)
    file.write_text("")
    with pytest.raises(CorpusError, match="the inputs hold no documents"):
        take_sample(load_config(make_config()), EVERYTHING)


@pytest.mark.parametrize(
    ("sections", "methods", "plot", "error", "words"),
    [
        ({}, "spacy,satt", "a.svg", ConfigError, r"satt cannot be compared; allowed: spacy, spacy-capped, sat, sat-"),
        ({}, "paragraphs", "a.svg", ConfigError, r"paragraphs has the sentences of sat-capped"),
        ({}, ",", "a.svg", ConfigError, r"no method is named"),
        ({}, "spacy", "a.jpeg", ConfigError, r"allowed: \.svg, \.png, \.pdf"),
        ({}, "spacy", "in", ConfigError, r"allowed: \.svg"),
        ({}, "spacy", "in/libreoffice-eng.jsonl/a.svg", PipelineError, r"a\.svg cannot be written"),
        ({"segment": {"sat": "nope"}}, "sat", "a.svg", ConfigError, r"'nope'.*--methods spacy,spacy-capped"),
        ({"input": [{"path": "in/*", "lang": "xyz_Latn"}]}, "spacy", "a.svg", ConfigError, r"xyz_Latn.*does not know"),
    ],
)
def test_what_cannot_be_is_said_before_anything_long_begins(
    make_config: MakeConfig,
    tmp_path: Path,
    sections: dict[str, object],
    methods: str,
    plot: str,
    error: type[Exception],
    words: str,
) -> None:
    def no_device() -> str:
        raise AssertionError("too late")

    config = load_config(make_config(**sections))
    with pytest.raises(error, match=words):
        compare(Console(file=io.StringIO()), config, CompareOptions(methods, 1000, str(tmp_path / plot)), no_device)
    assert not (tmp_path / plot).is_file()


def test_an_older_plot_stays_until_the_new_one_is_whole(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "plot.svg").write_text("older")
    config = load_config(make_config())
    with pytest.raises(KeyboardInterrupt):
        compare(
            Console(file=io.StringIO()), config, CompareOptions("spacy", 1000, str(tmp_path / "plot.svg")), _interrupt
        )
    assert (tmp_path / "plot.svg").read_text() == "older"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def _interrupt() -> str:
    raise KeyboardInterrupt


def test_means_by_length_and_by_characters() -> None:
    chars = np.array([1, 20, 21, 300, 301, 5000], np.int32)
    zeros, places = np.zeros(6, np.int32), np.zeros(6, np.int64)
    documents = np.array([0, 1, 1, 1, 1, 1], np.int32)
    segmented = Segmented(documents, zeros, places, places, pa.array([""] * 6), chars, zeros, 0, 0, 0)
    scored = Scored(Cut("spacy", segmented, 1.0), np.array([10, 30, 50, np.nan, 2, 4], np.float32), 0, 1.0)
    lengths = scored.by_length(200)
    assert [(one.first, one.last) for one in lengths[:2]] == [(1, 20), (21, 40)]
    assert [(one.first, one.last) for one in lengths[-2:]] == [(281, 300), (301, None)]
    assert [one.sentences for one in lengths] == [2, 1, *[0] * 13, 2]
    assert lengths[0].mean == 20 and lengths[0].error == pytest.approx(10) and lengths[-1].mean == 3
    assert math.isnan(lengths[1].error) and math.isnan(lengths[-2].mean)
    assert math.isnan(lengths[-1].error)  # of one document
    assert scored.unscored == 1 and scored.mean() == pytest.approx(96 / 5)
    weighted = (10 * 1 + 30 * 20 + 50 * 21 + 2 * 301 + 4 * 5000) / (1 + 20 + 21 + 301 + 5000)
    assert scored.mean(by_characters=True) == pytest.approx(weighted)
    assert [one.last for one in scored.by_length(400)][:2] == [40, 80]


def test_the_command_explains_itself_without_loading_a_plotting_library() -> None:
    script = (
        "import sys; from typer.testing import CliRunner; from pipeline.cli import app; "
        "print(CliRunner().invoke(app, ['compare-segmenters', '--help']).output); "
        "assert not {'matplotlib', 'torch', 'spacy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "pipeline compare-segmenters corpus.yaml" in done.stdout, done
