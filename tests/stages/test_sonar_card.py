"""Cards: what ships is valid, errors name the fix, digests follow what decides the result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages.cards import CardError
from stages.lcm.card import load_lcm_card
from stages.sonar.card import ROLES, ModelCard, load_card, shipped_cards

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
    for role in ROLES:
        if card.file(role).path:
            assert card.verify(role).stat().st_size == card.file(role).bytes


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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("- name", "it holds no keys and values"),
        ("name: [", "while parsing a flow node"),
        ("name: x", "kind: Field required; "),
    ],
)
def test_a_damaged_card_is_told_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(text)
    for load, what in ((load_card, "is not a valid model card"), (load_lcm_card, r"is not a valid card \(.*\)")):
        with pytest.raises(CardError, match=f"{what}: (.*; )?{why}") as told:
            load(str(path))
        assert "\n" not in str(told.value) and "pydantic" not in str(told.value)


def test_a_file_that_is_not_the_one_on_the_card_is_an_error(tmp_path: Path) -> None:
    content = yaml.safe_load(FIXTURE.read_text())
    (tmp_path / "enc.pt").write_bytes(b"another model")
    content["files"]["encoder"]["path"] = "enc.pt"
    (tmp_path / "card.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(CardError, match=r"sha256.*put the right file there"):
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


def test_a_card_takes_from_its_base_what_it_does_not_state(tmp_path: Path) -> None:
    weights = FIXTURE.parent / "enc.pt"
    sha256 = load_card(str(FIXTURE)).files.encoder.sha256
    (tmp_path / "mine.yaml").write_text(
        f"base: {FIXTURE}\nname: mine\nfiles:\n  encoder: {{path: {weights}, sha256: {sha256}}}\n"
    )
    mine, base = load_card(str(tmp_path / "mine.yaml")), load_card(str(FIXTURE))
    assert mine.name == "mine" and mine.languages == base.languages
    assert mine.verify("encoder") == weights
    assert mine.verify("decoder") == FIXTURE.parent / "dec.pt"  # the base's path is relative to the base
    assert (mine.encoder_digest, mine.decoder_digest) == (base.encoder_digest, base.decoder_digest)

    (tmp_path / "again.yaml").write_text("base: mine.yaml\nname: again\nheads: 8\n")
    assert load_card(str(tmp_path / "again.yaml")).heads == 8
    (tmp_path / "mine.yaml").write_text("base: again.yaml\n")
    with pytest.raises(CardError, match=r"based on it; one of the two must be a complete card"):
        load_card(str(tmp_path / "again.yaml"))


@pytest.mark.parametrize("base", ["sonra", "nowhere.yaml"])
def test_a_base_that_is_not_there(tmp_path: Path, base: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"base: {base}\nname: mine\n")
    with pytest.raises(CardError, match=rf"{base}.*sonar-finetuned"):
        load_card(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({}, "needs a path or a url, and not both"),
        ({"path": "enc.pt", "url": "https://host/enc.pt"}, "needs a path or a url, and not both"),
        ({"path": "enc.pt"}, r"enc\.pt needs its sha256"),
        ({"url": "/srv/enc.pt"}, "url"),
        ({"url": "https://host/"}, "names no file"),
        ({"path": "enc.pt", "sha256": "12"}, "sha256"),
    ],
)
def test_a_file_is_a_path_with_its_digest_or_a_url(tmp_path: Path, file: dict[str, str], message: str) -> None:
    with pytest.raises(CardError, match=message):
        load_card(edited(tmp_path, files=yaml.safe_load(FIXTURE.read_text())["files"] | {"encoder": file}))


def test_a_path_may_start_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(FIXTURE.parent))
    files = yaml.safe_load(FIXTURE.read_text())["files"]
    card = edited(tmp_path, files=files | {"encoder": files["encoder"] | {"path": "~/enc.pt"}})
    assert load_card(card).verify("encoder") == FIXTURE.parent / "enc.pt"


def test_a_decoder_goes_with_its_own_encoder_and_with_other_files_of_the_same_weights(tmp_path: Path) -> None:
    spaces = [("sonar", "sonar-hf", "sonar-finetuned"), ("sonar-tiny", "sonar-tiny-noised"), ("sonar-tiny-1",)]
    cards = [(load_card(name), space) for space in spaces for name in space]
    for decoder, of_decoder in cards:
        for encoder, of_encoder in cards:
            if of_decoder == of_encoder:
                decoder.check_encoder(encoder, "autobleu.model")
                continue
            with pytest.raises(CardError, match=rf"^autobleu.model {decoder.name} .*embeddings of .*{encoder.name}"):
                decoder.check_encoder(encoder, "autobleu.model")
    base = load_card(str(FIXTURE))
    ported = FIXTURE.with_name("card-m2m100.yaml")
    with pytest.raises(CardError, match=r"files\.encoder\.same_as"):
        load_card(str(ported)).check_encoder(base, "autobleu.model")
    encoder = load_card(str(ported)).files.encoder.model_dump() | {"same_as": base.files.encoder.sha256}
    encoder["path"] = str(ported.with_name(encoder["path"]))
    (tmp_path / "same.yaml").write_text(yaml.safe_dump({"base": str(ported), "files": {"encoder": encoder}}))
    same = load_card(str(tmp_path / "same.yaml"))
    same.check_encoder(base, "autobleu.model")
    base.check_encoder(same, "autobleu.model")
    load_card(str(ported)).check_encoder(same, "autobleu.model")  # the file of both, which one of them says more of
    same.check_encoder(load_card(str(ported)), "autobleu.model")
    assert same.encoder_digest == load_card(str(ported)).encoder_digest


def test_a_fine_tuned_decoder_goes_with_its_encoder_in_another_file(tmp_path: Path) -> None:
    def tuned_on(digest: str) -> ModelCard:
        (tmp_path / "tuned.yaml").write_text(yaml.safe_dump({"base": "sonar", "name": "t", "fine_tuned_on": digest}))
        return load_card(str(tmp_path / "tuned.yaml"))

    cards = [load_card(name) for name in ("sonar", "sonar-hf")]
    for encoder in cards:
        tuned_on(cards[0].encoder_digest).check_encoder(encoder, "autobleu.model")
        with pytest.raises(CardError, match=f"fine-tuned on embeddings of the encoder {'f' * 16}"):
            tuned_on("f" * 16).check_encoder(encoder, "autobleu.model")
    with pytest.raises(CardError, match="fine-tuned on embeddings of the encoder"):
        tuned_on(cards[0].encoder_digest).check_encoder(load_card("sonar-tiny"), "autobleu.model")


def test_a_file_without_a_published_digest_stands_for_its_url() -> None:
    sonar, finetuned = load_card("sonar"), load_card("sonar-finetuned")
    assert sonar.files.decoder.sha256 is None
    assert sonar.encoder_digest == finetuned.encoder_digest
    assert sonar.decoder_digest != finetuned.decoder_digest
    files = sonar.files.model_copy(update={"decoder": sonar.files.decoder.model_copy(update={"url": "https://host/x"})})
    assert sonar.model_copy(update={"files": files}).decoder_digest != sonar.decoder_digest


def test_the_published_cards_fit_what_is_known_of_the_files() -> None:
    sonar = load_card("sonar")
    assert len(sonar.languages) == 202
    assert 256_000 + 1 + len(sonar.languages) <= sonar.vocab_size  # pieces, pad, languages
    assert sonar.files.encoder.bytes is not None
    overhead = sonar.files.encoder.bytes - 4 * sonar.encoder_parameters  # float32
    assert 0 < overhead < 200_000
    assert load_card("sonar-hf").tokenizer_digest == sonar.tokenizer_digest


def test_parameters_are_counted_as_the_networks_have_them() -> None:
    from stages.sonar.checkpoint import load_decoder, load_encoder

    card = load_card(str(FIXTURE))
    assert sum(value.numel() for value in load_encoder(card).parameters()) == card.encoder_parameters
    assert sum(value.numel() for value in load_decoder(card).parameters()) == card.decoder_parameters


@pytest.mark.parametrize(
    ("typed", "first"),
    [("eng", "eng_Latn"), ("en", "eng_Latn"), ("de_DE", "deu_Latn"), ("zh", "zho_Hans"), ("Fra_Latn", "fra_Latn")],
)
def test_the_nearest_codes_begin_with_the_language_that_was_meant(typed: str, first: str) -> None:
    near = load_card("sonar").nearest_languages(typed)
    assert near[0] == first and 1 < len(near) <= 5


def test_a_code_that_is_like_none_gets_some_that_exist() -> None:
    card = load_card("sonar")
    assert set(card.nearest_languages("")) <= set(card.languages)
    assert card.nearest_languages("42")
