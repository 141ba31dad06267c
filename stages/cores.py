"""The cores of this process."""

from __future__ import annotations

import os


def cores() -> int:
    """Return how many cores this process may use; macOS does not say, and all of the machine count."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
