"""Training data of a small SONAR model: JSONL documents and aligned records → sentences → flat arrays → batches.

Tokens lie in one flat uint16 or int32 array, so a corpus of 100 million tokens costs 200–400 MB and no Python objects.
Batches are made round by round from a seed, so the state of the sampler is two integers and resuming is exact.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
import zstandard
from torch import Tensor

from stages.sonar.tokenizer import END, PAD, SonarTokenizer

LONGEST_SENTENCE = 200  # characters: the cap of LCM section 2.2
HELD_OUT = 0.02  # of books, pages and aligned records
_DOCUMENT = {"id", "lang", "text"}
_LANGUAGE_CODE = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")

# Sentence-final punctuation with its closing quotes and a space before anything but a lower-case letter (Chinese and
# Japanese need no space), or a newline.
_CLOSING = r"[)\]}\"'»”’」』）】]*"
_END_OF_SENTENCE = re.compile(
    rf"[.!?…؟۔।॥։።]+{_CLOSING}\s+(?![a-zß-öø-ÿа-яёα-ω])|[。！？；]+{_CLOSING}|\s*\n\s*", re.UNICODE
)

Record = dict[str, str]


def sentences(text: str) -> Iterator[str]:
    """Pieces of 1 to 200 characters: sentences, and long ones cut at their last space."""
    ends = [match.end() for match in _END_OF_SENTENCE.finditer(text)]
    for begin, end in zip([0, *ends], [*ends, len(text)], strict=True):
        rest = " ".join(text[begin:end].split())
        while len(rest) > LONGEST_SENTENCE:
            cut = rest.rfind(" ", LONGEST_SENTENCE // 2, LONGEST_SENTENCE + 1)
            cut = LONGEST_SENTENCE if cut < 0 else cut
            yield rest[:cut]
            rest = rest[cut:].lstrip()
        if rest:
            yield rest


def open_text(path: Path) -> IO[str]:
    """A text file, unpacked by the ending of its name."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    if path.suffix == ".bz2":
        return bz2.open(path, "rt", encoding="utf-8")
    if path.suffix == ".zst":
        unpacked: IO[str] = zstandard.open(path, "rt", encoding="utf-8")
        return unpacked
    return path.open(encoding="utf-8")


def uniform(*key: str) -> float:
    """A number in [0, 1) that depends on nothing but the key."""
    return int.from_bytes(hashlib.sha256("\0".join(key).encode()).digest()[:8], "big") / 2**64


@dataclass(frozen=True)
class CorpusSource:
    """A corpus file and the share of its books or pages that is taken; written PATH or PATH@SHARE."""

    path: Path
    share: float = 1.0

    @classmethod
    def parse(cls, text: str) -> CorpusSource:
        path, _, share = text.partition("@")
        try:
            number = float(share or 1)
        except ValueError:
            number = 0.0
        if not 0 < number <= 1 or not Path(path).is_file():
            raise ValueError(f"--corpus {text}: give a JSONL file that is there, or FILE@SHARE with 0 < SHARE <= 1")
        return cls(Path(path), number)


def read(sources: Iterable[CorpusSource], held_out: bool) -> Iterator[Record]:
    """Records of the training or the held-out side. Every piece of a book or page (`<page>-NNNN`) is on the same side.

    Raises ValueError for a line that is neither a document (`id`, `lang`, `text`) nor an aligned record.
    """
    for source in sources:
        with open_text(source.path) as lines:
            for number, line in enumerate(lines, start=1):
                record: Any = json.loads(line)
                aligned = isinstance(record, dict) and sum(bool(_LANGUAGE_CODE.fullmatch(key)) for key in record) > 1
                if not isinstance(record, dict) or "id" not in record or not (aligned or record.keys() >= _DOCUMENT):
                    raise ValueError(
                        f"{source.path}, line {number}: a record needs id, lang and text, or id and the text under at "
                        f"least two language codes such as eng_Latn; it has {list(record)[:8]}"
                    )
                page = re.sub(r"-\d+$", "", str(record["id"]))
                if (uniform("held out", page) < HELD_OUT) == held_out and uniform("share", page) < source.share:
                    yield record


