"""Training data of a small SONAR model: JSONL documents and aligned records → sentences → tokens.

What is held out depends on nothing but the records' ids and titles: 2 % of the books, pages and aligned records, and
6 % of the novels (records that have a title), each as a whole.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from recipes.sonar.batches import TokenSequences, TrainingSet
from stages.sonar.tokenizer import SonarTokenizer

LONGEST_SENTENCE = 200  # characters: the cap of LCM section 2.2
HELD_OUT = 0.02  # of books, pages and aligned records
HELD_OUT_TITLES = 0.06  # of titled works: there are few, and every document of one is on the same side
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
    """Return pieces of 1 to 200 characters: sentences, and long ones cut at their last space."""
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
    """Return a text file, unpacked by the ending of its name."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    if path.suffix == ".bz2":
        return bz2.open(path, "rt", encoding="utf-8")
    if path.suffix == ".zst":
        import zstandard  # loaded where it is needed

        unpacked: IO[str] = zstandard.open(path, "rt", encoding="utf-8")
        return unpacked
    return path.open(encoding="utf-8")


def uniform(*key: str) -> float:
    """Return a number in [0, 1) that depends on nothing but the key."""
    return int.from_bytes(hashlib.sha256("\0".join(key).encode()).digest()[:8], "big") / 2**64


@dataclass(frozen=True)
class CorpusSource:
    """A corpus file, the share of its books or pages that is read, and the weight of its sentences in training.

    Written PATH, PATH@SHARE or PATH@SHARE:WEIGHT. Weights are compared with each other: of two corpora with weights 3
    and 1 three sentences are drawn for one. Without weights every sentence is as likely as any other.
    """

    path: Path
    share: float = 1.0
    weight: float | None = None

    @classmethod
    def parse(cls, text: str) -> CorpusSource:
        path, _, numbers = text.partition("@")
        share, _, weight = numbers.partition(":")
        try:
            source = cls(Path(path), float(share or 1), float(weight) if weight else None)
        except ValueError:
            source = cls(Path(path), 0.0)
        right = 0 < source.share <= 1 and (source.weight is None or 0 < source.weight < math.inf)
        if not right or not source.path.is_file():
            raise ValueError(
                f"--corpus {text}: give a JSONL file that is there, FILE@SHARE with 0 < SHARE <= 1, or "
                f"FILE@SHARE:WEIGHT with WEIGHT > 0"
            )
        return source

    @property
    def kind(self) -> str:
        """The file's name without its endings: what kind of text it holds."""
        return self.path.name.split(".")[0]

    def __str__(self) -> str:
        weight = "" if self.weight is None else f":{self.weight:g}"
        return f"{self.path.name}@{self.share:g}{weight}"


def is_held_out(record: Mapping[str, str]) -> bool:
    """Return whether a record is kept from training. Pieces of a book or page (`<page>-NNNN`) and of a title stay
    together.
    """
    if record.get("title"):
        return uniform("held out", record["title"]) < HELD_OUT_TITLES
    return uniform("held out", _page(record)) < HELD_OUT


def _page(record: Mapping[str, str]) -> str:
    return re.sub(r"-\d+$", "", str(record["id"]))


def read(sources: Iterable[CorpusSource], held_out: bool) -> Iterator[Record]:
    """Return records of the training or the held-out side (`is_held_out`).

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
                if is_held_out(record) == held_out and uniform("share", _page(record)) < source.share:
                    yield record


def languages_of(record: Record) -> dict[str, str]:
    """Map each language to its text, for aligned records and for documents of one language alike."""
    if "text" in record:
        return {record["lang"]: record["text"]}
    return {key: text for key, text in record.items() if _LANGUAGE_CODE.fullmatch(key) and text.strip()}


def is_aligned(record: Record) -> bool:
    return "text" not in record


def tokenise(sources: Sequence[CorpusSource], tokenizer: SonarTokenizer) -> TrainingSet:
    """Read the training side of all sources once."""
    languages = tokenizer.card.languages
    parts: list[TokenSequences] = []
    alone: list[tuple[np.ndarray, np.ndarray]] = []  # sequences and their sources
    groups: list[list[int]] = []
    waiting: dict[str, list[tuple[str, int, int]]] = {language: [] for language in languages}
    count = 0

    def flush(language: str) -> None:
        """Tokenise what waits: rows of (sentence, source, aligned record or -1)."""
        nonlocal count
        rows = waiting[language]
        if rows:
            encoded = tokenizer.encode([text for text, _, _ in rows], language)
            parts.append(TokenSequences.pack([ids[:-1] for ids in encoded]))
            source, record = np.array([row[1:] for row in rows]).T
            index = np.arange(count, count + len(rows))
            alone.append((index[record < 0], source[record < 0]))
            for i, owner in zip(index[record >= 0], record[record >= 0], strict=True):
                groups[owner][languages.index(language)] = int(i)
            count += len(rows)
            waiting[language] = []

    for number, source in enumerate(sources):
        for record in read([source], held_out=False):
            if is_aligned(record):
                groups.append([-1] * len(languages))
            for language, text in languages_of(record).items():
                tokenizer.language_id(language)
                if is_aligned(record):
                    short = " ".join(text.split())
                    if len(short) <= LONGEST_SENTENCE:
                        waiting[language].append((short, number, len(groups) - 1))
                else:
                    waiting[language].extend((sentence, number, -1) for sentence in sentences(text))
                if len(waiting[language]) >= 20_000:
                    flush(language)
    for language in languages:
        flush(language)
    if not parts:
        raise ValueError("the corpora hold no sentence to train on; give others with --corpus")
    table = np.array(groups, np.int64).reshape(len(groups), len(languages))
    sequences, owners = (np.concatenate(column) for column in zip(*alone, strict=True))
    return TrainingSet(TokenSequences.join(parts), sequences, owners, table)


def tokens_of(sources: Iterable[CorpusSource], tokenizer: SonarTokenizer) -> str:
    """Return what decides the result of `tokenise`; weights do not."""
    return json.dumps(
        [tokenizer.card.tokenizer_digest, *(f"{source.path.name}@{source.share:g}" for source in sources)]
    )


def corpus_weights(sources: Sequence[CorpusSource], data: TrainingSet) -> list[float] | None:
    """Return the weight of each source, 0 where it holds only aligned records; None if nobody gave weights.

    Raises ValueError if only some sources with documents have a weight, or one without documents has.
    """
    documents = set(np.unique(data.sources).tolist())
    for number, source in enumerate(sources):
        if source.weight is not None and number not in documents:
            raise ValueError(
                f"--corpus {source}: it holds aligned records only, whose share is --aligned-share; leave out "
                f":{source.weight:g}"
            )
    given = {sources[number].weight is not None for number in documents}
    if True not in given:
        return None
    if False in given:
        without = [str(sources[number]) for number in sorted(documents) if sources[number].weight is None]
        raise ValueError(f"--corpus {', '.join(without)}: others have a :WEIGHT; give one to every file or to none")
    return [source.weight or 0.0 for source in sources]
