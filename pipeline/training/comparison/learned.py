"""Which held-out documents the rows of a comparison learn from: nobody can be judged by these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from pipeline.config.science import Science
from pipeline.training.comparison.begun import begun, place_of
from pipeline.training.data.index import Index
from pipeline.training.evaluation.held_out import HeldOut
from pipeline.training.evaluation.seen import Source, learned_by_weights, learned_from, say_unknown, seen_by
from pipeline.training.record import located


def seen_by_rows(
    console: Console, science: Science, learned: Mapping[str, Sequence[Index]], index: Index, held: HeldOut
) -> dict[str, frozenset[str]]:
    """Return which held-out documents have the text of one that the trainings of a row learn from.

    Args:
        console: where it is said if that cannot be told.
        science: the settings.
        learned: the indexes of each row, from which trainings that are not begun yet will learn.
        index: the index of the held-out documents.
        held: the documents.

    Returns:
        row → hashes of their texts; rows that see none are left out, and so are all if the split is the one that
            trainings learn from.
    """
    settings = science.settings
    if settings.split == "train":  # which all rows learn from
        return {}
    runs = {place_of(science.config(row, seed)) for row in settings.trained for seed in settings.seeds}
    found = {}
    for row, indexes in learned.items():
        sources: list[Source] = []
        for seed in settings.seeds:
            config = science.config(row, seed)
            assert config.train is not None
            if pinned := begun(config):
                sources += learned_from(place_of(config), pinned)
                continue
            sources += [((one.url,), one.digest) for one in indexes]
            if begins := config.train.init_from:
                store, run = located(begins)
                if f"{store.url.rstrip('/')}/{run}" not in runs:  # what those learn from is here anyway
                    sources += learned_by_weights(begins)
        hashes, is_known = seen_by(dict.fromkeys(sources), index, held)
        if hashes:
            found[row] = frozenset(hashes)
        if not is_known:
            say_unknown(console, row)
    return found
