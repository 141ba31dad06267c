"""Checks this machine: Python, libraries, CPU, GPUs, memory, limits, Ray, SLURM."""

from __future__ import annotations

import importlib
import os
import platform
import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from pipeline.base.errors import PipelineError
from pipeline.base.extras import FOR
from pipeline.base.formats import counted, number, size
from pipeline.config.launcher import LauncherSettings
from pipeline.doctor.checks import PACKAGE, Check, Level, installed, pip_extra, requirements
from stages.cores import cores

NATIVE = ("torch", "pyarrow", "spacy", "sentencepiece")  # compiled libraries, which may be installed and still not load
COMPUTES = "encode"  # the extra without which no run works
PURPOSE = FOR | {"s3": "s3:// URLs", "gcs": "gs:// URLs", "azure": "az:// URLs", "sonar-space": "backend: sonar-space"}
MEMORY_BAD, MEMORY_WARN = 1e9, 4e9  # bytes
FILES_BAD, FILES_WARN = 256, 4096
BUSY = 1.0  # load per core from other programs that is not worth a warning


def python() -> Check:
    """Check the interpreter and this package."""
    version = platform.python_version()
    found = f"{version} on {platform.system()} {platform.machine()}, {PACKAGE} {installed(PACKAGE) or 'not installed'}"
    return Check("good", "Python", found)


def libraries() -> Iterator[Check]:
    """Check the required libraries, then the extras; without the one that computes, no run works on this machine."""
    needed = requirements()
    missing = [name for name in needed[""] if not installed(name)]
    broken = [f"{name} ({why})" for name in NATIVE if installed(name) and (why := _import_error(name))]
    versions = ", ".join(f"{name} {installed(name)}" for name in NATIVE[1:] if installed(name))
    if missing or broken:
        found = f"missing: {', '.join(missing) or 'none'}; do not load: {', '.join(broken) or 'none'}"
        again = [*missing, *(name.split(" ")[0] for name in broken)]
        yield Check("bad", "libraries", found, f"pip install --force-reinstall {' '.join(again)}")
    else:
        yield Check("good", "libraries", f"all {len(needed[''])} installed: {versions}, …")
    for extra, names in needed.items():
        if extra in ("", "test", "all", "models"):  # the last one is told where files of models are checked
            continue
        absent = [name for name in names if not installed(name)]
        purpose = f" (for {PURPOSE[extra]})" if extra in PURPOSE else ""
        if absent:
            level: Level = "bad" if extra == COMPUTES else "note"
            yield Check(level, f"[{extra}]", f"not installed{purpose}: {', '.join(absent)}", pip_extra(extra))
        else:
            versions = ", ".join(f"{name} {installed(name)}" for name in names)
            yield Check("good", f"[{extra}]", f"{versions}{purpose}")


def loads(name: str) -> bool:
    """Return whether a library can be imported."""
    return _import_error(name) is None


