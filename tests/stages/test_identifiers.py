"""Other models that identify languages, by cards: lid.176 with the labels of GlotLID stands for one."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from stages.cards import CardError
from stages.language.card import load_identifier_card, shipped_identifier_cards
from stages.language.identifier import SONAR_CODES, LanguageModelError, _model_path, identifier
from stages.language.settings import LanguageSettings
from stages.language.stage import Language
from stages.sonar.card import load_card
from stages.stage import Computed, whole
from tests.stages.test_language_stage import CHINESE, ENGLISH, GERMAN

HEADER = struct.Struct("<2i 12i d 3i 2q")  # magic and version, arguments, sizes of the dictionary


def relabelled(labels: dict[str, str]) -> bytes:
    """lid.176 with other labels: the words of a dictionary end with a zero, a count and a type."""
    data = _model_path().read_bytes()
    entries, at = HEADER.unpack_from(data)[-5], HEADER.size
    written = bytearray(data[:at])
    for _ in range(entries):
        end = data.index(b"\0", at)
        word = data[at:end].decode()
        if word.startswith("__label__"):
            word = f"__label__{labels.get(word.removeprefix('__label__'), 'zxx_Zzzz')}"
        written += word.encode() + data[end : end + 10]
        at = end + 10
    return bytes(written) + data[at:]


def write_card(folder: Path, data: bytes, **changed: Any) -> Path:
    (folder / "model.ftz").write_bytes(data)
    card = {
        "name": "theirs", "kind": "fasttext", "description": "lid.176", "licence": "CC-BY-SA-3.0", "model": "./",
        "file": "model.ftz", "sha256": {"model.ftz": hashlib.sha256(data).hexdigest()},
        "languages": ["eng_Latn", "deu_Latn"], "labels": {"cmn_Hani": "zho_Hans zho_Hant"},
    }  # fmt: skip
    (folder / "theirs.yaml").write_text(yaml.safe_dump(card | changed))
    return folder / "theirs.yaml"


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    labels = {label: codes[0] for label, codes in SONAR_CODES.items()} | {"zh": "cmn_Hani"}
    return write_card(tmp_path_factory.mktemp("identifier"), relabelled(labels))


def run(card: Path, texts: list[str], langs: list[str]) -> Computed:
    stage = Language(LanguageSettings(identifier=str(card)))
    stage.setup("cpu")
    return whole(stage, pa.table({"sentences.text": texts, "sentences.lang": langs}))


def test_a_model_of_other_labels_says_sonars_codes(card: Path) -> None:
    done = run(card, [ENGLISH, GERMAN, CHINESE], ["deu_Latn", "deu_Latn", "eng_Latn"])
    table = done.families["language"]
    assert table["lang_detected"].to_pylist() == ["eng_Latn", "deu_Latn", "zho_Hans"]
    assert table["lang_differs"].to_pylist() == [True, False, True]
    known = identifier().identify(GERMAN)
    assert known and table["lang_confidence_detected"][1].as_py() == pytest.approx(known.confidence)


def test_the_kinds_of_chinese_are_told_apart_in_any_order(card: Path, tmp_path: Path) -> None:
    data = (card.parent / "model.ftz").read_bytes()
    other = write_card(tmp_path, data, labels={"cmn_Hani": "yue_Hant zho_Hant zho_Hans"})
    assert run(other, [CHINESE], ["eng_Latn"]).families["language"]["lang_detected"].to_pylist() == ["zho_Hans"]


def test_only_languages_of_its_card_are_judged(card: Path) -> None:
    french = "Le train pour la côte part ce matin une demi-heure plus tard, dit le conducteur aux enfants."
    done = run(card, [french, ENGLISH, ENGLISH], ["eng_Latn", "fra_Latn", "zho_Hant"])
    assert done.families["language"]["lang_detected"].to_pylist() == [None, "eng_Latn", "eng_Latn"]
    assert done.counts == {"judged": 1.0, "differ": 1.0}  # a language that it does not know is neither found nor stated


def test_recipes_are_those_of_before_without_a_card_and_change_with_its_content(card: Path, tmp_path: Path) -> None:
    assert LanguageSettings().meaningful() == {"min_letters": 30, "min_confidence": 0.7}
    assert set(LanguageSettings().artifacts()) == {"version", "model"}
    ours = LanguageSettings(identifier=str(card))
    languages = ["deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant"]
    assert ours.meaningful()["identifier"] == {"name": "theirs", "languages": languages}
    data = (card.parent / "model.ftz").read_bytes()
    moved = LanguageSettings(identifier=str(write_card(tmp_path, data)))
    assert (moved.meaningful(), moved.artifacts()) == (ours.meaningful(), ours.artifacts())
    fewer = LanguageSettings(identifier=str(write_card(tmp_path, data, languages=["eng_Latn"])))
    assert fewer.artifacts() != ours.artifacts() != LanguageSettings().artifacts()


def test_damaged_and_foreign_files_are_refused(card: Path, tmp_path: Path) -> None:
    data = (card.parent / "model.ftz").read_bytes()
    broken = write_card(tmp_path, data)
    (tmp_path / "model.ftz").write_bytes(data[:-1])
    with pytest.raises(LanguageModelError, match=r"card theirs: .*model\.ftz has sha256 .*, the card says"):
        identifier(str(broken))
    with pytest.raises(LanguageModelError, match=r"model\.ftz does not load \(.*put a model of fastText there"):
        identifier(str(write_card(tmp_path, b"no model at all")))
    for code in ("german", "deu_Germ", "xx_Latn"):
        with pytest.raises(CardError, match=rf"'{code}' is no code of SONAR; write language and script"):
            load_identifier_card(str(write_card(tmp_path, data, labels={"de": code})))
    with pytest.raises(CardError, match=r"no language identifier is called 'glotlib'; use one of glotlid, or the path"):
        load_identifier_card("glotlib")


def test_cards_that_ship_name_codes_of_sonar() -> None:
    codes = set(load_card("sonar").languages)
    for name in shipped_identifier_cards():
        one = load_identifier_card(name)
        assert set(one.known) <= codes and len(one.known) > 180
        assert not set(one.languages) & set(one.labels)
