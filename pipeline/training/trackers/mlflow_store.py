"""A training in MLflow: one run, which is found again by its tag.

Where MLFLOW_TRACKING_URI is not set, it is an SQLite file in the folder of the training, which `mlflow ui
--backend-store-uri sqlite:///…/train/NAME/mlflow/mlflow.db` shows.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from pipeline.training.status import Numbers
from pipeline.training.trackers.about import KINDS, About, Attachment

TAG = "sonar-pipeline.training"
AT_ONCE = 1000  # metrics that MLflow takes in a request
LONGEST_PARAM, LONGEST_KEY, PARAMS = 6000, 250, 100


class MlflowStore:
    """The run of a training."""

    def __init__(self, about: About) -> None:
        self._about = about

    def begin(self) -> dict[str, int]:
        """Find the run, or create it with all that does not change."""
        place = os.environ.get("MLFLOW_TRACKING_URI") or _local(self._about)
        self._client = client = MlflowClient(tracking_uri=place, registry_uri=place)
        experiment = self._experiment(client)
        found = client.search_runs([experiment], f"tags.`{TAG}` = '{self._about.id}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            client.update_run(self._run, status="RUNNING")
            return {kind: self._last(f"{kind}/loss") for kind in KINDS if f"{kind}/loss" in found[0].data.metrics}
        tags = {TAG: self._about.id, "corpus": self._about.place} | self._about.facts
        self._run = client.create_run(experiment, tags=tags, run_name=self._about.name).info.run_id
        params = [Param(key[:LONGEST_KEY], value[:LONGEST_PARAM]) for key, value in flat(self._about.config).items()]
        for first in range(0, len(params), PARAMS):
            client.log_batch(self._run, params=params[first : first + PARAMS])
        client.log_dict(self._run, self._about.config["model"], "card.json")
        client.log_dict(self._run, self._about.model_dump(), "training.json")
        return {}

    def _experiment(self, client: MlflowClient) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or self._about.corpus
        there = client.get_experiment_by_name(name)
        if there:
            return str(there.experiment_id)
        own = Path(self._about.folder, "mlflow", "artifacts")
        local = not os.environ.get("MLFLOW_TRACKING_URI")
        return str(client.create_experiment(name, artifact_location=own.as_uri() if local else None))

    def _last(self, name: str) -> int:
        return max(int(one.step) for one in self._client.get_metric_history(self._run, name))

    def log(self, lines: list[Numbers]) -> None:
        """Log every number under its kind: train/loss."""
        now = int(time.time() * 1000)
        metrics = [
            Metric(f"{line['kind']}/{key}", float(value), now, line["step"])
            for line in lines
            for key, value in line.items()
            if key not in ("kind", "step") and value is not None
        ]
        for first in range(0, len(metrics), AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[first : first + AT_ONCE])

    def attach(self, attachment: Attachment) -> None:
        """Log figures as metrics, and files as artifacts."""
        now = int(time.time() * 1000)
        figures = [Metric(key, value, now, 0) for key, value in attachment.figures.items() if math.isfinite(value)]
        self._client.log_batch(self._run, metrics=figures, tags=[RunTag("evaluated", "yes")])
        for name, text in attachment.files.items():
            self._client.log_text(self._run, text, name)

    def end(self, how: str) -> None:
        """Record how the training ended."""
        if how != "lost":
            self._client.set_terminated(self._run, "FINISHED" if how == "done" else "KILLED")


def _local(about: About) -> str:
    folder = Path(about.folder, "mlflow")
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder}/mlflow.db"


def flat(values: dict[str, Any], at: str = "") -> dict[str, str]:
    """Return nested values as text, by keys with dots; lists stay together."""
    found: dict[str, str] = {}
    for key, value in values.items():
        where = f"{at}.{key}" if at else key
        if isinstance(value, dict):
            found |= flat(value, where)
        elif value is not None:
            found[where] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return found
