"""The schema says of a corpus.yaml what loading it says: the same files pass, the same mistakes do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pipeline.base.errors import ConfigError
from pipeline.config.load import NO_CORPUS, load_config
from pipeline.config.run_config import RunConfig
from pipeline.config.schema import ROLES, ROLES_OF_TRAINING, corpus_schema
from tests.conftest import ROOT, MakeConfig
from tests.support.cli import pipeline

SCHEMA = corpus_schema()
SHIPPED = sorted(path for path in (ROOT / "conf").glob("*.yaml") if path.stem not in NO_CORPUS)


def mistakes(data: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(data)]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_ships_is_valid(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert not mistakes(yaml.safe_load(path.read_text("utf-8")))


@pytest.mark.parametrize(
    "change",
    [
        {"launcher": "inline"},
        {"launcher": {"kind": "local", "segmenters": None}},
        {"launcher": None, "split": None, "segment": None, "autobleu": None},
        {"split": {"by": {"id_group": "^(.)"}}},
        {"split": {"by": {"column": "part_of"}, "validation": 0}},
        {"encode": {"model": "sonar-tiny", "precision": "float32"}},
        {"segment": {"max_tokens": None}, "autobleu": {"sample": 1}},
    ],
)
def test_both_accept(make_config: MakeConfig, change: dict[str, Any]) -> None:
    path = make_config()
    data = yaml.safe_load(path.read_text()) | change
    path.write_text(yaml.safe_dump(data))
    assert not mistakes(data)
    load_config(path)


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": {}},
        {"encode": {"batch": 3}},
        {"launcher": "slrum"},
        {"launcher": {"kind": "local", "gpus": 4}},
        {"encode": {"model": "sonar-tiney"}},
        {"autobleu": {"sample": 2.0}},
        {"segment": {"max_chars": "many"}},
        {"input": []},
        {"input": [{"path": "in/*.jsonl"}]},
        {"input": [{"path": "in/*.jsonl", "lang": {"columns": "lang"}}]},
        {"split": {"by": "id"}},
        {"part_sentences": 1},
        {"name": None},
    ],
)
def test_both_refuse(make_config: MakeConfig, change: dict[str, Any]) -> None:
    path = make_config()
    data = yaml.safe_load(path.read_text()) | change
    path.write_text(yaml.safe_dump(data))
    assert mistakes(data)
    with pytest.raises((ConfigError, ValueError)):
        load_config(path).row_stages()[0].artifacts()  # a model's name is looked up when it is used


def test_every_setting_is_described_and_says_what_it_changes() -> None:
    for one in (SCHEMA, *SCHEMA["$defs"].values()):
        assert one["additionalProperties"] is False
        for name, field in one["properties"].items():
            assert field["description"].endswith((*ROLES.values(), *ROLES_OF_TRAINING.values())), name
    assert set(SCHEMA["properties"]) == set(RunConfig.model_fields)
    assert "sonar-tiny" in json.dumps(SCHEMA["$defs"]["EncodeSettings"]["properties"]["model"])


def test_numbers_with_underscores_as_editors_read_them() -> None:
    sample = yaml.safe_load((ROOT / "conf/sample.yaml").read_text("utf-8"))
    assert not mistakes(sample | {"part_sentences": "100_000"})
    assert mistakes(sample | {"part_sentences": "a lot"})


def test_the_command(tmp_path: Path) -> None:
    shown = pipeline("schema")
    assert shown.returncode == 0 and json.loads(shown.stdout) == SCHEMA
    written = pipeline("schema", "--to", tmp_path / "new" / "corpus.schema.json")
    assert written.returncode == 0 and "yaml-language-server" in written.stdout
    assert json.loads((tmp_path / "new/corpus.schema.json").read_text("utf-8")) == SCHEMA
    refused = pipeline("schema", "--to", tmp_path)
    assert refused.returncode == 2 and f"{tmp_path} is a folder" in refused.stderr