def _import_error(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except Exception as error:  # a library that does not fit the machine can raise anything
        return f"{type(error).__name__}: {error}"
    return None


def devices() -> Iterator[Check]:
    """Check CPU and GPUs, as torch sees them."""
    import torch

    from stages.device import compute_dtype

    present = cores()
    threads = torch.get_num_threads()
    dtype = str(compute_dtype("auto", "cpu")).removeprefix("torch.")
    found = f"{counted(present, 'core')}, {torch.backends.cpu.get_cpu_capability()}, computes in {dtype}; "
    found += f"torch {torch.__version__}, {counted(threads, 'thread')}"
    busy = os.getloadavg()[0]
    if threads < present and "OMP_NUM_THREADS" in os.environ:
        yield Check("warn", "CPU", found, f"unset OMP_NUM_THREADS ({os.environ['OMP_NUM_THREADS']}) to use all cores")
    elif busy > present * BUSY:
        yield Check("warn", "CPU", f"{found}; load {busy:.1f}", "other programs use it: expect a slow run, or wait")
    else:
        yield Check("good", "CPU", found)
    driver = _nvidia("driver_version")
    if torch.cuda.is_available():
        yield _gpus(driver)
        return
    seen = _nvidia("name")
    if seen:
        build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        found = f"{_counted(seen)}, driver {', '.join(sorted(set(driver)))}, but torch {torch.__version__}, {build}, "
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        todo = "install a torch for this driver: https://pytorch.org/get-started/locally"
        if visible is not None:
            todo = f"CUDA_VISIBLE_DEVICES is {visible!r}: unset it; else {todo}"
        yield Check("warn", "GPU", f"{found}cannot use it", todo)
    else:
        yield Check("note", "GPU", "none; the CPU computes (fine for samples, slow for corpora)")


def _gpus(driver: list[str]) -> Check:
    import torch

    from stages.device import compute_dtype

    names, full = [], []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        names.append(f"{torch.cuda.get_device_name(index)} ({size(total)})")
        if free < total / 2:
            full.append(f"GPU {index} has only {size(free)} free")
    dtype = str(compute_dtype("auto", "cuda")).removeprefix("torch.")
    found = f"{_counted(names)}, CUDA {torch.version.cuda}, driver {', '.join(sorted(set(driver))) or '?'}, {dtype}"
    if full:
        return Check("warn", "GPU", f"{found}; {'; '.join(full)}", "nvidia-smi shows who uses it; end that, or wait")
    return Check("good", "GPU", found)


def _counted(names: list[str]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in Counter(names).items())


def _nvidia(question: str) -> list[str]:
    """Return what nvidia-smi says of each GPU; nothing if there is none."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    command = [tool, f"--query-gpu={question}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):  # the driver is not loaded: torch's own answer counts
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def memory() -> Check:
    """Check the free memory, or what a container may use if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = total  # the system does not say
    if Path("/proc/meminfo").exists():
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(facts["MemAvailable"].split()[0]) * 1024
    limit = _container_limit()
    found = f"{size(free)} free of {size(total)}"
    if limit is not None and limit < total:
        free = min(free, limit)
        found += f"; this container may use {size(limit)}"
    if free < MEMORY_WARN:
        todo = "end other programs, or lower part_sentences and launcher.parts_in_flight"
        return Check("bad" if free < MEMORY_BAD else "warn", "memory", found, todo)
    return Check("good", "memory", found)


def _container_limit() -> int | None:
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None
    return None


def open_files() -> Check:
    """Check how many files a process may have open; Ray opens many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"a process may open {number(soft)} files" if soft != resource.RLIM_INFINITY else "no limit"
    if soft != resource.RLIM_INFINITY and soft < FILES_WARN:
        best = "65536" if hard == resource.RLIM_INFINITY else str(min(hard, 65536))
        return Check("bad" if soft < FILES_BAD else "warn", "open files", found, f"ulimit -n {best}")
    return Check("good", "open files", found)


def ray(start: Callable[[], tuple[float, dict[str, float]]] | None, needed: bool) -> Check:
    """Check Ray's version, and whether it starts. `start` really starts it (seconds, resources); None: it is
    not tried.
    """
    version = installed("ray")
    if not version:
        return Check("bad" if needed else "note", "Ray", "not installed", pip_extra("ray"))
    if start is None:
        return Check("note", "Ray", f"{version}, not tried" + (" (--no-ray)" if needed else ": launcher inline"))
    try:
        seconds, resources = start()
    except (OSError, RuntimeError) as error:
        todo = "run with --launcher inline; or see whether the machine is too busy, or short of memory or /tmp"
        return Check("bad" if needed else "warn", "Ray", f"{version} does not start: {error}", todo)
    units = ", ".join(f"{resources.get(kind, 0):.0f} {kind}s" for kind in ("CPU", "GPU") if resources.get(kind))
    return Check("good", "Ray", f"{version} starts in {seconds:.0f} s and finds {units}")


def slurm(ask: Callable[[LauncherSettings | None], str] | None, asked: LauncherSettings | None) -> Check:
    """Check whether SLURM answers, and takes the jobs of `asked` (a section launcher that chooses it). `ask`
    asks it.
    """
    if ask is None or (asked is None and not shutil.which("sbatch")):
        return Check("note", "SLURM", "not asked" if shutil.which("sbatch") else "no sbatch here")
    try:
        return Check("good", "SLURM", ask(asked))
    except PipelineError as error:
        return Check("bad" if asked else "warn", "SLURM", str(error), "" if asked else "ask whoever runs this cluster")
