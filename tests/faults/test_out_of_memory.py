"""A whole run on a device whose memory fills up: the same corpus, and the receipts and the summary say what happened.

The encoder refuses batches over a limit with the exception that PyTorch raises when a GPU is full.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.runs import newest_view
from pipeline.state import read_state
from pipeline.store import Store
from stages.sonar.networks import SonarTextEncoder
from tests.conftest import MakeConfig, data_digests

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB."


def run(config: Path, code: int = 0) -> str:
    """`pipeline run` in this process; what it printed."""
    result = CliRunner().invoke(app, ["run", str(config)])
    assert (result.exit_code or result.return_value or 0) == code, result.output
    return result.output


def fill_up(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """From now on the device holds a batch of so many tokens."""
    forward = SonarTextEncoder.forward

    def refusing(self: SonarTextEncoder, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if ids.numel() > tokens:
            raise torch.OutOfMemoryError(FULL)
        return forward(self, ids, mask)

    monkeypatch.setattr(SonarTextEncoder, "forward", refusing)


def test_the_same_corpus_with_smaller_batches(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "out of device memory" not in run(make_config(output="plenty"))
    fill_up(monkeypatch, 150)
    printed = run(make_config(output="little"))
    assert data_digests(tmp_path / "little") == data_digests(tmp_path / "plenty")
    store = Store(str(tmp_path / "little"))
    receipts = [part.receipts["encode"] for chunk in read_state(store, newest_view(store)) for part in chunk.parts]
    receipts.sort(key=lambda receipt: receipt.created)
    halvings = [receipt.counts["out_of_memory"] for receipt in receipts]
    assert halvings[0] > 0 and sum(halvings) < len(halvings)  # remembered for the worker's next parts
    least = min(receipt.counts.get("least.batch_tokens", 1e9) for receipt in receipts)
    assert least <= 150
    times = "once" if sum(halvings) == 1 else f"{sum(halvings):.0f} times"
    assert f"encode ran out of device memory {times} and went on with batch_tokens {least:.0f}" in printed


def test_a_sentence_that_does_not_fit_fails_with_what_to_do(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_up(monkeypatch, 10)
    printed = " ".join(run(make_config(), code=1).split())
    assert "one sentence alone" in printed and "lower segment.max_tokens" in printed
