"""Implements `pipeline verify`, and the comparison of two corpora.

Corpora are the same if they have the same parts with the same bytes; computed on GPUs, the same text and similar
vectors. What receipts vouch for is compared by the digests of columns: only receipts are read, and the embeddings of
parts in which they differ. Other differences (scores, codes) follow from those, and are counted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.text import Text

from pipeline.base.errors import CorpusError, StorageError
from pipeline.base.formats import counted, number, size
from pipeline.base.messages import warn
from pipeline.config.run_config import RunConfig
from pipeline.console.progress import RowProgress
from pipeline.corpus.reader import Corpus
from pipeline.maintenance.made_with import indexes_of, models_of
from pipeline.maintenance.records import Finding, Without, check_records, repair
from pipeline.maintenance.verify import check, check_apart_from_rows, check_chunks, total_bytes
from pipeline.storage.store import Store
from pipeline.training.status import FOLDER as TRAININGS

LIKE = 1 - 1e-5  # cosine
EXACT = ("documents", "sentences", "status")  # these never differ, whatever device computed


@dataclass
class Comparison:
    """The result of a comparison. `parts`: in both corpora; `differing`: columns whose bytes differ → parts; `wrong`:
    what must not differ.
    """

    parts: int = 0
    differing: dict[str, int] = field(default_factory=dict)
    least_cosine: float = 1.0
    wrong: list[str] = field(default_factory=list)


def compare_corpora(one: Corpus, other: Corpus) -> Comparison:
    """Compare two corpora part by part."""
    result = Comparison()
    for mine, theirs, where in ((one, other, other.url), (other, one, one.url)):
        lacking = sorted(set(mine.parts) - set(theirs.parts))
        if lacking:
            result.wrong.append(f"{where} lacks {counted(len(lacking), 'part')}, the first is {lacking[0]}")
        fits = sorted(set(mine.view.fits) - set(theirs.view.fits))
        result.wrong += [f"{where} lacks the fit of {name}" for name in fits]
    for part in sorted(set(one.parts) & set(other.parts)):
        result.parts += 1
        result.wrong += _scored_otherwise(one, other, part)
        columns = [_columns(corpus, part) for corpus in (one, other)]
        for name in sorted(columns[0].keys() | columns[1].keys()):
            first, second = (found.get(name) for found in columns)
            if first == second:
                continue
            if first is None or second is None:
                result.wrong.append(f"{name} of part {part} is in one corpus only")
                continue
            result.differing[name] = result.differing.get(name, 0) + 1
            if name.partition(".")[0] in EXACT:
                result.wrong.append(f"{name} of part {part} differs")
            elif name == "embeddings.embedding":
                _compare_embeddings(one, other, part, result)
    return result


def _scored_otherwise(one: Corpus, other: Corpus, part: str) -> Iterator[str]:
    """Yield the stages that scored another number of a part's sentences: no device explains that."""
    theirs = other.state_of(part).receipts
    for stage, receipt in one.state_of(part).receipts.items():
        scored = [each.counts.get("scored") for each in (receipt, theirs.get(stage, receipt))]
        if scored[0] != scored[1]:
            numbers = " and ".join(number(each or 0) for each in scored)
            yield f"{stage} of part {part} scored {numbers} sentences: the corpora have decided on other samples"


def _columns(corpus: Corpus, part: str) -> dict[str, str]:
    receipts = corpus.state_of(part).receipts.values()
    return {name: digest for receipt in receipts for name, digest in receipt.columns.items()}


def _compare_embeddings(one: Corpus, other: Corpus, part: str, result: Comparison) -> None:
    first, second = (corpus.embeddings(part).astype(np.float32) for corpus in (one, other))
    if first.shape != second.shape:
        result.wrong.append(f"embeddings of part {part} are {first.shape} and {second.shape}")
        return
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    products = np.einsum("ij,ij->i", first, second)
    cosine = np.where(norms > 0, products / np.maximum(norms, 1e-30), (first == second).all(axis=1))
    result.least_cosine = min(result.least_cosine, float(cosine.min()))
    if cosine.min() < LIKE:
        result.wrong.append(f"embeddings of part {part} differ: the least cosine is {cosine.min():.6f}, allowed {LIKE}")