def languages_of(record: Record) -> dict[str, str]:
    """Language → text, for aligned records and for documents of one language alike."""
    if "text" in record:
        return {record["lang"]: record["text"]}
    return {key: text for key, text in record.items() if _LANGUAGE_CODE.fullmatch(key) and text.strip()}


def is_aligned(record: Record) -> bool:
    return "text" not in record


@dataclass
class TokenSequences:
    """Token sequences without their `</s>`s, end to end: sequence i is `flat[starts[i]:starts[i + 1]]`, tag first."""

    flat: np.ndarray
    starts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]]) -> TokenSequences:
        lengths = np.fromiter((len(ids) for ids in sequences), np.int64, len(sequences))
        starts = np.concatenate(([0], np.cumsum(lengths)))
        flat = np.fromiter((i for ids in sequences for i in ids), np.int32, int(starts[-1]))
        return cls(flat, starts)

    @classmethod
    def join(cls, parts: Sequence[TokenSequences]) -> TokenSequences:
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(np.concatenate([part.flat for part in parts]), np.concatenate(([0], np.cumsum(lengths))))

    def padded(self, rows: np.ndarray) -> np.ndarray:
        """(rows, longest) int64, PAD after the end."""
        lengths = self.starts[rows + 1] - self.starts[rows]
        column = np.arange(lengths.max())
        inside = column < lengths[:, None]
        return np.where(inside, self.flat[np.where(inside, self.starts[rows, None] + column, 0)], PAD).astype(np.int64)


@dataclass
class TrainingSet:
    """All sequences, which of them stand alone, and which are translations of each other.

    groups: (records, languages) index of a sequence or -1.
    """

    tokens: TokenSequences
    alone: np.ndarray
    groups: np.ndarray

    def save(self, path: Path) -> None:
        np.savez(path, flat=self.tokens.flat, starts=self.tokens.starts, alone=self.alone, groups=self.groups)

    @classmethod
    def load(cls, path: Path) -> TrainingSet:
        with np.load(path) as arrays:
            return cls(TokenSequences(arrays["flat"], arrays["starts"]), arrays["alone"], arrays["groups"])


def tokenise(sources: Iterable[CorpusSource], tokenizer: SonarTokenizer) -> TrainingSet:
    """Reads the training side of all sources once."""
    languages = tokenizer.card.languages
    parts: list[TokenSequences] = []
    alone: list[np.ndarray] = []
    groups: list[list[int]] = []
    waiting: dict[str, list[tuple[str, int]]] = {language: [] for language in languages}  # (sentence, record or -1)
    count = 0

    def flush(language: str) -> None:
        nonlocal count
        rows = waiting[language]
        if rows:
            parts.append(
                TokenSequences.pack([ids[:-1] for ids in tokenizer.encode([text for text, _ in rows], language)])
            )
            owner = np.array([record for _, record in rows])
            index = np.arange(count, count + len(rows))
            alone.append(index[owner < 0])
            for i, record in zip(index[owner >= 0], owner[owner >= 0], strict=True):
                groups[record][languages.index(language)] = int(i)
            count += len(rows)
            waiting[language] = []

    for record in read(sources, held_out=False):
        if is_aligned(record):
            groups.append([-1] * len(languages))
        for language, text in languages_of(record).items():
            tokenizer.language_id(language)
            if is_aligned(record):
                short = " ".join(text.split())
                if len(short) <= LONGEST_SENTENCE:
                    waiting[language].append((short, len(groups) - 1))
            else:
                waiting[language].extend((sentence, -1) for sentence in sentences(text))
            if len(waiting[language]) >= 20_000:
                flush(language)
    for language in languages:
        flush(language)
    if not parts:
        raise ValueError("the corpora hold no sentence to train on; give others with --corpus")
    table = np.array(groups, np.int64).reshape(len(groups), len(languages))
    return TrainingSet(TokenSequences.join(parts), np.concatenate(alone), table)


