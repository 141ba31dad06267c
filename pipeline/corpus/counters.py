"""Counters of chunks, flat (one number per key), so that millions of chunks can be added up in columns.

A key is `owner/what` or `owner/what/detail`; the owner is a stage, or `chunk` for what a chunk's receipt counts:
`chunk/dropped/too short`, `encode/rows`, `autobleu/counts/scored`. For keys that `least_of` or `most_of` recognises,
the smallest or largest value is kept. `left` and `waiting` of a stage are the parts that lack it, and their sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pipeline.config.stages import STAGES
from pipeline.corpus.receipts import REPEATED, ChunkReceipt, DataFile, Receipt
from pipeline.corpus.recipes import SEGMENT

Counters = dict[str, float]
CHUNK = "chunk"
MISFITS = "misfits."  # counts of values of kept columns that did not fit the declared type, by column
COUNTED = ("documents_in", "kept", "sentences", "bytes_read", "bytes_unreadable", "seconds")  # of a chunk's receipt
NOT_SEGMENTED: Counters = {f"{SEGMENT}/left": 1.0}


def least_of(key: str) -> bool:
    """Return whether the smallest value of a key counts."""
    _, what, *detail = key.split("/", 2)
    return what == "first" or (what == "counts" and detail[0].startswith("least."))


def most_of(key: str) -> bool:
    """Return whether the largest value of a key counts."""
    return key.split("/", 2)[1] == "last"


def add(total: Counters, one: Mapping[str, float]) -> None:
    """Add counters to a total."""
    for key, value in one.items():
        if key not in total:
            total[key] = value
        elif least_of(key):
            total[key] = min(total[key], value)
        elif most_of(key):
            total[key] = max(total[key], value)
        else:
            total[key] += value


def stages_of(counters: Mapping[str, float]) -> list[str]:
    """Return the stages that keys mention, in order."""
    owners = {key.partition("/")[0] for key in counters}
    return [stage for stage in STAGES if stage in owners]


def by_detail(counters: Mapping[str, float], owner: str, what: str) -> dict[str, float]:
    """Return detail → value for one kind of keys.

    Args:
        counters: counters by their key, `owner/what/detail`.
        owner: a stage, or `chunk`.
        what: the kind of counter, such as `quarantined`.

    Returns:
        The values, for instance by reason or by language.
    """
    head = f"{owner}/{what}/"
    return {key[len(head) :]: value for key, value in counters.items() if key.startswith(head)}


def whole_counts(counters: Mapping[str, float], owner: str, what: str) -> Counter[str]:
    """Return `by_detail` with whole numbers.

    Args:
        counters: counters by their key, `owner/what/detail`.
        owner: a stage, or `chunk`.
        what: the kind of counter, such as `quarantined`.

    Returns:
        Detail → whole number.
    """
    return Counter({detail: int(value) for detail, value in by_detail(counters, owner, what).items()})


def busy_seconds(seconds: Mapping[str, float]) -> float:
    """Return the seconds of work, without waiting for the device."""
    return sum(value for step, value in seconds.items() if step != "wait")


def counters_of(receipt: ChunkReceipt, parts: Iterable[tuple[Mapping[str, Receipt], Iterable[str]]]) -> Counters:
    """Return the counters of one chunk. `parts` gives for every part its receipts by stage, and the stages that it
    lacks.
    """
    counters: Counters = {f"{CHUNK}/chunks": 1.0, f"{CHUNK}/parts": 0.0}
    counters |= {f"{CHUNK}/{name}": float(getattr(receipt, name)) for name in COUNTED}
    counters |= {f"{CHUNK}/dropped/{reason}": float(count) for reason, count in receipt.dropped.items()}
    counters |= {f"{CHUNK}/quarantined/{reason}": float(count) for reason, count in receipt.quarantined.items()}
    if REPEATED in receipt.counts:  # the other counts are sums over parts
        counters[f"{CHUNK}/counts/{REPEATED}"] = float(receipt.counts[REPEATED])
    if receipt.quarantine:
        add(counters, dict(_bytes(CHUNK, [receipt.quarantine])))
    for receipts, missing in parts:
        counters[f"{CHUNK}/parts"] += 1
        for stage, done in receipts.items():
            add(counters, _counters_of_part(stage, done))
        for stage in missing:
            add(counters, {f"{stage}/left": 1.0, f"{stage}/waiting": float(receipts[SEGMENT].rows)})
    return counters


def _counters_of_part(stage: str, done: Receipt) -> Counters:
    counters = {
        f"{stage}/parts": 1.0,
        f"{stage}/rows": float(done.rows),
        f"{stage}/devices/{done.device}": 1.0,
        f"{stage}/first": done.created,
        f"{stage}/last": done.created,
    }
    counters |= {f"{stage}/counts/{key}": float(value) for key, value in done.counts.items()}
    counters |= {f"{stage}/seconds/{step}": value for step, value in done.seconds.items()}
    counters |= {f"{stage}/warnings/{text}": 1.0 for text in done.warnings}
    return counters | dict(_bytes(stage, done.files))


def _bytes(owner: str, files: Iterable[DataFile]) -> Iterator[tuple[str, float]]:
    for file in files:
        yield f"{owner}/bytes/{file.family}", float(file.bytes)


def problems_of(receipt: ChunkReceipt, parts: Iterable[Mapping[str, Receipt]]) -> list[str]:
    """Say where the receipts of a chunk do not agree with each other."""
    found = []
    segmented = []
    for receipts in parts:
        segmented.append(receipts[SEGMENT])
        found += [
            f"{stage} of part {done.part} has {done.rows} rows, not {receipts[SEGMENT].rows}"
            for stage, done in receipts.items()
            if done.rows != receipts[SEGMENT].rows
        ]
    wrong = receipt.balance()
    if wrong:
        found.append(wrong)
    rows = sum(part.rows for part in segmented)
    if rows != receipt.sentences:
        found.append(f"chunk {receipt.chunk} counts {receipt.sentences} sentences, its parts {rows}")
    documents = sum(part.counts["documents"] - part.counts.get("split_documents", 0) for part in segmented)
    if documents != receipt.kept:
        found.append(f"chunk {receipt.chunk} kept {receipt.kept} documents, its parts hold {documents:.0f}")
    return found
