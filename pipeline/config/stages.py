"""The names of stages, in the order in which they run. Imports nothing, so that readers of a corpus start at once."""

from __future__ import annotations

STAGES = (  # as data goes through them
    "segment", "language", "noise", "hashes", "minhash", "encode", "plans", "autobleu", "scaler", "fragility",
    "predictor", "rvq", "decoder", "duplicates", "near", "semantic",
)  # fmt: skip
OF_DUPLICATES = ("hashes", "minhash", "near", "semantic")  # stages of the section `duplicates`
SECTIONS = tuple(name for name in STAGES if name not in OF_DUPLICATES)
FITS = ("scaler", "predictor", "rvq", "decoder")  # stages that are fitted on the pilot
ONLY_FITS = ("scaler", "decoder")  # of these, they add no column
