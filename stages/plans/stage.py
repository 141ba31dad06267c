"""Embeds plans of paragraphs that the inputs bring, as sentences are embedded, in the language of the paragraph.

The kept column stands in the first row of each document. Paragraphs are numbered over the whole document, so each of
its sub-documents finds its own plans. Cost: that of encoding the plans, and a second copy of the encoder in memory.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stages.arrow import changes, embedding_array, embedding_matrix, scattered
from stages.device import trouble
from stages.encode.encoder import Encode, Encoded, PreparedSentences
from stages.plans.settings import MORE, PlanEmbeddingSettings
from stages.stage import NON_FINITE, Computed


@dataclass(frozen=True)
class PreparedPlans:
    """The plans of a part: `rows`, in which they stand; `paragraphs`, how many there are; `left_over`: plans beyond
    the last paragraph of their document.
    """

    part_rows: int
    rows: npt.NDArray[np.int64]
    texts: list[str]
    paragraphs: int
    left_over: int
    sentences: PreparedSentences


@dataclass(frozen=True)
class EncodedPlans:
    """Plans and their embeddings."""

    prepared: PreparedPlans
    encoded: Encoded


class EmbedPlans:
    """The stage `plans`; see `PlanEmbeddingSettings`."""

    def __init__(self, settings: PlanEmbeddingSettings) -> None:
        self.settings = settings
        self.encode = Encode(settings)

    def setup(self, device: str) -> None:
        """Load the encoder."""
        self.encode.setup(device)

    def prepare(self, part: pa.Table) -> PreparedPlans:
        """Find the plan of each paragraph, and tokenise the distinct ones; warn of more plans than paragraphs."""
        doc, paragraph = (part[f"sentences.{name}"].to_numpy() for name in ("doc", "paragraph"))
        opens = changes(doc)
        first = np.flatnonzero(opens)
        starts = np.flatnonzero(opens | changes(paragraph))
        column = part[f"documents.{self.settings.column}"]
        given = [plans_of(value) for value in column.take(pa.array(first)).to_pylist()]
        owner = (np.cumsum(opens) - 1)[starts]
        found = [
            (row, given[of][number])
            for row, of, number in zip(starts.tolist(), owner.tolist(), paragraph[starts].tolist(), strict=True)
            if number < len(given[of]) and given[of][number]
        ]
        rows, texts = np.asarray([row for row, _ in found], np.int64), [text for _, text in found]
        ends = np.append(first[1:], len(doc))[: len(first)]
        left_over = sum(
            sum(map(bool, one[last + 1 :]))
            for one, last, size in zip(given, paragraph[ends - 1].tolist(), (ends - first).tolist(), strict=True)
            if size < self.settings.max_document_sentences  # otherwise a sub-document may follow, with these paragraphs
        )
        if left_over:
            warnings.warn(
                f"{MORE} (column {self.settings.column}); those after the last paragraph are left out (what "
                "paragraphs are: docs/models.md, Plans of your own)",
                stacklevel=2,
            )
        table = pa.table({
            "sentences.text": pa.array(texts, pa.string()),
            "sentences.lang": part["sentences.lang"].take(pa.array(rows)),
        })  # fmt: skip
        return PreparedPlans(len(doc), rows, texts, len(starts), left_over, self.encode.prepare(table))

    def compute(self, prepared: PreparedPlans) -> EncodedPlans:
        """Run the network over all batches."""
        return EncodedPlans(prepared, self.encode.compute(prepared.sentences))

    def finish(self, computed: EncodedPlans) -> Computed:
        """Return the rows of the part. A plan whose embedding is not finite is none, and counted."""
        prepared, found = computed.prepared, self.encode.finish(computed.encoded).families
        finite = found["status"]["status"].to_numpy() != NON_FINITE
        rows = prepared.rows[finite]
        plan = scattered(pa.array(prepared.texts, pa.string()).filter(pa.array(finite)), rows, prepared.part_rows)
        embeddings = np.zeros((prepared.part_rows, self.encode.card.dim), np.float16)
        embeddings[rows] = embedding_matrix(found["embeddings"]["embedding"])[finite]
        families = {
            "plans": pa.table({"plan": plan}),
            "plan-embeddings": pa.table({"plan_embedding": embedding_array(embeddings)}),
        }
        return Computed(families, computed.encoded.counts | counts_of(prepared, len(rows)))

    def recount(self, part: pa.Table, families: Mapping[str, pa.Table], taken: Mapping[str, float]) -> dict[str, float]:
        """Count plans whose embeddings are there, and warn of them. Costs tokenising the distinct ones."""
        return trouble(taken) | counts_of(self.prepare(part), pc.count(families["plans"]["plan"]).as_py())


def plans_of(value: Any) -> list[str]:
    """Return the plans of a document's paragraphs, of which an empty text is none.

    A text that is the JSON of a list of texts stands for that list: where some documents have a list and others one
    text, the corpus keeps both as text.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            parsed = json.loads(value)
            if isinstance(parsed, list) and all(one is None or isinstance(one, str) for one in parsed):
                "".join(one or "" for one in parsed).encode()  # half a character, as an escape, is a ValueError
                value = parsed
        except (ValueError, RecursionError):
            pass
    values = value if isinstance(value, list) else [value]
    return ["" if one is None else str(one).strip() for one in values]


def counts_of(prepared: PreparedPlans, plans: int) -> dict[str, float]:
    """Return counts of a part of which so many plans have an embedding."""
    sentences = prepared.sentences
    return {
        "paragraphs": float(prepared.paragraphs),
        "plans": float(plans),
        "left_over": float(prepared.left_over),
        "tokens": float(sentences.tokens.offsets[-1]),
        "truncated": float(sentences.truncated[sentences.distinct.inverse].sum()),
        "non_finite": float(len(prepared.rows) - plans),
    }
