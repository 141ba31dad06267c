"""Noise schedules of the LCM paper, and diffusers' numbers for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stages.lcm.card import DiffusionSettings

SCHEDULES = {
    "cosine": DiffusionSettings(),
    "quadratic-1": DiffusionSettings(schedule="quadratic", beta_first=0.001, beta_last=0.0012),
    "quadratic-2": DiffusionSettings(schedule="quadratic", beta_first=0.02, beta_last=0.022),
    "sigmoid(1.5, -1)": DiffusionSettings(schedule="sigmoid", scale=1.5, shift=-1.0),
    "sigmoid(1.5, -2)": DiffusionSettings(schedule="sigmoid", scale=1.5, shift=-2.0),
    "sigmoid(0.8, -1)": DiffusionSettings(schedule="sigmoid", scale=0.8, shift=-1.0),
    "sigmoid(3.5, 0)": DiffusionSettings(schedule="sigmoid", scale=3.5, shift=0.0),
}


DDIM = np.load(Path(__file__).parent / "fixtures" / "ddim.npz")


def of_steps(name: str, steps: int) -> DiffusionSettings:
    return DiffusionSettings(**SCHEDULES[name].model_dump() | {"steps": steps})
