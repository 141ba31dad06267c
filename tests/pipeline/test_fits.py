"""Pilot, fits and the main pass over a small real corpus: frozen, exact, the same after a kill, anew when asked."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.preprocessing import RobustScaler as Reference

from launchers import launch
from pipeline.config import RunConfig, load_config
from pipeline.corpus import Corpus
from pipeline.errors import ConfigError, CorpusError
from pipeline.fits import FitRecord, read_record
from pipeline.options import check_refit
from pipeline.plan import make_plan
from pipeline.running import Wishes
from pipeline.running import run as run_corpus
from pipeline.store import Store
from stages.scaler.robust import RobustScaler
from tests.conftest import MakeConfig, data_digests, sample_documents, write_jsonl

RVQ = {"codebooks": 3, "units": 32}
FITS = {"fit": {"rows": 100}, "scaler": {}, "rvq": RVQ, "autobleu": None}


NO_WISHES = Wishes()


def run(path: Path, *overrides: str, wishes: Wishes = NO_WISHES) -> str:
    """`pipeline run` in this process; what it printed."""
    shown = io.StringIO()
    run_corpus(Console(file=shown, width=160), load_config(path, overrides), wishes, launch, lambda: "cpu")
    return shown.getvalue()


def record(config: RunConfig, name: str) -> FitRecord:
    fits = make_plan(config).config.frozen.fits
    return read_record(Store(config.output), fits[name].record)


def test_fits_see_the_pilot_and_every_row_gets_its_codes(make_config: MakeConfig) -> None:
    config = load_config(path := make_config(**FITS))
    shown = run(path)
    assert "pilot: all 3 chunks" in shown and "scaler: fitted on" in shown and "rvq: fitted on" in shown
    corpus = Corpus(config.output)
    scaler, rvq = record(config, "scaler"), record(config, "rvq")
    first = make_plan(config).chunks[0]
    assert scaler.chunks == rvq.chunks == [first.chunk.id]
    pilot = np.concatenate([corpus.embeddings(part.ref.part) for part in first.parts])
    assert scaler.rows == len(pilot) < corpus.rows
    reference = Reference(quantile_range=(25, 75)).fit(pilot.astype(np.float64))
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
    write_jsonl(tmp_path / "in/postgresql-eng.jsonl", sample_documents("postgresql-eng", 3))
    run(path)
    after = data_digests(config.output)
    assert before.items() < after.items() and record(config, "rvq") == old
    run(path, wishes=Wishes(refit=("rvq",)))
    new = record(config, "rvq")
    assert new.generation == 1 and new.fingerprint == old.fingerprint
    changed = {key for key, digest in data_digests(config.output).items() if digest != after[key]}
    same = new.digest == old.digest  # the same chunk may still be the first
    assert changed == (set() if same else {key for key in after if key.startswith("codes/")})


def test_the_same_fits_whatever_was_done_before(make_config: MakeConfig, tmp_path: Path) -> None:
    """Segmenting and encoding beforehand, another output, another order of phases: the same bytes."""
    path = make_config(**FITS)
    run(path, f"output={tmp_path / 'whole'}")
    run(path, wishes=Wishes(until="encode"))
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
    assert plan.missing_fits == ("rvq",) and plan.waiting == ("rvq",) and not plan.to_launch
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
    write_jsonl(tmp_path / "in/postgresql-eng.jsonl", sample_documents("postgresql-eng", 3))
    run(path)
    assert json.loads((tmp_path / "out/fits/rates/autobleu-60.json").read_text()) == rate


def test_what_cannot_be_fitted_is_said(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**FITS)
    with pytest.raises(CorpusError, match=r"rvq cannot be fitted on the pilot .* 5000 units"):
        run(path, "rvq.units=5000")
    with pytest.raises(CorpusError, match="rvq: what comes before is not done on the pilot; run without --only"):
        run(path, f"output={tmp_path / 'other'}", wishes=Wishes(only="rvq"))
    with pytest.raises(ConfigError, match="--refit encode: nothing of that name is fitted; allowed: scaler"):
        check_refit(["encode"])
    with pytest.raises(ConfigError, match="fragility needs what scaler makes: add a section `scaler"):
        load_config(make_config(fragility={}))


def test_a_damaged_artifact_is_not_used(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**FITS)
    run(path)
    (artifact,) = (tmp_path / "out/fits").glob("rvq.*.safetensors")
    data = bytearray(artifact.read_bytes())
    data[-1] ^= 1
    artifact.write_bytes(data)
    write_jsonl(tmp_path / "in/postgresql-eng.jsonl", sample_documents("postgresql-eng", 3))
    with pytest.raises(CorpusError, match="the run failed"):
        run(path)
    assert [one for one in (tmp_path / "out/runs").glob("*/events.jsonl") if "was changed or" in one.read_text()]
    for receipt in (tmp_path / "out/fits").glob("rvq.*.json"):
        receipt.unlink()
    run(path)
    assert len(list((tmp_path / "out/fits").glob("rvq.*.safetensors"))) == 2


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
