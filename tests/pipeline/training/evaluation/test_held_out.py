"""Held-out documents in memory: the rows of the corpus, wrapped, without what the loader adds; baselines; words."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from pipeline import Corpus
from pipeline.base.errors import ConfigError
from pipeline.config.select import SelectSettings
from pipeline.training.data.index import Index, make_index
from pipeline.training.evaluation.held_out import _documents, beginnings, held_out
from pipeline.training.evaluation.text_codec import TextCodec
from stages.lcm.baselines import MeanBaseline, Previous, Truth
from stages.lcm.batch import of_documents
from stages.lcm.model import Sampling
from tests.pipeline.training.evaluation.corpora import CONTEXT, make_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("held-out"), {"validation": 0.3, "test": 0.3})


@pytest.fixture(scope="module")
def index(corpus: Corpus) -> Index:
    return make_index(corpus, SelectSettings())


def test_held_out_documents_are_those_of_the_split(corpus: Corpus, index: Index) -> None:
    held = held_out(index, "test", max_sentences=CONTEXT, sentences=10**9)
    table = corpus.table("doc_id", "split", "text", "lang")
    rows = [row for row in table.to_pylist() if row["split"] == "test"]
    assert list(held.texts) == [row["text"] for row in rows]
    assert [held.lang(place) for place in range(len(rows))] == [row["lang"] for row in rows]
    assert [held.ids[number] for number in held.document] == [row["doc_id"] for row in rows]
    assert int(held.lengths.max()) <= CONTEXT and len(set(held.ids)) < len(held.ids)  # some were wrapped
    assert sorted({*held.judged.tolist(), *held.starts.tolist()}) == list(range(len(rows)))
    matrix = torch.from_numpy(corpus.table("embedding")["embedding"].combine_chunks().flatten().to_numpy().copy())
    of_split = [number for number, split in enumerate(table["split"].to_pylist()) if split == "test"]
    assert torch.equal(held.embeddings, matrix.reshape(-1, index.dim)[of_split])
    assert [len(one.lengths) for one in held.batches("cpu")] == [len(held.lengths)]
    assert not held.drawn and not held_out(index, "test", max_sentences=CONTEXT, sentences=len(held.judged) + 1).drawn


def test_some_held_out_documents_are_drawn_from_all_over_the_split(corpus: Corpus, index: Index) -> None:
    held = held_out(index, "test", max_sentences=CONTEXT, sentences=10**9)
    fewer, again = (held_out(index, "test", max_sentences=CONTEXT, sentences=20) for _ in range(2))
    assert 20 <= len(fewer.judged) < 20 + CONTEXT and fewer.drawn and fewer.texts == again.texts
    assert set(fewer.texts) < set(held.texts) and fewer.texts[0] != held.texts[0]
    pieces = [fewer.texts[start : start + size] for start, size in zip(fewer.starts, fewer.lengths, strict=True)]
    all_pieces = [held.texts[start : start + size] for start, size in zip(held.starts, held.lengths, strict=True)]
    assert set(pieces) <= set(all_pieces)
    some = held_out(index, "test", max_sentences=CONTEXT, sentences=len(held.judged) // 2)
    assert len(set(some.langs)) == len(set(held.langs)) > 1  # the first half is of one language


def test_beginnings_are_the_first_sentences_of_documents(corpus: Corpus, index: Index) -> None:
    found = beginnings(index, "test", documents=2, least=6, most=9)
    rows = corpus.table("doc_id", "position", "text").to_pylist()
    for number, name in enumerate(found.ids):
        start, length = int(found.starts[number]), int(found.lengths[number])
        real = [row["text"] for row in rows if row["doc_id"] == name]
        assert list(found.texts[start : start + length]) == real[:9]
    with pytest.raises(ConfigError, match=r"no document of the split test has 5001 sentences.* --prompt-sentences"):
        beginnings(index, "test", documents=2, least=5001, most=6000)


def test_a_document_that_the_selection_cuts_begins_once(corpus: Corpus) -> None:
    cut = make_index(corpus, SelectSettings(where="position < 3 or position > 4"))
    with closing(_documents(cut, "test", 9)) as pieces:
        every = [one.number for one in pieces]
    found = beginnings(cut, "test", documents=len(every), least=2, most=9)
    rows = [row for row in corpus.table("doc_id", "position", "text", "split").to_pylist() if row["split"] == "test"]
    assert len(set(found.ids)) == len(found.ids) < len(set(every))  # there are more pieces than documents
    assert list(found.texts) == [row["text"] for row in rows if row["position"] < 3 and row["doc_id"] in found.ids]


def test_words_are_those_of_the_corpus(corpus: Corpus, index: Index) -> None:
    words = TextCodec.of(corpus, "cpu")
    held = held_out(index, "test", max_sentences=CONTEXT, sentences=30)
    langs = [held.lang(place) for place in range(len(held.texts))]
    assert torch.equal(words.encode(held.texts, langs), held.embeddings)
    twice = words.decode(torch.cat([held.embeddings[:3], held.embeddings[:3]]), [*["eng_Latn"] * 3, *["deu_Latn"] * 3])
    assert twice[:3] == words.decode(held.embeddings[:3], ["eng_Latn"] * 3)
    assert twice[3:] == words.decode(held.embeddings[:3], ["deu_Latn"] * 3) != twice[:3]
    with pytest.raises(ConfigError, match=r"--lang eng: .* knows no such language; .*eng_Latn"):
        words.check_language("eng", "--lang")


def test_baselines_say_what_they_are_named_for() -> None:
    batch = of_documents([torch.arange(6.0).reshape(3, 2), torch.tensor([[7.0, 8]]), torch.ones(2, 2)])
    copied = Previous().predict(batch, Sampling())
    assert copied.tolist() == [[0, 0], [0, 1], [2, 3], [0, 0], [0, 0], [1, 1]]
    assert MeanBaseline(torch.tensor([3.0, 4])).predict(batch, Sampling()).tolist() == [[3, 4]] * 6
    assert torch.equal(Truth().predict(batch, Sampling()), batch.embeddings)
