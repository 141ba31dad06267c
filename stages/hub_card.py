"""Cards of models that are stored as a whole: in a folder, inside an installed Python package, or on Hugging Face.

A repository on Hugging Face is used at a pinned revision. Results depend on a model through its card alone: the sha256
of its files, or the revision.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from stages.cards import Card, CardError, Digest, is_folder, verify_files

PACKAGE = "package:"
FILES = ("config.json", "tokenizer.json", "model.safetensors")


class HubCard(Card):
    """The card of one model. `setting`: the setting that names the card, for errors."""

    setting: ClassVar[str]

    model: str = Field(
        description="a folder (./… relative to the card, /… or ~…), package:MODULE/FOLDER, or a name on Hugging Face"
    )
    revision: str | None = Field(default=None, pattern="^[0-9a-f]{40}$", description="commit on Hugging Face")
    install: str | None = Field(default=None, description="how its package is installed (default: pip install PACKAGE)")
    sha256: dict[str, Digest] = Field(default_factory=dict, description="name of each file → its SHA-256")

    @model_validator(mode="after")
    def _files_are_known(self) -> HubCard:
        if self.on_hub and self.revision is None:
            raise ValueError(f"model {self.model} is on Hugging Face: give its revision (a commit of 40 hex digits)")
        if not self.on_hub and (lacking := sorted(set(self.needed) - set(self.sha256))):
            raise ValueError(
                f"sha256 lacks {', '.join(lacking)}: give it for each (`sha256sum FILE` prints it), so that results "
                "know their model"
            )
        return self

    @property
    def needed(self) -> tuple[str, ...]:
        """Return the names of its files."""
        return FILES

    @property
    def on_hub(self) -> bool:
        """Whether its place is a name on Hugging Face."""
        return not is_folder(self.model) and not self.model.startswith(PACKAGE)

    @property
    def place(self) -> list[str | None] | None:
        """What identifies the files if their digests are not known."""
        return [self.model, self.revision] if self.on_hub else None

    def files(self, fetch: bool = True) -> Path:
        """Return the folder with the model's files, checked; they are fetched first if they are on Hugging Face and not
        here.

        Reads the files. Raises CardError if they cannot be fetched or are not those that the card describes.
        """
        folder = self._fetched(fetch) if self.on_hub else self._local()
        lacking = [str(folder / name) for name in self.needed if not (folder / name).is_file()]
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
            package = module.replace("_", "-")
            raise CardError(
                f"card {self.name}: the package {package} is not installed; {self.install or f'pip install {package}'}"
                f", or set {self.setting} to another model's card"
            )
        return Path(found.origin).parent / inside

    def check_package(self) -> None:
        """Raise CardError if the model is inside a package that is not installed here. Reads no file of the model."""
        if self.model.startswith(PACKAGE):
            self._local()

    def _fetched(self, fetch: bool) -> Path:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

        for only_here in (True, False) if fetch else (True,):
            try:
                found = Path(
                    snapshot_download(
                        self.model, revision=self.revision, allow_patterns=list(self.needed), local_files_only=only_here
                    )
                )
            except (OSError, ValueError, RuntimeError, HfHubHTTPError) as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
            else:
                if not only_here or all((found / name).is_file() for name in self.needed):
                    return found
        raise CardError(
            f"card {self.name}: {self.model} is not in Hugging Face's cache and cannot be fetched ({reason}); run "
            f"`hf download {self.model} {' '.join(self.needed)} --revision {self.revision}` where there is a network "
            f"and copy the cache (HF_HOME), or name a folder in a card of your own and its path in {self.setting}"
        )
