"""Checks, before anything begins, whether the trackers of a training can work here."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pipeline.base.extras import missing_extras
from pipeline.config.train import TrainSettings
from pipeline.storage.remote import is_remote


def tracker_problems(settings: TrainSettings, output: str) -> Iterator[str]:
    """Yield what is wrong with `train.trackers`. output: where the corpus is."""
    needed = [name for name in settings.trackers if name != "tensorboard"]
    if lacking := missing_extras(needed):
        yield f"train.trackers: {lacking}"
    remote = is_remote(output)
    if "mlflow" in needed and remote and not os.environ.get("MLFLOW_TRACKING_URI"):
        yield (
            f"train.trackers: mlflow keeps its runs in the folder of a training, and {output} is no folder of this "
            "machine; set MLFLOW_TRACKING_URI to a server, or to sqlite:////PATH/mlflow.db"
        )
    offline = os.environ.get("WANDB_MODE") in ("offline", "dryrun")
    if "wandb" in needed and remote and offline and not os.environ.get("WANDB_DIR"):
        yield (
            "train.trackers: wandb writes its runs into the folder of a training when it is offline, and "
            f"{output} is not a folder of this machine; set WANDB_DIR to a folder"
        )
