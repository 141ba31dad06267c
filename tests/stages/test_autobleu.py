"""AutoBLEU: scores are sacrebleu's own; sampled rows only; one decoding for equal sentences."""

from __future__ import annotations

import json
import threading

import numpy as np
import pyarrow as pa
import pytest
import sacrebleu
import torch

from stages.arrow import embedding_array, embedding_matrix
from stages.autobleu.bleu import corpus_bleu, sentence_bleu, sentence_statistics, tokenisation
from stages.autobleu.scorer import Autobleu
from stages.autobleu.settings import AutobleuSettings
from stages.batching import Indices
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings
from stages.sonar.decode import BatchedDecoder
from tests.conftest import TINY_CARD

ENGLISH = (
    ["The cat sat on the mat.", "Yes!", "He went home, quickly.", "", "one two three four five"],
    ["The cat sat on a mat.", "Yes!", "She stayed.", "nothing", "one two three four six"],
)
CHINESE = (["如果内容相等，则显示。", "你好"], ["如果内容相等，则不显示。", "您好"])


@pytest.mark.parametrize(("lang", "pair"), [("eng_Latn", ENGLISH), ("zho_Hans", CHINESE)])
def test_scores_are_those_of_sacrebleu(lang: str, pair: tuple[list[str], list[str]]) -> None:
    hypotheses, references = pair
    statistics = sentence_statistics(hypotheses, references, lang)
    tokenize = tokenisation(lang)
    for score, hypothesis, reference in zip(sentence_bleu(statistics), hypotheses, references, strict=True):
        expected = sacrebleu.sentence_bleu(hypothesis, [reference], tokenize=tokenize, use_effective_order=True).score
        assert score == pytest.approx(expected, abs=1e-4)
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenize).score
    assert corpus_bleu(statistics.sum(axis=0).tolist()) == pytest.approx(expected, abs=1e-9)


def test_a_short_sentence_that_survives_scores_100() -> None:
    assert sentence_bleu(sentence_statistics(["Yes!"], ["Yes!"], "eng_Latn"))[0] == pytest.approx(100)


def part() -> pa.Table:
    """Like what the reference checkpoint learnt, so that decoding means something; the last repeats the first."""
    texts = ["Drinks red mat bird red water sees green river but.", "Green dog blue city but because green and mat."]
    texts = [texts[0], texts[1], texts[0]]
    return pa.table({"sentences.text": texts, "sentences.lang": ["eng_Latn"] * 3, "sentences.u": [0.1, 0.5, 0.9]})


def encoded(table: pa.Table) -> pa.Table:
    stage = Encode(EncodeSettings(model=str(TINY_CARD)))
    stage.setup("cpu")
    result = stage.finish(stage.compute(stage.prepare(table)))
    assert result.counts["duplicates_saved"] == 1
    for family, computed in result.families.items():
        for name in computed.column_names:
            table = table.append_column(f"{family}.{name}", computed[name])
    return table


def test_what_survives_scores_100_and_copies_agree() -> None:
    table = encoded(part())
    vectors = embedding_matrix(table["embeddings.embedding"])
    assert (vectors[0] == vectors[2]).all() and (vectors[0] != vectors[1]).any()
    stage = Autobleu(AutobleuSettings(model=str(TINY_CARD)))
    stage.setup("cpu")
    prepared = stage.prepare(table)
    assert len(prepared.texts) == 2
    result = stage.finish(stage.compute(prepared))
    scores = result.families["autobleu"]
    assert scores["decoded"].to_pylist() == part()["sentences.text"].to_pylist()
    assert scores["autobleu"].to_numpy() == pytest.approx([100, 100, 100])
    assert result.counts["scored"] == 3
    assert corpus_bleu([result.counts[f"bleu.eng_Latn.{k}"] for k in range(10)]) == pytest.approx(100)


def test_rows_outside_the_sample_are_null() -> None:
    stage = Autobleu(AutobleuSettings(model=str(TINY_CARD), sample=0.5))
    stage.setup("cpu")
    result = stage.finish(stage.compute(stage.prepare(encoded(part()))))
    assert result.families["autobleu"]["autobleu"].is_null().to_pylist() == [False, True, True]


