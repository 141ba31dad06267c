"""Cards of SaT models: where a model is, and from which probability on a sentence or a paragraph ends.

The ones that ship are in `conf/sat/`. Reading a card opens no file of the model: its identity in fingerprints is the
sha256 of its files, or the name that it has on Hugging Face.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.cards import Card, CardError, Digest, digest_of, is_folder, read_card, shipped, verify_files

XLM_R = "facebookAI/xlm-roberta-base"  # the tokenizer of all published SaT models
ORGANISATION = "segment-any-text"  # of the published SaT models on Hugging Face
LORA_FILES = ("adapter_config.json", "head_config.json", "pytorch_adapter.bin", "pytorch_model_head.bin")

Probability = Annotated[float, Field(gt=0, lt=1)]


class SatCard(Card):
    """One SaT model. Frozen; made by `load_sat_card`."""

    kind: Literal["sat"]
    model: str = Field(description="a folder (./… relative to the card, /… or ~…), or a name on Hugging Face")
    tokenizer: str | None = Field(default=None, description="folder or name of the tokenizer (default: the model's)")
    lora: str | None = Field(default=None, description="folder of a LoRA adapter as wtpsplit writes it")
    threshold: Probability = Field(description="a sentence ends where the probability is higher")
    paragraph_threshold: Probability = 0.5
    languages: tuple[str, ...] | None = Field(
        default=None, description="SONAR codes of languages where SaT is no worse than spaCy's rules (default: all)"
    )
    sha256: dict[str, Digest] = Field(
        default_factory=dict, description="file of a folder (`lora/…`: of the adapter) → its SHA-256"
    )
    scores: dict[str, dict[str, float]] = Field(default_factory=dict, description="score → text → value, held out")

    @model_validator(mode="after")
    def _files_are_known(self) -> SatCard:
        if is_folder(self.model) and not any(not name.startswith("lora/") for name in self.sha256):
            raise ValueError(
                f"model {self.model} is a folder: give the sha256 of its files (`sha256: {{model.safetensors: …}}`; "
                "`sha256sum FILE` prints it), so that results know their model"
            )
        if self.lora and not any(name.startswith("lora/") for name in self.sha256):
            raise ValueError(
                f"lora {self.lora}: give the sha256 of its files (`sha256: {{lora/pytorch_adapter.bin: …}}`)"
            )
        return self

    def folder(self, place: str) -> Path | None:
        """Return the folder that a place names; None for a name on Hugging Face."""
        return self._folder / Path(place).expanduser() if is_folder(place) else None

    def missing(self) -> list[str]:
        """List files that are not on this machine: of folders by path, of models on Hugging Face by name."""
        found = []
        for place, names in (
            (self.model, ("config.json", "model.safetensors")),
            (self._tokenizer, ("tokenizer.json",)),
        ):
            folder = self.folder(place)
            if folder:
                found += [str(folder / name) for name in names if not (folder / name).is_file()]
            else:
                found += [f"{hub_name(place)}: {name}" for name in names if not _in_cache(hub_name(place), name)]
        if self.lora:
            adapter = self.folder(self.lora) or Path(self.lora)
            found += [str(adapter / name) for name in LORA_FILES if not (adapter / name).is_file()]
        return found

    @property
    def _tokenizer(self) -> str:
        return self.tokenizer or (self.model if is_folder(self.model) else XLM_R)

    def verify(self) -> None:
        """Compare the files with the card. Raises CardError that lists what is missing or differs."""
        verify_files(self.name, self.sha256, self._path_of)

    def _path_of(self, name: str) -> Path:
        """Return where a file with a sha256 is."""
        in_lora = name.startswith("lora/")
        place = self.folder(self.lora if in_lora and self.lora else self.model)
        if place is None:
            raise CardError(f"card {self.name}: {name} has a sha256, but {self.model} is not a folder; leave it out")
        return place / name.removeprefix("lora/" if in_lora else "")

    @property
    def digest(self) -> str:
        """A digest that changes whenever boundaries could."""
        places = [None if is_folder(place or "") else place for place in (self.model, self.tokenizer, self.lora)]
        return digest_of([places, self.sha256, self.threshold, self.paragraph_threshold])


def hub_name(place: str) -> str:
    """Return the name on Hugging Face: `sat-3l-sm` → `segment-any-text/sat-3l-sm`."""
    return place if "/" in place else f"{ORGANISATION}/{place}"


def _in_cache(repository: str, name: str) -> bool:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ModuleNotFoundError:  # of the extra `encode`: what would fetch it is not here either
        return False
    return isinstance(try_to_load_from_cache(repository, name), str)


def shipped_sat_cards() -> dict[str, Path]:
    """Return name → card file, for every SaT card that ships with the package."""
    return shipped("sat")


def load_sat_card(name_or_path: str) -> SatCard:
    """Return the card of a shipped SaT model by its name, or of any by the path of its `.yaml` file.

    Raises CardError if there is no such card or it is not valid.
    """
    return read_card(name_or_path, "sat", SatCard, "SaT model")
