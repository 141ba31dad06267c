"""A dataset folder for the Hugging Face Hub: plain Parquet, and a README.md that says what it is and how it was made.

    README.md                       dataset card: YAML header, data statement, quality figures
    data/train/<part>.parquet       as the format parquet writes it (`pipeline/export/wide.py`)
    plots/*.svg                     quality of the sentences that were written

`datasets.load_dataset(FOLDER)` reads the folder as it is, and its name on the Hub once it was pushed (`push.py`). The
same corpus and settings give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pipeline.console.progress import RowProgress
from pipeline.export.hub.card import dataset_card
from pipeline.export.hub.figures import ExportFigures
from pipeline.export.pieces import Written
from pipeline.export.wide import write_wide
from pipeline.select.selection import Counts, Selection
from pipeline.storage.export_target import ExportTarget

Draw = Callable[
    [list[str], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]], dict[str, tuple[str, bytes]]
]


def write_hub(
    selection: Selection,
    target: ExportTarget,
    progress: RowProgress,
    vectors: str,
    row_group_rows: int,
    counts: Counts,
    licence: str | None,
    draw: Draw,
) -> Written:
    """Write every selected sentence, plots, and the card.

    Args:
        selection: the sentences.
        target: the folder of the export.
        progress: is told of written rows.
        vectors: the type of vectors, `float32` or `float16`, or `none` to leave them out.
        row_group_rows: the most rows of a row group.
        counts: what the selection removes.
        licence: of the texts, as the Hub names it; None: it is not known.
        draw: draws plots of languages, lengths and AutoBLEU (`pipeline/quality/report/dataset.py`).

    Returns:
        What was written.

    Raises:
        CorpusError: for a damaged file of the corpus.
    """
    figures = ExportFigures()
    written = write_wide(selection, target, progress, vectors, row_group_rows, figures.add)
    langs, lang, chars, autobleu = figures.arrays()
    plots = draw(langs, lang, chars, autobleu)
    for name, (_, svg) in plots.items():
        with target.file(f"plots/{name}") as file:
            file.write(svg)
    captions = {f"plots/{name}": caption for name, (caption, _) in plots.items()}
    target.write_text("README.md", dataset_card(selection, counts, written, figures, licence, captions))
    written.files += len(plots) + 1
    written.next_step = f"datasets.load_dataset({target.url!r}); --push USER/NAME uploads it to the Hub"
    return written
