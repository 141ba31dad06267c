"""The tokenizer of the model that ships: its ids, its cut, and that text of every script survives."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

from stages.cards import CardError
from stages.sonar.card import load_card
from stages.sonar.tokenizer import BEGIN, END, PAD, UNKNOWN, SonarTokenizer

TEXTS = {
    "eng_Latn": "It is a truth universally acknowledged; isn’t it? <a href='x'>100 %</a> “yes” — no…",
    "deu_Latn": "Größe über alles: »Straße«, 3,5 Å.",
    "fra_Latn": "Où est-ce ? « Là-bas », dit l’élève.",
    "rus_Cyrl": "Всё хорошо, что хорошо кончается — №1.",
    "zho_Hans": "单击“确定”，然后选择「文件」。全角：ＡＢＣ１２３",
}


@pytest.fixture(scope="module")
def tokenizer() -> SonarTokenizer:
    return SonarTokenizer(load_card("sonar-tiny"))


def test_text_survives_a_round_trip(tokenizer: SonarTokenizer) -> None:
    for lang, text in TEXTS.items():
        (ids,) = tokenizer.encode([text], lang)
        assert tokenizer.decode([ids]) == [text]
        assert UNKNOWN not in ids


@pytest.mark.parametrize("text", ["नमस्ते दुनिया", "こんにちは", "🙂👩‍👩‍👧", "ﬁ ½ ①", "مرحبا بالعالم"])  # fmt: skip
def test_scripts_it_was_not_trained_on_survive_as_bytes(tokenizer: SonarTokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode([text], "eng_Latn")) == [text]


def test_whitespace_becomes_single_spaces(tokenizer: SonarTokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode([" two\n\tlines\u00a0here  "], "eng_Latn")) == ["two lines here"]


def test_layout_of_ids(tokenizer: SonarTokenizer) -> None:
    card = tokenizer.card
    first = card.vocab_size - len(card.languages)
    assert [tokenizer.language_id(code) for code in card.languages] == list(range(first, card.vocab_size))
    assert tokenizer.encode([""], "deu_Latn") == [[first + 1, END]]
    assert tokenizer.target_prefix("rus_Cyrl") == (END, first + 3)
    (ids,) = tokenizer.encode(["word"], "eng_Latn")
    assert all(END < piece < first for piece in ids[1:-1])
    assert tokenizer.decode([[BEGIN, PAD, *ids, PAD]]) == ["word"]


def test_long_text_is_cut_but_keeps_its_end_and_is_counted_whole(tokenizer: SonarTokenizer) -> None:
    text = "word " * 1000
    (ids,) = tokenizer.encode([text], "eng_Latn")
    assert len(ids) == tokenizer.card.max_tokens == 514
    assert ids[-1] == END
    assert tokenizer.count([text, ""]) == [1002, 2]


def test_batches_and_no_texts_at_all(tokenizer: SonarTokenizer) -> None:
    texts = list(TEXTS.values())
    assert tokenizer.encode(texts, "eng_Latn") == [tokenizer.encode([text], "eng_Latn")[0] for text in texts]
    assert (tokenizer.encode([], "eng_Latn"), tokenizer.count([]), tokenizer.decode([])) == ([], [], [])


def test_an_unknown_language_names_the_nearest_codes() -> None:
    tokenizer = SonarTokenizer(load_card(str(Path(__file__).parent / "fixtures/sonar-space-tiny/card.yaml")))
    with pytest.raises(ValueError, match=r"'eng'.*eng_Latn"):
        tokenizer.encode(["x"], "eng")


def test_a_file_of_another_kind_is_told(tmp_path: Path) -> None:
    """Plans make the tokenizers of all cards, and a tokenizer.json ended them with a traceback."""
    data = b'{"version": "1.0", "model": {"type": "Unigram"}}'
    (tmp_path / "tokenizer.json").write_bytes(data)
    file = {"path": "tokenizer.json", "sha256": hashlib.sha256(data).hexdigest()}
    card = tmp_path / "mine.yaml"
    card.write_text(yaml.safe_dump({"base": "sonar-tiny", "name": "mine", "files": {"tokenizer": file}}))
    with pytest.raises(CardError, match=r"card mine: .*tokenizer\.json is no model of SentencePiece; correct files"):
        SonarTokenizer(load_card(str(card)))
