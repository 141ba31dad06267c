"""Trains a small SaT model: XLM-R's architecture, a vocabulary of its own, one logit a token (Frohmann et al., 2024).

    python -m recipes.sat.train --corpus books.jsonl.xz@0.12 --corpus parallel.jsonl.xz --out runs/sat
    python -m recipes.sat.train --corpus … --out runs/tuned --start runs/sat/model --gold ud-sentences.jsonl.xz

The target of a token is 1 where a paragraph ends with it, 0.5 where only a sentence does, else 0: one probability tells
both, as that of SaT's newline does, by a low threshold and a high one. Where paragraphs are not known, a sentence's end
asks for 0.5 or more. The tokenizer has XLM-R's order of ids (`<s>`, `<pad>`, `</s>`, `<unk>`, pieces), and weights and
configuration lie as Hugging Face's `xlm-token` checkpoints do, so wtpsplit reads the folder too.

`--start` goes on from a model. With other pieces (`--pieces`), each new one begins as the mean of the old ones that
spell it. `--gold` draws half of the windows from treebanks; `--half` and `--without` keep documents for measuring.

Cost: a core with bfloat16 sees about 11 000 tokens/s. A stopped run goes on from its last checkpoint in --out, with the
weights that it would have had.
"""

from __future__ import annotations

import io
import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F
import typer
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from recipes.muon import Muon
from recipes.sat.data import GOLD_WAYS, UNKNOWN, LabelledDocument, Stream, cleaned, gold_documents, tokenise
from recipes.sonar.data import CorpusSource
from stages.fetch import sha256_of
from stages.segment import marks
from stages.segment.sat.networks import FIRST_POSITION, Layer, SatNetwork, SatSelfAttention

CONTROLS = ("<s>", "<pad>", "</s>", "<unk>")
TARGETS = (0.0, 0.5, 1.0, 0.5)  # nothing, a sentence, a paragraph, a sentence or a paragraph ends
LENGTHS = (64, 128)  # tokens of a training window
KEPT = 128  # tokens of a window of the exported model: held-out F1 was lower with longer ones, 0.47 for 0.50 when bare
LATIN = "".join(map(chr, (*range(0xC0, 0x180), *range(0x1EA0, 0x1EFA))))  # pieces: words of any Latin script stay whole
SAVED_EVERY = 250  # steps
GOLD_CHARACTERS = 300_000  # of a treebank; smaller ones are repeated, up to MOST_COPIES times
MOST_COPIES = 4
FAVOURED = {"eng_Latn": 2}  # further copies: its treebank is of web text, and so less regular than the others
UNJUDGED = 4  # last tokens of a window, which see too little of what follows