SHOWN = 20


def verify_corpus(console: Console, store: Store, mend: bool, config: RunConfig | None = None) -> list[Finding]:
    """Read everything again, and report what is wrong.

    Args:
        console: where findings are shown.
        store: the corpus; `CorpusError` is raised if it is none.
        mend: whether to repair what is wrong.
        config: the configuration of the corpus, if it is given, to compare with the records.

    Returns:
        The findings, also those that were repaired.
    """
    indexes = set(indexes_of(store))  # before one that is damaged is deleted
    wrong = check_records(store, config)
    _say(console, wrong)
    repaired = [repair(store, wrong)] if wrong and mend else []
    if any(one.blocks for one in wrong) and not mend:
        console.print("The rows were not checked: the records above must be repaired first.")
    else:
        found = _check_rows(console, store, () if mend else [one.path for one in wrong])
        repaired += [repair(store, found)] if found and mend else []
        wrong = [*wrong, *found]
    _say_foreign_models(console, store, indexes)
    if wrong and mend:
        _say_repaired(console, repaired)
    elif wrong:
        console.print(
            "pipeline verify --repair rebuilds records from other files where it can, and deletes others, so that the "
            "next run or training makes what they stood for again",
            highlight=False,
        )
    return list(wrong)


def verify_sample(console: Console, store: Store, share: float) -> list[Finding]:
    """Read a random share of the chunks, other ones each time, and report what is wrong with them.

    If a hundredth of the chunks is damaged, a sample of 300 chunks finds it 19 times in 20.

    Args:
        console: where findings are shown.
        store: the corpus; `CorpusError` is raised if it is none, or if its records cannot be read.
        share: the share of the chunks, above 0 and at most 1.

    Returns:
        The findings; empty if the sample is as its receipts say.
    """
    corpus = Corpus(store.url)
    chunks = len(corpus.chunks)
    numbers = sorted(random.SystemRandom().sample(range(chunks), min(chunks, math.ceil(share * chunks))))
    found, read = _check_chunks(console, corpus, numbers)
    _say(console, found)
    if not found:
        of = f"{counted(len(numbers), 'chunk')} of {number(chunks)}"
        console.print(f"A sample agrees with its receipts: {of}, {size(read)}.", highlight=False)
    return found


