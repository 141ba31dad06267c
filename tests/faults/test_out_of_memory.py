"""A whole run on a device whose memory fills up: the same corpus, and the receipts and the summary say what happened.

The networks refuse batches over a limit with the exception that PyTorch raises when a GPU is full.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from pipeline.cli import app
from pipeline.corpus.runs import newest_view
from pipeline.corpus.states import read_state
from pipeline.storage.store import Store
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder
from tests.conftest import MakeConfig, data_digests

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB."


def run(config: Path, code: int = 0) -> str:
    """`pipeline run` in this process; what it printed."""
    result = CliRunner().invoke(app, ["run", str(config)])
    assert (result.exit_code or result.return_value or 0) == code, result.output
    return result.output


def fill_up(monkeypatch: pytest.MonkeyPatch, network: type[nn.Module], method: str, most: int) -> None:
    """From now on the device holds a batch of so many ids."""
    whole = getattr(network, method)

    def refusing(self: nn.Module, ids: torch.Tensor, *rest: Any) -> Any:
        if ids.numel() > most:
            raise torch.OutOfMemoryError(FULL)
        return whole(self, ids, *rest)

    monkeypatch.setattr(network, method, refusing)


@pytest.mark.slow
def test_the_same_corpus_with_smaller_batches(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "out of device memory" not in run(make_config(output="plenty"))
    fill_up(monkeypatch, SonarTextEncoder, "packed", 150)
    fill_up(monkeypatch, SonarTextDecoder, "step", 12)
    printed = run(make_config(output="little"))
    assert data_digests(tmp_path / "little") == data_digests(tmp_path / "plenty")
    store = Store(str(tmp_path / "little"))
    parts = [part for chunk in read_state(store, newest_view(store)) for part in chunk.parts]
    for stage, setting, most in (("encode", "batch_tokens", 150), ("autobleu", "batch_rows", 12)):
        receipts = sorted((part.receipts[stage] for part in parts), key=lambda receipt: receipt.created)
        halvings = [receipt.counts["out_of_memory"] for receipt in receipts]
        assert halvings[0] > 0 and not any(halvings[len(halvings) // 2 :])  # remembered for the worker's next parts
        least = min(receipt.counts.get(f"least.{setting}", 1e9) for receipt in receipts)
        assert least <= most
        times = "once" if sum(halvings) == 1 else f"{sum(halvings):.0f} times"
        assert f"{stage} ran out of device memory {times} and went on with {setting} {least:.0f}" in printed


def test_a_sentence_that_does_not_fit_fails_with_what_to_do(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_up(monkeypatch, SonarTextEncoder, "packed", 10)
    printed = " ".join(run(make_config(), code=1).split())
    assert "one sentence alone" in printed and "lower segment.max_tokens" in printed
