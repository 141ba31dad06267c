"""Checks whether ledgers agree with the receipts that they were folded from, row by row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.base.errors import CorpusError
from pipeline.base.parallel import in_parallel
from pipeline.corpus.counters import counters_of
from pipeline.corpus.ledger import detail_of, row_of
from pipeline.corpus.receipts import Receipt, read_chunk_receipt, read_receipt
from pipeline.corpus.states import States
from pipeline.maintenance.records import Finding
from pipeline.storage import layout


def check_ledgers(states: States) -> Iterator[Finding]:
    """Compare every row that the view uses with one made again from receipts; a difference spoils the row's file.

    Cost: one small read per receipt.
    """
    store = states.store
    if states.gone:
        chunks = states.ledgers.columns("chunk")["chunk"].take(states.gone).to_pylist()
        for chunk in sorted(set(chunks)):
            what = f"some receipts of chunk {chunk} are missing, though a ledger vouches for them; pipeline run"
            yield Finding(f"receipts of chunk {chunk}", f"{what} makes what they stand for again", None)
    vouched = np.zeros(len(states.ledgers), np.bool_)
    vouched[states.rows[states.rows >= 0]] = True
    for path, row in states.ledgers.rows(vouched):
        where = f"the row of chunk {row['chunk']}"
        try:
            receipt = read_chunk_receipt(store, layout.chunk_receipt_path(row["chunk"], row["fingerprint"].hex()))
            folded = detail_of(row["receipts"], f"{store.url}/{path}")[1]
            places = [
                [(stage, layout.receipt_path(stage, one.part, one.fingerprint)) for stage, one in part.items()]
                for part in folded
            ]
            every = [place for part in places for place in part]
            found = iter(in_parallel(lambda place: read_receipt(store, place[1]), every))
            parts: list[dict[str, Receipt]] = [{stage: next(found) for stage, _ in part} for part in places]
            again = row_of(receipt, parts, counters_of(receipt, ((part, ()) for part in parts)))
        except (CorpusError, ValueError, KeyError) as error:
            yield Finding(path, f"vouches for a receipt that cannot be read: {where}: {error}", path)
            continue
        differing = [name for name in row if row[name] != again[name]]
        if differing:
            yield Finding(path, f"says other {', '.join(differing)} than the receipts: {where}", path)
