"""Samples a corpus's documents before any run has read them.

Up to 32 chunks are read, the first in the run's own seeded order, in which every input advances at the same pace; more
chunks if they are small. Of each, documents of its first thousand records or four million characters are taken in
random order (seeded too), until the chunk has given its share. The last document of a share is cut at the end of a
word, so that books and notes count by their text. Whatever the size of the corpus, only the beginnings of these chunks
are read.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pipeline.base.errors import CorpusError
from pipeline.base.formats import counted, number
from pipeline.config.run_config import RunConfig
from pipeline.inputs import Chunk, Document, Rejected, order_chunks, plan_inputs, read_documents
from stages.segment import marks
from stages.sonar.card import load_card

CHUNKS = 32
RECORDS = 1000  # records read of each chunk
CHARACTERS = 4_000_000  # characters held of each chunk
SHORTEST = 100  # characters; a smaller rest of a share goes to other chunks, to avoid scraps of documents


@dataclass
class TextSample:
    """Texts of documents with their languages. `skipped`: records that are not documents, by reason."""

    texts: list[str] = field(default_factory=list)
    langs: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    first_error: str = ""
    characters: int = 0

    @property
    def megabytes(self) -> float:
        """The size of the texts in MB of UTF-8."""
        return sum(len(text.encode()) for text in self.texts) / 1e6

    def describe(self) -> str:
        """Describe the size of the sample in words."""
        return f"{counted(len(self.texts), 'document')}, {number(self.characters)} characters"

    def reject(self, reason: str, records: int, error: str) -> None:
        """Count records that cannot be used.

        Args:
            reason: why they cannot be used.
            records: how many there are.
            error: what is wrong, for a person; the first one is kept.
        """
        self.skipped[reason] += records
        self.first_error = self.first_error or error

    def add(self, document: Document, most: int) -> None:
        """Add a document, or the first `most` characters of it."""
        text = document.text
        if len(text) > most:
            end = max(text.rfind(space, most // 2, most) for space in " \n")
            text = text[: end if end > 0 else most]
        if not marks.VISIBLE.search(text):
            self.reject("no text", 1, f"{document.record}: it holds no visible character")
            return
        self.texts.append(text)
        self.langs.append(document.lang)
        self.characters += len(text)


def take_sample(config: RunConfig, characters: int) -> TextSample:
    """Take about `characters` characters of documents, fewer if the inputs hold fewer; `seed` of corpus.yaml decides
    which.

    Raises `CorpusError` if no document can be used.
    """
    sample = TextSample()
    languages = load_card(config.segment.model).languages
    chunks = _enough(order_chunks(plan_inputs(config.input, config.chunk_bytes), config.seed), characters)
    chunks.sort(key=lambda chunk: chunk.bytes)  # large chunks make up for small ones
    for left, chunk in zip(range(len(chunks), 0, -1), chunks, strict=True):
        until = sample.characters + -(-(characters - sample.characters) // left)
        for document in _shuffled(config, chunk, languages, sample):
            if until - sample.characters < SHORTEST:
                break
            sample.add(document, until - sample.characters)
    if not sample.texts:
        raise CorpusError(_nothing(sample))
    return sample


def _enough(chunks: Sequence[Chunk], characters: int) -> list[Chunk]:
    """Return the first chunks: 32, or more if they probably hold less than twice the characters."""
    enough: list[Chunk] = []
    stored = 0
    for chunk in chunks:
        if len(enough) >= CHUNKS and stored >= 2 * characters:
            break
        enough.append(chunk)
        stored += chunk.bytes
    return enough


def _shuffled(config: RunConfig, chunk: Chunk, languages: Sequence[str], sample: TextSample) -> Iterator[Document]:
    """Yield documents from the beginning of a chunk in random order; rejected records are counted."""
    settings = next(one for one in config.input if one.name == chunk.input)
    pool: list[Document] = []
    held = 0
    for record in islice(read_documents(chunk, settings, config.split, languages), RECORDS):
        if isinstance(record, Rejected):
            sample.reject(record.reason, record.records, f"{record.record}: {record.error}")
            continue
        pool.append(record)
        held += len(record.text)
        if held >= CHARACTERS:
            break
    random.Random(f"{config.seed} {chunk.id}").shuffle(pool)
    return iter(pool)


def _nothing(sample: TextSample) -> str:
    if not sample.skipped:
        return "the inputs hold no documents: nothing to compare"
    reasons = ", ".join(f"{reason} {number(count)}" for reason, count in sample.skipped.most_common())
    return (
        f"none of the sampled documents can be used: {reasons}. The first is {sample.first_error}. `pipeline doctor "
        "CORPUS.YAML` looks at the inputs"
    )
