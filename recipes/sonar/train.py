"""Trains a small SONAR text model: an autoencoder and translator through one vector, by teacher-forced cross-entropy.

    python -m recipes.sonar.train --corpus books.jsonl.xz@0.33 --corpus parallel.jsonl.xz --out runs/tiny --steps 4000
    python -m recipes.sonar.train --start sonar-tiny --precision bf16 --minutes 60 --learning-rate 1.2e-3 --warmup 60 \\
        --decay 1 --corpus books.jsonl.xz@1:2 --corpus novels-deu.jsonl.xz@1:1 --out runs/further

A unigram tokenizer is trained and all sentences are tokenised (both are kept in --out); then the networks are trained,
scored on held-out books and pages, and written as fp16 safetensors with their card. A run that was stopped goes on from
its last checkpoint, exactly; more --steps lengthen it until its learning rate began to fall.

With --start, the tokenizer, the sizes and the weights are those of a card; with more --encoder-layers or
--decoder-layers than it has, new ones follow, which change nothing at first. The second example says of each file how
often its sentences are drawn (2 to 1); aligned records have a share of their own, --aligned-share.

Cost: in fp32, 2 CPU cores see 2 900 tokens/s; with --precision bf16, one core with avx512_bf16 sees 3 500.
On a GPU (--device cuda) give it batches of 65 536 tokens and rounds of 600 000 examples.
MKL_CBWR=AUTO makes fp32 a third faster at the price of bits that differ from one kind of CPU to another. On cores that
are shared with other work set OMP_WAIT_POLICY=PASSIVE: waiting threads otherwise spin, which was seen to make training
4 times slower.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import sentencepiece
import torch
import typer

from recipes.sonar.batches import TrainingSet
from recipes.sonar.data import (
    CorpusSource,
    corpus_weights,
    is_aligned,
    languages_of,
    read,
    sentences,
    tokenise,
    tokens_of,
)
from recipes.sonar.export import export, loaded, networks
from recipes.sonar.recipe import Precision, SonarRecipe, TrainingBudget, continued
from recipes.sonar.trainer import Trainer
from stages.shipped import SAMPLE
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer


class Device(StrEnum):
    cpu = "cpu"
    cuda = "cuda"


def main(
    out: Annotated[Path, typer.Option(help="folder for the tokenizer, checkpoints, weights and the card")],
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="JSONL of documents or aligned records: FILE, FILE@SHARE or FILE@SHARE:WEIGHT; left out: the shipped "
            "sample"
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="optimizer steps; the last half lowers the learning rate to 0")] = 3000,
    minutes: Annotated[
        float, typer.Option(help="training time instead of --steps; another machine's speed gives other weights")
    ] = 0.0,
    start: Annotated[
        str, typer.Option(help="train this model (a name or a card) further, with its tokenizer and size")
    ] = "",
    precision: Annotated[
        Precision, typer.Option(help="number format of matmuls: bf16 where the CPU has instructions for it")
    ] = Precision.fp32,
    name: Annotated[str, typer.Option(help="name of the model and its card")] = SonarRecipe.name,
    dim: Annotated[int, typer.Option(help="size of the embedding")] = SonarRecipe.dim,
    encoder_layers: Annotated[
        int, typer.Option(help="Transformer layers; 0: of --start, or 2", show_default=False)
    ] = 0,
    decoder_layers: Annotated[
        int, typer.Option(help="Transformer layers; 0: of --start, or 2", show_default=False)
    ] = 0,
    pieces: Annotated[int, typer.Option(help="size of the vocabulary")] = SonarRecipe.pieces,
    learning_rate: Annotated[float, typer.Option(help="lower it if the loss jumps")] = SonarRecipe.learning_rate,
    warmup: Annotated[int, typer.Option(help="steps in which the learning rate rises from 0")] = SonarRecipe.warmup,
    decay: Annotated[float, typer.Option(help="last share of the training that lowers it to 0")] = SonarRecipe.decay,
    thinned: Annotated[
        int, typer.Option(help="take part of the sentences with fewer tokens only, in proportion to their length")
    ] = SonarRecipe.thinned,
    round_size: Annotated[
        int, typer.Option(help="examples that are sorted by length together; more for large batches")
    ] = SonarRecipe.round_size,
    batch_tokens: Annotated[int, typer.Option(help="target tokens per step, at most")] = SonarRecipe.batch_tokens,
    aligned_share: Annotated[
        float, typer.Option(help="share of examples from aligned records")
    ] = SonarRecipe.aligned_share,
    device: Annotated[Device, typer.Option(help="where it is trained")] = Device.cpu,
    scores: Annotated[bool, typer.Option(help="score the model on held-out text at the end")] = True,
    seed: Annotated[int, typer.Option(help="decides weights and the order of the data")] = SonarRecipe.seed,
    resume: Annotated[bool, typer.Option(help="go on from the checkpoint in --out, if there is one")] = True,
) -> None:
    """Train a small SONAR text encoder and decoder on JSONL.

    Example: python -m recipes.sonar.train --corpus books.jsonl.xz@0.33 --corpus parallel.jsonl.xz --out runs/tiny
    """
    torch.set_flush_denormal(True)
    if device is Device.cuda and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch sees no GPU here; leave it out, or install PyTorch for CUDA")
    sources = [CorpusSource.parse(text) for text in corpus] if corpus else shipped_sample()
    recipe = SonarRecipe(
        corpora=tuple(map(str, sources)),
        name=name,
        dim=dim,
        encoder_layers=encoder_layers or SonarRecipe.encoder_layers,
        decoder_layers=decoder_layers or SonarRecipe.decoder_layers,
        pieces=pieces,
        learning_rate=learning_rate,
        warmup=warmup,
        decay=decay,
        batch_tokens=batch_tokens,
        aligned_share=aligned_share,
        thinned=thinned,
        round_size=round_size,
        precision=precision.value,
        seed=seed,
    )
    first = load_card(start) if start else None
    if first:
        recipe = continued(recipe, first, encoder_layers, decoder_layers)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tokenizer.model").exists():
        if first:
            shutil.copyfile(first.verify("tokenizer"), folder / "tokenizer.model")
        else:
            print("training the tokenizer", flush=True)
            train_tokenizer(sources, recipe.languages, folder / "tokenizer.model", pieces=pieces, seed=seed)
    card_path = out / f"{name}.yaml"
    if not card_path.exists():
        pieces_found = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).vocab_size()
        vocabulary = pieces_found + 1 + len(recipe.languages)
        export(recipe, *(loaded(first, recipe) if first else networks(recipe, vocabulary)), out, "Not trained yet.", {})
    card = load_card(str(card_path))
    tokenizer = SonarTokenizer(card)
    cache = out / "tokens.npz"
    made_of = tokens_of(sources, tokenizer)
    if not cache.exists():
        print("tokenising", flush=True)
        tokenise(sources, tokenizer).save(cache, made_of)
    data = TrainingSet.load(cache, made_of)
    print(f"{len(data.tokens.lengths)} sentences, {data.tokens.starts[-1] / 1e6:.1f} M tokens", flush=True)
    trainer = Trainer(recipe, first or card, data, out, corpus_weights(sources, data), device.value)
    if resume and trainer.path.exists():
        trainer.resume()
        print(f"goes on at step {trainer.progress.step}", flush=True)
    trainer.run(TrainingBudget(steps, minutes))
    encoder, decoder = trainer.encoder.cpu().eval(), trainer.decoder.cpu().eval()
    found: dict[str, dict[str, float]] = {}
    if scores:
        from recipes.sonar.scores import held_out_scores  # needs spaCy, which a machine with a GPU may lack

        print("scoring on held-out text", flush=True)
        found = held_out_scores(encoder, decoder, tokenizer, sources)
    facts = (
        f"{trainer.progress.tokens / 1e6:.1f} million target tokens in {trainer.progress.step} steps from "
        f"{', '.join(recipe.corpora)}. Scores: text held out from training, at most 200 characters."
    )
    card = export(recipe, encoder, decoder, out, facts, found)
    print(json.dumps(card.scores, indent=1))


def shipped_sample() -> list[CorpusSource]:
    """Return the sample corpus that is installed with the package."""
    folder = SAMPLE
    found = [CorpusSource(path) for path in sorted(folder.glob("*.jsonl.gz"))]
    if not found:
        raise ValueError(f"no sample corpus lies in {folder}; name a corpus with --corpus")
    return found


# Each becomes a space, and runs of spaces become one; every other character survives a round trip.
WHITESPACE = "\t\n\r\x0b\x0c\u00a0\u2028\u2029\u3000"


def train_tokenizer(
    sources: Iterable[CorpusSource],
    languages: Sequence[str],
    path: Path,
    *,
    pieces: int,
    seed: int,
    sentences_per_language: int = 60_000,
) -> None:
    """Write a sentencepiece model of at most `pieces` pieces, from as many sentences of each language as there are."""
    rng = random.Random(seed)
    sample: dict[str, list[str]] = {language: [] for language in languages}
    seen = dict.fromkeys(languages, 0)
    for record in read(sources, held_out=False):
        for language, text in languages_of(record).items():
            if language not in sample:
                raise ValueError(f"record {record['id']} is in {language}; the model's languages are {list(languages)}")
            for sentence in [text] if is_aligned(record) else sentences(text):
                kept = sample[language]
                seen[language] += 1
                if len(kept) < sentences_per_language:
                    kept.append(sentence)
                elif (place := rng.randrange(seen[language])) < sentences_per_language:
                    kept[place] = sentence
    half_written = path.with_suffix(".half")
    with tempfile.TemporaryDirectory() as folder, half_written.open("wb") as stream:
        rules = Path(folder) / "whitespace.tsv"
        rules.write_text("".join(f"{ord(character):X}\t20\n" for character in WHITESPACE))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain.from_iterable(sample.values()),
            model_writer=stream,
            model_type="unigram",
            vocab_size=pieces,
            hard_vocab_limit=False,  # a small corpus may hold fewer pieces
            character_coverage=0.9995,
            byte_fallback=True,
            normalization_rule_tsv=str(rules),
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            num_threads=os.cpu_count() or 1,
            minloglevel=1,
        )
    half_written.replace(path)


if __name__ == "__main__":
    try:
        typer.run(main)
    except ValueError as error:
        sys.exit(f"error: {error}")
