"""Held-out documents in memory, packed, with their texts and languages: what models are judged on.

Read by the loader in the order of the corpus, so that every model is given the same, and wrapped as in training. The
sentences that close documents ("End of text.") are left out: they are not part of these. Memory: 2 · dim bytes and the
text of a sentence; of files, the row groups that hold what is taken.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress

import numpy as np
import torch
from torch import Tensor

from pipeline.base.errors import ConfigError
from pipeline.corpus.part_reader import opened_data_file
from pipeline.storage.store import Store
from pipeline.training.data.index import Index
from pipeline.training.data.loader import Loader, TrainingSource
from pipeline.training.data.reading import Tokenise
from pipeline.training.data.sequences import Sequences
from stages.lcm.batch import Batch
from stages.lcm.metrics import documents_of
from stages.lcm.plans import planned_lengths

HELD_OUT_READS = ("embeddings", "sentences", "documents")  # families
MICRO = 1024  # sentences that are predicted together
LONGEST = 4096  # sentences of a prompt with its answer
DRAWN_FROM = 1 << 16  # about so many sentences, of shuffle blocks from all over the split, among which some are drawn


@dataclass(frozen=True, eq=False)
class HeldOut:
    """embeddings: (sentences, dim) float16; lengths: (documents,); texts: (sentences,); langs, ids: (documents,).

    paragraphs: (sentences,) int32, the number of each one's paragraph in its document. hashes: (documents,) of texts.
    A document that was wrapped is several here. groups: (documents,) values of the column by which they are grouped,
    if there is one. drawn: whether they were drawn from a split that has more, in random order.
    """

    embeddings: Tensor
    lengths: Tensor
    texts: tuple[str, ...]
    langs: tuple[str, ...]
    ids: tuple[str, ...]
    hashes: tuple[str, ...]
    paragraphs: Tensor
    groups: tuple[str, ...] = ()
    drawn: bool = False

    @cached_property
    def document(self) -> Tensor:
        """(sentences,) int64: the number of each sentence's document."""
        return documents_of(self.lengths)

    @cached_property
    def wholes(self) -> tuple[int, ...]:
        """(documents,) The number of the document of the corpus that each is, or is a piece of.

        It is the one with this id and this text: an id may stand twice in a corpus.
        """
        pairs = list(zip(self.ids, self.hashes, strict=True))
        numbers = {pair: number for number, pair in enumerate(sorted(set(pairs)))}
        return tuple(numbers[pair] for pair in pairs)

    @cached_property
    def origin(self) -> Tensor:
        """(sentences,) int64: the number of the document that each sentence is from, which may be several here."""
        return torch.tensor(self.wholes)[self.document]

    def wholes_among(self, chosen: Sequence[bool]) -> int:
        """Return how many documents of the corpus those are for which `chosen` is true."""
        return len(set(compress(self.wholes, chosen)))

    @cached_property
    def starts(self) -> Tensor:
        """(documents,) int64: the first sentence of each."""
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def judged(self) -> Tensor:
        """Ascending places of the sentences that have a context: all but the first of each document."""
        first = torch.zeros(len(self.document), dtype=torch.bool)
        first[self.starts] = True
        return (~first).nonzero()[:, 0]

    def without(self, left_out: Sequence[bool]) -> HeldOut:
        """Return the documents for which `left_out` is false."""
        kept = [not one for one in left_out]
        rows = torch.tensor(kept, dtype=torch.bool)[self.document]

        def of(values: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(compress(values, kept))

        return HeldOut(
            self.embeddings[rows],
            self.lengths[torch.tensor(kept, dtype=torch.bool)],
            tuple(compress(self.texts, rows.tolist())),
            of(self.langs),
            of(self.ids),
            of(self.hashes),
            self.paragraphs[rows],
            of(self.groups),
            self.drawn,
        )

    def lang(self, place: int) -> str:
        """Return the language of a sentence."""
        return self.langs[int(self.document[place])]

    def context(self, place: int, sentences: int) -> tuple[str, ...]:
        """Return the texts of the sentences before one in its document, at most this many."""
        start = int(self.starts[self.document[place]])
        return self.texts[max(start, place - sentences) : place]

    def batches(self, device: str, tokenise: Tokenise | None = None) -> Iterator[Batch]:
        """Yield whole documents, about `MICRO` sentences at a time or one document. tokenise: makes their tokens."""
        sizes = self.lengths.tolist()
        first, row = 0, 0
        while first < len(sizes):
            last, end = first + 1, row + sizes[first]
            while last < len(sizes) and end - row + sizes[last] <= MICRO:
                end += sizes[last]
                last += 1
            embeddings = self.embeddings[row:end]
            langs = [self.lang(place) for place in range(row, end)] if tokenise else []
            tokens = tokenise(self.texts[row:end], langs) if tokenise else None
            batch = Batch(
                embeddings,
                self.lengths[first:last],
                torch.ones(len(embeddings)),
                paragraphs=self.paragraphs[row:end],
                tokens=tokens,
            )
            yield batch.to(device)
            first, row = last, end


@dataclass(frozen=True, eq=False)
class _Document:
    """A document, or a piece of a wrapped one, without a closing sentence.

    number: of the document in the split. prompt: how many sentences precede its answer; 0 if there is none.
    """

    embeddings: Tensor
    texts: tuple[str, ...]
    paragraphs: Tensor
    number: int
    prompt: int

    def beginning(self, most: int) -> _Document:
        """Return the first sentences, at most this many."""
        return replace(
            self, embeddings=self.embeddings[:most], texts=self.texts[:most], paragraphs=self.paragraphs[:most]
        )


def held_out(index: Index, split: str, *, max_sentences: int, sentences: int, by: str | None = None) -> HeldOut:
    """Return documents of a split that together have enough sentences to predict, or all.

    If it has more, they are drawn at random from all over the split, always the same: its first ones would be those of
    one input, or of one language. Of a long document, pieces are drawn.

    Args:
        index: the index of the corpus.
        split: `train`, `validation` or `test`.
        max_sentences: the most sentences of a document; longer ones are cut into several.
        sentences: how many sentences are to be predicted.
        by: the column of documents by which results are grouped; None for no groups.

    Returns:
        The documents, with embeddings and texts.

    Raises:
        ConfigError: for a split without documents, where every document has a single sentence, or for a column that
            documents do not have.
    """
    drawn = Sequences.of(index, split).sentences > sentences
    found = _enough(index, split, max_sentences, sentences, drawn)
    if drawn and sum(len(one.texts) - 1 for one in found) < sentences:  # all of them
        drawn, found = False, _enough(index, split, max_sentences, sentences, drawn=False)
    if not any(len(one.texts) > 1 for one in found):
        raise ConfigError(
            f"{index.url}: every document of the split {split} has one sentence, so none has a context to predict from"
        )
    return _held(index, split, found, by, drawn)


def _enough(index: Index, split: str, max_sentences: int, sentences: int, drawn: bool) -> list[_Document]:
    """Return documents, in random order or in that of the corpus, until they have enough sentences to predict."""
    found: list[_Document] = []
    with closing(_documents(index, split, max_sentences, drawn)) as documents:
        for one in documents:
            found.append(one)
            sentences -= len(one.texts) - 1
            if sentences <= 0:
                break
    return found


def fitting(
    index: Index, split: str, *, max_sentences: int, sentences: int, by: str | None = None, planning: Sequence[int] = ()
) -> tuple[HeldOut, int]:
    """Return documents as `held_out` does, cut so that they also fit models that put plans and breaks in between.

    Args:
        index: as for `held_out`.
        split: as for `held_out`.
        max_sentences: as for `held_out`.
        sentences: as for `held_out`.
        by: as for `held_out`.
        planning: the contexts of models with plans.

    Returns:
        The documents, and the most sentences of one.

    Raises:
        ConfigError: as `held_out` raises it.
    """
    while True:
        held = held_out(index, split, max_sentences=max_sentences, sentences=sentences, by=by)
        longest = int(planned_lengths(held.lengths, held.paragraphs).max())
        if not planning or longest <= min(planning):
            return held, max_sentences
        max_sentences = max_sentences * min(planning) // longest


def beginnings(index: Index, split: str, *, documents: int, least: int, most: int) -> HeldOut:
    """Return the beginnings of the first documents of a split that are long enough.

    Of a document that the selection cut, only what stands before the first cut counts.

    Args:
        index: the index of the corpus.
        split: `train`, `validation` or `test`.
        documents: how many documents.
        least: the least number of sentences of a document.
        most: the most sentences of a beginning.

    Returns:
        The beginnings, with embeddings and texts.

    Raises:
        ConfigError: if no document is long enough.
    """
    found: list[_Document] = []
    longest = 0
    with closing(_openings(index, split, 2 * most)) as openings:  # wrapped, the first piece has `most` or more
        for one in openings:
            longest = max(longest, len(one.texts))
            if len(one.texts) >= least:
                found.append(one.beginning(most))
            if len(found) == documents:
                break
    if not found:
        raise ConfigError(
            f"{index.url}: no document of the split {split} has {least} sentences, the longest has {longest}; give a "
            "shorter prompt: --prompt-sentences"
        )
    return _held(index, split, found)


def prompts_and_answers(index: Index, split: str, *, documents: int) -> tuple[HeldOut, list[int], int]:
    """Return the first documents of a split that are a prompt and an answer, each of at least one sentence.

    Args:
        index: an index that knows where answers begin.
        split: `train`, `validation` or `test`.
        documents: how many documents.

    Returns:
        The documents with embeddings and texts, how many sentences of each are the prompt, and how many documents
        before the last were passed over: without prompt or answer, or of `LONGEST` sentences and more.

    Raises:
        ConfigError: if no document has both.
    """
    found: list[_Document] = []
    passed = 0
    with closing(_openings(index, split, LONGEST)) as openings:
        for one in openings:
            if 0 < one.prompt < len(one.texts) < LONGEST:  # whole: a piece of a longer one has so many
                found.append(one)
            else:
                passed += 1
            if len(found) == documents:
                break
    if not found:
        raise ConfigError(
            f"{index.url}: no document of the split {split} has a prompt and an answer, by its column "
            f"{index.about.answers}; name another split"
        )
    return _held(index, split, found), [one.prompt for one in found], passed


def _documents(index: Index, split: str, max_sentences: int, drawn: bool = False) -> Generator[_Document]:
    """Yield documents in the order of the corpus, or in random order. Those that are too long are cut."""
    loader = Loader(
        [TrainingSource(index)], split=split, max_sentences=max_sentences, micro_concepts=max(MICRO, max_sentences),
        epochs=1, shuffle=drawn, streams=1, buffer_sentences=DRAWN_FROM, texts=True,
    )  # fmt: skip
    for _, batch in loader:
        assert batch.texts is not None and batch.sequences is not None and batch.paragraphs is not None
        start = 0
        for length, number in zip(batch.lengths.tolist(), batch.sequences.tolist(), strict=True):
            last = batch.embeddings[start + length - 1].numpy()  # it may be one that the loader added
            end = start + length - any(np.array_equal(last, closing) for closing in index.closing_embeddings)
            if end > start:
                prompt = int((batch.weights[start:end] == 0).sum())  # only answers count in a loss
                yield _Document(
                    batch.embeddings[start:end].clone(),
                    batch.texts[start:end],
                    batch.paragraphs[start:end].clone(),
                    number,
                    prompt,
                )
            start += length


def _openings(index: Index, split: str, max_sentences: int) -> Generator[_Document]:
    """Yield the first piece of each document. Wrapping makes several of one, and so does a selection that cuts it."""
    sequences, block, last = Sequences.of(index, split), None, (-1, -1)
    with closing(_documents(index, split, max_sentences)) as pieces:
        for one in pieces:
            if block is None or not block.number[0] <= one.number <= block.number[-1]:
                block = sequences.around([one.number])
            row_range = block.row_ranges[one.number - block.number[0]]
            document = int(row_range["part"]), int(row_range["doc"])
            if document != last:
                yield one
            last = document


def _held(index: Index, split: str, found: list[_Document], by: str | None = None, drawn: bool = False) -> HeldOut:
    names = dict.fromkeys(["doc_id", "lang", "text_hash", *([by] if by else [])])
    ids, langs, hashes, *more = _described(index, split, [one.number for one in found], tuple(names))
    groups = () if by is None else {"doc_id": ids, "lang": langs, "text_hash": hashes}.get(by) or more[0]
    lengths = torch.tensor([len(one.texts) for one in found])
    texts = tuple(text for one in found for text in one.texts)
    embeddings, paragraphs = (torch.cat([getattr(one, name) for one in found]) for name in ("embeddings", "paragraphs"))
    return HeldOut(embeddings, lengths, texts, langs, ids, hashes, paragraphs, groups, drawn)


def _described(index: Index, split: str, sequences: list[int], columns: Sequence[str]) -> list[tuple[str, ...]]:
    """Return columns of the documents that sequences of a split are of, as text."""
    row_ranges = Sequences.of(index, split).row_ranges_at(sequences)
    part, doc = row_ranges["part"], row_ranges["doc"]
    found = [np.empty(len(sequences), object) for _ in columns]
    store = Store(index.url)
    for number in sorted(set(part.tolist())):
        with opened_data_file(store, index.parts["documents"][number].as_py()) as file:
            lacking = [name for name in columns if name not in file.schema_arrow.names]
            if lacking:
                raise ConfigError(
                    f"--by {lacking[0]}: documents have no such column; they have {', '.join(file.schema_arrow.names)}"
                )
            table = file.read(columns=list(columns))
        here = np.flatnonzero(part == number)
        for values, name in zip(found, columns, strict=True):
            texts = ["–" if one is None else str(one) for one in table[name].to_pylist()]
            values[here] = np.asarray(texts, object)[doc[here]]
    return [tuple(values.tolist()) for values in found]
