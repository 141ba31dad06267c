"""A decoder that is fine-tuned as a fit of a corpus: frozen, resumed, described by a card that other stages take."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.load import load_config
from pipeline.coordination.lock import locked
from pipeline.corpus.fits import read_record
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import changed_settings
from pipeline.maintenance.gc import delete_garbage, find_garbage
from pipeline.maintenance.records import check_records
from pipeline.maintenance.verify import check
from pipeline.planning import rates
from pipeline.planning.checks import load_checked
from pipeline.planning.plan import make_plan
from pipeline.run import decoder_fit
from pipeline.run.decoder_fit import StoredCheckpoint
from pipeline.storage.store import Store
from stages.cards import CardError
from stages.decoder import finetune
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_decoder
from tests.conftest import TINY_CARD, MakeConfig, data_digests
from tests.support.cli import pipeline
from tests.support.runs import RVQ, run

DECODER = {"steps": 6, "batch_tokens": 256, "warmup": 2, "precision": "float32", "codes": True}
SECTIONS = {
    "fit": {"rows": 100}, "scaler": {}, "rvq": RVQ, "autobleu": None, "split": {"validation": 0.3}, "decoder": DECODER,
}  # fmt: skip


def card_in(output: Path) -> Path:
    (found,) = output.glob("fits/decoder.*.yaml")
    return found


@pytest.mark.slow
def test_it_is_a_fit_like_others_and_its_card_is_a_decoder(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(decoder_fit, "SETUP_SECONDS", 0.0)
    monkeypatch.setattr(rates, "LEAST_SECONDS", 0.0)
    config = load_config(path := make_config(**SECTIONS))
    assert make_plan(config).missing_fits == ("scaler", "rvq", "decoder")
    shown = run(path)
    assert re.search(r"decoder: fitted on .* → fits/decoder\.[0-9a-f]{8}-[0-9a-f]{6}\.yaml\n", shown)
    assert (rate := rates.machine_rate(config, "decoder")) and rate.sentences == 6 and rate.tokens > 6
    plan = make_plan(config)
    assert plan.nothing_to_do and plan.work["decoder"].done == 1
    record = read_record(Store(config.output), plan.config.frozen.fits["decoder"].record)
    assert record.numbers["steps"] == 6 and record.numbers["held_out_rows"] and len(record.files) == 2
    corpus = Corpus(config.output)
    split = corpus.table("split", "part").to_pandas()
    chunks = [one for one in plan.chunks if one.chunk.id in record.chunks]
    pilot = {part.ref.part for one in chunks for part in one.parts}
    assert record.rows == int(((split["split"] == "train") & split["part"].isin(pilot)).sum()) > 0
    assert make_plan(load_config(path, ["split.test=0.5"])).missing_fits == ("decoder",), "it learned from those"
    (tmp_path / "ids.txt").write_text(corpus.to_pandas("doc_id", where="split == 'train'")["doc_id"][0])
    told = " ".join(pipeline("purge", path, "--ids", tmp_path / "ids.txt", "--dry-run").stdout.split())
    assert f"made with them, and not changed: {record.path}; pipeline run --refit decoder" in told
    card = load_card(str(card_in(tmp_path / "out")))
    base = load_card(str(TINY_CARD))
    assert card.encoder_digest == base.encoder_digest and card.decoder_digest != base.decoder_digest
    ours, theirs = load_decoder(card).state_dict(), load_decoder(base).state_dict()
    assert ours.keys() == theirs.keys() and not torch.equal(ours["norm.weight"], theirs["norm.weight"])
    assert run(path).startswith("Nothing to do.") and not check(corpus, lambda done: None)
    assert changed_settings(corpus.store, config) == []
    assert not find_garbage(corpus).why
    before = data_digests(config.output)
    run(path, "autobleu={}", f"autobleu.model={card_in(tmp_path / 'out')}")
    assert data_digests(config.output).items() > before.items()
    assert Corpus(config.output).table("autobleu")["autobleu"].null_count == 0


@pytest.mark.slow
def test_a_damaged_card_is_found_and_what_nobody_needs_goes(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**SECTIONS)
    run(path)
    card = card_in(tmp_path / "out")
    run(path, "decoder.steps=5")
    assert len(list((tmp_path / "out/fits").glob("decoder.*"))) == 6
    corpus = Corpus(str(tmp_path / "out"))
    with locked(corpus.store, "gc") as lease:
        garbage = find_garbage(corpus, older_views=True)
        assert {Path(one).suffix for one in garbage.why} == {".yaml", ".safetensors", ".json"}
        delete_garbage(Console(quiet=True), corpus, garbage, lease)
    assert not card.exists() and len(list((tmp_path / "out/fits").glob("decoder.*"))) == 3
    card = card_in(tmp_path / "out")
    card.write_text(card.read_text() + "# changed\n")
    (wrong,) = check(corpus, lambda done: None)
    assert wrong.path == f"fits/{card.name}"


@pytest.mark.slow
def test_an_interrupted_fit_goes_on_with_the_same_bits(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever later runs do meanwhile; a damaged checkpoint is told, and its fit begins anew."""
    path = make_config(**SECTIONS)
    run(path, f"output={tmp_path / 'whole'}")
    steps = finetune.FineTuning._step

    def killed(training: finetune.FineTuning, rows: np.ndarray) -> None:
        if training.at.step == 4:
            raise KeyboardInterrupt
        steps(training, rows)

    monkeypatch.setattr(finetune.FineTuning, "_step", killed)
    with pytest.raises(KeyboardInterrupt):
        run(path, "decoder.checkpoint_seconds=1e-9")
    (checkpoint,) = (tmp_path / "out/fits").glob("decoder.*-checkpoint.safetensors")
    monkeypatch.undo()
    without = make_config(**SECTIONS | {"decoder": None})
    run(without)  # so that the newest run does not know it
    garbage = find_garbage(Corpus(str(tmp_path / "out")))
    assert not garbage.why and garbage.kept == {"an interrupted fine-tuning of a decoder resumes from it": 1}
    older = find_garbage(Corpus(str(tmp_path / "out")), older_views=True)
    assert list(older.why) == [f"fits/{checkpoint.name}"]
    assert find_garbage(Corpus(str(tmp_path / "out")), now=time.time() + 31 * 24 * 3600).why.keys() == older.why.keys()
    path = make_config(**SECTIONS)
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    run(path, f"output={tmp_path / 'other'}", "decoder.steps=5")
    other = Corpus(str(tmp_path / "other"))
    assert find_garbage(other).kept == garbage.kept
    assert find_garbage(other, now=time.time() + 31 * 24 * 3600).why == {
        f"fits/{checkpoint.name}": "a fine-tuning of a decoder with other settings was interrupted, over 30 days ago"
    }
    half = checkpoint.read_bytes()
    store = Store(str(tmp_path / "out"))
    assert not check_records(store)
    for at in (len(half) // 2, half.index(b'\\"step\\": 4') + 10):  # a value of a tensor, and the number of steps
        checkpoint.write_bytes(half[:at] + bytes([half[at] ^ 1]) + half[at + 1 :])
        (found,) = check_records(store)
        assert found.path == found.receipt == f"fits/{checkpoint.name}"
    with caplog.at_level("WARNING"):
        shutil.copytree(tmp_path / "out", tmp_path / "over")
        run(path, f"output={tmp_path / 'over'}")
    assert "is damaged (it does not hold what its digest was made of): the decoder is fine-tuned" in caplog.text
    checkpoint.write_bytes(half)
    run(path)
    assert not checkpoint.exists()
    checkpoint.write_bytes(half)  # as if it had been killed before it deleted it
    (record,) = (tmp_path / "out/fits").glob("decoder.*.json")
    os.utime(checkpoint, (record.stat().st_mtime - 1,) * 2)
    garbage = find_garbage(Corpus(str(tmp_path / "out")))
    assert garbage.why == {f"fits/{checkpoint.name}": "the fine-tuning of a decoder that resumed from it is done"}
    whole, *others = (
        {file.name: file.read_bytes() for file in (tmp_path / name / "fits").glob("decoder.*-??????.*")}
        for name in ("whole", "out", "over")
    )
    assert {Path(one).suffix for one in whole} == {".yaml", ".safetensors"} and others == [whole, whole]
    assert json.loads(record.read_text())["numbers"]["resumed_at"] == 4
    assert StoredCheckpoint(Store(str(tmp_path / "out")), "0" * 32).read() is None


@pytest.mark.slow
def test_what_is_of_another_corpus_is_refused_with_both_fingerprints(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(**SECTIONS)
    run(path)
    file = card_in(tmp_path / "out").with_suffix(".safetensors")
    taken = [f"decoder.file={file}", f"output={tmp_path / 'second'}"]
    run(path, *taken)
    assert card_in(tmp_path / "second").with_suffix(".safetensors").read_bytes() == file.read_bytes()
    third = f"output={tmp_path / 'third'}"
    with pytest.raises(CorpusError, match=r"was fine-tuned with the rvq [0-9a-f]{32}, this corpus has [0-9a-f]{32}"):
        run(path, *taken, third, "rvq.seed=1")
    with pytest.raises(CorpusError, match=r"was fitted under segment [0-9a-f]{32}, this corpus is of segment [0-9a-f]"):
        run(path, *taken, f"output={tmp_path / 'fourth'}", "segment.max_chars=60")
    content = card_in(tmp_path / "out").read_text()
    other = card_in(tmp_path / "out").with_name("other.yaml")
    digest = load_card(str(TINY_CARD)).encoder_digest
    other.write_text(content.replace(digest, "f" * 16))
    with pytest.raises(ConfigError, match=rf"fine-tuned on embeddings of the encoder f{{16}}, those of .*{digest}"):
        load_checked(path, ["autobleu={}", f"autobleu.model={other}"])
    with pytest.raises(CardError, match=r"whose decoder .* was fine-tuned on embeddings"):
        load_card(str(other)).check_encoder(load_card(str(TINY_CARD)), "whose decoder")


def test_sections_that_it_needs_are_named(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match=r"decoder\.noise needs what scaler makes"):
        load_config(make_config(decoder={}))
    with pytest.raises(ConfigError, match=r"decoder\.codes needs what rvq makes"):
        load_config(make_config(scaler={}, decoder={"codes": True}))
    with pytest.raises(ConfigError, match=r"decoder\.prefix_share is 2; allowed: less than or equal to 1"):
        load_config(make_config(scaler={}, decoder={"prefix_share": 2}))
