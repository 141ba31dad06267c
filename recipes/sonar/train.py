"""Trains a small SONAR text model: an autoencoder and translator through one vector, by teacher-forced cross-entropy.

    python -m recipes.sonar.train --corpus books.jsonl.xz@0.33 --corpus parallel.jsonl.xz --out runs/tiny --steps 4000

A unigram tokenizer is trained and all sentences are tokenised (both are kept in --out); then the networks are trained,
scored on held-out books and pages, and written as fp16 safetensors with their card. A run that was stopped goes on from
its last checkpoint, exactly; more --steps lengthen it until its learning rate began to fall.

Cost: 2 CPU cores see 2 900 tokens/s, so the weights that ship (19.7 million tokens) take two hours. MKL_CBWR=AUTO
makes it a third faster at the price of bits that differ from one kind of CPU to another. On cores that are shared with
other work set OMP_WAIT_POLICY=PASSIVE: waiting threads otherwise spin, which was seen to make training 4 times slower.
"""

from __future__ import annotations

import importlib.resources
import itertools
import json
import math
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import sentencepiece
import torch
import torch.nn.functional as F
import typer
import yaml
from torch import Tensor, nn

from recipes.muon import Muon
from recipes.sonar.data import Batches, CorpusSource, TokenBatch, TrainingSet, tokenise
from recipes.sonar.scores import held_out_scores
from recipes.sonar.tokenizer import train_tokenizer
from stages.sonar import checkpoint
from stages.sonar.card import ModelCard, ModelFile, ModelFiles, load_card
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder
from stages.sonar.tokenizer import PAD, SonarTokenizer

_Network = TypeVar("_Network", SonarTextEncoder, SonarTextDecoder)


@dataclass(frozen=True)
class SonarRecipe:
    """All that decides the weights, but for the number of steps. Kept in the checkpoint; a resumed run must agree."""

    corpora: tuple[str, ...]
    name: str = "sonar-tiny"
    languages: tuple[str, ...] = ("eng_Latn", "deu_Latn", "fra_Latn", "rus_Cyrl", "zho_Hans")
    dim: int = 256
    encoder_layers: int = 2
    decoder_layers: int = 2
    heads: int = 4
    ffn_dim: int = 1024
    pieces: int = 8000
    learning_rate: float = 4e-3
    warmup: int = 100
    decay: float = 0.5  # share of the steps over which the learning rate falls to 0
    batch_tokens: int = 3072
    # (longest, steps): copying is learned on short sentences in small batches; then come the longer ones
    curriculum: tuple[tuple[int, int], ...] = ((16, 600), (24, 400), (32, 400), (48, 400))
    curriculum_rows: int = 64
    aligned_share: float = 0.25
    seed: int = 1


@dataclass
class RecipeProgress:
    """Where a run is; with the networks and the optimizers, all that resuming needs."""

    step: int = 0
    round: int = 0
    in_round: int = 0
    tokens: int = 0
    losses: list[float] = field(default_factory=list)


