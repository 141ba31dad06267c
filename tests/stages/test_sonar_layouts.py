"""Weight files as others write them: the Hugging Face ports, fairseq's names, untied projections, what is unsafe."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from stages.cards import CardError
from stages.sonar.card import FileRole, ModelCard, ModelFile, load_card
from stages.sonar.checkpoint import CONTROL_ROWS, load_decoder, load_encoder, save
from stages.sonar.generate import greedy
from stages.sonar.tokenizer import SonarTokenizer

FOLDER = Path(__file__).parent / "fixtures/sonar-space-tiny"
TOO_LONG = 46  # the one sentence of more than 514 tokens


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "reference.json").read_text())
    with np.load(FOLDER / "reference.npz") as arrays:
        return loaded | {name: torch.from_numpy(arrays[name]) for name in arrays}


@pytest.fixture(scope="module")
def ported() -> ModelCard:
    return load_card(str(FOLDER / "card-m2m100.yaml"))


def with_file(card: str, role: FileRole, path: Path) -> ModelCard:
    """One of the two cards with another file."""
    loaded = load_card(str(FOLDER / card))
    described = ModelFile.of(path, path.parent).model_copy(update={"path": str(path)})
    return loaded.model_copy(update={"files": loaded.files.model_copy(update={role: described})})


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("lang", ["eng_Latn", "fra_Latn"])
def test_the_port_gives_the_embeddings(ported: ModelCard, reference: dict[str, Any], lang: str) -> None:
    encoder = load_encoder(ported)
    ids = SonarTokenizer(ported).encode(reference["sentences"][:TOO_LONG], lang)
    with torch.inference_mode():
        ours = torch.cat([encoder(torch.tensor([row])) for row in ids])
    assert (ours - reference[f"embedding.{lang}"][:TOO_LONG]).abs().max() < 1e-5


def test_the_port_gives_the_logits_and_the_text(ported: ModelCard, reference: dict[str, Any]) -> None:
    decoder, embeddings = load_decoder(ported), reference["embedding.eng_Latn"]
    assert decoder.output is None
    with torch.inference_mode():
        logits = decoder(reference["decoder.input_ids"], embeddings)
    assert (logits - reference["decoder.logits"]).abs().max() < 3e-5
    tokenizer = SonarTokenizer(ported)
    prefixes = torch.tensor([tokenizer.target_prefix("eng_Latn")] * len(embeddings))
    ours = greedy(decoder, embeddings, prefixes, torch.full((len(embeddings),), 46))
    assert ours == [hypotheses[0]["ids"] for hypotheses in reference["hypotheses.beam1.eng_Latn"]]


def test_a_whole_translation_model_serves_as_decoder(ported: ModelCard, tmp_path: Path) -> None:
    """Ports of the decoder are saved as a translation model: an encoder that is none, shared tables, buffers."""
    tensors = load_file(FOLDER / "hf_decoder.safetensors")
    table = tensors.pop("model.decoder.embed_tokens.weight")
    encoder = load_file(FOLDER / "hf_encoder.safetensors")
    tensors |= {f"model.encoder.{name}": value + 1 for name, value in encoder.items()}
    tensors |= {"model.shared.weight": table, "lm_head.weight": table.clone()}
    tensors["model.decoder.embed_positions.weights"] = torch.zeros(4, 64)
    save_file(tensors, tmp_path / "whole.safetensors")
    found = load_decoder(with_file("card-m2m100.yaml", "decoder", tmp_path / "whole.safetensors"))
    assert same_weights(found, load_decoder(ported))

    del tensors["model.shared.weight"]  # one of the tied names is kept when such a model is saved, not always this one
    torch.save(tensors, tmp_path / "whole.bin")
    assert same_weights(load_decoder(with_file("card-m2m100.yaml", "decoder", tmp_path / "whole.bin")), found)


def test_fairseq_names_in_a_published_checkpoint(ported: ModelCard, tmp_path: Path) -> None:
    """The official package converts such files when it loads them."""
    loaders: dict[FileRole, Callable[[ModelCard], nn.Module]] = {"encoder": load_encoder, "decoder": load_decoder}
    for role, load in loaders.items():
        tensors = load_file(FOLDER / f"hf_{role}.safetensors")
        plain = {name.removeprefix(f"model.{role}."): value for name, value in tensors.items()}
        plain |= {"version": torch.tensor([3.0]), "embed_positions._float_tensor": torch.zeros(1)}
        if role == "decoder":
            plain["output_projection.weight"] = plain["embed_tokens.weight"]
        torch.save({"model": {"state_dict": plain}}, tmp_path / f"{role}.pt")
        found = load(with_file("card.yaml", role, tmp_path / f"{role}.pt"))
        assert same_weights(found, load(ported))


def untied(table: Tensor) -> Tensor:
    return table + torch.randn(table.shape, generator=torch.Generator().manual_seed(0))


def test_an_output_projection_of_its_own_is_kept(ported: ModelCard, reference: dict[str, Any], tmp_path: Path) -> None:
    card = load_card(str(FOLDER / "card.yaml"))
    content = torch.load(card.path("decoder"), weights_only=True)["model"]
    content["final_proj.weight"] = projection = untied(content["final_proj.weight"])
    torch.save({"model": content}, tmp_path / "untied.pt")
    decoder = load_decoder(with_file("card.yaml", "decoder", tmp_path / "untied.pt"))
    with torch.inference_mode():
        hidden = decoder.hidden(reference["decoder.input_ids"], reference["embedding.eng_Latn"])
        assert torch.equal(decoder.logits(hidden), hidden @ projection.T)

    tensors = load_file(FOLDER / "hf_decoder.safetensors")
    tensors["lm_head.weight"] = torch.empty_like(projection)
    tensors["lm_head.weight"][:] = projection
    tensors["lm_head.weight"][list(CONTROL_ROWS)] = projection[:4]
    save_file(tensors, tmp_path / "untied.safetensors")
    assert same_weights(
        load_decoder(with_file("card-m2m100.yaml", "decoder", tmp_path / "untied.safetensors")), decoder
    )

    save(decoder, tmp_path / "native.safetensors")
    native = with_file("card.yaml", "decoder", tmp_path / "native.safetensors").model_copy(update={"layout": "native"})
    again = load_decoder(native)
    assert again.output is not None
    assert torch.equal(again.output.weight, projection.half().float())


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("evil-was-here"),)


@pytest.mark.parametrize("kind", ["code in a torch file", "plain pickle", "neither", "no tensors"])
def test_files_that_are_unsafe_or_no_weights_are_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "weights.pt"
    if kind == "code in a torch file":
        torch.save({"model": {"a": Evil()}}, path)
    elif kind == "no tensors":
        torch.save([1], path)
    else:
        path.write_bytes(pickle.dumps(Evil()) if kind == "plain pickle" else b"hello")
    with pytest.raises(CardError, match="missing: " if kind == "no tensors" else "cannot be read as safetensors or"):
        load_encoder(with_file("card.yaml", "encoder", path))
    assert not (tmp_path / "evil-was-here").exists()


def test_a_layout_that_is_not_the_files_is_an_error_that_says_so(ported: ModelCard) -> None:
    with pytest.raises(CardError, match=r"layout fairseq2\).*missing: embedding\.weight"):
        load_encoder(
            ported.model_copy(update={"layout": "native"}).model_copy(update={"layout": "fairseq2", "dim": 96})
        )


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["native", "fairseq2"])
def test_loading_never_holds_a_model_twice(layout: str, tmp_path: Path) -> None:
    """Private memory (not the mapped file, which the kernel may drop) grows by the model and little more."""
    code = """
