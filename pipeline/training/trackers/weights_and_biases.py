"""A training in Weights & Biases: one run, whose id is that of the training.

Online, the run is resumed. Offline (WANDB_MODE=offline), a start of a training cannot see what the one before it wrote:
each writes a folder with everything from the first step on, and then deletes those of the starts before it. So that
folder is the whole run, each step once, and `wandb sync` uploads it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import wandb

from pipeline.training.status import Numbers
from pipeline.training.trackers.about import KINDS, About, Attachment


class WeightsAndBiases:
    """The run of a training."""

    def __init__(self, about: About) -> None:
        self._about = about

    def begin(self) -> dict[str, int]:
        """Begin or resume the run."""
        about = self._about
        folder = Path(os.environ.get("WANDB_DIR") or about.folder or tempfile.mkdtemp(prefix="wandb-"))
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(
            console="off", silent=True, disable_git=True, disable_code=True, save_code=False, x_disable_meta=True
        )  # no command line, no code, no names of machines and people
        offline = wandb.setup(settings=settings).settings.mode in ("offline", "dryrun")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or about.corpus,
            id=about.id,
            name=about.name,
            dir=str(folder),
            resume=None if offline else "allow",
            config=about.config | {"corpus": about.place, "facts": about.facts},
            allow_val_change=True,
            settings=settings,
        )
        self._run.define_metric("validation/loss", summary="last")
        self._older: list[Path] = []
        if offline:
            mine = Path(self._run.dir).parent
            self._older = [one for one in mine.parent.glob(f"offline-run-*-{about.id}") if one != mine]
        for name, content in (("card.json", about.config["model"]), ("training.json", about.model_dump())):
            self._write(name, json.dumps(content, ensure_ascii=False, indent=1))
        return dict.fromkeys(KINDS, int(self._run.step) - 1) if self._run.resumed else {}

    def log(self, lines: list[Numbers]) -> None:
        """Log every number under its kind, train/loss; lines of the same step become one."""
        for line in lines:
            numbers: dict[str, Any] = {
                f"{line['kind']}/{key}": value
                for key, value in line.items()
                if key not in ("kind", "step") and value is not None
            }
            self._run.log(numbers, step=line["step"])

    def attach(self, attachment: Attachment) -> None:
        """Put figures into the summary, and files beside the run."""
        self._run.summary.update(attachment.figures)
        for name, text in attachment.files.items():
            self._write(name, text)

    def end(self, how: str) -> None:
        """Upload what is left, or write it; the folders of earlier starts are then no longer needed."""
        self._run.finish(exit_code=0 if how == "done" else 1)
        for one in self._older if how != "lost" else ():
            shutil.rmtree(one, ignore_errors=True)

    def _write(self, name: str, text: str) -> None:
        path = Path(self._run.dir, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        self._run.save(str(path), base_path=self._run.dir, policy="now")
