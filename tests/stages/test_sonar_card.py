"""Cards: what ships is valid, errors name the fix, digests follow what decides the result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages.sonar.card import CardError, load_card, shipped_cards

FIXTURE = Path(__file__).parent / "fixtures/sonar-space-tiny/card.yaml"


def edited(folder: Path, **changes: object) -> str:
    """A copy of the reference card with other values, its files named by absolute paths."""
    content = yaml.safe_load(FIXTURE.read_text())
    for file in content["files"].values():
        file["path"] = str(FIXTURE.parent / file["path"])
    path = folder / "card.yaml"
    path.write_text(yaml.safe_dump(content | changes))
    return str(path)


@pytest.mark.parametrize("name", shipped_cards())
def test_shipped_models_are_what_their_cards_say(name: str) -> None:
    card = load_card(name)
    assert card.name == name
    for role in ("encoder", "decoder", "tokenizer"):
        assert card.verify(role).stat().st_size == getattr(card.files, role).bytes


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(CardError, match=r"'sonar-tyni'.*sonar-tiny.*\.yaml"):
        load_card("sonar-tyni")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "dim is 64 with 5 heads"),
        ({"heads": "4"}, "heads"),
        ({"colour": "red"}, "colour"),
        ({"languages": ["eng_Latn", "eng_Latn"]}, "twice"),
    ],
)
def test_a_wrong_card_is_an_error_that_names_the_field(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(CardError, match=message):
        load_card(edited(tmp_path, **changes))


def test_a_file_that_is_not_the_one_on_the_card_is_an_error(tmp_path: Path) -> None:
    content = yaml.safe_load(FIXTURE.read_text())
    (tmp_path / "enc.pt").write_bytes(b"another model")
    content["files"]["encoder"]["path"] = "enc.pt"
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(CardError, match=r"sha256.*fetch the file again"):
        load_card(str(tmp_path / "card.yaml")).verify("encoder")


def test_digests_follow_what_decides_the_result_and_nothing_else(tmp_path: Path) -> None:
    card = load_card(str(FIXTURE))
    same = load_card(edited(tmp_path, description="other words", name="other"))
    assert (same.encoder_digest, same.decoder_digest) == (card.encoder_digest, card.decoder_digest)
    deeper = load_card(edited(tmp_path, encoder_layers=3))
    assert deeper.encoder_digest != card.encoder_digest
    assert deeper.decoder_digest == card.decoder_digest
    shorter = load_card(edited(tmp_path, max_tokens=100))
    assert shorter.encoder_digest != card.encoder_digest
    assert shorter.tokenizer_digest != card.tokenizer_digest


def test_reading_a_card_and_tokenising_import_no_torch() -> None:
    code = (
        "import sys; from stages.sonar.card import load_card; from stages.sonar.tokenizer import SonarTokenizer;"
        f"SonarTokenizer(load_card({str(FIXTURE)!r})); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=FIXTURE.parents[4])