def export(
    recipe: SonarRecipe,
    encoder: nn.Module,
    decoder: nn.Module,
    out: Path,
    facts: str,
    scores: dict[str, dict[str, float]],
) -> ModelCard:
    """Writes encoder and decoder to `<name>/`, beside the tokenizer, and the card `<name>.yaml`."""
    folder = out / recipe.name
    written = {"tokenizer": folder / "tokenizer.model"}
    for role, network in (("encoder", encoder), ("decoder", decoder)):
        written[role] = folder / f"{role}.safetensors"
        checkpoint.save(network, written[role].with_suffix(".half"))
        written[role].with_suffix(".half").replace(written[role])
    files = {role: ModelFile.of(path, out) for role, path in written.items()}
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(written["tokenizer"])).vocab_size()
    card = ModelCard(
        name=recipe.name,
        kind="sonar-text",
        layout="native",
        description=f"A small SONAR text encoder and decoder trained from scratch with recipes/sonar/train.py. {facts}",
        licence="MIT (weights); the texts it was trained on keep their own licences",
        dim=recipe.dim,
        encoder_layers=recipe.encoder_layers,
        decoder_layers=recipe.decoder_layers,
        heads=recipe.heads,
        ffn_dim=recipe.ffn_dim,
        vocab_size=pieces + 1 + len(recipe.languages),
        languages=recipe.languages,
        files=ModelFiles(**files),
        scores=scores,
    )
    path = out / f"{recipe.name}.yaml"
    content = yaml.safe_dump(card.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    path.with_suffix(".half").write_text(content, encoding="utf-8")
    path.with_suffix(".half").replace(path)
    return load_card(str(path))


def schedule(step: int, steps: int, warmup: int, decay: float) -> float:
    """Warm-up, constant, and a linear decay over the last share: until that begins, `steps` may still be changed."""
    return min(1.0, (step + 1) / warmup, max(0.0, (steps - step) / max(1, round(decay * steps))))


def cross_entropy(encoder: SonarTextEncoder, decoder: SonarTextDecoder, batch: TokenBatch) -> Tensor:
    """Mean over the target's tokens, nats."""
    hidden = decoder.hidden(batch.target_in, encoder(batch.source, batch.mask))
    kept = batch.target_out != PAD
    if kept.all():
        return F.cross_entropy(decoder.logits(hidden).flatten(0, 1), batch.target_out.flatten())
    return F.cross_entropy(decoder.logits(hidden[kept]), batch.target_out[kept])


def lesson(recipe: SonarRecipe, step: int) -> tuple[int, int]:
    """The longest sentence and the size of a batch at a step, both in tokens."""
    for longest, steps in recipe.curriculum:
        if step < steps:
            return longest, min(recipe.batch_tokens, recipe.curriculum_rows * longest)
        step -= steps
    return 512, recipe.batch_tokens


class Trainer:
    """Networks, optimizers and the place in the data; one file holds them all."""

    def __init__(self, recipe: SonarRecipe, card: ModelCard, data: TrainingSet, folder: Path) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.folder = recipe, folder
        self.encoder, self.decoder = networks(recipe, card.vocab_size)
        self.batches = Batches(data, seed=recipe.seed, aligned_share=recipe.aligned_share)
        # the shared embedding is the encoder's and the decoder's: once is enough
        named = {id(p): (name, p) for n in (self.encoder, self.decoder) for name, p in n.named_parameters()}
        self.parameters = [parameter for _, parameter in named.values()]
        self.optimizers = optimizers(recipe, list(named.values()))
        self.progress = RecipeProgress()

    @property
    def path(self) -> Path:
        return self.folder / "checkpoint.pt"

    def save(self) -> None:
        state = {
            "recipe": asdict(self.recipe),
            "progress": asdict(self.progress),
            "encoder": self.encoder.state_dict(),
            "decoder": self.decoder.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        torch.save(state, self.path.with_suffix(".half"))
        self.path.with_suffix(".half").replace(self.path)

    def resume(self) -> None:
        state: dict[str, Any] = torch.load(self.path, weights_only=True)
        mine = asdict(self.recipe)
        kept = state["recipe"]
        differing = [f"{key}: {kept.get(key)} → {mine[key]}" for key in mine if kept.get(key) != mine[key]]
        if differing:
            raise ValueError(f"{self.path} was made by another recipe ({'; '.join(differing)}); take another --out")
        self.encoder.load_state_dict(state["encoder"])
        self.decoder.load_state_dict(state["decoder"])
        for optimizer, memory in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(memory)
        self.progress = RecipeProgress(**state["progress"])

    def run(self, steps: int, stop: int | None = None, save_seconds: float = 300.0) -> None:
        """Trains until `steps`, printing a line every 50 steps and saving every five minutes and at the end.

        With `stop` it stops there, in the middle of the schedule, to be resumed.
        """
        at = self.progress
        began, saved, at_start, tokens_at_start = time.monotonic(), time.monotonic(), at.step, at.tokens
        plan: list[Any] = []
        planned = -1
        stop = steps if stop is None else stop
        lessons = list(itertools.accumulate(steps for _, steps in self.recipe.curriculum))
        while at.step < stop:
            if planned != at.round:
                plan, planned = self.batches.plan(at.round, *lesson(self.recipe, at.step)), at.round
            if at.in_round == len(plan) or (at.step in lessons and at.in_round):
                at.round, at.in_round = at.round + 1, 0
                continue
            batch = self.batches.batch(plan[at.in_round])
            at.losses.append(self.step(batch, schedule(at.step, steps, self.recipe.warmup, self.recipe.decay)))
            at.tokens += batch.target_out.numel()
            at.in_round += 1
            at.step += 1
            if at.step % 50 == 0 or at.step == stop:
                seconds = time.monotonic() - began
                left = (steps - at.step) * seconds / (at.step - at_start)
                loss, rate = sum(at.losses) / len(at.losses), (at.tokens - tokens_at_start) / seconds
                print(
                    f"step {at.step}/{steps}  loss {loss:.3f}  {at.tokens / 1e6:.2f} M tokens  {rate:.0f}/s  "
                    f"left {left / 60:.0f} min",
                    flush=True,
                )
                at.losses.clear()
            if time.monotonic() - saved > save_seconds or at.step == stop:
                self.save()
                saved = time.monotonic()

    def step(self, batch: TokenBatch, rate: float) -> float:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * rate
        loss = cross_entropy(self.encoder, self.decoder, batch)
        loss.backward()
        if not math.isfinite(loss.item()):
            raise ValueError(f"the loss is {loss.item()} at step {self.progress.step}; start anew with a lower rate")
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()


def networks(recipe: SonarRecipe, vocab_size: int) -> tuple[SonarTextEncoder, SonarTextDecoder]:
    """An untrained encoder and decoder, which share one embedding table.

    Sharing it was seen to halve the tokens that copying takes to learn. The table starts small: the output projection
    is tied to it, and at full size an untrained decoder is sure that each token follows itself.
    """

    def made(kind: type[_Network], layers: int) -> _Network:
        return kind(
            dim=recipe.dim,
            layers=layers,
            heads=recipe.heads,
            ffn_dim=recipe.ffn_dim,
            vocab_size=vocab_size,
            max_tokens=514,
        )

    encoder = made(SonarTextEncoder, recipe.encoder_layers)
    decoder = made(SonarTextDecoder, recipe.decoder_layers)
    nn.init.normal_(decoder.embedding.weight, std=0.3 * recipe.dim**-0.5)
    encoder.embedding.weight = decoder.embedding.weight
    return encoder, decoder


def optimizers(recipe: SonarRecipe, parameters: list[tuple[str, nn.Parameter]]) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings, norms and biases."""
    matrices = [p for name, p in parameters if p.ndim == 2 and not name.startswith("embedding.")]
    others = [p for name, p in parameters if p.ndim != 2 or name.startswith("embedding.")]
    rate = recipe.learning_rate
    adamw = torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    chosen: list[torch.optim.Optimizer] = [Muon(matrices, lr=rate), adamw]
    for optimizer in chosen:
        for group in optimizer.param_groups:
            group["base_lr"] = rate
    return chosen


def main(
    out: Annotated[Path, typer.Option(help="folder for the tokenizer, checkpoints, weights and the card")],
    corpus: Annotated[
        list[str] | None,
        typer.Option(help="JSONL of documents or aligned records: FILE or FILE@SHARE; left out: the shipped sample"),
    ] = None,
    steps: Annotated[int, typer.Option(help="optimizer steps; the last half lowers the learning rate to 0")] = 3000,
    name: Annotated[str, typer.Option(help="name of the model and its card")] = SonarRecipe.name,
    dim: Annotated[int, typer.Option(help="size of the embedding")] = SonarRecipe.dim,
    encoder_layers: Annotated[int, typer.Option(help="Transformer layers")] = SonarRecipe.encoder_layers,
    decoder_layers: Annotated[int, typer.Option(help="Transformer layers")] = SonarRecipe.decoder_layers,
    pieces: Annotated[int, typer.Option(help="size of the vocabulary")] = SonarRecipe.pieces,
    learning_rate: Annotated[float, typer.Option(help="lower it if the loss jumps")] = SonarRecipe.learning_rate,
    batch_tokens: Annotated[int, typer.Option(help="target tokens a step, at most")] = SonarRecipe.batch_tokens,
    aligned_share: Annotated[
        float, typer.Option(help="share of examples from aligned records")
    ] = SonarRecipe.aligned_share,
    seed: Annotated[int, typer.Option(help="decides weights and the order of the data")] = SonarRecipe.seed,
    resume: Annotated[bool, typer.Option(help="go on from the checkpoint in --out, if there is one")] = True,
) -> None:
    """Train a small SONAR text encoder and decoder on JSONL.

    Example: python -m recipes.sonar.train --corpus books.jsonl.xz@0.33 --corpus parallel.jsonl.xz --out runs/tiny
    """
    torch.set_flush_denormal(True)
    sources = [CorpusSource.parse(text) for text in corpus] if corpus else shipped_sample()
    recipe = SonarRecipe(
        corpora=tuple(f"{source.path.name}@{source.share:g}" for source in sources),
        name=name,
        dim=dim,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        pieces=pieces,
        learning_rate=learning_rate,
        batch_tokens=batch_tokens,
        aligned_share=aligned_share,
        seed=seed,
    )
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer.model").exists():
        print("training the tokenizer", flush=True)
        train_tokenizer(sources, recipe.languages, folder / "tokenizer.model", pieces=pieces, seed=seed)
    card_path = out / f"{name}.yaml"
    if not card_path.exists():
        pieces_found = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).vocab_size()
        export(recipe, *networks(recipe, pieces_found + 1 + len(recipe.languages)), out, "Not trained yet.", {})
    card = load_card(str(card_path))
    tokenizer = SonarTokenizer(card)
    cache = out / "tokens.npz"
    if not cache.exists():
        print("tokenising", flush=True)
        tokenise(sources, tokenizer).save(cache)
    data = TrainingSet.load(cache)
    print(f"{len(data.tokens.lengths)} sentences, {data.tokens.starts[-1] / 1e6:.1f} M tokens", flush=True)
    trainer = Trainer(recipe, card, data, out)
    if resume and trainer.path.exists():
        trainer.resume()
        print(f"goes on at step {trainer.progress.step}", flush=True)
    trainer.run(steps)
    print("scoring on held-out text", flush=True)
    trainer.encoder.eval()
    trainer.decoder.eval()
    scores = held_out_scores(trainer.encoder, trainer.decoder, tokenizer, sources)
    facts = (
        f"{trainer.progress.tokens / 1e6:.1f} million target tokens in {trainer.progress.step} steps from "
        f"{', '.join(recipe.corpora)}. Scores: text held out from training, at most 200 characters."
    )
    card = export(recipe, trainer.encoder, trainer.decoder, out, facts, scores)
    print(json.dumps(card.scores, indent=1))


def shipped_sample() -> list[CorpusSource]:
    """The sample corpus that is installed with the package."""
    folder = Path(str(importlib.resources.files("conf") / "sample"))
    found = [CorpusSource(path) for path in sorted(folder.glob("*.jsonl.gz"))]
    if not found:
        raise ValueError(f"no sample corpus lies in {folder}; name a corpus with --corpus")
    return found


if __name__ == "__main__":
    try:
        typer.run(main)
    except ValueError as error:
        sys.exit(f"error: {error}")
