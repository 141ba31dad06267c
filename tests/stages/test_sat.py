"""SaT models: probabilities and boundaries as wtpsplit has them, from cards, with adapters; errors say what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray

from stages.cards import CardError
from stages.fetch import sha256_of
from stages.packed import Runs
from stages.segment.sat.card import LORA_FILES, SatCard, load_sat_card, shipped_sat_cards
from stages.segment.sat.load import load
from stages.segment.sat.networks import SatNetwork
from stages.segment.sat.runner import SatRunner, mean_of_windows, windows
from tests.conftest import sample_documents

TINY = Path(str(shipped_sat_cards()["sat-tiny"])).parent / "sat-tiny"
BLOCK = 128  # tokens of sat-tiny's windows
TIE = 1e-3
ROUNDING = 2e-3  # wtpsplit adds and keeps logits in 16 bits


def texts() -> list[str]:
    """Real documents of one line, one of them longer than several windows, and odd ones."""
    names = {"austen-eng": 2, "libreoffice-zho": 5, "libreoffice-rus": 3, "libreoffice-deu": 3}
    found = [" ".join(one["text"].split()) for name, count in names.items() for one in sample_documents(name, count)]
    return [*found, "a b", "“你好。”他说: नमस्ते। ठीक है?", "x" * 3000, "Hi  there .  No"]


@cache
def official(folder: Path, lora: Path | None = None) -> Any:
    from wtpsplit import SaT  # four seconds of CPU, which the other workers are spared

    lora_path = str(lora) if lora else None
    return SaT(str(folder), tokenizer_name_or_path=str(folder), lora_path=lora_path, hub_prefix=None)


def probabilities(
    card: SatCard, documents: list[str], stride: int, batch_tokens: int = 16_384
) -> list[NDArray[np.float64]]:
    """For each document, the probability at each character."""
    network, tokenizer = load(card, torch.float32, "cpu")
    runner = SatRunner(network, tokenizer, stride=stride, batch_tokens=batch_tokens, device="cpu")
    edges = np.cumsum([0, *map(len, documents)])
    places, logits = runner.logits(documents, edges[:-1])
    found = np.zeros(edges[-1])
    found[places] = 1 / (1 + np.exp(-logits.astype(np.float64)))
    return np.split(found, edges[1:-1])


@pytest.mark.slow
@pytest.mark.parametrize("stride", [64, 96])
def test_boundaries_are_those_of_wtpsplit(stride: int) -> None:
    card = load_sat_card("sat-tiny")
    theirs = list(official(TINY).predict_proba(texts(), stride=stride, block_size=BLOCK))
    boundaries = 0
    for mine, other in zip(probabilities(card, texts(), stride), theirs, strict=True):
        assert np.abs(mine - other).max() < ROUNDING
        differing = (mine > card.threshold) != (other > card.threshold)
        assert np.abs(mine[differing] - card.threshold).max(initial=0) < TIE
        boundaries += int((other > card.threshold).sum())
    assert boundaries > 300


@pytest.mark.slow
def test_sentences_are_those_of_wtpsplits_split() -> None:
    document = texts()[0]
    split = official(TINY).split(document, threshold=0.25, stride=64, block_size=BLOCK, split_on_input_newlines=False)
    found = probabilities(load_sat_card("sat-tiny"), [document], 64)[0]
    ends = np.flatnonzero(found > 0.25) + 1
    mine = [document[a:b].strip() for a, b in zip([0, *ends], [*ends, len(document)], strict=True)]
    assert [one for one in mine if one] == [one.strip() for one in split if one.strip()]


def test_batches_do_not_matter() -> None:
    card = load_sat_card("sat-tiny")
    for one, other in zip(probabilities(card, texts(), 96), probabilities(card, texts(), 96, 600), strict=True):
        assert np.array_equal(one, other)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_short_documents_share_batches_and_have_the_logits_of_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one thread, as segmenting processes have; with several, GELU rounds by where a thread's share ends."""
    network, tokenizer = load(load_sat_card("sat-tiny"), torch.float32, "cpu")
    documents = [text[at : at + 7 * size] for text in texts()[:4] for size, at in enumerate(range(0, 2000, 50), 2)]
    batches: list[int] = []
    packed = SatNetwork.packed

    def counting(self: SatNetwork, ids: torch.Tensor, runs: Runs) -> torch.Tensor:
        batches.append(len(ids))
        return packed(self, ids, runs)

    monkeypatch.setattr(SatNetwork, "packed", counting)
    begins = np.cumsum([0, *map(len, documents)])[:-1]
    runner = SatRunner(network, tokenizer, stride=96, batch_tokens=2048, device="cpu")
    _, found = runner.logits(documents, begins)
    assert min(batches[:-1]) > 2048 - BLOCK - 2
    monkeypatch.undo()
    alone = [runner.logits([one], np.zeros(1, np.int64))[1] for one in documents]
    assert np.array_equal(found, np.concatenate(alone))
    with torch.inference_mode():
        ids = torch.tensor(tokenizer.encode(documents[0]).ids)
        assert np.array_equal(network(ids[None])[0, 1:-1].numpy(), alone[0])


