"""How well a model's sentences survive its embeddings, on text held out from the training of `sonar-tiny`.

    python -m benchmarks.model_scores sonar-tiny --corpus books-en.jsonl.xz --corpus parallel-5way.jsonl.xz

Prints loss, corpus AutoBLEU (greedy; 13a, zh for Chinese) and BLEU of translations into and from English, by language.
"""

from __future__ import annotations

import time
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from recipes.sonar.data import CorpusSource
from recipes.sonar.scores import held_out_scores
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_decoder, load_encoder
from stages.sonar.tokenizer import SonarTokenizer


def main(
    model: Annotated[str, typer.Argument(help="a card's name or path")],
    corpus: Annotated[list[str], typer.Option(help="JSONL of documents or aligned records; FILE or FILE@SHARE")],
    sentences: Annotated[int, typer.Option(help="at most so many of each language")] = 1000,
) -> None:
    """Score a model on the held-out side of some corpora."""
    torch.set_flush_denormal(True)
    card = load_card(model)
    tokenizer = SonarTokenizer(card)
    began = time.monotonic()
    sources = [CorpusSource.parse(text) for text in corpus]
    scores = held_out_scores(load_encoder(card), load_decoder(card), tokenizer, sources, most=sentences)
    table = Table("score", *card.languages, title=f"{card.name}: {', '.join(corpus)}")
    for name, values in scores.items():
        table.add_row(name, *(f"{values[language]:g}" if language in values else "" for language in card.languages))
    Console().print(table, f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    typer.run(main)
