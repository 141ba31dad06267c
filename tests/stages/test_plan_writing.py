"""Plans that a language model writes: as it writes them greedily, one paragraph after the other; documents are data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import yaml

from stages.arrow import embedding_matrix
from stages.cards import CardError
from stages.causal_lm import load_language_card, load_tokenizer
from stages.encode.settings import EncodeSettings
from stages.plans.settings import PlanEmbeddingSettings
from stages.plans.writing import LONGEST, WritePlans, first_line
from stages.stage import Computed, whole
from tests.support.language_models import write_language_model

PARAGRAPHS = [
    ["A file was saved.", "It is on the disk."],
    ["Choose a name."],
    ["A file was saved.", "It is on the disk."],
    ["打开文件。"],
    ["It is on the disk. " * 12],
]
CONTEXT = 80  # of the card


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_language_model(tmp_path_factory.mktemp("lm"), [text for some in PARAGRAPHS for text in some])


def stage(card: Path, **settings: Any) -> WritePlans:
    given = {"lm": str(card), "prompt": "On: {text}\n", "max_tokens": 12, "max_document_sentences": 100} | settings
    one = WritePlans(PlanEmbeddingSettings(**EncodeSettings(model="sonar-tiny").model_dump(), **given))
    one.setup("cpu")
    return one


def part(paragraphs: list[list[str]]) -> pa.Table:
    """Rows of one document with these paragraphs."""
    numbers = [number for number, some in enumerate(paragraphs) for _ in some]
    texts = [text for some in paragraphs for text in some]
    return pa.table({
        "sentences.doc": pa.array([0] * len(texts), pa.int32()),
        "sentences.paragraph": pa.array(numbers, pa.int32()),
        "sentences.lang": ["eng_Latn"] * len(texts),
        "sentences.text": texts,
    })  # fmt: skip


def plans(found: Computed) -> list[str | None]:
    return found.families["plans"]["plan"].to_pylist()


def by_hand(card: Path, paragraph: list[str], most: int = 12) -> str | None:
    """The most likely token, again and again, by a whole pass over all tokens for each."""
    from transformers import LlamaForCausalLM

    network = LlamaForCausalLM.from_pretrained(card.parent)
    tokenizer = load_tokenizer(load_language_card(str(card)))
    pieces = [tokenizer.encode(one).ids for one in ("On: ", " ".join(paragraph), "\n")]
    room = CONTEXT - most - len(pieces[0]) - len(pieces[2])
    ids = pieces[0] + pieces[1][:room] + pieces[2]
    answer: list[int] = []
    with torch.inference_mode():
        for _ in range(most):
            answer.append(int(network(torch.tensor([ids + answer])).logits[0, -1].argmax()))
            if answer[-1] == network.config.eos_token_id:
                answer.pop()
                break
    return first_line(tokenizer.decode(answer)) or None


def test_each_paragraph_has_in_its_first_row_what_the_model_writes_greedily(card: Path) -> None:
    found = whole(stage(card), part(PARAGRAPHS))
    rows = [0, 2, 3, 5, 6]
    plan = plans(found)
    assert [plan[row] for row in rows] == [by_hand(card, one) for one in PARAGRAPHS]
    assert plan[0] == plan[3] and plan[1] is plan[4] is None and len({plan[row] for row in rows}) > 2
    counts = found.counts
    assert counts["cut"] == 1 and counts["paragraphs"] == 5 and counts["plans"] + counts["empty"] == 5
    embeddings = embedding_matrix(found.families["plan-embeddings"]["plan_embedding"])
    assert embeddings.any(axis=1).tolist() == [one is not None for one in plan]
    for paragraph, row in zip(PARAGRAPHS, rows, strict=True):
        assert plans(whole(stage(card), part([paragraph])))[0] == plan[row], "alone, another than beside others"


def test_answers_without_a_word_are_no_plans(card: Path, tmp_path: Path) -> None:
    other = write_language_model(tmp_path, ["Choose a name."])
    config = json.loads((tmp_path / "config.json").read_text()) | {"eos_token_id": list(range(320))}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (tmp_path / "generation_config.json").exists(), "what it says of the end does not count"
    described = yaml.safe_load(other.read_text())
    described["sha256"]["config.json"] = sha256(tmp_path / "config.json")
    other.write_text(yaml.safe_dump(described))
    found = whole(stage(other), part(PARAGRAPHS))
    assert set(plans(found)) == {None} and found.counts["empty"] == 5 and found.counts["tokens_written"] == 0
    assert not embedding_matrix(found.families["plan-embeddings"]["plan_embedding"]).any()


def sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_marks_of_a_chat_in_a_document_are_text(tmp_path: Path) -> None:
    card = write_language_model(tmp_path, ["Choose a name.", "A file was saved."])
    tokenizer = load_tokenizer(load_language_card(str(card)))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    described = yaml.safe_load(card.read_text())
    described["sha256"]["tokenizer.json"] = sha256(tmp_path / "tokenizer.json")
    card.write_text(yaml.safe_dump(described))
    mark = tokenizer.token_to_id("<|end|>")
    prepared = stage(card, prompt="<|end|>{text}<|end|>").prepare(part([["A <|end|> name."]]))
    ids = prepared.prompts.ids.tolist()
    assert ids[0] == ids[-1] == mark and mark not in ids[1:-1]


def test_a_prompt_that_leaves_no_room_is_refused(card: Path) -> None:
    with pytest.raises(CardError, match=rf"prompt and max_tokens take \d+ of the {CONTEXT} tokens that tiny can read"):
        stage(card, max_tokens=CONTEXT)


def test_a_plan_is_one_short_line() -> None:
    assert first_line("\n \x07\nA\x00 plan\tof it \nmore") == "A plan of it" and first_line(" \n\x01") == ""
    assert len(first_line("x" * 999)) == LONGEST