def verify_share(console: Console, store: Store, share: tuple[int, int]) -> list[Finding]:
    """Read one of several equal shares of the chunks, and report what is wrong with them.

    The first share also checks what belongs to no chunk. All shares together read every file that the newest run needs,
    once; receipts of older runs are not read.

    Args:
        console: where findings are shown.
        store: the corpus.
        share: (which, of how many), the first being 1.

    Returns:
        The findings; empty if all is well.
    """
    which, of = share
    wrong = check_records(store, receipts=False) if which == 1 else []
    if not any(one.blocks for one in wrong):
        try:
            corpus = Corpus(store.url, store=Without(store.url, [one.path for one in wrong]))
            wrong += check_apart_from_rows(corpus) if which == 1 else []
            chunks = len(corpus.chunks)
            numbers = range(chunks * (which - 1) // of, chunks * which // of)
            found, read = _check_chunks(console, corpus, numbers, lost=which == 1)
            wrong += found
        except StorageError:  # a store that is away is no damage
            raise
        except CorpusError as error:
            wrong.append(Finding("the corpus", f"cannot be read: {error}", None))
    _say(console, wrong)
    if not wrong:
        what = f"{counted(len(numbers), 'chunk')} of {number(chunks)}, {size(read)}"
        console.print(f"Share {which} of {of} agrees with its receipts: {what}.", highlight=False)
    return wrong


def _check_chunks(
    console: Console, corpus: Corpus, numbers: Sequence[int], lost: bool = True
) -> tuple[list[Finding], int]:
    """Return what is wrong with some chunks, and how many bytes were read."""
    read = 0

    def add(done: int) -> None:
        nonlocal read
        read += done
        progress.add(done)

    expected = total_bytes(corpus) * len(numbers) // max(1, len(corpus.chunks))
    with RowProgress(console, expected, "bytes", "read") as progress:
        return check_chunks(corpus, numbers, add, lost), read


def _check_rows(console: Console, store: Store, hidden: Collection[str]) -> list[Finding]:
    """Return what is wrong with everything else. `hidden`: records that cannot be read."""
    try:
        corpus = Corpus(store.url, store=Without(store.url, hidden))
        with RowProgress(console, total_bytes(corpus), "bytes", "read") as progress:
            found = check(corpus, progress.add)
    except StorageError:
        raise
    except CorpusError as error:
        found = [Finding("the corpus", f"cannot be read: {error}", None)]
    _say(console, found)
    if not found and not hidden:
        files = f"{size(total_bytes(corpus))} in {counted(len(corpus.parts), 'part')}"
        console.print(
            f"Everything agrees with the receipts: {number(corpus.rows)} sentences, {files}.", highlight=False
        )
    return found


def _say_foreign_models(console: Console, store: Store, known: Collection[str]) -> None:
    """Say which models were trained on an index that is not here; that is no mistake, for an index may be deleted."""
    if not store.folders(TRAININGS):
        return
    for run, pinned in models_of(store):
        if lacking := sorted(set(pinned or ()) - set(known)):
            what = f"{run} was trained on an index that this corpus does not have: {', '.join(lacking)}"
            todo = "if the training was copied from another corpus, move it back; if the index was deleted, restore it"
            warn(console, f"{what}; {todo}")


def _say(console: Console, wrong: Sequence[Finding]) -> None:
    for one in wrong[:SHOWN]:
        console.print(Text(f"wrong: {one.path} {one.what}", style="bold red"), soft_wrap=True)
    if len(wrong) > SHOWN:
        console.print(f"and {counted(len(wrong) - SHOWN, 'mistake')} more")


def _say_repaired(console: Console, repaired: Sequence[tuple[int, int, list[str]]]) -> None:
    deleted, made = sum(one[0] for one in repaired), sum(one[1] for one in repaired)
    if made:
        console.print(f"{counted(made, 'record')} made again", highlight=False)
    if deleted:
        remake = "pipeline run makes what they vouched for again, pipeline train the models"
        console.print(f"{counted(deleted, 'receipt')} deleted: {remake}", highlight=False)
    for left in (text for one in repaired for text in one[2]):
        console.print(Text(left, style="red"), soft_wrap=True)


def compare_with(console: Console, one: Corpus, other: Corpus) -> bool:
    """Compare two corpora, and print where they differ.

    Args:
        console: where differences are shown.
        one: the first corpus.
        other: the second corpus.

    Returns:
        Whether they are the same, as far as that is promised.
    """
    result = compare_corpora(one, other)
    for what in result.wrong[:SHOWN]:
        console.print(Text(f"wrong: {what}", style="bold red"))
    if len(result.wrong) > SHOWN:
        console.print(f"and {counted(len(result.wrong) - SHOWN, 'difference')} more")
    for name, parts in sorted(result.differing.items()):
        console.print(f"{name}: different bytes in {counted(parts, 'part')}", markup=False, highlight=False)
    if not result.differing and not result.wrong:
        console.print(f"The same bytes in all {counted(result.parts, 'part')}.", highlight=False)
    elif not result.wrong:
        console.print(f"The same as far as GPUs allow: the least cosine is {result.least_cosine:.7f}.")
    return not result.wrong
