"""A made-up GPU: its tensors have values, which the CPU computes, and behave in other ways as those of a real one do.

Operations on tensors of two devices raise. What was not written is NaN. A copy to the host that does not block arrives
when an event behind it, or the device, is waited for. `Waits` counts what makes the host wait for the device. A CUDA
graph records the operations of its capture, and does these again, with the numbers that the host had at the time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("cuda", 0)
MEMORY = 8 << 30  # bytes
EXACT_SUMS = {torch.ops.aten.mm.dtype, torch.ops.aten.mm.dtype_out, torch.ops.aten.bmm.dtype}
INDEXED = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
WAITS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero"}
COPIES = {"aten::copy_", "aten::_to_copy"}


class GpuTensor(Tensor):
    """A tensor on the made-up GPU. `value`: the same one on the host."""

    value: Tensor

    @staticmethod
    def __new__(cls, value: Tensor) -> GpuTensor:
        made: GpuTensor = Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=DEVICE,
        )
        made.value = value
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"GpuTensor({self.value})"

    def tolist(self) -> Any:
        """PyTorch would say that subclasses have none."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _compute(func, args, kwargs or {})


class Waits:
    """How often the host waited for the device since the last `take`, by operation."""

    def __init__(self) -> None:
        self._lock, self._seen = threading.Lock(), list[str]()
        self.forbidden = False

    def add(self, name: str) -> None:
        if self.forbidden:
            raise RuntimeError(f"{name} makes the host wait for the device")
        with self._lock:
            self._seen.append(name)

    def take(self) -> list[str]:
        with self._lock:
            seen, self._seen = self._seen, []
        return seen

    @contextlib.contextmanager
    def none(self) -> Iterator[None]:
        """Whatever waits raises."""
        self.forbidden = True
        try:
            yield
        finally:
            self.forbidden = False


class _Copies:
    """Copies to the host that have not arrived."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self.begun = 0

    def begin(self, target: Tensor, value: Tensor) -> None:
        self._waiting.append((target, value.clone()))
        self.begun += 1
        _spoil(target)

    def arrive(self, number: int | None = None) -> None:
        """All, or the first so many that were begun."""
        done = self.begun - len(self._waiting)
        count = len(self._waiting) if number is None else max(0, number - done)
        for target, value in self._waiting[:count]:
            target.copy_(value)
        del self._waiting[:count]


waits = Waits()
copies = _Copies()
_recording: list[tuple[Any, Any, Any, list[Tensor]]] | None = None


def _in_float32(func: Any, *args: Any, out: Tensor | None = None) -> Tensor:
    """A product of 16-bit matrices whose result is float32, which CPUs have not."""
    *matrices, dtype = args
    product: Tensor = getattr(torch.ops.aten, func._schema.name.removeprefix("aten::")).default(
        *(one.float() for one in matrices)
    )
    return product.to(dtype) if out is None else out.copy_(product)


def _spoil(tensor: Tensor) -> Tensor:
    if tensor.is_floating_point():
        return tensor.fill_(torch.nan)
    return tensor.fill_(True) if tensor.dtype == torch.bool else tensor.fill_(torch.iinfo(tensor.dtype).max)


def _compute(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    name = func._schema.name
    if name == "aten::_fused_sdp_choice":
        return 0  # by products: other ways have kernels of their own on each device
    if name == "aten::_has_compatible_shallow_copy_type":
        return type(args[0]) is type(args[1])
    if torch.is_inference_mode_enabled():  # otherwise functions that are made of others come as those
        found = func.decompose(*args, **kwargs)
        if found is not NotImplemented:
            return found
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    device = kwargs.get("device")
    on_gpu = device.type == "cuda" if device is not None else any(isinstance(one, GpuTensor) for one in tensors)
    if name in COPIES:
        return _copied(func, args, kwargs, on_gpu)
    _check(name, args, tensors)
    if name in WAITS or (name in INDEXED and any(one.dtype == torch.bool for one in _indices(args))):
        _waits_for(name)
    values, settings = tree_map_only(GpuTensor, lambda one: one.value, (args, kwargs))
    if device is not None:
        settings = {**settings, "device": torch.device("cpu")}
    # A view of a tensor that was not made for inference is none that was.
    as_made = torch.is_inference_mode_enabled() and not (func.is_view and not args[0].is_inference())
    with torch.inference_mode(as_made):
        if func in EXACT_SUMS:
            func, values = _in_float32, (func, *values)
        found = func(*values, **settings)
        if _recording is not None:
            _recording.append((func, values, settings, [one for one in tree_leaves(found) if isinstance(one, Tensor)]))
        return _wrapped(func, args, kwargs, found) if on_gpu else found


def _indices(args: Sequence[Any]) -> list[Tensor]:
    return [one for one in args[1] if isinstance(one, Tensor)]


def _check(name: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Numbers may lie on the host, and so may indices of what lies on the GPU."""
    allowed = {id(one) for one in _indices(args)} if name in INDEXED and isinstance(args[0], GpuTensor) else set()
    if any(isinstance(one, GpuTensor) for one in tensors):
        for one in tensors:
            if not isinstance(one, GpuTensor) and one.dim() > 0 and id(one) not in allowed:
                raise RuntimeError(f"{name}: expected all tensors to be on the same device, found cuda:0 and cpu")


def _waits_for(name: str) -> None:
    if _recording is not None:
        raise RuntimeError(f"{name} waits for the device while a graph is captured")
    waits.add(name)


