"""Trains the tokenizer of a small SONAR model: unigram pieces with byte fallback, shared by all its languages."""

from __future__ import annotations

import itertools
import os
import random
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import sentencepiece

from recipes.sonar.data import CorpusSource, is_aligned, languages_of, read, sentences

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
    """Writes a sentencepiece model of at most `pieces` pieces, from as many sentences of each language as there are."""
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
