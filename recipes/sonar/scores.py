"""How good a SONAR model is on text it has not seen, by kind of text and language.

    python -m recipes.sonar.scores sonar-tiny --corpus novels-deu.jsonl.xz --corpus parallel.jsonl.xz --sentences 300

Sentences are those that `spacy-capped` makes of held-out books, pages and novels, at most 200 characters, and the
held-out aligned records; with --all everything counts as held out, for text of other sources. AutoBLEU is the corpus
BLEU (13a, zh for Chinese) of greedy decodings. A kind of text is a corpus file, or where the ids of a file begin with
different words (`kernel-…`, `pg-…`), such a word. A thousand sentences of a kind take half a minute on one CPU core.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import sacrebleu
import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from recipes.sonar.batches import Batches, TokenBatch, TokenSequences, TrainingSet
from recipes.sonar.data import LONGEST_SENTENCE, CorpusSource, Record, is_aligned, languages_of, read, uniform
from stages.batching import Indices
from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_decoder, load_encoder
from stages.sonar.greedy import Greedy
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder
from stages.sonar.tokenizer import PAD, SonarTokenizer

BLEU_TOKENISATION = {"zho_Hans": "zh", "zho_Hant": "zh", "jpn_Jpan": "char"}
PIVOT = "eng_Latn"  # translations are scored out of and into this language
LONG = 100  # characters from which a sentence counts as long

Kind = tuple[str, str]  # (kind of text, language)


@dataclass(frozen=True)
class HeldOutText:
    """Text that no model of this recipe was trained on: sentences by kind, and aligned records of short sentences."""

    sentences: Mapping[Kind, Sequence[str]]
    aligned: Sequence[Record]


@dataclass(frozen=True)
class KindScore:
    """One kind of text. loss: nats per token. bleu: AutoBLEU; bleu_long: of sentences of 100 characters and more."""

    sentences: int
    loss: float
    bleu: float
    bleu_long: float | None


def held_out_text(
    sources: Iterable[CorpusSource], tokenizer: SonarTokenizer, most: int, whole: bool = False
) -> HeldOutText:
    """Return at most `most` sentences of each kind, and as many aligned records, chosen by hashes of their texts and
    ids.

    whole: whether all documents count as held out, because no model was trained on their source.
    """
    settings = SegmentSettings(method="spacy-capped", max_chars=LONGEST_SENTENCE)
    segmenter = Segmenter(settings, tokenizer.count)
    found: dict[Kind, set[str]] = {}
    aligned: list[Record] = []
    for source in sources:
        documents: dict[Kind, list[Record]] = {}
        trained_on = read([source], held_out=False) if whole else ()
        for record in itertools.chain(read([source], held_out=True), trained_on):
            if is_aligned(record):
                spaced = {language: " ".join(text.split()) for language, text in languages_of(record).items()}
                aligned.append({language: text for language, text in spaced.items() if len(text) <= LONGEST_SENTENCE})
                for language, text in aligned[-1].items():
                    found.setdefault((source.kind, language), set()).add(text)
            else:
                documents.setdefault((str(record["id"]).partition("-")[0], record["lang"]), []).append(record)
        alike = len({word for word, _ in documents}) == 1
        for (word, language), records in documents.items():
            records.sort(key=lambda record: uniform("score", record["id"]))
            texts = [record["text"] for record in records[:most]]
            kind = (source.kind if alike else f"{source.kind} {word}", language)
            found.setdefault(kind, set()).update(segmenter.segment(texts, [language] * len(texts)).text.to_pylist())
    chosen = {
        kind: sorted(texts, key=lambda text: uniform("score", text))[:most] for kind, texts in sorted(found.items())
    }
    return HeldOutText(chosen, aligned[:most])


def embed(encoder: SonarTextEncoder, tokenizer: SonarTokenizer, texts: Sequence[str], language: str) -> Tensor:
    """Return (sentences, dim): as float16, in which the corpus keeps them."""
    ids = tokenizer.encode(list(texts), language)
    result = torch.empty((len(ids), tokenizer.card.dim))
    for rows, batch in _batches(ids):
        result[torch.from_numpy(rows)] = encoder(batch.source, batch.mask)
    return result.half().float()


def decode(
    decoder: SonarTextDecoder, tokenizer: SonarTokenizer, embeddings: Tensor, limits: Sequence[int], language: str
) -> list[str]:
    """Return greedy decodings into a language, each of at most its limit of tokens."""
    prefixes = torch.tensor([tokenizer.target_prefix(language)] * len(embeddings))
    search, decoded = Greedy(decoder), list[str]()
    for start in range(0, len(embeddings), 256):
        some = slice(start, start + 256)
        decoded += tokenizer.decode(search(embeddings[some], prefixes[some], torch.tensor(limits[some])))
    return decoded


@torch.inference_mode()
def scores_by_kind(
    encoder: SonarTextEncoder, decoder: SonarTextDecoder, tokenizer: SonarTokenizer, text: HeldOutText
) -> dict[Kind, KindScore]:
    """Return how well sentences survive their embeddings."""
    scores = {}
    for (kind, language), kept in text.sentences.items():
        limits = [count + 8 for count in tokenizer.count(kept)]
        decoded = decode(decoder, tokenizer, embed(encoder, tokenizer, kept, language), limits, language)
        long = [pair for pair in zip(decoded, kept, strict=True) if len(pair[1]) >= LONG]
        scores[kind, language] = KindScore(
            sentences=len(kept),
            loss=_loss(encoder, decoder, tokenizer.encode(kept, language)),
            bleu=_bleu(decoded, kept, language),
            bleu_long=_bleu([made for made, _ in long], [given for _, given in long], language) if long else None,
        )
    return scores


@torch.inference_mode()
def translation_scores(
    encoder: SonarTextEncoder, decoder: SonarTextDecoder, tokenizer: SonarTokenizer, text: HeldOutText
) -> dict[str, dict[str, float]]:
    """Return BLEU of translations into and out of English: direction → other language → value."""
    scores: dict[str, dict[str, float]] = {}
    for other in (language for language in tokenizer.card.languages if language != PIVOT):
        pairs = [record for record in text.aligned if PIVOT in record and other in record]
        for source, target in ((other, PIVOT), (PIVOT, other)) if pairs else ():
            known = [record[source] for record in pairs]
            limits = [2 * count + 8 for count in tokenizer.count(known)]
            decoded = decode(decoder, tokenizer, embed(encoder, tokenizer, known, source), limits, target)
            name = f"translation into {PIVOT}" if target == PIVOT else f"translation from {PIVOT}"
            scores.setdefault(name, {})[other] = _bleu(decoded, [record[target] for record in pairs], target)
    return scores


def held_out_scores(
    encoder: SonarTextEncoder,
    decoder: SonarTextDecoder,
    tokenizer: SonarTokenizer,
    sources: Sequence[CorpusSource],
) -> dict[str, dict[str, float]]:
    """Score → language → value, as a card states them: `bleu KIND` and `loss KIND` of each kind, and translations."""
    text = held_out_text(sources, tokenizer, 1000)
    scores: dict[str, dict[str, float]] = {}
    for (kind, language), score in scores_by_kind(encoder, decoder, tokenizer, text).items():
        values = {"bleu": score.bleu, "loss": score.loss, "sentences": float(score.sentences)}
        for name, value in values.items():
            scores.setdefault(f"{name} {kind}", {})[language] = value
    order = ("bleu", "loss", "sentences")
    ordered = dict(sorted(scores.items(), key=lambda item: order.index(item[0].partition(" ")[0])))
    return ordered | translation_scores(encoder, decoder, tokenizer, text)


def _batches(ids: list[list[int]]) -> Iterator[tuple[Indices, TokenBatch]]:
    rows = np.arange(len(ids))
    tokens = TokenSequences.pack([row[:-1] for row in ids])
    data = TrainingSet(tokens, rows, np.zeros_like(rows), np.empty((0, 0), np.int64))
    batches = Batches(data, seed=0, aligned_share=0.0, round_size=len(ids))
    for pairs in batches.plan(0, 10**9, 2048):
        yield pairs[:, 0], batches.batch(pairs)


def _loss(encoder: SonarTextEncoder, decoder: SonarTextDecoder, ids: list[list[int]]) -> float:
    total, tokens = 0.0, 0
    for _, batch in _batches(ids):
        logits = decoder(batch.target_in, encoder(batch.source, batch.mask))
        loss = F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD, reduction="sum")
        total += float(loss)
        tokens += int((batch.target_out != PAD).sum())
    return round(total / tokens, 3)


def _bleu(decoded: Sequence[str], texts: Sequence[str], language: str) -> float:
    return round(sacrebleu.corpus_bleu(decoded, [texts], tokenize=BLEU_TOKENISATION.get(language, "13a")).score, 1)


def main(
    models: Annotated[list[str], typer.Argument(help="names or paths of cards")],
    corpus: Annotated[list[str], typer.Option(help="JSONL of documents or aligned records; FILE or FILE@SHARE")],
    sentences: Annotated[int, typer.Option(help="at most so many of each kind of text")] = 300,
    whole: Annotated[
        bool, typer.Option("--all", help="score on all documents, not on those held out: for text of other sources")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one object instead of tables")] = False,
) -> None:
    """Score models on the held-out side of corpora, by kind of text."""
    torch.set_flush_denormal(True)
    sources = [CorpusSource.parse(text) for text in corpus]
    found: dict[str, object] = {}
    for name in models:
        card = load_card(name)
        tokenizer = SonarTokenizer(card)
        networks = load_encoder(card), load_decoder(card)
        text = held_out_text(sources, tokenizer, sentences, whole)
        scores = scores_by_kind(*networks, tokenizer, text)
        translations = translation_scores(*networks, tokenizer, text)
        found[name] = {f"{kind}, {language}": vars(score) for (kind, language), score in scores.items()} | translations
        if not as_json:
            Console().print(
                _table(name, scores), *(f"{way}: {values}" for way, values in translations.items()), sep="\n"
            )
    if as_json:
        print(json.dumps(found, indent=1))


def _table(name: str, scores: Mapping[Kind, KindScore]) -> Table:
    table = Table("kind of text", "language", title=f"{name} on held-out text")
    for column in ("sentences", "loss", "AutoBLEU", f"from {LONG} characters"):
        table.add_column(column, justify="right")
    for (kind, language), score in scores.items():
        long = "" if score.bleu_long is None else f"{score.bleu_long:.1f}"
        table.add_row(kind, language, str(score.sentences), f"{score.loss:.3f}", f"{score.bleu:.1f}", long)
    return table


if __name__ == "__main__":
    try:
        typer.run(main)
    except ValueError as error:
        sys.exit(f"error: {error}")
