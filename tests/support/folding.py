"""What Ray's launchers do with finished chunks while a run goes on: `python -m tests.support.folding corpus.yaml`."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.config.load import load_config
from pipeline.planning.plan import make_plan
from pipeline.run.tasks import fold_chunks


def fold_all(path: Path) -> None:
    """Of all chunks of a corpus."""
    plan = make_plan(load_config(path))
    fold_chunks(plan.config, None, plan.view.listed.chunks, compacts=True)


if __name__ == "__main__":
    fold_all(Path(sys.argv[1]))
