"""Figure 5 of the LCM paper: α, the log-SNR and its distribution, of the seven noise schedules of LCM 2.4.3.

    python -m benchmarks.noise_schedules figure.svg

Prints mean, spread and middle 90 % of the log-SNR over the timesteps 1 … T − 1. Takes a second.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from stages.lcm.card import DiffusionSettings
from stages.lcm.diffusion import alphas_squared, log_snr

COLORS = ("#000000", "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7")  # of Okabe and Ito


def schedules(steps: int) -> dict[str, DiffusionSettings]:
    """Return the schedules of Table 5, under its names."""
    found = {"Cosine": DiffusionSettings(steps=steps)}
    for number, (first, last) in enumerate([(0.001, 0.0012), (0.02, 0.022)], 1):
        found[f"Quadratic-{number}"] = DiffusionSettings(
            schedule="quadratic", steps=steps, beta_first=first, beta_last=last
        )
    for scale, shift in [(1.5, -1.0), (1.5, -2.0), (0.8, -1.0), (3.5, 0.0)]:
        found[f"Sigmoid({scale:g}, {shift:g})"] = DiffusionSettings(
            schedule="sigmoid", steps=steps, scale=scale, shift=shift
        )
    return found


def main() -> None:
    """Draw, and print the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise_schedules", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="figure to write: .svg, .png or .pdf")
    parser.add_argument("--steps", type=int, default=100, help="T (default: 100)")
    options = parser.parse_args()
    figure = Figure(figsize=(13, 4), layout="constrained")
    levels, ratios, shares = figure.subplots(1, 3)
    print(f"{'log-SNR of':<18}{'mean':>7}{'std':>7}{'5 %':>8}{'95 %':>8}")
    for (name, settings), color in zip(schedules(options.steps).items(), COLORS, strict=True):
        squared = alphas_squared(settings)
        ratio = log_snr(squared)[1:-1]
        time = np.arange(options.steps + 1) / options.steps
        levels.plot(time, np.sqrt(squared), color=color, label=name)
        ratios.plot(time[1:-1], ratio, color=color)
        shares.plot((ratio[1:] + ratio[:-1]) / 2, -1 / options.steps / np.diff(ratio), color=color)  # −dt/dλ
        low, high = np.quantile(ratio, [0.05, 0.95])
        print(f"{name:<18}{ratio.mean():>7.2f}{ratio.std():>7.2f}{low:>8.2f}{high:>8.2f}")
    for axes, x, y in ((levels, "t", "α"), (ratios, "t", "log-SNR λ"), (shares, "log-SNR λ", "p(λ) = −dt/dλ")):
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.spines[["top", "right"]].set_visible(False)
    shares.set_xlim(-12, 12)
    figure.legend(loc="outside upper center", ncols=7, frameon=False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "noise-schedules"}):
        figure.savefig(options.file, dpi=110)


if __name__ == "__main__":
    main()