def train_tokenizer(found: Sequence[LabelledDocument], pieces: int, seed: int) -> Tokenizer:
    """Train a unigram tokenizer on a sample of the documents, two fifths of it in lower case.

    Every sentence-final mark of any script is a piece, if it lies in the basic plane.
    """
    rng = random.Random(seed)
    chosen = rng.sample(range(len(found)), min(len(found), 6_000))
    texts = [" ".join(found[number].sentences)[:3000] for number in chosen]
    texts = [text if rng.random() < 0.6 else text.lower() for text in texts]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(text[at : at + 2000] for text in texts for at in range(0, len(text), 2000)),
        model_writer=model,
        model_type="unigram",
        vocab_size=pieces - len(CONTROLS) + 1,
        character_coverage=0.9995,
        normalization_rule_name="nmt_nfkc",
        required_chars="".join(c for c in LATIN + marks.FINAL + marks.BREAKS + marks.COMMAS if ord(c) < 0x10000),
        max_sentence_length=20_000,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=1,
        minloglevel=1,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    vocabulary = [(control, 0.0) for control in CONTROLS]
    vocabulary += [(trained.id_to_piece(i), trained.get_score(i)) for i in range(1, trained.vocab_size())]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=CONTROLS.index("<unk>")))
    # As SentencePiece's nmt_nfkc, but U+200C and U+200D stay in the words that they are part of.
    blanks = normalizers.Replace(Regex("[\\u200b\\u200e\\u200f\\u2028\\u2029\\u2581\\ufeff\\ufffd]"), " ")
    controls = normalizers.Replace(Regex("[\\x00-\\x08\\x0b\\x0e-\\x1f\\x7f\\x8f\\x9f]"), "")
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([blanks, controls, normalizers.NFKC(), spaces])
    words = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    tokenizer.add_special_tokens(list(CONTROLS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def untrained(tokenizer: Tokenizer, *, dim: int, layers: int, heads: int, seed: int) -> SatNetwork:
    torch.manual_seed(seed)
    network = SatNetwork(
        vocab_size=tokenizer.get_vocab_size(),
        dim=dim,
        layers=layers,
        heads=heads,
        ffn_dim=4 * dim,
        max_positions=positions(max(LENGTHS)),
    )
    for name, parameter in network.named_parameters():
        if parameter.ndim == 2:
            spread = 0.05 if "embeddings" in name else 0.5 / math.sqrt(parameter.shape[1])
            nn.init.normal_(parameter, std=spread)
    return network


def started(folder: Path, tokenizer: Tokenizer) -> SatNetwork:
    """Load the model that `export` wrote; a piece that it lacks begins as the mean of those that spell it."""
    config = json.loads((folder / "config.json").read_text())
    network = untrained(
        tokenizer,
        dim=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        seed=0,
    )
    weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    name = "roberta.embeddings.word_embeddings.weight"
    before = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if before.get_vocab() != tokenizer.get_vocab():
        old, pieces = weights[name], tokenizer.get_vocab()
        new = torch.empty(len(pieces), old.shape[1])
        for piece, number in pieces.items():
            known = before.token_to_id(piece)
            ids = [token.id for token in before.model.tokenize(piece)] if known is None else [known]
            new[number] = old[ids].mean(0)
        weights[name] = new
    network.load_state_dict(weights)
    return network


def positions(tokens: int) -> int:
    """Return how many rows the table of positions has for windows of so many tokens, with room for <s> and </s>."""
    return FIRST_POSITION + tokens + 2


def train(
    network: SatNetwork,
    stream: Stream,
    *,
    steps: int,
    batch_tokens: int,
    learning_rate: float,
    seed: int,
    gold: Stream | None = None,
    checkpoint: Path | None = None,
    bfloat16: bool = False,
) -> None:
    """Train by binary cross-entropy on random windows.

    The learning rate warms up, stays constant, and falls linearly over the last half. gold: half of the windows come
    from it. checkpoint: a file to resume from and to save to; which windows a step sees depends on nothing but the seed
    and the step.
    """
    matrices: dict[str, nn.Parameter] = {}
    others: dict[str, nn.Parameter] = {}
    for name, parameter in network.named_parameters():
        inside = parameter.ndim == 2 and "embeddings" not in name and "classifier" not in name
        (matrices if inside else others)[name] = parameter
    adamw = torch.optim.AdamW(others.values(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    optimizers: list[torch.optim.Optimizer] = [Muon(matrices.values(), lr=learning_rate), adamw]
    targets = torch.tensor(TARGETS)
    losses: list[float] = []
    first = restored(checkpoint, network, optimizers) if checkpoint and checkpoint.exists() else 0
    began = time.monotonic()
    for step in range(first, steps):
        rng = np.random.default_rng((seed, step))
        length = int(rng.choice(LENGTHS))
        rows = batch_tokens // length
        drawn = [stream.batch(rows - rows // 2, length, rng), gold.batch(rows // 2, length, rng)] if gold else []
        ids, ends = map(np.concatenate, zip(*drawn, strict=True)) if gold else stream.batch(rows, length, rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits = network(with_controls(torch.from_numpy(ids)))[:, 1 : -1 - UNJUDGED].float()
        kinds = torch.from_numpy(ends).long()[:, :-UNJUDGED]
        wanted = torch.where(kinds == UNKNOWN, logits.detach().sigmoid().clamp(min=0.5), targets[kinds])
        loss = F.binary_cross_entropy_with_logits(logits, wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * min(1.0, (step + 1) / 100, 2 * (steps - step) / steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        if (step + 1) % 100 == 0 or step + 1 == steps:
            seconds = time.monotonic() - began
            rate, left = (step + 1 - first) * batch_tokens / seconds, (steps - step - 1) * seconds / (step + 1 - first)
            print(
                f"step {step + 1}/{steps}  loss {np.mean(losses):.4f}  {rate:.0f} tokens/s  left {left / 60:.0f} min",
                flush=True,
            )
            losses.clear()
        if checkpoint and ((step + 1) % SAVED_EVERY == 0 or step + 1 == steps):
            save_checkpoint(checkpoint, step + 1, network, optimizers)


def save_checkpoint(path: Path, step: int, network: SatNetwork, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Save weights, optimizer states and the step, replacing the previous checkpoint atomically."""
    tensors = {f"network/{name}": value for name, value in network.state_dict().items()}
    for number, optimizer in enumerate(optimizers):
        for place, state in optimizer.state_dict()["state"].items():
            tensors |= {f"{number}/{place}/{name}": value for name, value in state.items()}
    written = path.with_suffix(".partial")
    save_file({name: value.detach().contiguous() for name, value in tensors.items()}, written, {"step": str(step)})
    written.replace(path)


def restored(path: Path, network: SatNetwork, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Put what `save_checkpoint` wrote into the network and the optimizers; returns the steps that were done."""
    tensors = load_file(path)
    network.load_state_dict({name.removeprefix("network/"): v for name, v in tensors.items() if name.startswith("n")})
    for number, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            owner, place, field = name.split("/", 2) if not name.startswith("n") else ("", "", "")
            if owner == str(number):
                state.setdefault(int(place), {})[field] = value
        optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    with safe_open(path, "pt") as file:
        return int(file.metadata()["step"])


def gold_stream(
    path: Path,
    tokenizer: Tokenizer,
    seed: int,
    half: int | None,
    without: Sequence[str],
    ways: int = len(GOLD_WAYS),
) -> Stream:
    """Tokenise treebanks in GOLD_WAYS, smaller ones repeated; half: documents with odd (1) or even (0) numbers."""
    treebanks: dict[str, list[LabelledDocument]] = {}
    for treebank, number, document in gold_documents(path):
        if treebank not in without and (half is None or number % 2 == half):
            treebanks.setdefault(treebank, []).append(document)
    found: list[LabelledDocument] = []
    for documents in treebanks.values():
        characters = sum(len(sentence) for document in documents for sentence in document.sentences)
        copies = max(1, min(MOST_COPIES, GOLD_CHARACTERS // characters))
        found += documents * copies * FAVOURED.get(documents[0].lang, 1)
    return tokenise(found, tokenizer, seed, GOLD_WAYS, count=min(ways, len(GOLD_WAYS)))


def with_controls(ids: Tensor) -> Tensor:
    """Add `<s>` before and `</s>` after each row: (rows, length) → (rows, length + 2)."""
    padded = F.pad(ids, (1, 1), value=CONTROLS.index("</s>"))
    padded[:, 0] = CONTROLS.index("<s>")
    return padded


def export(network: SatNetwork, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder as Hugging Face's libraries and wtpsplit read it; weights in fp16."""
    folder.mkdir(parents=True, exist_ok=True)
    embeddings, layers = network.roberta.embeddings, network.roberta.encoder.layer
    table, first = embeddings.word_embeddings.weight, cast(Layer, layers[0])
    config = {
        "architectures": ["SubwordXLMForTokenClassification"],
        "model_type": "xlm-token",
        "vocab_size": table.shape[0],
        "hidden_size": table.shape[1],
        "num_hidden_layers": len(layers),
        "num_attention_heads": cast(SatSelfAttention, first.attention["self"]).heads,
        "intermediate_size": cast(nn.Linear, first.intermediate["dense"]).out_features,
        "max_position_embeddings": positions(KEPT),
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "num_labels": 1,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "<s>"}
    description = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": KEPT + 2,
        "sep_token": "</s>",
        **names,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(description, indent=1) + "\n")
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    places = embeddings.position_embeddings.weight
    places.data = places.data[: positions(KEPT)]
    tensors = {name: value.detach().to(torch.float16).contiguous() for name, value in network.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_card(folder: Path, card: Path) -> None:
    """Write a card for the folder beside it, so that the stage and the benchmarks can use the model."""
    content = {
        "name": folder.parent.name,
        "kind": "sat",
        "description": "trained with recipes/sat/train.py",
        "licence": "of the texts that it was trained on",
        "model": f"./{folder.name}",
        "threshold": 0.25,
        "paragraph_threshold": 0.65,
        "sha256": {path.name: sha256_of(path) for path in sorted(folder.iterdir())},
    }
    card.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def main(
    corpus: Annotated[list[str], typer.Option(help="JSONL of documents or aligned records: FILE or FILE@SHARE")],
    out: Annotated[Path, typer.Option(help="folder for the tokens, the checkpoint, the model (`model/`) and its card")],
    steps: Annotated[int, typer.Option(help="optimizer steps")] = 6000,
    start: Annotated[
        Path | None, typer.Option(help="folder of a model to go on from; it decides dim and layers")
    ] = None,
    gold: Annotated[Path | None, typer.Option(help="JSONL of gold sentences: half of the windows")] = None,
    half: Annotated[int | None, typer.Option(help="0 or 1: only every second document of a treebank")] = None,
    without: Annotated[list[str] | None, typer.Option(help="a treebank that is left out")] = None,
    pieces: Annotated[int, typer.Option(help="size of the vocabulary; 0: that of --start")] = 6000,
    ways: Annotated[int, typer.Option(help="ways in which each document is written, at most 10")] = 10,
    dim: Annotated[int, typer.Option(help="width of the network")] = 160,
    layers: Annotated[int, typer.Option(help="Transformer layers")] = 3,
    heads: Annotated[int, typer.Option(help="attention heads")] = 4,
    batch_tokens: Annotated[int, typer.Option(help="tokens per step")] = 8192,
    learning_rate: Annotated[float, typer.Option(help="lower it if the loss jumps")] = 3e-3,
    bfloat16: Annotated[bool, typer.Option(help="products in bfloat16, for CPUs that have it")] = False,
    seed: Annotated[int, typer.Option(help="decides weights and data")] = 1,
) -> None:
    """Train a small SaT model on JSONL; `sat.yaml` in --out is its card."""
    torch.set_flush_denormal(True)
    out.mkdir(parents=True, exist_ok=True)
    sources = [CorpusSource.parse(text) for text in corpus]
    kept, names = out / "tokens.npz", out / "tokenizer.json"
    if not kept.exists():
        found = cleaned(sources, held_out=False)
        print(f"{len(found)} documents, {sum(len(one.sentences) for one in found)} sentences", flush=True)
        if start and not pieces:
            names.write_bytes((start / "tokenizer.json").read_bytes())
        else:
            train_tokenizer(found, pieces, seed).save(str(names))
        tokenise(found, Tokenizer.from_file(str(names)), seed, count=ways).save(kept)
    tokenizer, stream = Tokenizer.from_file(str(names)), Stream.load(kept)
    if start:
        network = started(start, tokenizer)
    else:
        network = untrained(tokenizer, dim=dim, layers=layers, heads=heads, seed=seed)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(f"{len(stream.ids) / 1e6:.0f} M tokens, {parameters / 1e6:.2f} M parameters", flush=True)
    sentences = gold_stream(gold, tokenizer, seed, half, without or (), ways) if gold else None
    train(
        network,
        stream,
        steps=steps,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        seed=seed,
        gold=sentences,
        checkpoint=out / "checkpoint.safetensors",
        bfloat16=bfloat16,
    )
    export(network, tokenizer, out / "model")
    write_card(out / "model", out / "sat.yaml")


if __name__ == "__main__":
    typer.run(main)