@dataclass
class TokenBatch:
    source: Tensor  # (rows, length) int64
    mask: Tensor | None  # (rows, length) bool, None where no row is padded
    target_in: Tensor  # (rows, length) int64: </s> [language] pieces
    target_out: Tensor  # (rows, length) int64: [language] pieces </s>; PAD counts for nothing


class Batches:
    """Batches of like length under a token budget, in a seeded order that can be taken up anywhere.

    A round draws `round_size` examples: `aligned_share` of them from aligned records (half autoencoding, half into any
    of the record's languages), the rest autoencoding sentences that stand alone, each once before any twice.
    """

    def __init__(self, data: TrainingSet, *, seed: int, aligned_share: float, round_size: int = 60_000) -> None:
        self.data, self.seed = data, seed
        found = (data.groups >= 0).sum(axis=1) > 0
        self.groups = data.groups[found]
        share = aligned_share if len(self.groups) else 0.0
        self.aligned = round_size if not len(data.alone) else round(round_size * share)
        self.single = round_size - self.aligned

    def plan(self, number: int, longest: int, budget: int) -> list[np.ndarray]:
        """The batches of a round, each (rows, 2): source and target sequence.

        No sequence is over `longest` tokens, no batch of several over `budget`.
        """
        rng = np.random.default_rng((self.seed, number))
        pairs = np.concatenate((self._single(number), self._aligned(rng)))
        size = self.data.tokens.lengths[pairs].max(axis=1) + 1
        pairs, size = pairs[size <= longest], size[size <= longest]
        order = np.lexsort((rng.random(len(size)), size))
        pairs, size = pairs[order], size[order]
        batches, begin = [], 0
        while begin < len(pairs):
            end = min(len(pairs), begin + max(1, budget // int(size[begin])))
            while (end - begin) * int(size[end - 1]) > budget and end - begin > 1:
                end -= 1
            batches.append(pairs[begin:end])
            begin = end
        return [batches[i] for i in rng.permutation(len(batches))]

    def _single(self, number: int) -> np.ndarray:
        total = len(self.data.alone)
        wanted = np.arange(number * self.single, (number + 1) * self.single)
        rows = [
            np.random.default_rng((self.seed, 1, int(turn))).permutation(total)[wanted[wanted // total == turn] % total]
            for turn in (np.unique(wanted // total) if total else ())
        ]
        chosen = self.data.alone[np.concatenate(rows)] if rows else np.empty(0, np.int64)
        return np.stack((chosen, chosen), axis=1)

    def _aligned(self, rng: np.random.Generator) -> np.ndarray:
        if not self.aligned:
            return np.empty((0, 2), np.int64)
        rows = self.groups[rng.integers(len(self.groups), size=self.aligned)]
        weight = rng.random((2, *rows.shape)) * (rows >= 0)
        source, target = (np.take_along_axis(rows, w.argmax(axis=1)[:, None], axis=1)[:, 0] for w in weight)
        return np.stack((source, np.where(rng.random(self.aligned) < 0.5, source, target)), axis=1)

    def batch(self, pairs: np.ndarray) -> TokenBatch:
        source = append_end(self.data.tokens.padded(pairs[:, 0]))
        target = append_end(self.data.tokens.padded(pairs[:, 1]))
        before = np.where(target[:, :-1] == END, PAD, target[:, :-1])
        shifted = np.concatenate((np.full((len(target), 1), END), before), axis=1)
        padded = bool((source == PAD).any())
        return TokenBatch(
            torch.from_numpy(source),
            torch.from_numpy(source != PAD) if padded else None,
            torch.from_numpy(shifted),
            torch.from_numpy(target),
        )


def append_end(ids: np.ndarray) -> np.ndarray:
    """(rows, length) padded → (rows, length + 1) with `</s>` after each row's last token."""
    wider = np.pad(ids, ((0, 0), (0, 1)), constant_values=PAD)
    wider[np.arange(len(ids)), (ids != PAD).sum(axis=1)] = END
    return wider
