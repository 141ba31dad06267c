"""`pipeline gc`: what the newest run does not stand on: results of older settings, leftovers of killed attempts.

A corpus keeps the results of older settings, so that going back costs nothing. This takes them away. Kept is what the
view of the newest run names: its receipts, their files, its fits, and indexes of training that name no others. Files
that people put beside them are not touched.
Cost: one listing a folder (by pieces, where there are many parts), every receipt of the view.
"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from pipeline.base.errors import CorpusError
from pipeline.corpus.counters import CHUNK
from pipeline.corpus.fits import read_record
from pipeline.corpus.leftovers import ATTEMPT, live_files, prefixes
from pipeline.corpus.reader import Corpus
from pipeline.corpus.states import States
from pipeline.storage import layout
from pipeline.training.data.index import unusable

_RECEIPT = re.compile(r"(receipts/[a-z]+|chunks)/[0-9a-f]{2}/[0-9a-f-]+\.[0-9a-f]{8}\.json")
_FIT = re.compile(rf"{layout.FITS}/[a-z]+\.[0-9a-f]{{8}}-([0-9]{{3}}\.json|[0-9a-f]{{6}}\.safetensors)")


def garbage(corpus: Corpus) -> dict[str, list[str]]:
    """Paths that the newest run does not stand on, by folder. Raises `CorpusError` if it is under way or broke off."""
    newest = corpus.store.folders(layout.RUNS)[-1]
    if not corpus.store.exists(f"{layout.RUNS}/{newest}/summary.json"):
        raise CorpusError(
            f"run {newest} of {corpus.url} is not finished; wait for it, or run the same configuration again: only "
            "then is it known what it stands on"
        )
    found: dict[str, list[str]] = {}
    pieces = prefixes(len(corpus.parts))
    for piece in pieces:
        live = _live(corpus, piece)
        for folder in ("documents", *layout.ROW_FAMILIES, "quarantine", *_receipt_folders(corpus), layout.FITS):
            if folder == layout.FITS and piece != pieces[0]:
                continue
            for path in corpus.store.find(folder, "" if folder == layout.FITS else piece):
                ours = ATTEMPT.fullmatch(path.rpartition("/")[2]) or _RECEIPT.fullmatch(path) or _FIT.fullmatch(path)
                if ours and path not in live:
                    found.setdefault(folder.partition("/")[0], []).append(path)
    indexes = unusable(corpus)
    return found | ({layout.INDEXES: indexes} if indexes else {})


def _receipt_folders(corpus: Corpus) -> list[str]:
    return [*(f"receipts/{stage}" for stage in corpus.store.folders("receipts")), "chunks"]


def delete(corpus: Corpus, paths: dict[str, list[str]]) -> Counter[str]:
    """Delete them, ledgers that name them first, then receipts, so that nothing names what is not there."""
    gone: Counter[str] = Counter()
    if paths.keys() & {"receipts", "chunks"}:
        _forget(corpus.chunks)
    for folder in sorted(paths, key=lambda folder: folder not in ("receipts", "chunks")):
        records_first = sorted(paths[folder], key=lambda path: not path.endswith(".json"))
        for path in records_first:
            corpus.store.delete(path)
            gone[folder] += 1
    return gone


def _forget(states: States) -> None:
    """Take rows out of the ledgers that speak of anything else than what the newest run stands on."""
    rows = states.rows[states.rows >= 0]
    whole = [all(stage in (CHUNK, *one.done) for stage in one.recipes) for one in states.matches]
    keep = np.zeros(len(states.ledgers), np.bool_)
    keep[rows] = np.asarray(whole, np.bool_)[states.ledgers.recipe[rows]] if len(rows) else False
    states.ledgers.keep(keep)


def _live(corpus: Corpus, piece: str) -> set[str]:
    """What the view names, of chunks whose names begin so."""
    live: set[str] = set()
    for path in corpus.view.fits.values():
        live |= {path, read_record(corpus.store, path).path}
    for chunk in corpus.chunks:
        if chunk.chunk.id.startswith(piece):
            live.update(live_files(chunk))
    return live
