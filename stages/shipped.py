"""Files that ship: cards, configurations, weights of small models and the sample corpus, all in the folder `conf/`.

The folder lies beside this package, in a checkout as in an installation. Two distributions fill it: `sonar-pipeline`
brings the code with cards and configurations, `sonar-pipeline-models` (`conf/setup.cfg`) what is large: weights and the
sample. The second may be missing, and is asked for where one of its files is needed.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

FOLDER = Path(__file__).absolute().parents[1] / "conf"
SAMPLE = FOLDER / "sample"
MODELS = "sonar-pipeline-models"
_SETUP = "setup.cfg"  # in `conf/` of a checkout only


def how_to_get(path: str | Path) -> str | None:
    """Return what brings a file of `conf/` that is not there, or files that a pattern matches; None for other paths."""
    if not Path(path).is_relative_to(FOLDER):
        return None
    if (FOLDER / _SETUP).exists():
        return "files of this checkout are gone: git restore conf"
    what = f"files of {MODELS} (weights of the small models, and the sample) are"
    try:
        installed = Path(str(distribution(MODELS).locate_file("conf")))
    except PackageNotFoundError:
        return (
            f"{what} not installed here: pip install 'sonar-pipeline[models]' (in a clone of the repository, pip "
            "install ./conf). Commands that only read a corpus do not need them."
        )
    if installed == FOLDER:
        return f"{what} gone: pip install --force-reinstall --no-deps {MODELS} (in a clone of the repository, ./conf)"
    return f"{what} installed in {installed}, the code in {FOLDER.parent}: install both into the same environment"