def _copied(func: Any, args: Sequence[Any], kwargs: dict[str, Any], to_gpu: bool) -> Any:
    """Between devices, and on one."""
    is_copy = func._schema.name == "aten::copy_"
    source = args[1] if is_copy else args[0]
    from_gpu = isinstance(source, GpuTensor)
    if is_copy:
        to_gpu = isinstance(args[0], GpuTensor)
    elif kwargs.get("device") is None:
        to_gpu = from_gpu
    if from_gpu != to_gpu and _recording is not None:
        raise RuntimeError(f"{func} copies between devices while a graph is captured")
    later = is_copy and (kwargs.get("non_blocking") or (len(args) > 2 and args[2]))
    if from_gpu and not to_gpu and later:
        copies.begin(args[0], source.value)
        return args[0]
    if from_gpu and not to_gpu:
        _waits_for(func._schema.name)
        copies.arrive()
    values, settings = tree_map_only(GpuTensor, lambda one: one.value, (args, kwargs))
    if settings.get("device") is not None:
        settings = {**settings, "device": torch.device("cpu")}
    if settings.get("pin_memory"):
        settings = {**settings, "pin_memory": False}
    found = func(*values, **settings)
    if not is_copy and found is values[0]:
        found = found.clone()
    if _recording is not None:
        _recording.append((func, values, settings, [found]))
    if is_copy:
        return args[0]
    return GpuTensor(found) if to_gpu else found


def _wrapped(func: Any, args: Sequence[Any], kwargs: dict[str, Any], found: Any) -> Any:
    """The result; what an operation writes into is its own result."""
    targets = {id(one.value): one for one in tree_leaves((args, kwargs)) if isinstance(one, GpuTensor)}

    def wrapped(one: Tensor) -> Tensor:
        target = targets.get(id(one))
        if target is None:
            return GpuTensor(one)
        if target.shape != one.shape:
            raise NotImplementedError(f"{func} changes the shape of a tensor in place")
        return target

    return tree_map_only(Tensor, wrapped, found)


def _empty(size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return GpuTensor(_spoil(torch.empty(size, dtype=dtype, device="cpu")))


def _empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return GpuTensor(_spoil(torch.empty_strided(size, stride, dtype=dtype, device="cpu")))


def _made(name: str) -> Callable[..., Tensor]:
    """A tensor made by a function whose implementation would change a tensor's size."""

    def make(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Tensor:
        return GpuTensor(getattr(torch, name)(*args, **kwargs, device="cpu"))

    return make


def _tensor(data: Any, *, device: Any = None, _make: Callable[..., Tensor] = torch.tensor, **kwargs: Any) -> Tensor:
    """`torch.tensor`, which would copy to the device without asking Python."""
    found = _make(data, device="cpu", **kwargs)
    return found.to(torch.empty(0).device if device is None else device)


class Event:
    """Behind the copies that were begun before it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._number = 0

    def record(self, *_: Any) -> None:
        self._number = copies.begun

    def synchronize(self) -> None:
        copies.arrive(self._number)

    wait = synchronize

    def query(self) -> bool:
        self.synchronize()
        return True

    def elapsed_time(self, other: Event) -> float:
        return 1.0


class Graph:
    """The operations of a capture. They were done when they were captured, so the first `replay` does nothing."""

    def __init__(self) -> None:
        self.recorded: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._is_first = True

    def replay(self) -> None:
        if self._is_first:
            self._is_first = False
            return
        for func, args, kwargs, results in self.recorded:
            found = [one for one in tree_leaves(func(*args, **kwargs)) if isinstance(one, Tensor)]
            for result, one in zip(results, found, strict=True):
                if one.data_ptr() != result.data_ptr():
                    result.copy_(one)


@contextlib.contextmanager
def graph(cuda_graph: Graph, *_: Any, **__: Any) -> Iterator[None]:
    """Capture."""
    global _recording
    _recording = cuda_graph.recorded
    try:
        yield
    finally:
        _recording = None


def _synchronize(*_: Any) -> None:
    copies.arrive()


_library: Any = None


def install() -> None:
    """Put the device into this process's PyTorch."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    _library.impl("empty.memory_format", _empty, "CUDA")
    _library.impl("empty_strided", _empty_strided, "CUDA")
    for name in ("arange", "arange.start", "arange.start_step", "randperm", "linspace", "eye", "eye.m"):
        _library.impl(name, _made(name.partition(".")[0]), "CUDA")
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.tensor = _tensor
    calls: dict[str, Callable[..., Any]] = {
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _: None,
        "get_device_name": lambda *_: "a made-up GPU",
        "get_device_capability": lambda *_: (9, 0),
        "mem_get_info": lambda *_: (MEMORY, MEMORY),
        "max_memory_allocated": lambda *_: 0,
        "max_memory_reserved": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "memory_reserved": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None,
        "empty_cache": lambda: None,
        "synchronize": _synchronize,
        "get_rng_state": lambda *_: torch.random.get_rng_state(),
        "set_rng_state": lambda *_: None,
        "manual_seed": lambda _: None,
        "manual_seed_all": lambda _: None,
        "graph_pool_handle": lambda: (0, 0),
        "graph": graph,
        "Event": Event,
        "CUDAGraph": Graph,
    }
    for name, call in calls.items():
        setattr(torch.cuda, name, call)
