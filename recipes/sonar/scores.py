"""How good a SONAR model is on text it has not seen, by language: loss, corpus AutoBLEU, and BLEU of translations.

Sentences are those that `spacy-capped` makes of held-out books and pages, at most 200 characters, and the held-out
aligned records. A thousand sentences a language take two minutes on 2 CPU cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import sacrebleu
import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.sonar.data import (
    LONGEST_SENTENCE,
    Batches,
    CorpusSource,
    Record,
    TokenBatch,
    TokenSequences,
    TrainingSet,
    is_aligned,
    languages_of,
    read,
    uniform,
)
from stages.batching import Indices
from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings
from stages.sonar.greedy import Greedy
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder
from stages.sonar.tokenizer import PAD, SonarTokenizer

BLEU_TOKENISATION = {"zho_Hans": "zh", "zho_Hant": "zh", "jpn_Jpan": "char"}
PIVOT = "eng_Latn"  # translations are scored out of and into this language


def held_out_sentences(
    sources: Iterable[CorpusSource], tokenizer: SonarTokenizer, most: int
) -> tuple[dict[str, list[str]], list[Record]]:
    """Language → at most `most` sentences, chosen by hashes of their texts; and as many aligned records."""
    settings = SegmentSettings(method="spacy-capped", max_chars=LONGEST_SENTENCE)
    segmenter = Segmenter(settings, tokenizer.count)
    found: dict[str, set[str]] = {language: set() for language in tokenizer.card.languages}
    aligned: list[Record] = []
    for record in read(sources, held_out=True):
        if is_aligned(record):
            spaced = {language: " ".join(text.split()) for language, text in languages_of(record).items()}
            aligned.append({language: text for language, text in spaced.items() if len(text) <= LONGEST_SENTENCE})
            for language, text in aligned[-1].items():
                found[language].add(text)
        else:
            found[record["lang"]].update(segmenter.segment([record["text"]], [record["lang"]]).text.to_pylist())
    chosen = {
        language: sorted(texts, key=lambda text: uniform("score", text))[:most] for language, texts in found.items()
    }
    return chosen, aligned[:most]


def embed(encoder: SonarTextEncoder, tokenizer: SonarTokenizer, texts: Sequence[str], language: str) -> Tensor:
    """(sentences, dim): as float16, in which the corpus keeps them."""
    ids = tokenizer.encode(list(texts), language)
    result = torch.empty((len(ids), tokenizer.card.dim))
    for rows, batch in _batches(ids):
        result[torch.from_numpy(rows)] = encoder(batch.source, batch.mask)
    return result.half().float()


def decode(
    decoder: SonarTextDecoder, tokenizer: SonarTokenizer, embeddings: Tensor, limits: Sequence[int], language: str
) -> list[str]:
    """Greedy decodings into a language, each of at most its limit of tokens."""
    prefixes = torch.tensor([tokenizer.target_prefix(language)] * len(embeddings))
    search, decoded = Greedy(decoder), list[str]()
    for start in range(0, len(embeddings), 256):
        some = slice(start, start + 256)
        decoded += tokenizer.decode(search(embeddings[some], prefixes[some], torch.tensor(limits[some])))
    return decoded


@torch.inference_mode()
def held_out_scores(
    encoder: SonarTextEncoder,
    decoder: SonarTextDecoder,
    tokenizer: SonarTokenizer,
    sources: Sequence[CorpusSource],
    most: int = 1000,
) -> dict[str, dict[str, float]]:
    """Score → language → value: `loss` (nats a token), `bleu` (AutoBLEU of the corpus, greedy), translations' BLEU."""
    scores: dict[str, dict[str, float]] = {"loss": {}, "bleu": {}, "sentences": {}}
    texts, aligned = held_out_sentences(sources, tokenizer, most)
    for language, kept in texts.items():
        if not kept:
            continue
        scores["loss"][language] = _loss(encoder, decoder, tokenizer.encode(kept, language))
        limits = [count + 8 for count in tokenizer.count(kept)]
        decoded = decode(decoder, tokenizer, embed(encoder, tokenizer, kept, language), limits, language)
        scores["bleu"][language] = _bleu(decoded, kept, language)
        scores["sentences"][language] = float(len(kept))
    for other in (language for language in tokenizer.card.languages if language != PIVOT):
        pairs = [record for record in aligned if PIVOT in record and other in record]
        for source, target in ((other, PIVOT), (PIVOT, other)) if pairs else ():
            known = [record[source] for record in pairs]
            limits = [2 * count + 8 for count in tokenizer.count(known)]
            decoded = decode(decoder, tokenizer, embed(encoder, tokenizer, known, source), limits, target)
            name = f"translation into {PIVOT}" if target == PIVOT else f"translation from {PIVOT}"
            scores.setdefault(name, {})[other] = _bleu(decoded, [record[target] for record in pairs], target)
    return {name: values for name, values in scores.items() if values}


def _batches(ids: list[list[int]]) -> Iterator[tuple[Indices, TokenBatch]]:
    data = TrainingSet(TokenSequences.pack([row[:-1] for row in ids]), np.arange(len(ids)), np.empty((0, 0), np.int64))
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


def _bleu(decoded: list[str], texts: list[str], language: str) -> float:
    return round(sacrebleu.corpus_bleu(decoded, [texts], tokenize=BLEU_TOKENISATION.get(language, "13a")).score, 1)