def test_logits_are_summed_from_the_first_window_to_the_last() -> None:
    lengths = np.array([3, BLOCK + 20, 0, 2 * BLOCK - 1, 400])
    start, length = windows(lengths, BLOCK, 17)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(start))  # in which they were computed
    place = np.zeros(len(start), np.int64)
    place[order] = np.cumsum(length[order]) - length[order]
    logits = rng.standard_normal(int(length.sum())).astype(np.float32)
    expected = np.zeros(int(lengths.sum()), np.float32)
    count = np.zeros_like(expected)
    for window in range(len(start)):
        held = slice(start[window], start[window] + length[window])
        expected[held] += logits[place[window] : place[window] + length[window]]
        count[held] += 1
    assert count.max() > 3
    found = mean_of_windows(logits, place, start, length, len(expected))
    assert np.array_equal(found, expected / count)


def test_windows_cover_every_token_and_end_with_the_document() -> None:
    lengths = np.array([0, 1, BLOCK, BLOCK + 1, 0, 400])
    start, length = windows(lengths, BLOCK, 50)
    edges = np.cumsum(np.append(0, lengths))
    seen = np.zeros(edges[-1], np.int64)
    for a, n in zip(start, length, strict=True):
        document = np.searchsorted(edges, a, side="right") - 1
        assert edges[document] <= a and a + n <= edges[document + 1]
        seen[a : a + n] += 1
    assert seen.min() == 1 and length.max() == BLOCK
    assert {*edges[1:].tolist()} <= {0, *(start + length).tolist()}


def copy_of_tiny(folder: Path, **changes: Any) -> Path:
    """A card of its own with a copy of the model; changes: of the card's content."""
    shutil.copytree(TINY, folder / "model")
    digests = {path.name: sha256_of(path) for path in (folder / "model").iterdir()}
    content = {"name": "mine", "kind": "sat", "description": "a copy", "licence": "MIT", "threshold": 0.25}
    card = folder / "mine.yaml"
    card.write_text(yaml.safe_dump({**content, "model": "./model", "sha256": digests, **changes}))
    return card


