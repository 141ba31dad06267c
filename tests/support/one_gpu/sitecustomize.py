"""Makes PyTorch see the GPU of `device.py` in every process that has this folder on its PYTHONPATH.

Processes that may see no GPU (`CUDA_VISIBLE_DEVICES` is empty) stay as they are, and so do those without PyTorch.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class _Finder(importlib.abc.MetaPathFinder):
    """Loads ONE_GPU_LIBRARY before `torch` and the made-up device after it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec and spec.loader
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            sys.meta_path.remove(self)
            ctypes.CDLL(os.environ["ONE_GPU_LIBRARY"], mode=ctypes.RTLD_GLOBAL)
            load(module)
            from tests.support.one_gpu import device

            device.install()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get("ONE_GPU_LIBRARY") and os.environ.get("CUDA_VISIBLE_DEVICES", "0"):
    sys.meta_path.insert(0, _Finder())
