"""Packages that the core does without, and the extra of `sonar-pipeline` that brings each (setup.cfg)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

PACKAGES = {
    "hub": ("huggingface_hub",),
    "encode": ("torch", "transformers", "tokenizers", "safetensors", "spacy", "wtpsplit"),
    "train": ("tensorboard",),
    "ray": ("ray",),
    "report": ("matplotlib",),
    "browse": ("starlette", "uvicorn"),
    "nearest": ("faiss",),
    "map": ("pacmap", "threadpoolctl"),
    "lance": ("lance",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "lineage": ("openlineage",),
}
BY_NAME = ("map", "lance", "wandb", "mlflow", "lineage")  # extras that [all] leaves out
FOR = {
    "hub": "uploads to the Hugging Face Hub, and models from there",
    "encode": "segmenting, encoding and scoring",
    "train": "training models",
    "ray": "Ray",
    "report": "plots",
    "browse": "the page of pipeline browse",
    "nearest": "an index of embeddings",
    "map": "a map of embeddings by PaCMAP in the interactive report",
    "lance": "Lance datasets",
    "wandb": "trainings in Weights & Biases",
    "mlflow": "trainings in MLflow",
    "lineage": "OpenLineage events",
}


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return what to tell a user whose installation lacks the package of an error; None if that package belongs to no
    extra.
    """
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in PACKAGES.items() if package in packages), None)
    return extra and how_to_install([extra], [package])


def missing_extras(needed: Iterable[str]) -> str | None:
    """Return what to tell a user whose installation lacks packages of these extras; None if all are there."""
    lacking = {extra: [name for name in PACKAGES[extra] if importlib.util.find_spec(name) is None] for extra in needed}
    extras = [extra for extra, names in lacking.items() if names]
    return how_to_install(extras, [name for extra in extras for name in lacking[extra]]) if extras else None


def how_to_install(extras: list[str], packages: list[str]) -> str:
    """Return the sentences that say which packages are missing, what for, and how they are installed."""
    one = len(packages) == 1
    return (
        f"The package{'' if one else 's'} {', '.join(packages)} {'is' if one else 'are'} not installed here; for "
        f"{' and '.join(FOR[extra] for extra in extras)}: pip install 'sonar-pipeline[{','.join(extras)}]' (in a "
        f"checkout, pip install -e '.[{','.join(extras)}]'). Commands that only read a corpus do not "
        f"need {'it' if one else 'them'}."
    )
