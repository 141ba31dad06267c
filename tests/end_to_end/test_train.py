"""One command: documents, embeddings, a scaler, a trained model, and how good it is beside what learns nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import MakeConfig
from tests.support.cli import pipeline

CARD = """
name: lcm-small
kind: two-tower
description: for tests
licence: MIT
model_dim: 32
heads: 2
inner_dim: 64
contextualizer_layers: 1
denoiser_layers: 1
context: 32
diffusion: {schedule: cosine}
"""


def test_a_run_ends_with_a_trained_model(make_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(CARD)
    train = {"model": "small.yaml", "steps": 40, "batch_concepts": 64, "micro_concepts": 64, "lr": 3e-3}
    path = make_config(
        autobleu=None, scaler={}, split={"validation": 0.2, "test": 0.2, "by": "text"},
        train=train | {"log_every": 1, "evaluate_sentences": 50},
    )  # fmt: skip
    done = pipeline("run", path)
    assert done.returncode == 0, done
    assert "trained in 40 steps: loss " in done.stdout and "previous sentence" in done.stdout, done.stdout
    folder = tmp_path / "out/train/small"
    losses = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [one["loss"] for one in losses if one["kind"] == "train"]
    assert len(trained) == 40 and sum(trained[-5:]) < 0.9 * sum(trained[:5])
    evaluated = json.loads((folder / "evaluation/test.json").read_text())["models"]
    assert {"small", "previous sentence", "median vector"} <= evaluated.keys()
    again = pipeline("run", path)
    assert again.returncode == 0 and "is trained: nothing to do" in again.stdout, again
