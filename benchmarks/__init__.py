"""Measurements. Where pydantic or zstandard is missing, as on a borrowed GPU, stand-ins let those for GPUs run."""

from benchmarks import stand_ins

stand_ins.install("pydantic", "zstandard")
