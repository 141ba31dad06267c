"""Files that ship and are not installed: each command that needs one says which distribution brings it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launchers.weights import check_shipped
from pipeline.base.errors import CorpusError
from pipeline.config.load import load_config
from pipeline.doctor.corpus import models_of
from pipeline.inputs import InputError, list_files
from pipeline.training.model_file import load_model
from stages import shipped
from stages.cards import CardError
from stages.segment.sat.card import load_sat_card
from stages.shipped import FOLDER, how_to_get
from stages.sonar.card import load_card
from tests.conftest import write_config
from tests.support.inputs import entry

NOT_INSTALLED = "not installed here: pip install 'sonar-pipeline\\[models\\]'"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder `conf` of an installation without the models: what the wheel of the code has of it."""
    folder = tmp_path / "site" / "conf"
    (folder / "lcm").mkdir(parents=True)
    for kind in ("models", "sat"):
        shutil.copytree(FOLDER / kind, folder / kind, ignore=lambda place, names: [n for n in names if "." not in n])
    shutil.copytree(FOLDER / "lcm", folder / "lcm", dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.safetensors"))
    monkeypatch.setattr(shipped, "FOLDER", folder)
    return folder


def _install(place: Path) -> None:
    """Leave in a folder what pip says there of the distribution of the models."""
    about = place / "sonar_pipeline_models-0.1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sonar-pipeline-models\nVersion: 0.1.0\n")


def test_files_elsewhere_are_not_those_that_ship(conf: Path, tmp_path: Path) -> None:
    assert how_to_get(tmp_path / "mine/encoder.safetensors") is None
    assert how_to_get("s3://bucket/conf/x.gz") is None


def test_a_checkout_brings_its_own_files_back() -> None:
    assert how_to_get(FOLDER / "models/gone") == "files of this checkout are gone: git restore conf"


def test_models_that_are_gone_or_installed_elsewhere(
    conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path / "other")
    monkeypatch.syspath_prepend(tmp_path / "other")
    said = str(how_to_get(conf / "models/x"))
    assert f"installed in {tmp_path}/other/conf, the code in {conf.parent}: install both into the same" in said
    _install(conf.parent)
    monkeypatch.syspath_prepend(conf.parent)
    assert "are gone: pip install --force-reinstall --no-deps sonar-pipeline-models" in str(how_to_get(conf / "x"))


def test_a_card_says_what_to_install(conf: Path) -> None:
    card = load_card(str(conf / "models/sonar-tiny.yaml"))
    assert card.encoder_digest == load_card("sonar-tiny").encoder_digest
    with pytest.raises(CardError, match=f"card sonar-tiny: encoder file .* is not there; .*{NOT_INSTALLED}"):
        card.verify("encoder")
    with pytest.raises(CardError, match=f"card sat-tiny: .* is not there; .*{NOT_INSTALLED}"):
        load_sat_card(str(conf / "sat/sat-tiny.yaml")).verify()


def test_a_trained_model_says_what_to_install(conf: Path) -> None:
    model = conf / "lcm/lcm-tiny-books"
    with pytest.raises(CorpusError, match=f"scaler.safetensors is missing; .*{NOT_INSTALLED}"):
        load_model(str(model))
    shutil.copy(FOLDER / "lcm/lcm-tiny-books/scaler.safetensors", model)
    with pytest.raises(CorpusError, match=f"model.safetensors is not there; .*{NOT_INSTALLED}"):
        load_model(str(model))


def test_an_input_of_the_sample_says_what_to_install(conf: Path) -> None:
    with pytest.raises(InputError, match=f"nothing matches .*; .*{NOT_INSTALLED}"):
        list_files(entry(conf / "sample/*.jsonl.gz"))


@pytest.mark.parametrize("section", ["segment", "encode", "autobleu"])
def test_a_run_is_refused_before_it_begins(section: str, conf: Path, tmp_path: Path) -> None:
    values = {"segment": {"method": "sat-capped", "sat": str(conf / "sat/sat-tiny.yaml")}}
    model = {"model": str(conf / "models/sonar-tiny.yaml")}
    config = load_config(write_config(tmp_path, **{"autobleu": {}} | {section: values.get(section, model)}))
    with pytest.raises(CardError, match=NOT_INSTALLED):
        check_shipped(config)
    (bad,) = [check for check in models_of(config) if check.level == "bad"]
    assert "pip install 'sonar-pipeline[models]'" in bad.todo


def test_a_whole_installation_is_not_asked_for_more(tmp_path: Path) -> None:
    check_shipped(load_config(write_config(tmp_path, autobleu={})))
