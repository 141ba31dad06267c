"""Examines the first documents of chunks that are not segmented: how many sentences and tokens their bytes hold.

Sentences are counted by punctuation marks, without a model. Tokens are counted by the model's tokenizer where its file
is on this machine. Cost: at most 256 kB and 2 000 files of a chunk, and the tokens of 20 000 characters of each
language, of several documents.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.base.errors import PipelineError
from pipeline.config.run_config import RunConfig
from pipeline.inputs import Chunk, Rejected, count_documents, files_of, read_documents
from pipeline.planning.sentence_counts import SentenceCounter
from stages.segment.token_cap import add_beginning
from stages.sonar.card import load_card

SAMPLE_CHARACTERS = 1 << 18  # of a chunk
SAMPLE_FILES = 2000  # of a chunk, which may hold many more that are tiny
ADDED_TOKENS = 2  # of every sentence: language tag and </s>


@dataclass
class Texts:
    """Texts of `documents` that were examined. `characters`: of each language; `first`: the beginnings of its
    documents.
    """

    characters: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    sentences: float = 0.0
    documents: int = 0

    def add(self, lang: str, text: str, sentences: int) -> None:
        """Add the text of a document.

        Args:
            lang: the language of the document.
            text: its text.
            sentences: how many sentences it probably has.
        """
        self.characters[lang] += len(unicodedata.normalize("NFC", text))
        add_beginning(self.first, lang, text)
        self.sentences += sentences
        self.documents += 1

    def tokens_per_sentence(self, counts: Mapping[str, tuple[int, int]]) -> float | None:
        """Return the tokens of an average sentence. `counts`: by language, the characters and tokens of `first`; none
        if the model's tokenizer is not on this machine.
        """
        if not counts or not self.sentences:
            return None
        tokens = sum(self.characters[lang] * of / max(1, size) for lang, (size, of) in counts.items())
        return ADDED_TOKENS + tokens / self.sentences


@dataclass(frozen=True)
class Examined:
    """Some documents of a chunk, or all of them (`whole`).

    bytes: stored bytes of these documents; records: that were read, also those that are not documents; segmented:
    whether segmenting counted the sentences; doubtful: how many of the sentences are a guess.
    """

    bytes: float
    sentences: float
    segmented: bool = False
    documents: int = 0
    records: int = 0
    characters: int = 0
    whole: bool = True
    doubtful: float = 0.0

    def sentences_of(self, records: int) -> float:
        """Estimate how many sentences so many records of the chunk have, these first ones among them."""
        return self.sentences * (1.0 if self.whole else records / self.records)

    def plus(self, other: Examined) -> Examined:
        """Return the documents of both."""
        return Examined(
            self.bytes + other.bytes,
            self.sentences + other.sentences,
            documents=self.documents + other.documents,
            records=self.records + other.records,
            characters=self.characters + other.characters,
            whole=self.whole and other.whole,
            doubtful=self.doubtful + other.doubtful,
        )


def examine(config: RunConfig, chunk: Chunk, texts: Texts) -> Examined | None:
    """Examine the first documents of a chunk, and add their texts to `texts`.

    Args:
        config: the configuration of the corpus.
        chunk: the chunk.
        texts: collects the texts.

    Returns:
        Counts and sizes; None if the chunk cannot be read, which the run itself will say.
    """
    total = Examined(0.0, 0.0)
    if chunk.by_text:
        chunk = replace(chunk, start=0)  # the file's first documents stand for those after much text
    try:
        languages = load_card(config.segment.model).languages
        counter = SentenceCounter(config.segment)
        for number, file in enumerate(files_of(chunk)):
            left = None if chunk.take is None else chunk.take - total.records
            if left is not None and left <= 0:
                break
            if total.characters >= SAMPLE_CHARACTERS or number == SAMPLE_FILES:
                return replace(total, whole=False)
            most = SAMPLE_CHARACTERS - total.characters
            total = total.plus(_examine_file(config, replace(file, take=left), languages, counter, texts, most))
    except (PipelineError, OSError):
        return None
    return total


def _examine_file(
    config: RunConfig, chunk: Chunk, languages: Sequence[str], counter: SentenceCounter, texts: Texts, most: int
) -> Examined:
    settings = next(one for one in config.input if one.name == chunk.input)
    records = characters = sentences = doubtful = documents = 0
    sample: list[str] = []
    ids: set[str] = set()
    at, whole = 0 if chunk.compression else chunk.start, True
    for item in read_documents(chunk, settings, config.split, languages):
        if characters >= most:
            place = re.search(r"byte (\d+)$", item.record)
            at, whole = int(place[1]) if place else at, False
            break
        records += item.records if isinstance(item, Rejected) else 1
        if not isinstance(item, Rejected):
            sample.append(item.text)
            characters += len(item.text)
            if item.doc_id in ids and config.duplicate_ids != "keep-all":
                continue  # it will be set aside
            ids.add(item.doc_id)
            count, guessed = counter(item.text, item.lang)
            documents, sentences = documents + 1, sentences + count
            doubtful += guessed
            texts.add(item.lang, item.text, count)
    size = float(chunk.bytes) if whole else _bytes_of(chunk, records, at, sample)
    return Examined(
        size,
        sentences,
        documents=documents,
        records=records,
        characters=characters,
        whole=whole,
        doubtful=doubtful,
    )


def _bytes_of(chunk: Chunk, records: int, at: int, texts: list[str]) -> float:
    """Return the stored bytes of the first records of a chunk. `at`: where the next one begins, decompressed."""
    if chunk.format == "parquet":
        return chunk.bytes * records / count_documents(replace(chunk, take=None)).documents
    size = at if chunk.compression else at - chunk.start
    if not chunk.compression:
        return float(size)
    text = "".join(texts).encode()
    return size * len(zlib.compress(text)) / max(1, len(text))