def test_rows_without_an_embedding_are_not_scored() -> None:
    table = encoded(part())
    position = table.column_names.index("status.status")
    table = table.set_column(position, "status.status", pa.array(np.asarray([2, 0, 2], np.uint8)))
    stage = Autobleu(AutobleuSettings(model=str(TINY_CARD)))
    stage.setup("cpu")
    result = stage.finish(stage.compute(stage.prepare(table)))
    assert result.families["autobleu"]["autobleu"].is_null().to_pylist() == [True, False, True]


def test_beam_search_is_a_setting_and_greedy_decoding_stays_as_it_was() -> None:
    """The fingerprint of greedy scores must not change: a length penalty means nothing to them."""
    plain = AutobleuSettings().meaningful()
    assert plain["beam"] == 1 and "length_penalty" not in plain
    assert AutobleuSettings(length_penalty=2.0).meaningful() == plain
    assert AutobleuSettings(beam=5, length_penalty=2.0).meaningful() == plain | {"beam": 5, "length_penalty": 2.0}
    with pytest.raises(ValueError, match="less than or equal to 10"):
        AutobleuSettings(beam=11)


def test_beam_search_decodes_as_the_official_generator_does() -> None:
    reference = json.loads((TINY_CARD.parent / "reference.json").read_text())
    with np.load(TINY_CARD.parent / "reference.npz") as arrays:
        vectors = arrays["embedding.eng_Latn"].astype(np.float16)
    texts = reference["sentences"]
    table = pa.table(
        {
            "sentences.text": texts,
            "sentences.lang": ["eng_Latn"] * len(texts),
            "sentences.u": np.zeros(len(texts)),
            "embeddings.embedding": embedding_array(vectors),
            "status.status": np.zeros(len(texts), np.uint8),
        }
    )
    decoded = {}
    for beam, rows in ((5, 512), (5, 7), (1, 512)):
        settings = AutobleuSettings(
            model=str(TINY_CARD), beam=beam, batch_rows=rows, length_extra=32, precision="float32"
        )
        stage = Autobleu(settings)
        stage.setup("cpu")
        decoded[beam, rows] = stage.finish(stage.compute(stage.prepare(table))).families["autobleu"]["decoded"]
    assert decoded[5, 512] == decoded[5, 7]
    for beam in (5, 1):
        ours, theirs = decoded[beam, 512].to_pylist(), reference[f"decoded.beam{beam}.eng_Latn"]
        short = [row for row, text in enumerate(texts) if len(text) < 200]  # the official run stops at 48 tokens
        same = [ours[row] == theirs[row] for row in short]
        assert len(same) > 40 and sum(same) >= len(same) - 1  # embeddings are rounded to float16 here
    assert decoded[5, 512] != decoded[1, 512]


def test_what_a_batch_needs_is_made_while_the_one_before_is_decoded() -> None:
    decoder = BatchedDecoder(AutobleuSettings(model=str(TINY_CARD), batch_rows=4, precision="float32"))
    decoder.setup("cpu")
    limits, prefixes = np.full(10, 6), np.tile(decoder.prefixes(["eng_Latn"]), (10, 1))
    made = torch.randn(10, decoder.card.dim, generator=torch.Generator().manual_seed(0))
    asked: list[tuple[list[int], bool]] = []
    fails_once = [True]

    def embeddings(batch: Indices) -> torch.Tensor:
        ahead = threading.current_thread() is not threading.main_thread()
        asked.append((batch.tolist(), ahead))
        if batch[0] == 4 and fails_once.pop():
            fails_once.append(False)
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return made[torch.from_numpy(batch)]

    ids, counts = decoder.decode(embeddings, prefixes, limits)
    assert asked == [([0, 1, 2, 3], False), ([4, 5, 6, 7], True), ([4, 5, 6, 7], False), ([8, 9], True)]
    assert counts["out_of_memory"] == 1  # in the thread, as anywhere
    for row in range(10):
        alone, _ = decoder.decode(lambda batch, row=row: made[[row]], prefixes[[row]], limits[[row]])
        assert alone == [ids[row]]
