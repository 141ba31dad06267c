"""How many sentences fits learn from at any size of a corpus, and a rate of fragility that only the pilot has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.base.errors import ConfigError
from pipeline.base.formats import number
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fits import fit_recipe
from pipeline.corpus.reader import Corpus
from pipeline.inputs import Chunk
from pipeline.planning.pilot_size import check_learnable, check_scored, doubts, drawn, scored_rows
from pipeline.planning.simulation import PAPER
from tests.conftest import MakeConfig, data_digests, sample_documents, write_jsonl
from tests.support.runs import run

SCORES = {"fragility": {"noise_levels": [0.5], "length_extra": 1, "length_factor": 1.0}, "predictor": {"epochs": 2}}


def config_of(make_config: MakeConfig, **sections: object) -> RunConfig:
    return load_config(make_config(**{"scaler": {}, "fragility": {}, "predictor": {}, "autobleu": None} | sections))


def chunks_of(sentences: float) -> list[Chunk]:
    each = int(sentences / 100)
    return [
        Chunk(
            str(number), "a", f"{number}.jsonl", f"/{number}.jsonl", "jsonl", None, 0, each * 90, each * 90, None, "s"
        )
        for number in range(100)
    ]


def test_at_the_papers_size_the_predictor_gets_323_rows_and_half_a_million_if_asked(make_config: MakeConfig) -> None:
    config = config_of(make_config)
    assert round(scored_rows(config, PAPER.sentences)) == 323
    with pytest.raises(ConfigError, match=r"of the pilot's .* sentences about 323 .* set fit\.scored_rows"):
        check_scored(config, chunks_of(PAPER.sentences))
    more = config_of(make_config, fit={"scored_rows": 500_000})
    assert scored_rows(more, PAPER.sentences) == 500_000
    check_scored(more, chunks_of(PAPER.sentences))
    check_scored(config, chunks_of(2e6))  # of which fragility scores all


def test_codebooks_that_ask_for_more_than_the_pilot_holds_are_told_of(make_config: MakeConfig) -> None:
    config = config_of(make_config, rvq={})
    (told,) = doubts(config, PAPER.sentences)
    assert f"rvq asks for {number(15e6)} sentences, and the pilot holds {number(2e6)}: raise fit.rows" in told
    assert not list(doubts(config, 1e6)), "the corpus has no more"
    few = config_of(make_config, rvq={}, fit={"rows": 1000})
    assert f"{number(39 * 8192)} are the least for 8192 units" in next(doubts(few, 1e6))


def test_few_scored_sentences_and_samples_that_draw_none_are_told_of(make_config: MakeConfig) -> None:
    config = config_of(make_config, fragility={"sample": 0.01})
    (told,) = doubts(config, 9000)
    assert "the predictor would learn from about 90 sentences that fragility has scored, of about 9 000" in told
    assert "raise fragility.sample to 0.02 or more" in told
    assert not list(doubts(config, 90_000)) and not list(drawn(config, ["fragility"], 9000))
    assert "fragility.sample 0.01 draws hardly any of about 200 sentences" in next(drawn(config, ["fragility"], 200))
    assert not list(drawn(config, ["encode"], 200)), "only of what is to do"
    for share, sentences in ((1.0, 1), (1.0, 2), (0.9, 3)):
        assert not list(drawn(config_of(make_config, fragility={"sample": share}), ["fragility"], sentences))
    assert not list(drawn(config, ["encode"], 1)), "it has no sample"
    half = config_of(make_config, fragility={"sample": 0.5})
    assert "fragility.sample 0.5 draws perhaps none of about 3 sentences" in next(drawn(half, ["fragility"], 3))
    check_learnable(config, 9000, "")
    with pytest.raises(
        ConfigError, match=r"the corpus has 3 sentences, of which fragility would score hardly one: leave out pred"
    ):
        check_learnable(config, 3, "the corpus has 3 sentences")


def test_small_corpora_are_not_refused(make_config: MakeConfig) -> None:
    check_scored(config_of(make_config, fragility={"sample": 0.01}), chunks_of(10_000))


def predictor_of(output: Path) -> dict[str, object]:
    (record,) = output.glob("fits/predictor.*.json")
    found: dict[str, object] = json.loads(record.read_bytes().partition(b"\n#")[0])
    return found


@pytest.mark.slow
def test_the_pilot_is_scored_at_a_rate_of_its_own_and_the_corpus_is_not(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-eng", 8))
    sections = {"scaler": {}, "autobleu": None, **SCORES}
    sections["fragility"] = {**SCORES["fragility"], "sample": 0.4}
    path = make_config(**sections, fit={"rows": 10_000})
    run(path, f"output={tmp_path / 'as-before'}")
    run(path, "fit.scored_rows=9000")
    before, more = predictor_of(tmp_path / "as-before"), predictor_of(tmp_path / "out")
    assert 1.8 < float(str(more["rows"])) / float(str(before["rows"])) < 2.8  # 0.9 instead of 0.4 of all rows
    found, other = data_digests(tmp_path / "out"), data_digests(tmp_path / "as-before")
    families = {name.partition("/")[0] for name, digest in other.items() if found[name] != digest}
    assert families == {"fragility-predicted"}, "the corpus itself is scored at fragility.sample"
    scored = Corpus(str(tmp_path / "out")).table("u", "fragility_cosine").to_pandas()
    assert (scored["fragility_cosine"].notna() == (scored["u"] < 0.4)).mean() > 0.99
    assert "Nothing to do" in run(path, "fit.scored_rows=9000")


def test_fits_of_corpora_that_do_not_ask_for_more_keep_their_recipes(make_config: MakeConfig) -> None:
    """A record names what a fit depends on; another recipe would fit existing corpora again."""
    config = config_of(make_config, fragility={"sample": 0.4})
    scaler = fit_recipe(config, "scaler")
    assert scaler and scaler["pilot"] == {"rows": 2_000_000, "seed": 0}
    same = config_of(make_config, fragility={"sample": 0.4}, fit={"scored_rows": 1000})
    assert fit_recipe(same, "scaler") == scaler
