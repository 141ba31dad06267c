"""The layout that the released SONAR-LLM trainer loads (its `train_sonarllm_fast.py`): 100 buckets of plain lists.

    tiny_stories_sonar_embeddings_train_bucket_0.pt … _99.pt    {"train": [item, …]}
    tiny_stories_sonar_embeddings_val.pt                        {"validation": [item, …]}, read as a whole
    tiny_stories_sonar_embeddings_test.pt                       {"test": [item, …]}, which the trainer does not read
    sonar_eos_embedding.pt                                      that of "End of sequence.": a list of dim numbers

An item is {"original_text": …, "sentences": [text, …], "embeddings": [[number, …], …]}; the original text is the
sentences joined by spaces (the trainer does not look at it). Names and the number of buckets are those that the trainer
has built in. Its own script writes the last file as a list within a list, which its dataset cannot join to a document;
here it is the one vector. The files are pickles, since nothing else is read there, but of lists, texts and numbers
only: `torch.load(…, weights_only=True)` reads them. They take 10 kB per sentence at 1024 dimensions, and a bucket, or
the whole validation split, is in memory at once: 33 kB per sentence. For large corpora take the format lcm.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted
from pipeline.corpus.runs import newest_config
from pipeline.export.pieces import ExportedSequences, ExportTask, Written, exported_sequences
from pipeline.select.selection import Selection
from pipeline.storage.export_target import ExportTarget
from stages.arrow import embedding_matrix
from stages.cards import CardError
from stages.encode.settings import EncodeSettings
from stages.registry import build_stage
from stages.stage import whole

BUCKETS = 100
PREFIX = "tiny_stories_sonar_embeddings"
FOLDER = "sonar_embeddings_ts_100_shuffle"  # where the trainer looks for them
END_OF_SEQUENCE, END_LANG = "End of sequence.", "eng_Latn"

Item = dict[str, Any]


def write_sonar_llm(task: ExportTask) -> Written:
    """Write every selected sequence, and the end of sequence as the encoder of the newest run embeds it."""
    selection, target, written = task.selection, task.target, task.written
    end = _end_of_sequence(newest_config(selection.corpus.store))
    written.dim = len(end)
    train = _Buckets(target, written, _train_pieces(selection))
    others: dict[str, list[Item]] = {"validation": [], "test": []}
    for chosen in selection:
        splits = selection.corpus.documents(chosen.part)["split"].to_pylist()
        for pieces in exported_sequences(selection, chosen):
            for doc, item in zip(pieces.doc, _items(pieces), strict=True):
                if splits[doc] == "train":
                    train.add(item)
                else:
                    others[splits[doc]].append(item)
                written.count(splits[doc], 1, len(item["sentences"]))
            task.progress.add(len(pieces.text))
    _save(target, f"{PREFIX}_val.pt", {"validation": others["validation"]}, written)
    if others["test"]:
        _save(target, f"{PREFIX}_test.pt", {"test": others["test"]}, written)
    _save(target, "sonar_eos_embedding.pt", end, written)
    written.next_step = (
        f"{_lacking(written.by_split)}The trainer reads ./{FOLDER}: where you start it, give the folder that name, or "
        "make a link"
    )
    return written


def _lacking(sequences: dict[str, int]) -> str:
    """Say what the trainer needs and does not get."""
    train = sequences.get("train", 0)
    told = f"Too little to train on: {counted(train, 'sequence')} for {BUCKETS} buckets, each of which needs one. "
    validation = "There is no validation sequence, of which the trainer needs one: raise split.validation. "
    return told * (train < BUCKETS) + validation * (not sequences.get("validation"))


class _Buckets:
    """Distributes the training items evenly: the trainer takes five buckets at a time, and none may be empty."""

    def __init__(self, target: ExportTarget, written: Written, pieces: int) -> None:
        self._target, self._written = target, written
        self._ends = [(number + 1) * pieces // BUCKETS for number in range(BUCKETS)]
        self._bucket = self._seen = 0
        self._items: list[Item] = []
        self._save_full()

    def add(self, item: Item) -> None:
        self._items.append(item)
        self._seen += 1
        self._save_full()

    def _save_full(self) -> None:
        while self._bucket < BUCKETS and self._seen == self._ends[self._bucket]:
            _save(self._target, f"{PREFIX}_train_bucket_{self._bucket}.pt", {"train": self._items}, self._written)
            self._items = []
            self._bucket += 1


def _train_pieces(selection: Selection) -> int:
    total = 0
    for chosen in selection:
        splits = np.asarray(selection.corpus.documents(chosen.part)["split"].to_pylist(), dtype=object)
        total += int((splits[chosen.doc[chosen.sequence_starts]] == "train").sum())
    return total


def _items(pieces: ExportedSequences) -> list[Item]:
    items = []
    for low, high in pairwise(pieces.offsets.tolist()):
        sentences = pieces.text[low:high].to_pylist()
        vectors = pieces.embeddings[low:high].tolist()
        items.append({"original_text": " ".join(sentences), "sentences": sentences, "embeddings": vectors})
    return items


def _end_of_sequence(config: dict[str, Any]) -> list[float]:
    """Return the embedding of "End of sequence." by the encoder of the corpus, on the CPU."""
    settings = EncodeSettings.model_validate(config["encode"])
    table = pa.table({"sentences.text": [END_OF_SEQUENCE], "sentences.lang": [END_LANG]})
    try:
        stage = build_stage(settings, {})
    except CardError as error:
        raise ConfigError(f"the end of sequence needs the encoder of the corpus: {error}") from error
    stage.setup("cpu")
    families = whole(stage, table).families
    vector: list[float] = embedding_matrix(families["embeddings"]["embedding"])[0].tolist()
    return vector


def _save(target: ExportTarget, name: str, value: Any, written: Written) -> None:
    with target.file(name) as file:
        torch.save(value, file)
        written.bytes += file.tell()
    written.files += 1