@pytest.mark.slow
def test_a_lora_adapter_is_merged_as_wtpsplit_does(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    plain = copy_of_tiny(tmp_path)
    (adapter / "adapter_config.json").write_text(json.dumps({"config": {"r": 2, "alpha": 4}}))
    (adapter / "head_config.json").write_text(json.dumps({"num_labels": 1}))
    network, _ = load(load_sat_card(str(plain)), torch.float32, "cpu")
    torch.manual_seed(0)
    pairs = {}
    for layer in range(3):
        name = f"roberta.encoder.layer.{layer}.attention.self.query"
        rows, columns = network.get_parameter(f"{name}.weight").shape
        pairs[f"{name}.loras.mine.lora_A"] = 0.2 * torch.randn(2, columns)
        pairs[f"{name}.loras.mine.lora_B"] = 0.2 * torch.randn(rows, 2)
    torch.save(pairs, adapter / "pytorch_adapter.bin")
    torch.save({"classifier.bias": torch.tensor([0.5])}, adapter / "pytorch_model_head.bin")
    digests = {name: sha256_of(tmp_path / "model" / name) for name in ("config.json", "model.safetensors")}
    shutil.copytree(tmp_path / "model", tmp_path / "again" / "model")
    content = yaml.safe_load(plain.read_text())
    content |= {"lora": "./adapter", "sha256": digests | {f"lora/{n}": sha256_of(adapter / n) for n in LORA_FILES}}
    plain.write_text(yaml.safe_dump(content))
    card = load_sat_card(str(plain))
    theirs = list(official(tmp_path / "model", adapter).predict_proba(texts(), stride=96, block_size=BLOCK))
    unadapted = list(official(TINY).predict_proba(texts(), stride=96, block_size=BLOCK))
    mine = probabilities(card, texts(), 96)
    assert max(np.abs(a - b).max() for a, b in zip(mine, theirs, strict=True)) < ROUNDING
    assert max(np.abs(a - b).max() for a, b in zip(mine, unadapted, strict=True)) > 0.1
    (adapter / "pytorch_adapter.bin").unlink()
    with pytest.raises(CardError, match=r"adapter/pytorch_adapter\.bin is missing"):
        load(card, torch.float32, "cpu")


def test_a_base_model_with_further_outputs_is_read_by_its_first(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    card = copy_of_tiny(tmp_path)
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = torch.cat((weights[name], torch.randn(110, *weights[name].shape[1:]).half()))
    save_file(weights, path)
    content = yaml.safe_load(card.read_text())
    content["sha256"]["model.safetensors"] = sha256_of(path)
    card.write_text(yaml.safe_dump(content))
    for mine, tiny in zip(
        probabilities(load_sat_card(str(card)), texts(), 96),
        probabilities(load_sat_card("sat-tiny"), texts(), 96),
        strict=True,
    ):
        assert np.array_equal(mine, tiny)


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors", "tokenizer.json"])
def test_what_a_folder_lacks_is_listed(lost: str, tmp_path: Path) -> None:
    card = copy_of_tiny(tmp_path)
    (tmp_path / "model" / lost).unlink()
    with pytest.raises(CardError, match=rf"model/{lost} is missing"):
        load(load_sat_card(str(card)), torch.float32, "cpu")
    content = yaml.safe_load(card.read_text())
    del content["sha256"][lost]
    card.write_text(yaml.safe_dump(content))
    with pytest.raises(CardError, match=rf"missing .*model/{lost}"):
        load(load_sat_card(str(card)), torch.float32, "cpu")


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    card = copy_of_tiny(tmp_path)
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(b"no tensors")
    with pytest.raises(CardError, match=r"model\.safetensors has sha256 .* the card says"):
        load(load_sat_card(str(card)), torch.float32, "cpu")
    content = yaml.safe_load(card.read_text())
    content["sha256"]["model.safetensors"] = sha256_of(path)
    card.write_text(yaml.safe_dump(content))
    with pytest.raises(CardError, match=r"no readable model\.safetensors"):
        load(load_sat_card(str(card)), torch.float32, "cpu")
    (tmp_path / "model" / "config.json").write_text("{}")
    shutil.copy(TINY / "model.safetensors", path)
    content["sha256"] = {name: sha256_of(tmp_path / "model" / name) for name in content["sha256"]}
    card.write_text(yaml.safe_dump(content))
    with pytest.raises(CardError, match=r"not a SaT model with XLM-R's architecture .*vocab_size"):
        load(load_sat_card(str(card)), torch.float32, "cpu")


def test_cards_are_checked(tmp_path: Path) -> None:
    with pytest.raises(CardError, match=r"no SaT model is called 'sat-9l'; use one of .*sat-tiny"):
        load_sat_card("sat-9l")
    card = copy_of_tiny(tmp_path, threshold=1.5)
    with pytest.raises(CardError, match="threshold"):
        load_sat_card(str(card))
    card.write_text(yaml.safe_dump({**yaml.safe_load(card.read_text()), "threshold": 0.5, "sha256": {}}))
    with pytest.raises(CardError, match="give the sha256 of its files"):
        load_sat_card(str(card))


def test_what_decides_boundaries_is_in_the_digest(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = load_sat_card(str(copy_of_tiny(tmp_path / "a")))
    assert one.digest == load_sat_card(str(copy_of_tiny(tmp_path / "b", name="other"))).digest  # elsewhere, same files
    for change in ({"threshold": 0.3}, {"paragraph_threshold": 0.9}):
        path = tmp_path / "a" / "other.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load((tmp_path / "a" / "mine.yaml").read_text()), **change}))
        assert load_sat_card(str(path)).digest != one.digest


def test_published_models_that_are_not_here_say_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # read from the environment at its import
    card = load_sat_card("sat-3l-sm")
    assert card.missing()[0] == "segment-any-text/sat-3l-sm: config.json"
    with pytest.raises(
        CardError, match=r"wtpsplit cannot load segment-any-text/sat-3l-sm .*pipeline models sat-3l-sm --fetch"
    ):
        load(card, torch.float32, "cpu")
