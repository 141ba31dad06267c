"""Pilot, fits and the main pass over a small real corpus: frozen, exact, the same after a kill, again when asked."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from launchers.dispatch import train
from launchers.launch import launch
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.console.progress import FitProgress
from pipeline.corpus.fits import FitRecord, fitted_scaler, read_record
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from pipeline.maintenance.verify import check
from pipeline.planning.checks import load_checked
from pipeline.planning.plan import make_plan
from pipeline.quality.drift import drift, fit_summary, records_of
from pipeline.run.fitting import fit
from pipeline.run.options import RunOptions
from pipeline.run.pilot import pilot_of
from pipeline.run.run import Backend
from pipeline.run.run import run as run_corpus
from pipeline.run.steps import next_step
from pipeline.storage.store import Store
from stages.arrow import embedding_matrix
from stages.scaler.robust import RobustScaler, ScalerFit
from tests.conftest import MakeConfig, data_digests, sample_documents, write_jsonl
from tests.support.cli import pipeline
from tests.support.runs import FITS, run

quiet = FitProgress(Console(quiet=True), "scaler", "sentence")


def record(config: RunConfig, name: str) -> FitRecord:
    fits = make_plan(config).config.frozen.fits
    return read_record(Store(config.output), fits[name].record)


def test_the_fits_of_a_trial_are_not_those_of_the_corpus(make_config: MakeConfig, tmp_path: Path) -> None:
    config = load_config(path := make_config(scaler={}, autobleu=None))
    assert "scaler: fitted on" in run(path, "input.0.limit=2")
    assert "scaler: fitted on" in run(path) and run(path).startswith("Nothing to do.")
    run(path, f"output={tmp_path / 'fresh'}")
    fresh = load_config(path, [f"output={tmp_path / 'fresh'}"])
    assert record(config, "scaler").content == record(fresh, "scaler").content


def test_what_came_in_place_of_the_pilot_is_later_data(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(scaler={}, autobleu=None)
    run(path)
    corpus = Corpus(str(tmp_path / "out"))
    assert not drift(corpus, records_of(corpus))
    for name in ("libreoffice-eng", "postgresql-eng"):
        write_jsonl(tmp_path / f"in/{name}.jsonl", sample_documents("libreoffice-deu", 6))
    run(path)
    corpus = Corpus(str(tmp_path / "out"))
    shift, _ = drift(corpus, records_of(corpus))
    assert shift.drifted and shift.now > 0.1


def test_new_documents_in_a_chunk_of_the_pilot_are_judged_and_those_it_held_are_not(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = make_config(scaler={}, autobleu=None)
    run(path)
    with (tmp_path / "in/postgresql-eng.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(sample_documents("libreoffice-deu", 20)[-1] | {"id": "new 0"}) + "\n")
    run(path)
    corpus = Corpus(str(tmp_path / "out"))
    shift, spread = drift(corpus, records_of(corpus))
    rows = corpus.to_arrow("embedding", "doc_id", where="doc_id == 'new 0'")
    scaler = fitted_scaler(corpus.store, corpus.view)
    assert scaler and rows.num_rows
    of_new = ScalerFit(len(scaler.median))
    of_new.add(embedding_matrix(rows["embedding"]))
    expected = ((of_new.finish().median - scaler.median) / scaler.iqr).abs().mean()
    assert shift.now == pytest.approx(float(expected)) and shift.drifted
    assert spread.now == pytest.approx(float(np.median(of_new.finish().iqr / scaler.iqr)))
    (tmp_path / "ids.txt").write_text("new 0\n")
    assert pipeline("purge", tmp_path / "out", "--ids", tmp_path / "ids.txt").returncode == 0
    run(path)
    corpus = Corpus(str(tmp_path / "out"))  # what the chunk held is deleted, and nothing in it is new
    assert not drift(corpus, records_of(corpus))
    assert [fit_summary(corpus, one).changed for one in records_of(corpus)] == [1]


def test_fits_see_the_pilot_and_every_row_gets_its_codes(make_config: MakeConfig) -> None:
    from sklearn import preprocessing

    config = load_config(path := make_config(**FITS))
    shown = run(path)
    assert "pilot: all 3 chunks" in shown and "scaler: fitted on" in shown and "rvq: fitted on" in shown
    corpus = Corpus(config.output)
    scaler, rvq = record(config, "scaler"), record(config, "rvq")
    first = make_plan(config).chunks[0]
    assert scaler.chunks == rvq.chunks == [first.chunk.id]
    pilot = np.concatenate([corpus.embeddings(part.ref.part) for part in first.parts])
    assert scaler.rows == len(pilot) < corpus.rows
    assert rvq.rows + rvq.numbers["held_out_rows"] == len(pilot)
    reference = preprocessing.RobustScaler(quantile_range=(25, 75)).fit(pilot.astype(np.float64))
    fitted = RobustScaler.from_bytes(Path(config.output, scaler.path).read_bytes())
    np.testing.assert_allclose(fitted.median, reference.center_, rtol=1e-6)
    np.testing.assert_allclose(fitted.iqr, reference.scale_, rtol=1e-6)
    codes = corpus.table("codes")["codes"]
    assert len(codes) == corpus.rows and codes.type.list_size == 3 and codes.null_count == 0
    assert run(path).startswith("Nothing to do.")


def test_data_that_comes_later_changes_nothing_until_refit(make_config: MakeConfig, tmp_path: Path) -> None:
    config = load_config(path := make_config(**FITS))
    run(path)
    before, old = data_digests(config.output), record(config, "rvq")
    write_jsonl(tmp_path / "in/libreoffice-fra.jsonl", sample_documents("libreoffice-fra", 3))
    run(path)
    after = data_digests(config.output)
    assert before.items() < after.items() and record(config, "rvq") == old
    run(path, options=RunOptions(refit=("rvq",)))
    new = record(config, "rvq")
    assert new.generation == 1 and new.fingerprint == old.fingerprint
    changed = {key for key, digest in data_digests(config.output).items() if digest != after[key]}
    assert new.chunks != old.chunks, "the new file should be the pilot now: choose another seed"
    assert changed == {key for key in after if key.startswith("codes/")}


def test_the_same_fits_whatever_was_done_before(make_config: MakeConfig, tmp_path: Path) -> None:
    """Segmenting and encoding beforehand, another output, another order of phases: the same bytes."""
    path = make_config(**FITS)
    run(path, f"output={tmp_path / 'whole'}")
    run(path, options=RunOptions(until="encode"))
    assert not list((tmp_path / "out/fits").glob("*"))
    run(path)
    assert data_digests(tmp_path / "out") == data_digests(tmp_path / "whole")

    def artifacts(output: Path) -> set[str]:
        return {json.loads(one.read_text())["digest"] for one in output.glob("fits/*.json")}

    assert artifacts(tmp_path / "out") == artifacts(tmp_path / "whole") and len(artifacts(tmp_path / "out")) == 2


def test_settings_of_a_fit_make_a_new_one_and_the_old_stays(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**FITS)
    run(path)
    plan = make_plan(load_config(path, ["rvq.units=16"]))
    assert plan.missing_fits == ("rvq",) and plan.waiting == ("rvq",) and not plan.launches
    assert make_plan(load_config(path, ["fit.rows=101"])).missing_fits == ("scaler", "rvq")
    run(path, "rvq.units=16")
    assert len(list((tmp_path / "out/fits").glob("rvq.*.json"))) == 2
    assert run(path).startswith("Nothing to do.")


def test_a_number_of_rows_becomes_a_rate_once(make_config: MakeConfig, tmp_path: Path) -> None:
    config = load_config(path := make_config(autobleu={"sample": {"rows": 60}, "length_extra": 1}, fit={"rows": 100}))
    run(path)
    corpus = Corpus(config.output)
    rate = json.loads((tmp_path / "out/fits/rates/autobleu-60.json").read_text())
    table = corpus.table("u", "autobleu")
    scored = np.flatnonzero(table["autobleu"].is_valid())
    assert np.array_equal(scored, np.flatnonzero(table["u"].to_numpy() < rate["rate"]))
    assert 0.5 * corpus.rows < rate["estimated"] < 2 * corpus.rows and 0 < len(scored) < corpus.rows
    write_jsonl(tmp_path / "in/libreoffice-fra.jsonl", sample_documents("libreoffice-fra", 3))
    run(path)
    assert json.loads((tmp_path / "out/fits/rates/autobleu-60.json").read_text()) == rate


def test_what_cannot_be_fitted_is_said(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**FITS)
    with pytest.raises(CorpusError, match=r"rvq cannot be fitted on the pilot .* 5000 units"):
        run(path, "rvq.units=5000")
    with pytest.raises(CorpusError, match="rvq: earlier stages are not done on the pilot; run without --only"):
        run(path, f"output={tmp_path / 'other'}", options=RunOptions(only="rvq"))
    with pytest.raises(ConfigError, match="--refit encode: this run does not fit that; it fits scaler, rvq"):
        run(path, options=RunOptions(refit=("encode",)))
    with pytest.raises(ConfigError, match="fragility needs what scaler makes: add a section `scaler"):
        load_config(make_config(fragility={}))


def test_fits_that_wait_for_failed_parts_do_not_blame_options(make_config: MakeConfig) -> None:
    config = load_config(make_config(**FITS))
    plan = make_plan(config)
    pilot = next_step(plan, "")
    assert pilot.kind == "pilot"
    with pytest.raises(
        CorpusError, match=r"^scaler, rvq: .* is done, and 3 of .* failed or were set aside. pipeline logs"
    ):
        next_step(plan, pilot.todo)  # what was launched is as undone as before


def test_a_damaged_artifact_is_not_used(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**FITS)
    run(path)
    (artifact,) = (tmp_path / "out/fits").glob("rvq.*.safetensors")
    data = bytearray(artifact.read_bytes())
    data[-1] ^= 1
    artifact.write_bytes(data)
    write_jsonl(tmp_path / "in/libreoffice-fra.jsonl", sample_documents("libreoffice-fra", 3))
    with pytest.raises(CorpusError, match="the run failed"):
        run(path)
    assert [one for one in (tmp_path / "out/runs").glob("*/events/*.jsonl") if "was changed or" in one.read_text()]
    for receipt in (tmp_path / "out/fits").glob("rvq.*.json"):
        receipt.unlink()
    with pytest.raises(CorpusError, match="--refit rvq"):
        run(path)
    run(path, options=RunOptions(refit=("rvq",)))
    assert len(list((tmp_path / "out/fits").glob("rvq.*.safetensors"))) == 2


@pytest.mark.slow
def test_an_artifact_of_another_corpus(make_config: MakeConfig, tmp_path: Path) -> None:
    """Taken as it is where the embeddings are of the same kind; refused with both fingerprints where they are not."""
    path = make_config(**FITS)
    run(path)
    (artifact,) = (tmp_path / "out/fits").glob("scaler.*.safetensors")
    taken = ["output=" + str(tmp_path / "second"), f"scaler.file={artifact}", "fit.rows=1"]
    path = make_config(**FITS | {"rvq": None})
    run(path, *taken)
    (copy,) = (tmp_path / "second/fits").glob("scaler.*.safetensors")
    assert copy.read_bytes() == artifact.read_bytes()
    with pytest.raises(
        CorpusError, match=r"was fitted under segment [0-9a-f]{32}, this corpus is of segment [0-9a-f]{32}"
    ):
        run(path, *taken, "segment.max_chars=60", f"output={tmp_path / 'third'}")
    with pytest.raises(CorpusError, match=r"a file of kind 'scaler'.* where 'rvq'"):
        run(path, f"output={tmp_path / 'fourth'}", f"rvq.file={artifact}")


def test_the_same_values_by_another_way_make_nothing_stale(make_config: MakeConfig) -> None:
    path = make_config(**FITS | {"fit": {"rows": 100_000}})
    run(path)
    shown = run(path, "fit.rows=200_000")  # the same pilot: all
    assert "rvq: fitted on" in shown and "sentences done" not in shown.partition("rvq: fitted on")[2]
    assert len(list((path.parent / "out/codes").rglob("*.parquet"))) == len(Corpus(str(path.parent / "out")).parts)


def test_two_runs_at_once_agree_on_one_fit(make_config: MakeConfig) -> None:
    config = load_config(path := make_config(**FITS))
    run(path, options=RunOptions(until="encode"))
    plan = make_plan(config)
    store, pilot = Store(config.output), pilot_of(plan.chunks, config.fit.rows)
    first, second = (
        fit(store, plan.config, pilot, "scaler", False, "cpu", quiet) for _ in range(2)
    )  # the second planned it before the first was done
    assert first == second and len(store.find("fits")) == 2
    again = fit(store, plan.config, pilot, "scaler", True, "cpu", quiet)
    assert again.generation == 1 and again.content == first.content


def test_a_refit_that_is_not_finished_hides_nothing(make_config: MakeConfig) -> None:
    path = make_config(**FITS)
    run(path)
    with pytest.raises(ConfigError, match="--refit rvq: this run does not fit that; it fits nothing"):
        run(path, options=RunOptions(refit=("rvq",), until="encode"))

    def killed() -> str:
        raise KeyboardInterrupt

    where = Backend(launch, killed, train)
    with pytest.raises(KeyboardInterrupt):
        run_corpus(Console(file=io.StringIO()), load_config(path), RunOptions(refit=("rvq",)), where)
    corpus = Corpus(str(path.parent / "out"))
    assert "codes" in corpus.columns and corpus.table("codes").num_rows == corpus.rows
    (summary,) = [one for one in (path.parent / "out/runs").glob("*/summary.json") if "interrupted" in one.read_text()]
    assert not json.loads(summary.read_text())["done"]


def test_a_corpus_without_a_sentence(make_config: MakeConfig, tmp_path: Path) -> None:
    blank = [{"id": "1", "text": " \n ", "lang": "eng_Latn", "title": "blank"}]
    write_jsonl(tmp_path / "in/blank.jsonl", blank)
    path = make_config(**FITS | {"autobleu": {"sample": {"rows": 5}}, "report": {}})
    assert "1 in = 0 kept + 1 (no text 1) dropped" in run(path)
    assert not (tmp_path / "out/fits").exists()


def test_select_alone_makes_a_new_run(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    run(path)
    assert run(path, 'select="chars >= 10"', "report={}").startswith("Nothing to do.")
    assert newest_config(Store(str(tmp_path / "out")))["select"]["where"] == "chars >= 10"
    assert "chars &gt;= 10" in (tmp_path / "out/report/index.html").read_text()


@pytest.mark.slow
def test_a_report_of_what_is_half_done(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**FITS | {"report": {}})
    run(path)
    write_jsonl(tmp_path / "in/libreoffice-fra.jsonl", sample_documents("libreoffice-fra", 3))
    run(path, options=RunOptions(only="segment"))
    assert "no encode yet" in run(path, options=RunOptions(only="segment"))
    run(path)
    assert "mean shift of medians, in IQR" in (tmp_path / "out/report/index.html").read_text()


@pytest.mark.slow
def test_every_stage_in_all_its_phases(make_config: MakeConfig) -> None:
    """The same parts are visited for encoding, for fragility, and for what is predicted of it."""
    fragility = {"sample": {"rows": 10_000}, "noise_levels": [0.1, 0.9], "length_extra": 1, "length_factor": 1.0}
    path = make_config(**FITS | {"fragility": fragility, "predictor": {"epochs": 2}, "fit": {"rows": 100_000}})
    run(path, options=RunOptions(until="segment"))
    shown = run(path)
    assert shown.count("pilot: all 3 chunks") == 2 and "with a fragility score are few" in shown
    corpus = Corpus(str(path.parent / "out"))
    table = corpus.table("fragility_cosine", "bleu_by_noise", "fragility_predicted", "weight", "codes")
    assert table.num_rows == corpus.rows and not any(column.null_count for column in table.columns)
    assert {len(one) for one in table["bleu_by_noise"].to_pylist()} == {2}
    assert check(corpus, lambda done: None) == []
    record = read_record(corpus.store, corpus.view.fits["predictor"])
    weights = table["weight"].to_numpy()
    z = (table["fragility_predicted"].to_numpy() - record.numbers["mean_cosine"]) / record.numbers["std_cosine"]
    np.testing.assert_allclose(weights, 1 / (1 + np.exp(4 * z - 3.5)), atol=1e-3)
    assert run(path).startswith("Nothing to do.")


def test_a_selection_that_no_column_can_answer_is_said_before_anything_runs(make_config: MakeConfig) -> None:
    for where, message in (
        ("autoblue >= 30", "there is no column autoblue; did you mean autobleu"),
        ("autobleu >= 30 and", "expected a column"),
        ("weight > 0.5", "there is no column weight; add a section `predictor: {}`, which makes it"),
        ({"preset": "fineweb"}, "no column doc_terminal_share; add a section `noise: {}`, which makes it"),
        ("near_duplicate_of is null", r"add a section `duplicates: \{near: \{\}\}`, which makes it"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_checked(make_config(select=where, autobleu={"sample": 1.0}))
    load_checked(make_config(select="contains(title, 'a') and autobleu >= 30", autobleu={"sample": 1.0}))
