"""The loader against `Corpus.table`: each sentence once, the same order for every world and resume; what is refused."""

from __future__ import annotations

import gc
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.select import SelectSettings
from pipeline.storage import layout
from pipeline.storage.store import Store
from pipeline.training.data import order, row_range_files
from pipeline.training.data.index import Index, make_index
from pipeline.training.data.loader import BUFFER_SENTENCES, Loader, TrainingSource, buffer_sentences_of, share_of_files
from pipeline.training.data.reading import LoadedBuffer
from pipeline.training.data.row_range_files import ROW_RANGE
from stages.lcm.batch import Batch
from tests.pipeline.training.corpora import make_corpus
from tests.pipeline.training.expected import Sentence, Sequence, sequences_of

SMALL: dict[str, Any] = {
    "split": "train",
    "max_sentences": 12,
    "micro_concepts": 40,
    "buffer_sentences": 100,
    "seed": 7,
}


@pytest.fixture
def index(corpus: Corpus) -> Index:
    return make_index(corpus, SelectSettings())


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several, though the corpus is small."""
    monkeypatch.setattr(order, "STREAM_BLOCKS", 2)


def everything(index: Index, **options: Any) -> Loader:
    return Loader([TrainingSource(index)], **SMALL | {"codes": True, "texts": True, "weights": "fragility"} | options)


def sentences_of(batch: Batch) -> Iterator[Sentence]:
    assert batch.texts is not None and batch.codes is not None and batch.codes.dtype == torch.int32
    assert batch.embeddings.dtype == torch.float16 and batch.weights.dtype == torch.float32
    assert len(batch.texts) == batch.sentences == int(batch.lengths.sum())
    embeddings = [one.tobytes() for one in batch.embeddings.numpy()]
    codes = [tuple(one) for one in batch.codes.tolist()]
    return zip(batch.texts, embeddings, codes, batch.weights.tolist(), strict=True)


def ending(index: Index, number: int) -> Sentence:
    assert index.closing_codes is not None
    text = ("End of text.", "End of response.", "End of paragraph.")[number]
    return text, index.closing_embeddings[number].tobytes(), tuple(index.closing_codes[number].tolist()), 1.0


def wanted(index: Index, sequences: list[Sequence]) -> list[list[Sentence]]:
    return [piece.sentences + [ending(index, 0)] * piece.ends for piece in sequences]


def same(one: Batch, other: Batch) -> bool:
    return list(sentences_of(one)) == list(sentences_of(other)) and one.lengths.equal(other.lengths)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_in_the_order_of_the_corpus_every_sentence_comes_once(
    index: Index, corpus: Corpus, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    plain = Store.open
    monkeypatch.setattr(Store, "open", lambda self, path: opened.append(path) or plain(self, path))
    loader = everything(index, split=split, shuffle=False, epochs=1)
    sequences: dict[int, list[Sentence]] = {}
    for expected, (number, batch) in enumerate(loader):
        assert number == expected and batch.sentences <= 40 and batch.sequences is not None
        assert 1 < int(batch.lengths.max()) <= 12 or split != "train"
        sentences = sentences_of(batch)
        for piece, length in zip(batch.sequences.tolist(), batch.lengths.tolist(), strict=True):
            sequences.setdefault(piece, []).extend(itertools.islice(sentences, length))
    assert list(sequences.values()) == wanted(index, sequences_of(corpus, split)) and list(sequences) == sorted(
        sequences
    )
    assert loader.sentences == sum(map(len, sequences.values()))
    opened.clear()
    names = loader.names(list(sequences))
    assert len(opened) == len(set(opened)) > 1  # each file once
    assert [one.partition(" (row ")[0] for one in names] == [one.doc_id for one in sequences_of(corpus, split)]


@pytest.mark.parametrize("broken", ["split-documents", "drop-sentences", "drop-documents"])
def test_an_epoch_holds_every_selected_sentence_once(corpus: Corpus, broken: Any) -> None:
    index = make_index(corpus, SelectSettings(where="chars >= 20", broken=broken))
    kept = sequences_of(corpus, "train", lambda row: row["chars"] >= 20)
    every = {one.doc_id: len(one.sentences) for one in sequences_of(corpus, "train")}
    if broken == "drop-documents":
        kept = [one for one in kept if len(one.sentences) == every[one.doc_id]]
    if broken == "drop-sentences":
        for one in kept:
            one.ends = one is [other for other in kept if other.doc_id == one.doc_id][-1]
    expected = Counter(sentence for piece in wanted(index, kept) for sentence in piece)
    assert len(kept) > 3
    for world in (1, 3):
        found: Counter[Sentence] = Counter()
        for rank in range(world):
            for _, batch in everything(index, epochs=1, rank=rank, world=world):
                assert batch.sentences <= 40 and int(batch.lengths.max()) <= 12
                found.update(sentences_of(batch))
        assert found == expected


def test_documents_stay_in_order_and_only_the_last_ends(index: Index, corpus: Corpus) -> None:
    """Every document of a batch is a stretch of its piece; together they are the piece; sizes differ by one at most."""
    sequences = wanted(index, sequences_of(corpus, "train"))
    found: dict[int, list[tuple[int, int]]] = {}
    for _, batch in everything(index, epochs=1):
        assert batch.sequences is not None
        sentences = sentences_of(batch)
        for number, length in zip(batch.sequences.tolist(), batch.lengths.tolist(), strict=True):
            document = list(itertools.islice(sentences, length))
            starts = [at for at in range(len(sequences[number])) if sequences[number][at : at + length] == document]
            assert starts, "not a stretch of its piece"
            found.setdefault(number, []).append((starts[0], length))
    for number, stretches in found.items():
        sizes = [length for _, length in stretches]
        assert sum(sizes) == len(sequences[number]) and max(sizes) - min(sizes) <= 1
        assert len(sizes) == -(-len(sequences[number]) // 12)


def test_order_is_shuffled_anew_each_epoch_and_by_the_seed(index: Index) -> None:
    def order(**options: Any) -> list[int]:
        batches = [batch.sequences for _, batch in everything(index, **options)]
        return [piece for sequences in batches if sequences is not None for piece in sequences.tolist()]

    once, twice, other = order(epochs=1), order(epochs=2), order(epochs=1, seed=8)
    assert sorted(once) == sorted(other) and len({tuple(once), tuple(other), tuple(sorted(once))}) == 3
    assert Counter(twice) == Counter(once + once) and twice[: len(once) // 2] != twice[len(once) : len(once) * 3 // 2]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_sequence_is_that_of_one_process(index: Index, world: int) -> None:
    alone = dict(itertools.islice(everything(index, micro_concepts=15), 60))
    for rank in range(world):
        loader = everything(index, micro_concepts=15, rank=rank, world=world)
        mine = dict(itertools.islice(loader, 60 // world))
        assert list(mine) == list(range(rank, 60, world))[: len(mine)]
        assert all(same(batch, alone[number]) for number, batch in mine.items())


def test_it_resumes_anywhere_on_any_world(index: Index) -> None:
    assert everything(index, micro_concepts=15).streams > 1
    sequence = dict(itertools.islice(everything(index, micro_concepts=15), 90))
    for start in range(0, 80, 3):
        for rank, world in ((0, 1), (1, 2), (0, 3)):
            loader = everything(index, micro_concepts=15, start=start, rank=rank, world=world)
            for number, batch in itertools.islice(loader, 2):
                assert number >= start and number % world == rank and same(batch, sequence[number])


def test_a_mix_draws_by_weight_and_resumes(index: Index, corpus: Corpus) -> None:
    first = make_index(corpus, SelectSettings(where="chars >= 40"))
    sources = [TrainingSource(first, 3.0), TrainingSource(index, 1.0)]
    options = SMALL | {"max_sentences": 8, "micro_concepts": 8}
    loader = Loader(sources, **options)
    every = list(itertools.islice(loader, 600))
    border = first.about.splits["train"][1]
    of_first = np.asarray([int(batch.sequences[0]) < border for _, batch in every if batch.sequences is not None])
    assert 0.68 < of_first.mean() < 0.82
    assert all(len(set((batch.sequences < border).tolist())) == 1 for _, batch in every if batch.sequences is not None)
    for start in (1, 37, 300):
        again = Loader(sources, **options, start=start, rank=1, world=2)
        for number, batch in itertools.islice(again, 5):
            assert batch.embeddings.equal(every[number][1].embeddings)
    with pytest.raises(ValueError, match="a mix of corpora has no epochs"):
        Loader(sources, **options, epochs=1)
    both = Loader(sources, **options, epochs=1, shuffle=False)
    assert sum(batch.sentences for _, batch in both) == both.sentences


def test_more_lanes_need_no_more_memory() -> None:
    assert [buffer_sentences_of(streams, 2048) for streams in (1, 8, 16, 64)] == [
        BUFFER_SENTENCES,
        BUFFER_SENTENCES,
        BUFFER_SENTENCES // 2,
        BUFFER_SENTENCES // 8,
    ]
    assert buffer_sentences_of(1 << 20, 2048) == 2048
    assert [share_of_files(8, world) for world in (1, 4, 8, 16, 6)] == [1, 1, 1, 2, 3]


def test_windows_that_are_used_up_go_from_memory(index: Index) -> None:
    iterator = iter(everything(index, buffer_sentences=40))
    alive = []
    for _ in range(2):
        for _, batch in itertools.islice(iterator, 200):
            assert batch.sentences
        gc.collect()
        alive.append(sum(isinstance(one, LoadedBuffer) for one in gc.get_objects()))
    iterator.close()
    assert alive[1] < 1.5 * alive[0], alive  # about one a lane and those read ahead, and no more with time


def test_prompts_have_no_weight_and_answers_end_as_responses(corpus: Corpus) -> None:
    index = make_index(corpus, SelectSettings(), answers="answer")
    sequences = sequences_of(corpus, "train")
    given = [not all(piece.answers) for piece in sequences]
    assert 1 < sum(given) < len(given) and index.about.unanswered > 0
    found: dict[int, list[Sentence]] = {}
    for _, batch in everything(index, shuffle=False, epochs=1):
        assert batch.sequences is not None
        sentences = sentences_of(batch)
        for number, length in zip(batch.sequences.tolist(), batch.lengths.tolist(), strict=True):
            found.setdefault(number, []).extend(itertools.islice(sentences, length))
    for number, piece in enumerate(sequences):
        counted = [
            (*one[:3], one[3] if answer else 0.0) for one, answer in zip(piece.sentences, piece.answers, strict=True)
        ]
        assert found[number] == [*counted, ending(index, int(given[number]))]


def test_weights_are_one_unless_asked(index: Index) -> None:
    for _, batch in Loader([TrainingSource(index)], **SMALL, epochs=1):
        assert (batch.weights == 1).all() and batch.codes is None and batch.texts is None
        assert batch.targets == batch.sentences


def test_threads_end_with_the_iterator(index: Index) -> None:
    before = threading.active_count()
    iterator = iter(everything(index))
    next(iterator)
    assert threading.active_count() > before
    iterator.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"micro_concepts": 11}, "max_sentences is 12, micro_concepts 11.*set micro_concepts to 12 or more"),
        ({"max_sentences": 1}, "max_sentences is 1, the context of the model.*take a card with a context of 2 or more"),
        ({"split": "dev"}, "no split dev; splits are train, validation, test"),
    ],
)
def test_what_makes_no_sense_is_refused(index: Index, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Loader([TrainingSource(index)], **SMALL | options)


def test_what_the_corpus_has_not(tmp_path: Path, corpus: Corpus, index: Index) -> None:
    bare = make_index(make_corpus(tmp_path, 4, split={"validation": 0.0, "test": 0.0}), SelectSettings())
    with pytest.raises(ConfigError, match=r"has no codes of its sentences; add a section `rvq: \{\}`"):
        Loader([TrainingSource(bare)], **SMALL, codes=True)
    with pytest.raises(ConfigError, match=r"has no weights .*add sections `fragility: \{\}` and `predictor: \{\}`"):
        Loader([TrainingSource(bare)], **SMALL, weights="fragility")
    with pytest.raises(ConfigError, match=r"nothing is selected in the split validation \(train 4, validation 0, test"):
        Loader([TrainingSource(bare)], **SMALL | {"split": "validation"})
    other = Index(bare.url, bare.about.model_copy(update={"encoder": "0", "model": "other"}), bare.parts, bare.blocks)
    with pytest.raises(ConfigError, match=r"was encoded by .*other \(64\): embeddings of different encoders"):
        Loader([TrainingSource(index), TrainingSource(other)], **SMALL)
    file = next(tmp_path.glob("out/embeddings/*/*.parquet"))
    data = bytearray(file.read_bytes())
    data[100:2000] = bytes(1900)
    file.write_bytes(data)
    with pytest.raises(CorpusError, match=rf"{file.name} cannot be read .*was damaged, delete its receipt"):
        list(Loader([TrainingSource(bare)], **SMALL, epochs=1))
    begun = Loader([TrainingSource(bare)], **SMALL, epochs=1)
    file.unlink()
    with pytest.raises(CorpusError, match=rf"{file.name} is gone: the corpus has changed .* start over: --fresh"):
        list(begun)
    with pytest.raises(CorpusError, match=rf"no longer matches the corpus.*1 of its .*for instance .*{file.name}"):
        Loader([TrainingSource(bare)], **SMALL)


def test_from_s3(corpus: Corpus, index: Index, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("s3").put(f"{corpus.url}/", f"{bucket}/copy/", recursive=True)
    remote = Corpus(f"{bucket}/copy")
    there = make_index(remote, SelectSettings())
    assert there.digest == index.digest and there.url == f"{bucket}/copy"
    asked: list[int] = []
    monkeypatch.setattr(Store, "read_range", counted(Store.read_range, asked))
    monkeypatch.setattr(row_range_files, "_LEAST", 1)
    monkeypatch.setattr(row_range_files, "_WHOLE", 0)
    monkeypatch.setattr(order, "MICRO_BATCHES", 2)
    for split in ("train", "validation"):
        expected = list(everything(index, epochs=1, split=split))
        world = everything(there, epochs=1, split=split).streams
        shares = [everything(there, epochs=1, split=split, world=world, rank=rank) for rank in range(world)]
        found = dict(itertools.chain(*shares))
        assert sorted(found) == [number for number, _ in expected]
        assert all(same(found[number], batch) for number, batch in expected)
        assert sum(asked) == sum(there.about.runs[split]) * ROW_RANGE.itemsize and world > 1
        asked.clear()


@pytest.mark.parametrize("whole_split", [True, False])
def test_an_index_that_is_damaged_on_s3(
    corpus: Corpus, bucket: str, whole_split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole_split:
        monkeypatch.setattr(row_range_files, "_WHOLE", 0)
    fsspec.filesystem("s3").put(f"{corpus.url}/", f"{bucket}/copy/", recursive=True)
    store = Store(f"{bucket}/copy")
    there = make_index(Corpus(store.url), SelectSettings())
    path = layout.index_row_ranges_path(there.digest, "train", 0)
    whole = store.read(path)
    other = np.frombuffer(whole, ROW_RANGE).copy()
    other["rows"][len(other) // 2] += 1
    remedy = rf".*; delete {layout.index_paths(there.digest)[0]} and run the same command again"
    for data, said in (
        (
            other.tobytes(),
            r"is damaged: the shuffle block at row range \d+ has \d+ sentences, of \d+ that",
        ),
        (whole[:-1], f"has {len(whole) - 1} bytes instead of {len(whole)}"),
        (whole[:1], f"has 1 bytes instead of {len(whole)}"),
        (b"", f"has 0 bytes instead of {len(whole)}"),
        (None, "is missing"),
    ):
        store.delete(path)
        if data is not None:
            store.write(path, data)
        with pytest.raises(CorpusError, match=rf"{path} {said}{remedy}"):
            list(everything(there, epochs=1))


def counted(read_range: Callable[[Store, str, int, int], bytes], asked: list[int]) -> Callable[..., bytes]:
    """`Store.read_range` that notes how many bytes of row ranges it was asked for."""

    def read(store: Store, path: str, start: int, end: int) -> bytes:
        if path.startswith(layout.INDEXES):
            asked.append(end - start)
        return read_range(store, path, start, end)

    return read
