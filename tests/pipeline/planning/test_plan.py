"""What becomes stale and what does not, and the reason that is given."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.errors import ConfigError
from pipeline.config.load import load_config
from pipeline.planning.plan import make_plan
from tests.conftest import MakeConfig, data_digests, sample_documents, write_jsonl
from tests.support.runs import bring_up_to_date, run


def left(path: Path, *overrides: str) -> dict[str, int]:
    return {stage: work.left for stage, work in make_plan(load_config(path, overrides)).work.items()}


def reasons(path: Path, stage: str, *overrides: str) -> list[str]:
    return list(make_plan(load_config(path, overrides)).work[stage].reasons)


def test_what_becomes_stale_is_told_against_what_the_corpus_has(make_config: MakeConfig) -> None:
    """Not against what was computed last: the last run returned to settings whose work was still there."""
    path = make_config(autobleu=None)
    for again in ((), ("segment.max_chars=90", "encode.precision=float32"), ()):
        run(path, *again)
    assert reasons(path, "segment", "segment.max_chars=70") == ["segment.max_chars: 80 → 70"]


def test_what_becomes_stale(make_config: MakeConfig) -> None:
    path = make_config()
    assert left(path) == {"segment": 3, "encode": 0, "autobleu": 0}
    assert reasons(path, "segment") == ["new"]
    bring_up_to_date(path)
    plan = make_plan(load_config(path))
    assert plan.nothing_to_do
    parts = plan.work["encode"].done
    assert parts > 3 and (plan.work["encode"].rate or 0) > 0

    for execution in ("encode.batch_tokens=64", "autobleu.batch_rows=3", "launcher.parts_in_flight=1"):
        assert make_plan(load_config(path, [execution])).nothing_to_do, execution

    assert left(path, "autobleu.length_extra=2") == {"segment": 0, "encode": 0, "autobleu": parts}
    assert reasons(path, "autobleu", "autobleu.length_extra=2") == ["autobleu.length_extra: 1 → 2"]
    assert left(path, "encode.precision=float32") == {"segment": 0, "encode": parts, "autobleu": parts}
    assert left(path, "segment.max_chars=90")["segment"] == 3
    assert reasons(path, "segment", "segment.max_chars=90") == ["segment.max_chars: 80 → 90"]
    assert left(path, "split.test=0.5")["segment"] == 3


def test_a_column_that_is_kept_is_one_reason(make_config: MakeConfig, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_jsonl(tmp_path / f"two/{name}.jsonl", [{"id": name, "text": "One. Two.", "year": 2010, "site": "x"}])
    both = [{"path": f"two/{name}.jsonl", "id": "id", "lang": "eng_Latn", "keep": ["year"]} for name in ("a", "b")]
    path = make_config(input=both, encode=None, autobleu=None)
    bring_up_to_date(path)
    assert sorted(reasons(path, "segment", "input.0.keep={year: int32, site: auto}")) == [
        'input.keep: ["year"] → {"year": "int32", "site": "auto"}',
        'types of metadata: (none) → {"year": "int32"}',
    ]
    of_both = ["input.0.keep=[year, site]", "input.1.keep={year: int32}"]  # the first is stale for two reasons
    assert sorted(reasons(path, "segment", *of_both)) == [
        'input.keep: ["year"] → ["year", "site"]',
        'input.keep: ["year"] → {"year": "int32"}',
        'types of metadata: (none) → {"year": "int32"}',
    ]


def test_text_that_stays_the_same_is_not_encoded_again(make_config: MakeConfig) -> None:
    path = make_config()
    bring_up_to_date(path)
    before = data_digests(path.parent / "out")
    plan = bring_up_to_date(path, "segment.max_document_sentences=50000")  # segmented again, with the same result
    assert len(plan.chunks_to_segment()) == 3
    after = make_plan(load_config(path, ["segment.max_document_sentences=50000"]))
    assert after.nothing_to_do
    receipts = list((path.parent / "out/receipts/encode").rglob("*.json"))
    assert len(receipts) == after.work["encode"].done, "encode ran again"
    assert data_digests(path.parent / "out") == before


def test_appending_to_one_file_and_adding_another(make_config: MakeConfig) -> None:
    path = make_config()
    bring_up_to_date(path)
    folder = path.parent / "in"
    with (folder / "libreoffice-eng.jsonl").open("a") as file:
        file.write(json.dumps(sample_documents("libreoffice-eng", 8)[7]) + "\n")
    write_jsonl(folder / "more.jsonl", sample_documents("postgresql-eng", 1))
    plan = make_plan(load_config(path))
    assert sorted(chunk.path for chunk in plan.chunks_to_segment()) == ["libreoffice-eng.jsonl", "more.jsonl"]
    assert any("libreoffice-eng.jsonl has changed" in reason for reason in plan.work["segment"].reasons)


def test_a_removed_file_leaves_the_view(make_config: MakeConfig) -> None:
    path = make_config()
    bring_up_to_date(path)
    (path.parent / "in/libreoffice-deu.jsonl").unlink()
    plan = make_plan(load_config(path))
    assert plan.nothing_to_do
    assert len(plan.chunks) == 2


def test_only_and_until(make_config: MakeConfig) -> None:
    config = load_config(make_config())
    assert make_plan(config, until="encode").stages == ("segment", "encode")
    assert make_plan(config, only="autobleu").stages == ("autobleu",)
    with pytest.raises(ConfigError, match="no such section in the file; allowed: segment, encode"):
        make_plan(config, only="rvq")
    with pytest.raises(ConfigError, match=r"--until encod: no such section in the file; did you mean encode\? allowed"):
        make_plan(config, until="encod")
    with pytest.raises(ConfigError, match="exclude"):
        make_plan(config, only="encode", until="autobleu")


def test_nothing_to_do_is_known_without_torch_ray_or_spacy(make_config: MakeConfig) -> None:
    path = make_config()
    bring_up_to_date(path)
    code = (
        "import sys\n"
        "from pipeline.config.load import load_config\n"
        "from pipeline.planning.plan import make_plan\n"
        f"assert make_plan(load_config({str(path)!r})).nothing_to_do\n"
        "heavy = {'torch', 'ray', 'spacy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
