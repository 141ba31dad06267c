"""The scripts of SLURM jobs hold what the settings say, each on its line."""

from __future__ import annotations

import pytest

from launchers.slurm.sbatch import check_options
from pipeline.base.errors import ConfigError
from pipeline.config.launcher import LauncherSettings


@pytest.mark.parametrize(
    "settings",
    [
        {"partition": "main\n#SBATCH --uid=0"},
        {"gate_partition": "main'"},
        {"account": 'a"b'},
        {"folder": "/jobs/\nrm"},
        {"sbatch": {"comment": "one\ntwo"}},
        {"sbatch": {"comment\n": "one"}},
    ],
)
def test_what_would_leave_its_line_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"which holds .* leave out"):
        check_options(LauncherSettings.model_validate({"kind": "slurm", **settings}))


def test_quotes_of_other_options_are_kept() -> None:
    check_options(LauncherSettings(kind="slurm", partition="main", sbatch={"comment": "it's"}))
