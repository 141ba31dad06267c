"""`export --format hub`: `datasets` and the Hub's own classes accept the folder, and an upload arrives bit for bit."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.corpus.exports import exports_of
from pipeline.export import ExportOptions, export_corpus
from pipeline.export import hub as hub_format
from pipeline.export.hub import _provenance, escaped
from pipeline.export.hub.header import features, iso_code, licence_id, size_category
from pipeline.export.hub.push import HubError
from pipeline.inputs.listing import stamp
from pipeline.quality.report import dataset_plots
from pipeline.select.command import SelectOptions
from pipeline.storage.records import sealed_yaml
from tests.conftest import write_config
from tests.pipeline.export.exported import WHERE
from tests.support.cli import pipeline
from tests.support.hub import Hub, hub_server


def export(corpus: Corpus, to: Path, **options: Any) -> str:
    shown = io.StringIO()
    asked = ExportOptions("hub", str(to), **options)
    export_corpus(Console(file=shown, width=200), corpus.url, corpus, asked, draw=dataset_plots)
    return shown.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    from huggingface_hub import constants

    with hub_server() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", "hf_me")
        yield server


def local_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_datasets_loads_the_folder_with_the_features_that_the_card_states(corpus: Corpus, tmp_path: Path) -> None:
    import datasets
    from huggingface_hub import DatasetCard

    export(corpus, tmp_path / "to", rules=SelectOptions(WHERE), licence="mpl-2.0", vectors="float16")
    card = DatasetCard.load(tmp_path / "to/README.md")
    assert card.data.language == ["de", "en"] and card.data.license[0] == "mpl-2.0"
    found = datasets.load_dataset(str(tmp_path / "to"), cache_dir=str(tmp_path / "cache"))
    rows = corpus.to_arrow("doc_id", "split", "text", "title", "embedding", "part", "row", where=WHERE)
    assert set(found) == {"train", "validation", "test"} == set(rows["split"].to_pylist())
    for split, mine in found.items():
        wanted = rows.filter(pa.compute.equal(rows["split"], split)).to_pylist()
        names = ("doc_id", "split", "text", "title", "part", "row")
        assert mine.select_columns(list(names)).to_list() == [{name: row[name] for name in names} for row in wanted]
        stored = np.array([row["embedding"] for row in wanted], np.float16)
        assert np.array(mine["embedding"][:], np.float16).tobytes() == stored.tobytes()
        stated = card.data.dataset_info["features"]
        assert stated == mine.features._to_yaml_list()
        sizes = {one["name"]: one["num_examples"] for one in card.data.dataset_info["splits"]}
        assert sizes[split] == len(mine)


def test_the_card_lists_a_stage_once_for_inputs_of_other_settings(corpus: Corpus) -> None:
    ((name, recipe),) = corpus.view.segment.items()
    view = replace(corpus.view, segment={name: recipe, "other": recipe | {"keep": ["title"]}})
    selection: Any = SimpleNamespace(digest="0", corpus=SimpleNamespace(view=view))
    assert _provenance(selection).count("stage segment, version") == 1


def test_the_card_says_where_the_data_are_from_and_what_is_not_known(corpus: Corpus, tmp_path: Path) -> None:
    export(corpus, tmp_path / "to", rules=SelectOptions(WHERE))
    text = (tmp_path / "to/README.md").read_text()
    about = json.loads((tmp_path / "to/export.json").read_text())
    for words in (
        "Licence of the texts: not stated", "metadata title", "max_chars: 80", "removed: chars \\>= 20",
        f"| written | {about['written']['sentences']} |", "| documents in | 11 |", "sha256 `", "stage encode, version",
        "AutoBLEU of the sentences that were scored", "| eng\\_Latn | en |",
    ):  # fmt: skip
        assert words in text, words
    for path in (tmp_path / "to/plots").iterdir():
        assert f"](plots/{path.name})" in text and path.read_bytes().startswith(b"<svg")
    assert len(list((tmp_path / "to/plots").iterdir())) == 4
    assert str(tmp_path) not in text and corpus.url not in text
    export(corpus, tmp_path / "again", rules=SelectOptions(WHERE))
    assert local_files(tmp_path / "to") == local_files(tmp_path / "again")


def test_features_of_every_type_are_those_of_datasets() -> None:
    import datasets

    of_struct = pa.struct([("a", pa.int64()), ("names", pa.list_(pa.string()))])
    schema = pa.schema([
        ("text", pa.string()), ("vector", pa.list_(pa.field("element", pa.float16(), nullable=False))),
        ("day", pa.date32()), ("moment", pa.timestamp("us", "UTC")), ("yes", pa.bool_()), ("one", pa.float32()),
        ("two", pa.float64()), ("small", pa.int8()), ("hash", pa.uint64()), ("struct", of_struct),
        ("structs", pa.list_(of_struct)), ("lists", pa.list_(pa.list_(pa.int32()))),
    ])  # fmt: skip
    assert features(schema) == datasets.Features.from_arrow_schema(schema)._to_yaml_list()


def test_names_of_the_hub() -> None:
    assert [iso_code(lang) for lang in ("eng_Latn", "zho_Hans", "nob_Latn", "arb_Arab", "ban_Latn", "x")] == [
        "en", "zh", "nb", "ar", "ban", "x",
    ]  # fmt: skip
    assert [licence_id(text) for text in ("MIT (weights). Texts: books", "CC-BY-NC-4.0", "ask us")] == [
        "mit", "cc-by-nc-4.0", "other",
    ]  # fmt: skip
    sizes = {0: "n<1K", 999: "n<1K", 1000: "1K<n<10K", 25_000: "10K<n<100K", 10**9: "1B<n<10B", 2 * 10**12: "n>1T"}
    assert {rows: size_category(rows) for rows in sizes} == sizes
    assert escaped("a|b<img src=x>\n# [x](y) `c`") == r"a\|b\<img src=x\>\\n\# \[x\](y) \`c\`"


def test_a_push_arrives_bit_for_bit_and_is_read_from_there(corpus: Corpus, tmp_path: Path, hub: Hub) -> None:
    from huggingface_hub import snapshot_download

    said = export(corpus, tmp_path / "to", push="me/mine", private=True)
    assert f"uploaded to {hub.url}/datasets/me/mine" in said.replace("\n", "")
    there = hub.repositories["me/mine"]
    assert there.private and there.files == local_files(tmp_path / "to")
    assert set(hub.checked) == {(tmp_path / "to/README.md").read_text()}
    back = snapshot_download(
        "me/mine", repo_type="dataset", local_dir=tmp_path / "back", token="hf_me", endpoint=hub.url
    )
    found = {name: data for name, data in local_files(Path(back)).items() if not name.startswith(".cache")}
    assert found == there.files


@pytest.mark.slow
def test_a_dataset_of_the_hub_is_an_input(corpus: Corpus, tmp_path: Path, hub: Hub) -> None:
    from huggingface_hub import HfFileSystem

    HfFileSystem.clear_instance_cache()
    export(corpus, tmp_path / "to", push="me/mine", vectors="none")
    source = {"path": "hf://datasets/me/mine/data/train/*.parquet", "text": "text", "lang": {"column": "lang"}}
    (tmp_path / "again").mkdir()
    (tmp_path / "none").mkdir()
    path = write_config(tmp_path / "again", input=[source], autobleu=None)
    for _ in range(2):
        done = pipeline("run", path, "--until", "segment")
        assert done.returncode == 0, done
    again = Corpus(str(tmp_path / "again/out"))
    wanted = corpus.to_arrow("text", where="split == 'train'")["text"].to_pylist()
    read = again.to_pandas("text", "doc_id").groupby("doc_id").text.agg("".join)
    assert sorted(one.replace(" ", "") for one in read) == sorted(one.replace(" ", "") for one in wanted)
    there, remote = hub.repositories["me/mine"].files, HfFileSystem()
    name = next(one for one in there if one.startswith("data/train/"))
    stamps = []
    for _ in range(2):
        remote.invalidate_cache()
        stamps.append(stamp(remote, f"datasets/me/mine/{name}", remote.info(f"datasets/me/mine/{name}")))
        there[name] = there[name][:-1] + bytes([there[name][-1] ^ 1])
    assert stamps[0] != stamps[1], "a file of the same size with other bytes was taken for the same"
    missing = write_config(
        tmp_path / "none", input=[source | {"path": "hf://datasets/me/none/*.parquet"}], autobleu=None
    )
    refused = pipeline("plan", missing)
    assert refused.returncode != 0 and "hf://datasets/me/none" in refused.stderr and "Traceback" not in refused.stderr
    HfFileSystem.clear_instance_cache()


def test_a_push_that_broke_off_goes_on(corpus: Corpus, tmp_path: Path, hub: Hub) -> None:
    hub.break_after = 2
    with pytest.raises(HubError, match="the same command goes on with the upload"):
        export(corpus, tmp_path / "to", push="me/mine")
    written = local_files(tmp_path / "to")
    assert "export.json" in written and not hub.repositories["me/mine"].files and len(hub.sent) == 2
    hub.break_after = None
    recorded = exports_of(corpus.store).records
    corpus.store.delete(recorded[-1].path)  # as of a version that was killed before it recorded it
    said = export(corpus, tmp_path / "to", push="me/mine")
    assert "is complete; it is uploaded as it is" in said and local_files(tmp_path / "to") == written
    assert hub.repositories["me/mine"].files == written
    assert len(hub.sent) == len(set(hub.sent)) > 2, "a file that had arrived was sent again"
    commits = hub.repositories["me/mine"].commits
    assert "uploaded to" in export(corpus, tmp_path / "to", push="me/mine")
    assert hub.repositories["me/mine"].commits == commits, "nothing new, no commit"
    again = [one.model_copy(update={"name": "", "made": ""}) for one in exports_of(corpus.store).records]
    assert again == [one.model_copy(update={"name": "", "made": ""}) for one in recorded]


def test_a_finished_folder_that_has_changed_is_not_pushed(corpus: Corpus, tmp_path: Path, hub: Hub) -> None:
    to = tmp_path / "to"
    export(corpus, to)
    about = json.loads((to / "export.json").read_text())
    files = local_files(to)
    assert about["files"] == {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
        if name != "export.json"
    }
    path = sorted((to / "data/train").iterdir())[0]
    name = path.relative_to(to).as_posix()
    whole = path.read_bytes()
    for data in (whole[:1000], whole[:500] + bytes([whole[500] ^ 1]) + whole[501:]):
        path.write_bytes(data)
        with pytest.raises(CorpusError, match=rf"1 file changed \({name}\); nothing is uploaded.*delete the folder"):
            export(corpus, to, push="me/mine")
    path.unlink()
    (to / "more").write_text("")
    words = rf"1 file missing \({name}\); 1 file not of this export \(more\); .* delete the folder"
    with pytest.raises(CorpusError, match=words):
        export(corpus, to, push="me/mine")
    path.write_bytes(whole)
    with pytest.raises(CorpusError, match=r"1 file not of this export \(more\); .* delete or move what is not of this"):
        export(corpus, to, push="me/mine")
    assert not hub.repositories
    (to / "more").unlink()
    record = (to / "export.json").read_bytes()
    (to / "export.json").write_bytes(record.replace(b'"sentences": ', b'"sentences": 1', 1))
    with pytest.raises(CorpusError, match=rf"{to}/export.json is damaged .*; delete the folder if it is an export"):
        export(corpus, to, push="me/mine")
    (to / "export.json").write_bytes(record)
    assert "uploaded to" in export(corpus, to, push="me/mine") and hub.repositories["me/mine"].files == files


def test_rows_are_counted_where_an_earlier_version_has_recorded_no_files(
    corpus: Corpus, tmp_path: Path, hub: Hub
) -> None:
    to = tmp_path / "to"
    export(corpus, to)
    about = json.loads((to / "export.json").read_text())
    del about["files"], about["seal"]
    (to / "export.json").write_text(json.dumps(about))
    path = sorted((to / "data/train").iterdir())[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    with pytest.raises(CorpusError, match=f"{path.name} is damaged .*; nothing is uploaded. .*delete the folder"):
        export(corpus, to, push="me/mine")
    path.unlink()
    with pytest.raises(CorpusError, match=f"says {corpus.rows} sentences, and its Parquet files hold "):
        export(corpus, to, push="me/mine")
    assert not hub.repositories
    path.write_bytes(whole)
    said = export(corpus, to, push="me/mine")
    assert "only the numbers of their rows are compared" in said and "uploaded to" in said


def test_other_files_of_a_repository_are_replaced_only_if_asked(corpus: Corpus, tmp_path: Path, hub: Hub) -> None:
    export(corpus, tmp_path / "old", push="me/mine")
    with pytest.raises(ConfigError, match=r"me/mine exists and holds other files .* and \d+ more\); .* --replace"):
        export(corpus, tmp_path / "new", push="me/mine", rules=SelectOptions("chars >= 60"))
    assert not (tmp_path / "new").exists(), "it is refused before anything is written"
    export(corpus, tmp_path / "new", push="me/mine", rules=SelectOptions("chars >= 60"), replace=True)
    assert hub.repositories["me/mine"].files == local_files(tmp_path / "new")


def refusal(corpus: Corpus, to: Path, repo: str) -> str:
    with pytest.raises((HubError, ConfigError)) as caught:
        export(corpus, to, push=repo)
    assert caught.value.__cause__ is not None or isinstance(caught.value, ConfigError)
    return str(caught.value)


def test_what_stands_in_the_way_of_a_push_is_said_before_anything_is_written(
    corpus: Corpus, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    to = tmp_path / "to"
    assert "is not the name of a repository" in refusal(corpus, to, "me/a b")
    assert "does not say whose it is" in refusal(corpus, to, "mine")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "refused --push me/mine (401: " in (said := refusal(corpus, to, "me/mine")) and "log in again" in said
    monkeypatch.delenv("HF_TOKEN")
    assert "there is none: run `hf auth login`" in refusal(corpus, to, "me/mine")
    monkeypatch.setenv("HF_TOKEN", "hf_me")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal(corpus, to, "me/mine")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "does not answer" in (said := refusal(corpus, to, "me/mine")) and "check the network" in said
    assert not to.exists() and not hub.repositories


def test_names_of_others_are_refused_with_what_to_do(corpus: Corpus, tmp_path: Path, hub: Hub) -> None:
    from tests.support.hub import Repository

    assert "may write for other" in refusal(corpus, tmp_path / "to", "other/mine")
    assert (tmp_path / "to/export.json").exists()
    hub.repositories["me/taken"] = Repository("other", private=True)
    assert "taken by a repository that this token does not see" in refusal(corpus, tmp_path / "to", "me/taken")


def test_options_are_checked(corpus: Corpus, tmp_path: Path) -> None:
    for options, words in (
        ({"licence": "CC BY"}, "did you mean .*cc-by-4.0"),
        ({"private": True}, "--private says how to upload, and --push is missing"),
        ({"push": "me/mine", "format": "parquet"}, "--push is an option of --format hub"),
    ):
        kind = options.pop("format", "hub")  # type: ignore[attr-defined]
        asked = ExportOptions(kind, str(tmp_path / "to"), **options)
        with pytest.raises(ConfigError, match=words):
            export_corpus(Console(file=io.StringIO()), corpus.url, corpus, asked, draw=dataset_plots)
    remote = ExportOptions("hub", "s3://bucket/to", push="me/mine")
    with pytest.raises(ConfigError, match="uploads a folder of this machine"):
        export_corpus(Console(file=io.StringIO()), corpus.url, corpus, remote, draw=dataset_plots)
    assert not (tmp_path / "to").exists()


def test_the_command(finished: Path, tmp_path: Path, corpus: Corpus, hub: Hub) -> None:
    arguments = ("export", finished, "--format", "hub", "--to", tmp_path / "to", "--push", "me/mine")
    done = pipeline(*arguments, "--licence", "cc-by-4.0")
    assert done.returncode == 0 and "uploaded to" in done.stdout, done
    refused = pipeline(*arguments, "--licence", "mine")
    assert refused.returncode == 2 and "is not the name of a licence" in refused.stderr


def test_the_card_of_a_corpus_whose_languages_were_detected(finished: Path, tmp_path: Path, corpus: Corpus) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "out"))
    (settings,) = copy.glob("runs/*/corpus.yaml")
    config = yaml.safe_load(settings.read_text("utf-8"))
    config["input"][0]["lang"] = {"detect": {"threshold": 0.25}}
    settings.write_bytes(sealed_yaml(yaml.safe_dump(config)))
    done = pipeline("export", copy, "--format", "hub", "--to", tmp_path / "to", "--vectors", "none")
    assert done.returncode == 0, done
    assert "lang detected, with confidence of at least 0.25" in (tmp_path / "to/README.md").read_text("utf-8")


def test_the_card_names_the_digest_of_a_fetched_file_whose_record_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_format, "cache_path", lambda url: tmp_path / "weights.pt")
    asked = None, "https://example.org/weights.pt"
    assert "not known" in hub_format._digest(*asked)
    record = tmp_path / "weights.pt.sha256"
    record.write_text(f"{'a' * 64}  weights.pt\n")
    assert hub_format._digest(*asked).startswith(f"sha256 `{'a' * 64}`")
    record.write_bytes(b"")
    with pytest.raises(CorpusError, match=f"{record} is damaged: it holds no sha256"):
        hub_format._digest(*asked)
