"""A run on a Ray cluster with made-up GPUs, its networks on the CPU: prints what failed, and how much was done."""

from __future__ import annotations

import sys
from pathlib import Path

from launchers.ray_cluster import check_nodes, checked_address, joined
from launchers.work import Todo
from tests.launchers.items import flow
from tests.launchers.made_up_gpus import on_cpu
from tests.support.runs import planned


def main(path: Path, address: str, marks: Path) -> None:
    plan, folder = planned(path, "launcher.kind=ray", f"launcher.address={address}", "launcher.segmenters=2")
    with joined(checked_address(plan.config)):
        check_nodes(plan.config, folder, {one.chunk.url for one in plan.chunks})
        events = list(flow(on_cpu(plan, folder, marks), Todo.of(plan)))
    print([event for event in events if event.kind == "failed"], len(events))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
