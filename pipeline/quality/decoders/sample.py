"""The held-out sentences on which decoders are compared, and means over them whose errors are over documents."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted
from pipeline.corpus.reader import Corpus
from pipeline.inputs.splits import SPLITS as ALL_SPLITS
from pipeline.quality.measures import mean_over_documents
from stages.arrow import embedding_matrix
from stages.stage import OK

HELD_OUT = "held-out"
SPLITS = (HELD_OUT, *(one for one in ALL_SPLITS if one != "train"))


@dataclass(frozen=True)
class MeanScore:
    """A mean over sentences, and its standard error: documents are what was drawn."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {2 * self.error:.1f}" if math.isfinite(self.error) else f"{self.mean:.1f}"


@dataclass(frozen=True)
class HeldOutSample:
    """Sentences in the order of their u.

    documents: (rows,) a number for each document; codes: None where the corpus has none.
    """

    split: str
    texts: list[str]
    langs: list[str]
    u: npt.NDArray[np.float64]
    documents: npt.NDArray[np.int64]
    embeddings: npt.NDArray[np.float16]
    codes: npt.NDArray[np.uint16] | None

    def __len__(self) -> int:
        return len(self.texts)

    def describe(self) -> str:
        """Describe the size of the sample, and what it is taken from."""
        count = len(set(self.documents.tolist()))
        of = "validation and test" if self.split == HELD_OUT else self.split
        return f"{counted(len(self), 'sentence')} in {counted(count, 'document')} of {of}"

    def mean(self, values: npt.NDArray[np.floating]) -> MeanScore:
        """Return the mean of (rows,) values, and its error with whole documents as what was drawn (clusters)."""
        return MeanScore(*mean_over_documents(values, self.documents))


def take_held_out(corpus: Corpus, split: str, most: int) -> HeldOutSample:
    """Return held-out sentences, those with the smallest u.

    Truncated sentences are left out.

    Args:
        corpus: the corpus.
        split: `validation`, `test`, or `HELD_OUT` for both.
        most: how many sentences.

    Returns:
        The sentences, with their embeddings and codes.

    Raises:
        ConfigError: if there is no such sentence, or no embedding.
    """
    if "embedding" not in corpus.columns:
        raise ConfigError(f"{corpus.url} has no embeddings to decode: run it with a section `encode: {{}}`")
    wanted = pa.array([one for one in SPLITS[1:] if split in (HELD_OUT, one)])
    coded = ["codes"] if "codes" in corpus.columns else []
    columns = ["text", "lang", "u", "status", "split", "part", "doc", "embedding", *coded]
    found: pa.Table | None = None
    for batch in corpus.batches(*columns):
        table = batch.table
        held = pc.and_(pc.is_in(table["split"], value_set=wanted), pc.equal(table["status"], pa.scalar(OK, pa.uint8())))
        kept = table.filter(held)
        both = kept if found is None else pa.concat_tables([found, kept])
        found = both.take(pc.sort_indices(both["u"])[:most])  # never more in memory than asked for, and a row group
    if found is None or not found.num_rows:
        raise ConfigError(
            f"{corpus.url} has no sentence of a {' or '.join(wanted.to_pylist())} document to compare decoders on: "
            "give split a share (`split: {validation: 0.01, test: 0.01}`), or another --split"
        )
    table = found
    keys = [f"{part}/{doc}" for part, doc in zip(table["part"].to_pylist(), table["doc"].to_pylist(), strict=True)]
    _, documents = np.unique(keys, return_inverse=True)
    return HeldOutSample(
        split,
        table["text"].to_pylist(),
        table["lang"].to_pylist(),
        table["u"].to_numpy(),
        documents.astype(np.int64),
        embedding_matrix(table["embedding"]).copy(),
        np.stack(table["codes"].to_numpy()).astype(np.uint16) if coded else None,
    )
