"""`plan --simulate`: its arithmetic against figures worked out by hand, those of the LCM paper, and a real corpus."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError
from pipeline.config.load import load_config
from pipeline.planning.plan import make_plan
from pipeline.planning.simulation import Simulation, simulate
from pipeline.planning.simulation_tables import gpus_of, show_simulation, span
from pipeline.planning.tables import large
from tests.conftest import MakeConfig
from tests.support.cli import pipeline
from tests.support.runs import FITS, run

SONAR = (
    "encode.model=sonar",
    "rvq.codebooks=64",
    "rvq.units=8192",
    "autobleu.sample=0.01",
    "launcher.chunks_per_claim=50",
)


def of(path: Path | str, *overrides: str, documents: float | None = None) -> Simulation:
    return simulate(make_plan(load_config(path, overrides)), documents)


def shown(found: Simulation, width: int, gpus: tuple[int, ...] = (8, 64, 1000)) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    show_simulation(console, found, gpus)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_size_of_the_paper(tmp_path: Path) -> None:
    """The sample that ships, nothing of it run yet, by the published model."""
    found = of("sample-full", *SONAR, f"output={tmp_path}")
    assert (found.size.documents, found.size.sentences) == (4e9, 310e9)
    stored = {one.family: one for one in found.storage}
    assert stored["embeddings"].total == pytest.approx(310e9 * 2048 * 0.85) == pytest.approx(539.6e12, rel=1e-3)
    assert stored["codes"].each == pytest.approx(104)  # 64 codes of 13 bits
    assert stored["sentences"].each == 88 + 7 * 4 + 8
    assert stored["fragility"].total == 3000 * (2 + 2 * 9) * 4
    assert stored["autobleu"].rows == pytest.approx(3.1e9)
    # 27.28 TB in chunks of 64 MiB hold 762 601 sentences each: seven parts of 100 000, and what is left
    assert found.chunks == math.ceil(27.28e12 / 2**26) == 406_504
    assert found.parts == 8 * 406_504
    assert found.files == found.parts * 8 and found.receipts == found.parts * 6 + found.chunks
    assert found.ledgers == 25  # of 16 384 chunks
    assert found.claims(1) == 8135 and found.claims(1000) == 15_127  # towards the end they are of fewer chunks
    assert found.lists == math.ceil(found.receipts / 1000)
    encode = next(one for one in found.stages if one.stage == "encode")
    assert encode.hours == pytest.approx((310e9 / 400 / 3600, 310e9 / 300 / 3600))  # 215 to 287 thousand GPU-hours
    assert found.unknown == ("segment", "autobleu", "fragility", "predictor", "rvq")
    assert found.device_hours() == encode.hours
    assert (found.tasks(1000), found.starts(48.5)) == (1000, 3)
    larger = found.with_larger_parts()  # chunks of 1 GiB hold 12.2 million sentences each
    assert larger and larger.chunks == math.ceil(27.28e12 / 2**30) == 25_407 and larger.parts == 13 * 25_407
    assert larger.config.launcher.chunks_per_claim == 3 and larger.bytes == found.bytes
    assert larger.with_larger_parts() is None
    assert of("sample-full", f"output={tmp_path}", documents=1e6).with_larger_parts() is None


def test_everything_grows_with_the_documents(make_config: MakeConfig) -> None:
    path = make_config(**FITS | {"autobleu": {"sample": 0.2}, "fragility": {"sample": {"rows": 7000}}})
    one, ten = of(path, documents=1e8), of(path, documents=1e9)
    assert one.size.sentences == 77.5e8
    assert ten.parts == pytest.approx(10 * one.parts, rel=1e-3) and ten.bytes == pytest.approx(10 * one.bytes, rel=1e-3)
    assert ten.device_hours() == pytest.approx([10 * hours for hours in one.device_hours()])
    for small, large_ in zip(one.stages, ten.stages, strict=True):
        assert large_.rows == (7000 if small.stage == "fragility" else pytest.approx(10 * small.rows)), small.stage
    for documents in (0.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="--documents"):
            of(path, documents=documents)


def test_a_finished_corpus_is_measured(make_config: MakeConfig, tmp_path: Path) -> None:
    score = {"sample": 0.5, "length_extra": 1, "length_factor": 1.0}
    run(path := make_config(**FITS | {"autobleu": score}))
    corpus = Corpus(str(tmp_path / "out"))
    found = of(path, documents=28e6)  # two million times the fourteen of this corpus
    assert found.size.sentences == pytest.approx(2e6 * corpus.rows)
    receipts = [corpus.state_of(part).receipts for part in corpus.parts]
    scored = sum(one["autobleu"].counts["scored"] for one in receipts)
    work = {one.stage: one for one in found.stages}
    for stage, rows in (("encode", corpus.rows), ("autobleu", scored)):
        seconds = sum(value for one in receipts for key, value in one[stage].seconds.items() if key != "wait")
        assert work[stage].rates == pytest.approx((rows / seconds, rows / seconds))
        assert work[stage].parts == len(corpus.parts) and work[stage].origin.startswith("cpu")
    assert work["autobleu"].rows == pytest.approx(corpus.rows * 2e6 * 0.5)
    written = sum(path.stat().st_size for path in (tmp_path / "out/embeddings").rglob("*.parquet"))
    stored = {one.family: one.total for one in found.storage}
    assert stored["embeddings"] == pytest.approx(2e6 * written)
    assert not found.unknown and work["segment"].beside
    # the fragility that nobody measured costs nine decodings
    more = of(path, "fragility={sample: {rows: 1000}}", documents=28e6)
    priced = next(one for one in more.stages if one.stage == "fragility")
    assert priced.rates == pytest.approx([rate / 9 for rate in work["autobleu"].rates or ()])
    # other settings were not measured
    other = of(path, "encode.precision=bfloat16", documents=28e6)
    assert next(one for one in other.stages if one.stage == "encode").rates == (300, 400)
    text = "\n".join(shown(found, 160))
    assert "measured here" in text and "no rate" not in text and "documents as in this corpus" in text


@pytest.mark.parametrize("width", [80, 160])
def test_what_is_shown_fits_the_terminal(tmp_path: Path, width: int) -> None:
    lines = shown(of("sample-full", *SONAR, f"output={tmp_path}"), width)
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for words in (
        "310 billion",
        "215 278 – 287 037",
        "539.6 TB",
        "3.25 million",
        "no rate: run some",
        "17 h",
        "0.77%",
        "part_sentences: 1000000, chunk_bytes: 1073741824 and launcher.chunks_per_claim: 3",
        "330 291 parts",
        "$13 500 a month",
    ):
        assert words in text, words


def test_the_command(make_config: MakeConfig) -> None:
    path = make_config()
    done = pipeline("plan", path, "--simulate", "--documents", "1e9", "--gpus", "16")
    assert done.returncode == 0 and "with 1 billion documents, 77.5 billion sentences" in done.stdout, done
    alone = pipeline("plan", path, "--gpus", "16")
    assert alone.returncode == 2 and "--gpus 16 belongs to --simulate" in alone.stderr
    wrong = pipeline("plan", path, "--simulate", "--gpus", "8,many")
    assert wrong.returncode == 2 and "for instance --gpus 8,64,1000" in wrong.stderr


def test_the_last_task_ends_later_if_nodes_differ(tmp_path: Path) -> None:
    found = of("sample-full", *SONAR, f"output={tmp_path}")
    even = 287.0
    assert even * 0.98 < found.makespan(1000, even) < even * 1.03, "small shards at the end keep all of them busy"
    small = of("sample-full", *SONAR, f"output={tmp_path}", documents=9.8e6)
    assert 990 < small.chunks <= 1000 and small.makespan(1000, 1.0) > 1.3, "a chunk each: the slowest node ends last"


def test_figures_in_words() -> None:
    assert [large(one) for one in (310e9, 3_252_032, 12_345, 1e12)] == [
        "310 billion",
        "3.25 million",
        "12 345",
        "1 trillion",
    ]
    assert [span(one) for one in (0.5, 31, 24 * 12, 24 * 365.25 * 12)] == ["30 min 00 s", "31 h", "12 days", "12 years"]
    assert gpus_of("8, 64") == (8, 64)


def test_a_task_starts_again_at_its_time_limit_if_it_has_one(tmp_path: Path) -> None:
    for time, starts in {"90": 24, "24:00:00": 2, "1-12": 1, "30:00": 72, "infinite": 1}.items():
        assert of("sample", f"launcher.time='{time}'", f"output={tmp_path}").starts(36) == starts
