"""Time limits as SLURM writes them."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from pipeline.config.launcher import LauncherSettings, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("90:30", 5430), ("02:00:05", 7205), ("1-12", 129600), ("1-0:30", 88200), ("1-00:00:01", 86401)],
)
def test_every_form_of_a_time_limit(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert LauncherSettings(time=text).time == text


def test_no_limit_and_none_at_all() -> None:
    assert seconds_of("infinite") == seconds_of("UNLIMITED") == math.inf
    assert LauncherSettings.model_validate({"time": 90}).time == "90"
    with pytest.raises(ValidationError, match="'2 days' is not a time limit; write"):
        LauncherSettings(time="2 days")
