"""The metadata columns that earlier versions gave the files of an input, although only other inputs keep them.

Every file then had the columns of all inputs. Where such a corpus goes on, its inputs go on with the columns that they
have, so that nothing of them is segmented again; readers leave out what no input keeps. Cost: one small read, and one
more per recipe of the corpus while it has an input that its newest run does not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.base.errors import CorpusError
from pipeline.base.parallel import in_parallel
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.recipes import SEGMENT, input_recipe
from pipeline.corpus.runs import newest_folder
from pipeline.corpus.view import saved_recipe, segment_recipes
from pipeline.storage.store import Store

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig


def kept_before(store: Store, config: RunConfig) -> dict[str, tuple[str, ...]]:
    """Return the metadata columns of the files of inputs that have those of other inputs too.

    Args:
        store: the corpus.
        config: the configuration as its file gives it.

    Returns:
        By name of the input, the columns of the newest run, or of the recipe with the most columns if that run has not
            read the input.
    """
    newest: list[dict[str, Any]] = []
    with contextlib.suppress(CorpusError):  # told by who opens the view; recipes are kept beside it as well
        newest = list(segment_recipes(store, newest_folder(store)).values())
    found: dict[str, tuple[str, ...]] = {}
    for one in config.input:
        own = input_recipe(config, one)
        like = [*_like(own, newest)] or [*_like(own, _recorded(store))]
        most = max((tuple(recipe["keep"]) for recipe in like), key=len, default=())
        if len(most) > len(own["keep"]):
            found[str(one.name)] = most
    return found


def _like(own: Mapping[str, Any], recipes: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the recipes that differ from an input's at most in further metadata columns, in which it has no values."""
    for recipe in recipes:
        if set(own["keep"]) <= set(recipe["keep"]) and fingerprint({**recipe, "keep": []}) == fingerprint(
            {**own, "keep": []}
        ):
            yield recipe


def _recorded(store: Store) -> Iterator[dict[str, Any]]:
    """Yield the recipes of all inputs that the corpus ever had."""
    digests = [path.split(".")[1] for path in store.find("recipes", f"{SEGMENT}.")]
    yield from filter(None, in_parallel(lambda digest: saved_recipe(store, SEGMENT, digest), digests))
