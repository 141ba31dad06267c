"""Trains a small SaT model: XLM-R's architecture, a vocabulary of its own, one logit a token (Frohmann et al., 2024).

    python -m recipes.sat.train --corpus books.jsonl.xz@0.12 --corpus parallel.jsonl.xz --out runs/sat

The target of a token is 1 where a paragraph ends with it, 0.5 where only a sentence does, else 0: one probability tells
both, as that of SaT's newline does, by a low threshold and a high one. The tokenizer has XLM-R's order of ids (`<s>`,
`<pad>`, `</s>`, `<unk>`, pieces), and weights and configuration lie as Hugging Face's `xlm-token` checkpoints do, so
wtpsplit reads the folder too.

Cost: two CPU cores see about 20 000 tokens/s. A stopped run starts over, but for its tokenizer and tokens in --out.
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
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from recipes.muon import Muon
from recipes.sat.data import LabelledDocument, Stream, documents, tokenise
from recipes.sonar.data import CorpusSource
from stages.segment import marks
from stages.segment.sat.networks import FIRST_POSITION, Layer, SatNetwork, SatSelfAttention

CONTROLS = ("<s>", "<pad>", "</s>", "<unk>")
TARGETS = (0.0, 0.5, 1.0)  # nothing, a sentence, a paragraph ends
LENGTHS = (64, 128, 256)  # tokens of a training window
KEPT = 128  # tokens of a window of the exported model: held-out F1 was lower with longer ones, 0.47 for 0.50 when bare
UNJUDGED = 4  # last tokens of a window, which see too little of what follows


def train_tokenizer(found: Sequence[LabelledDocument], pieces: int, seed: int) -> Tokenizer:
    """A unigram tokenizer from a sample of the documents, two fifths of it in lower case.

    Every sentence-final mark of any script is a piece, if it lies in the basic plane.
    """
    rng = random.Random(seed)
    chosen = rng.sample(range(len(found)), min(len(found), 12_000))
    texts = [" ".join(found[number].sentences)[:4000] for number in chosen]
    texts = [text if rng.random() < 0.6 else text.lower() for text in texts]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(text[at : at + 2000] for text in texts for at in range(0, len(text), 2000)),
        model_writer=model,
        model_type="unigram",
        vocab_size=pieces - len(CONTROLS) + 1,
        character_coverage=0.9995,
        normalization_rule_name="nmt_nfkc",
        required_chars="".join(c for c in marks.FINAL + marks.BREAKS + marks.COMMAS if ord(c) < 0x10000),
        max_sentence_length=20_000,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=2,
        minloglevel=1,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    vocabulary = [(control, 0.0) for control in CONTROLS]
    vocabulary += [(trained.id_to_piece(i), trained.get_score(i)) for i in range(1, trained.vocab_size())]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=CONTROLS.index("<unk>")))
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces])
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


def positions(tokens: int) -> int:
    """Rows of the table of positions for windows of so many tokens, <s> and </s> included."""
    return FIRST_POSITION + tokens + 2


def train(
    network: SatNetwork, stream: Stream, *, steps: int, batch_tokens: int, learning_rate: float, seed: int
) -> None:
    """Binary cross-entropy on random windows; warm-up, constant, and a linear decay over the last half."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in network.named_parameters():
        inside = parameter.ndim == 2 and "embeddings" not in name and "classifier" not in name
        (matrices if inside else others).append(parameter)
    adamw = torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    optimizers: list[torch.optim.Optimizer] = [Muon(matrices, lr=learning_rate), adamw]
    rng = np.random.default_rng(seed)
    targets = torch.tensor(TARGETS)
    losses: list[float] = []
    began = time.monotonic()
    for step in range(steps):
        length = int(rng.choice(LENGTHS))
        ids, ends = stream.batch(batch_tokens // length, length, rng)
        loss = F.binary_cross_entropy_with_logits(
            network(with_controls(torch.from_numpy(ids)))[:, 1 : -1 - UNJUDGED],
            targets[torch.from_numpy(ends).long()][:, :-UNJUDGED],
        )
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
            rate, left = (step + 1) * batch_tokens / seconds, (steps - step - 1) * seconds / (step + 1)
            print(
                f"step {step + 1}/{steps}  loss {np.mean(losses):.4f}  {rate:.0f} tokens/s  left {left / 60:.0f} min",
                flush=True,
            )
            losses.clear()


def with_controls(ids: Tensor) -> Tensor:
    """(rows, length) → (rows, length + 2): `<s>` before and `</s>` behind."""
    padded = F.pad(ids, (1, 1), value=CONTROLS.index("</s>"))
    padded[:, 0] = CONTROLS.index("<s>")
    return padded


def export(network: SatNetwork, tokenizer: Tokenizer, folder: Path) -> None:
    """The folder as Hugging Face's libraries and wtpsplit read it; weights in fp16."""
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


def main(
    corpus: Annotated[list[str], typer.Option(help="JSONL of documents or aligned records: FILE or FILE@SHARE")],
    out: Annotated[Path, typer.Option(help="folder for the tokens and the model (`model/`)")],
    steps: Annotated[int, typer.Option(help="optimizer steps")] = 6000,
    pieces: Annotated[int, typer.Option(help="size of the vocabulary")] = 6000,
    dim: Annotated[int, typer.Option(help="width of the network")] = 160,
    layers: Annotated[int, typer.Option(help="Transformer layers")] = 3,
    heads: Annotated[int, typer.Option(help="attention heads")] = 4,
    batch_tokens: Annotated[int, typer.Option(help="tokens per step")] = 8192,
    learning_rate: Annotated[float, typer.Option(help="lower it if the loss jumps")] = 3e-3,
    seed: Annotated[int, typer.Option(help="decides weights and data")] = 1,
) -> None:
    """Train a small SaT model on JSONL; the folder `model/` can be named in a card of kind `sat`."""
    torch.set_flush_denormal(True)
    out.mkdir(parents=True, exist_ok=True)
    sources = [CorpusSource.parse(text) for text in corpus]
    kept, names = out / "tokens.npz", out / "tokenizer.json"
    if not kept.exists():
        found = list(documents(sources, held_out=False))
        print(f"{len(found)} documents, {sum(len(one.sentences) for one in found)} sentences", flush=True)
        train_tokenizer(found, pieces, seed).save(str(names))
        tokenise(found, Tokenizer.from_file(str(names)), seed).save(kept)
    tokenizer, stream = Tokenizer.from_file(str(names)), Stream.load(kept)
    network = untrained(tokenizer, dim=dim, layers=layers, heads=heads, seed=seed)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(f"{len(stream.ids) / 1e6:.0f} M tokens, {parameters / 1e6:.2f} M parameters", flush=True)
    train(network, stream, steps=steps, batch_tokens=batch_tokens, learning_rate=learning_rate, seed=seed)
    export(network, tokenizer, out / "model")


if __name__ == "__main__":
    typer.run(main)
