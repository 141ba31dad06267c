"""Input and split settings: names, paths, what is refused, and how documents are shared out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from pipeline.inputs import Document, InputError, InputSettings, Rejected, SplitSettings, resolve_inputs
from stages.stage import role
from tests.support.inputs import entry, jsonl, read_all


def test_reads_the_yaml_of_the_plan() -> None:
    text = """
    input:
      - {path: sample/*.jsonl.gz, text: text, id: id, lang: {column: lang}, keep: [title, source]}
      - {path: s3://bucket/x, lang: eng_Latn, limit: 10, format: parquet}
    split: {validation: 0.02, test: 0, by: {id_group: "^(.*)/"}}
    """
    document = yaml.safe_load(text)
    first, second = (InputSettings(**value) for value in document["input"])
    split = SplitSettings(**document["split"])
    for settings in (first, second, split):
        assert type(settings)(**settings.model_dump(mode="json")) == settings
        assert settings.meaningful() == settings.model_dump(mode="json", exclude={"follow_links"})
        roles = {name: role(field.json_schema_extra) for name, field in type(settings).model_fields.items()}
        assert {name for name, one in roles.items() if one != "meaning"} <= {"follow_links"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"lang": ""}, "at least 1 character"),
        ({"limit": 0}, "greater than or equal to 1"),
        ({"limit": "10"}, "valid integer"),
        ({"keep": ["a", "b", "a"]}, "a given more than once"),
        ({"format": "csv"}, "'auto', 'jsonl', 'parquet' or 'text'"),
        ({"name": "a:b"}, "should match pattern"),
        ({"path": ""}, "at least 1 character"),
        ({"colour": "red"}, "Extra inputs are not permitted"),
    ],
)
def test_refuses_impossible_inputs(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        InputSettings(**{"path": "x", "lang": "eng_Latn", **values})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"validation": 0.6, "test": 0.6}, "add up to more than 1"),
        ({"test": -0.1}, "greater than or equal to 0"),
        ({"by": "date"}, "Input should be 'text'"),
        ({"by": {"id_group": "("}}, "is not a regular expression"),
        ({"by": {"id_group": "^abc"}}, "has no group"),
    ],
)
def test_refuses_impossible_splits(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SplitSettings(**values)


@pytest.mark.parametrize(
    ("path", "base", "resolved"),
    [
        ("data/*.jsonl", "/corpora", "/corpora/data/*.jsonl"),
        ("../data", "/corpora/x", "/corpora/data"),
        ("/data/a.txt", "/corpora", "/data/a.txt"),
        ("s3://bucket/x", "/corpora", "s3://bucket/x"),
        ("data/*", "s3://bucket/yaml/", "s3://bucket/yaml/data/*"),
        ("~/data", "/corpora", str(Path("~/data").expanduser())),
        ("data", ".", str(Path.cwd() / "data")),
    ],
)
def test_resolves_paths(path: str, base: str, resolved: str) -> None:
    assert entry(path).resolve(base).path == resolved


def test_names_come_from_the_path_as_written_and_survive_moving() -> None:
    written = entry("news/*.jsonl.gz", name=None)
    name = written.input_name
    assert name.startswith("news-")
    assert {written.resolve(base).input_name for base in ("/a", "/b/c", "s3://d")} == {name}
    assert written.resolve("/a").resolve("/a").input_name == name
    assert entry("*.jsonl", name=None).input_name.startswith("input-")
    assert entry("news/*.jsonl", name=None).input_name != name
    with pytest.raises(InputError, match="2 entries are named"):
        resolve_inputs([written, entry("news/*.jsonl.gz", name=None, lang="deu_Latn")], "/a")
    with pytest.raises(InputError, match="chained"):
        entry("zip://a.jsonl::b.zip").resolve("/a")


def splits_of(folder: Path, values: list[dict[str, Any]], **split: Any) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_bytes(jsonl(values))
    records = read_all(entry(folder, id="id"), SplitSettings(**split))
    return [record.split if isinstance(record, Document) else record.reason for record in records]


def test_fractions_hold_and_are_independent_of_each_other(tmp_path: Path) -> None:
    values = [{"id": i, "text": f"document number {i}"} for i in range(10_000)]
    splits = splits_of(tmp_path, values, validation=0.05, test=0.1)
    counts = Counter(splits)
    assert counts["validation"] == pytest.approx(500, abs=4 * 22)
    assert counts["test"] == pytest.approx(1000, abs=4 * 30)
    fewer = splits_of(tmp_path, values, validation=0.01, test=0.1)
    assert [split == "test" for split in fewer] == [split == "test" for split in splits]
    assert set(splits_of(tmp_path, values[:100], validation=0, test=1)) == {"test"}
    assert set(splits_of(tmp_path, values[:100], validation=1, test=0)) == {"validation"}


def test_copies_of_a_text_are_together(tmp_path: Path) -> None:
    values = [{"id": i, "text": f"text {i % 100}"} for i in range(1000)]
    splits = splits_of(tmp_path, values, validation=0.3, test=0.3)
    assert all(splits[i] == splits[i % 100] for i in range(1000))
    assert len(set(splits)) == 3


def test_a_column_says_the_split_literally(tmp_path: Path) -> None:
    said = ["train", "validation", "test", "dev", None, ["train"]]
    values = [{"id": i, "text": "same", "split": value} for i, value in enumerate(said)] + [{"id": 9, "text": "same"}]
    splits = splits_of(tmp_path, values, by={"column": "split"})
    assert splits == ["train", "validation", "test"] + ["unknown split"] * 4


def test_a_hashed_column_keeps_its_values_together(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [{"id": i, "text": f"text {i}", "site": f"site {i % 20}"} for i in range(400)]
    splits = splits_of(tmp_path, values, validation=0.3, test=0.3, by={"column_hash": "site"})
    assert all(splits[i] == splits[i % 20] for i in range(400))
    assert len(set(splits)) == 3
    assert splits_of(tmp_path, [{"id": 1, "text": "t", "site": None}], by={"column_hash": "site"}) == ["unknown split"]


def test_an_id_group_keeps_its_documents_together(tmp_path: Path) -> None:
    values = [{"id": f"book{i % 20}/{i}", "text": f"text {i}"} for i in range(400)] + [{"id": "no slash", "text": "t"}]
    splits = splits_of(tmp_path, values, validation=0.3, test=0.3, by={"id_group": "^(.*)/"})
    assert all(splits[i] == splits[i % 20] for i in range(400))
    assert set(splits[:-1]) == {"train", "validation", "test"}
    assert splits[-1] == "unknown split"


def test_rejected_records_say_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl([{"text": "t", "split": "dev"}]))
    (rejected,) = read_all(entry(tmp_path), SplitSettings(by={"column": "split"}))  # type: ignore[arg-type]
    assert isinstance(rejected, Rejected)
    assert rejected.error == "split is 'dev'; allowed are train, validation, test"