import sys, threading, torch
from benchmarks.flops import Shape
from benchmarks.random_model import make_model
from collections.abc import Callable
from pathlib import Path
from stages.sonar.card import ModelFile, load_card
from stages.sonar.checkpoint import load_encoder

def private():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

folder, layout = Path(sys.argv[1]), sys.argv[2]
if layout == "make":
    make_model(folder, Shape(512, 8, 8, 2048), tokenizer_of="sonar-tiny", seed=0)
    sys.exit()
card = load_card(str(folder / "card.yaml"))
if layout == "fairseq2":
    files = card.files.model_copy(update={"encoder": ModelFile.of(folder / "fairseq2-encoder.pt", folder)})
    card = card.model_copy(update={"layout": layout, "files": files})
load_encoder(load_card("sonar-tiny"))  # what torch imports and sets aside once
assert "torch._dynamo" not in sys.modules, "torch loaded its compiler, for seconds"
peak = before = private()
done = threading.Event()

def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, private())

watcher = threading.Thread(target=watch)
watcher.start()
network = load_encoder(card)
done.set()
watcher.join()
print(max(peak, private()) - before, sum(p.numel() * 4 for p in network.parameters()))
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path), "make"], cwd=root, check=True)
    command = [sys.executable, "-c", code, str(tmp_path), layout]
    done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    grown, model = map(int, done.stdout.split())
    assert model > 100e6
    assert 0.9 * model < grown < 1.25 * model
    shutil.rmtree(tmp_path)
