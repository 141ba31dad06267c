"""Measurements, each a command: `python -m benchmarks.NAME --help`.

Where pydantic or zstandard is missing, as on a borrowed GPU, stand-ins let those for GPUs run.
"""

from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser

from benchmarks import stand_ins

stand_ins.install("pydantic", "zstandard")


def command_line(name: str, description: str) -> ArgumentParser:
    """Return the parser of `python -m benchmarks.NAME`, whose help shows defaults."""
    return ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=description, formatter_class=ArgumentDefaultsHelpFormatter
    )
