"""GPUs that are made up, in number only: Ray's actors are told of them, and compute on the CPU."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import ray

from launchers.actors import Segmenting, Visiting
from launchers.work import Work, work_of
from pipeline.planning.plan import Plan


class OnCpu:
    """Makes what `make` makes for the device that Ray's actors were told, and then has it compute on the CPU after all.

    Writes down which GPU they have.
    """

    def __init__(self, make: partial[Segmenting] | partial[Visiting], marks: Path, kind: str) -> None:
        self.make, self.marks, self.kind = make, marks, kind

    def __call__(self, device: str) -> Segmenting | Visiting:
        write_mark(self.marks, self.kind, device)
        made = self.make(device)
        made._device = "cpu"  # type: ignore[union-attr]
        return made


def write_mark(marks: Path, kind: str, device: str) -> None:
    """A file for this process, named after its GPU."""
    node = ray.get_runtime_context().get_node_id()
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
    (marks / f"{kind} {device} {node} {gpu} {os.getpid()}").touch()


def on_cpu(plan: Plan, folder: str, marks: Path) -> Work:
    """What a plan wants to be done, as Ray's launchers do it, with networks that compute on the CPU."""
    work = work_of(plan, folder)
    assert work.visit
    return replace(
        work,
        segment=OnCpu(work.segment, marks, "segmenter"),
        visit=OnCpu(work.visit, marks, "visitor"),
    )
