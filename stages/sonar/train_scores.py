"""How good a SONAR model is on text it has not seen: teacher-forced loss and greedy corpus BLEU, by language."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import sacrebleu
import torch
import torch.nn.functional as F

from stages.sonar.generate import greedy
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder
from stages.sonar.tokenizer import PAD, SonarTokenizer
from stages.sonar.train_data import (
    Batches,
    Source,
    Tokens,
    TrainingSet,
    is_aligned,
    languages_of,
    read,
    sentences,
    uniform,
)

BLEU_TOKENISATION = {"zho_Hans": "zh", "zho_Hant": "zh", "jpn_Jpan": "char"}


def held_out_sentences(sources: Iterable[Source], languages: Iterable[str], most: int) -> dict[str, list[str]]:
    """Language → at most `most` sentences of held-out books, pages and aligned records, chosen by hashes of texts."""
    found: dict[str, set[str]] = {language: set() for language in languages}
    for record in read(sources, held_out=True):
        for language, text in languages_of(record).items():
            found[language].update([" ".join(text.split())] if is_aligned(record) else sentences(text))
    return {
        language: sorted((t for t in texts if len(t) <= 200), key=lambda text: uniform("score", text))[:most]
        for language, texts in found.items()
    }


@torch.inference_mode()
def held_out_scores(
    encoder: SonarTextEncoder,
    decoder: SonarTextDecoder,
    tokenizer: SonarTokenizer,
    sources: Iterable[Source],
    most: int = 400,
) -> dict[str, dict[str, float]]:
    """`loss` (nats per token) and `bleu` (greedy autoencoding, 0–100) by language."""
    scores: dict[str, dict[str, float]] = {"loss": {}, "bleu": {}, "sentences": {}}
    for language, texts in held_out_sentences(sources, tokenizer.card.languages, most).items():
        if not texts:
            continue
        ids = tokenizer.encode(texts, language)
        data = TrainingSet(Tokens.pack([row[:-1] for row in ids]), np.arange(len(ids)), np.empty((0, 0), np.int64))
        batches = Batches(data, budget=2048, seed=0, aligned_share=0.0, round_size=len(ids))
        decoded: list[list[int]] = [[] for _ in ids]
        total, tokens = 0.0, 0
        for pairs in batches.plan(0, 10**9):
            batch = batches.batch(pairs)
            embeddings = encoder(batch.source, batch.mask)
            logits = decoder(batch.target_in, embeddings)
            loss = F.cross_entropy(logits.flatten(0, 1), batch.target_out.flatten(), ignore_index=PAD, reduction="sum")
            total += float(loss)
            tokens += int((batch.target_out != PAD).sum())
            prefixes = torch.tensor([tokenizer.target_prefix(language)] * len(pairs))
            limits = (batch.source != PAD).sum(dim=1) + 8
            for row, new in zip(pairs[:, 0], greedy(decoder, embeddings, prefixes, limits), strict=True):
                decoded[row] = new
        bleu = sacrebleu.corpus_bleu(
            tokenizer.decode(decoded), [texts], tokenize=BLEU_TOKENISATION.get(language, "13a")
        )
        scores["loss"][language] = round(total / tokens, 3)
        scores["bleu"][language] = round(bleu.score, 1)
        scores["sentences"][language] = float(len(texts))
    return {name: values for name, values in scores.items() if values}
