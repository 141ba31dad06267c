"""Settings of residual vector quantisation. Imports no torch, so that a plan is fast."""

from __future__ import annotations

from typing import ClassVar, Literal

from stages.stage import FitSettings, StageSettings, meaning


class RvqSettings(FitSettings, StageSettings):
    """Embeddings → codes: `codes.codes` (rows, codebooks) uint16, by codebooks that are fitted on the pilot."""

    name: ClassVar[str] = "rvq"
    version: ClassVar[int] = 1
    reads: ClassVar[tuple[str, ...]] = ("embeddings.embedding", "status.status")
    writes: ClassVar[tuple[str, ...]] = ("codes",)
    fits: ClassVar[tuple[str, ...]] = ("rvq",)
    applied: ClassVar[tuple[str, ...] | None] = ("codebooks", "units", "precision")

    codebooks: int = meaning(64, ge=1, le=1024, description="codes per sentence; 64 in the LCM paper")
    units: int = meaning(8192, ge=2, le=65536, description="centroids per codebook; 8192 in the LCM paper")
    rows: int = meaning(15_000_000, ge=2, description="about how many rows of the pilot to fit on; all if it has fewer")
    initialization: Literal["progressive", "kmeans"] = meaning(
        "progressive",
        description="progressive: Improved RVQ, k-means in ever more principal dimensions, as in the paper; kmeans: "
        "from random rows, quicker to fit, with a larger error",
    )
    backend: Literal["torch", "faiss"] = meaning(
        "torch", description="library that fits: torch, on any device, or faiss, on one CPU core; the same algorithm"
    )
    iterations: int = meaning(
        10, ge=1, le=1000, description="passes of k-means; with progressive, in each of its ten steps"
    )
    points_per_unit: int = meaning(
        256, ge=1, description="each codebook is fitted on at most points_per_unit · units rows, drawn for it at random"
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = meaning(
        "auto",
        description="number format of distances in torch; auto: float16 on GPUs, on CPUs bfloat16 where they multiply "
        "it, else float32 (centroids are stored as float16 in any case)",
    )
    seed: int = meaning(0, ge=0, le=1_000_000, description="seed of the random draws of the fit")

    def artifacts(self) -> dict[str, str]:
        """Return no digests: the result depends only on the fit."""
        return {}
