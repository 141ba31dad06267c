"""The two functions that a launcher runs somewhere, which report events and never raise.

Descriptors and events are small JSON texts; embeddings never travel, they go from the worker to storage. A part that
kills its worker is set aside, and not tried for ever.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.base.errors import AsideError, HostDiedError, MissingError, PipelineError, StartError, StorageError
from pipeline.coordination.identity import Identity, check_identity
from pipeline.corpus.events import Event
from pipeline.corpus.ledger import compact
from pipeline.corpus.leftovers import sweep
from pipeline.corpus.receipts import ChunkReceipt, PartRef
from pipeline.corpus.runs import STARTS
from pipeline.corpus.states import View, fold, read_state
from pipeline.inputs import Chunk
from pipeline.storage.remote import AwayError, without_credentials
from pipeline.storage.retry import be_patient, is_transient
from pipeline.storage.store import Store

if TYPE_CHECKING:  # imported where work is done, because torch and spaCy take seconds
    from pipeline.config.run_config import RunConfig
    from pipeline.run.hosts import HostedWorker
    from pipeline.run.segmenting import ChunkSegmenter
    from pipeline.run.worker import PartWorker

MAX_STARTS = 3
ASIDE = "is set aside for this run"  # in the errors of parts and chunks that are set aside


class _Task:
    """Does work on a device, with marks of attempts in `folder`: that of the run, or of its shard (`marks_of`)."""

    def __init__(self, config: RunConfig, folder: str, device: str, ordered: Identity | None) -> None:
        self._config, self._device, self._ordered = config, device, ordered
        self.under(folder)

    def under(self, folder: str) -> None:
        """Leave marks in another folder from now on: that of the next shard. What is loaded stays loaded."""
        self.folder = folder
        self._starts = _Attempts(self._config, folder)

    def _check_machine(self) -> None:
        """Check the machine, once before anything is loaded on it."""
        if self._ordered:
            check_identity(self._ordered, self._config)


class SegmentTask(_Task):
    """Turns chunks into events: one per part, and one for the chunk.

    Args:
        config: the configuration, with what is frozen.
        folder: the folder for marks of attempts: that of the run, or of its shard (`marks_of`).
        device: where networks compute: `cpu`, `cuda:0`, `mps`.
        ordered: the identity of the machine where the run was started; None on that machine.
    """

    def __init__(self, config: RunConfig, folder: str, device: str, ordered: Identity | None = None) -> None:
        super().__init__(config, folder, device, ordered)
        self._segmenter: ChunkSegmenter | None = None

    def __call__(self, chunk: Chunk) -> Generator[Event]:
        """Segment a chunk."""
        try:
            with self._starts.marked(chunk.id):
                yield from self._segment(chunk)
        except Exception as error:
            yield failed_event(chunk.path, error)

    def _segment(self, chunk: Chunk) -> Iterator[Event]:
        from pipeline.run.segmenting import ChunkSegmenter

        if not self._segmenter:
            self._check_machine()
            self._segmenter = ChunkSegmenter(self._config, self._device)
        for item in self._segmenter.run(chunk):
            if isinstance(item, ChunkReceipt):
                yield Event(
                    kind="chunk",
                    where=chunk.path,
                    rows=item.sentences,
                    documents=item.kept,
                    bytes=item.bytes_read,
                )
            else:
                yield Event(kind="segmented", where=item.ref.part, ref=item.ref, rows=item.rows)


class PartTask(_Task):
    """Brings parts up to date, and turns each into an event; several threads may call it.

    A part that was being worked on when its worker died is tried alone, so that no other part is blamed.

    Args:
        config: the configuration, with what is frozen.
        folder: the folder for marks of attempts: that of the run, or of its shard (`marks_of`).
        device: where networks compute: `cpu`, `cuda:0`, `mps`.
        stages: the stages that a visit may bring up to date.
        ordered: the identity of the machine where the run was started; None on that machine.
        hosted: whether parts are visited by processes of their own, which leave only the device to this one.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: str,
        device: str,
        stages: tuple[str, ...],
        ordered: Identity | None = None,
        hosted: bool = False,
    ) -> None:
        super().__init__(config, folder, device, ordered)
        self._stages = stages
        self._loading = threading.Lock()
        self._stream = _SharedOrAlone()
        self._hosted = hosted
        self._worker: PartWorker | HostedWorker | None = None

    def __call__(self, ref: PartRef) -> Event:
        """Visit a part; repeat it if its host dies, until it is set aside."""
        while True:
            try:
                with self._stream.enter(alone=self._starts.died_in(ref.part) > 0), self._starts.marked(ref.part):
                    visit = self._loaded().visit(ref)
            except HostDiedError:
                continue
            except Exception as error:
                return failed_event(ref.part, error)
            return Event(kind="part", where=visit.part, rows=visit.rows, computed=visit.computed)

    def _loaded(self) -> PartWorker | HostedWorker:
        with self._loading:
            if not self._worker:
                self._check_machine()
                if self._hosted:
                    from pipeline.run.hosts import HostedWorker

                    self._worker = HostedWorker(self._config, self._device, self._stages)
                else:
                    from pipeline.run.worker import PartWorker

                    self._worker = PartWorker(self._config, self._device, self._stages)
            return self._worker

    def close(self) -> None:
        """End the processes that visit parts; they also end by themselves when this process does."""
        from pipeline.run.hosts import HostedWorker

        if isinstance(self._worker, HostedWorker):
            self._worker.close()


def marks_of(run: str, phase: int, shard: int) -> str:
    """Return the folder below which the marks of a shard lie, apart from those of all other shards.

    Args:
        run: the folder of the run.
        phase: the number of the phase.
        shard: the number of the shard.

    Returns:
        The path of the folder.
    """
    return f"{run}/{STARTS}/{phase}-{shard:05d}"


def carry_marks(store: Store, run: str, phase: int, shard_of: Callable[[str], int | None]) -> None:
    """Move the marks of workers that died in earlier phases to the shards of this phase.

    Cost: one listing of what dead workers have left.

    Args:
        store: the corpus.
        run: the folder of the run.
        phase: the number of this phase.
        shard_of: id of a chunk → number of its shard now, or None if it is in none.
    """
    for path in store.find(f"{run}/{STARTS}"):
        name = path.rpartition("/")[2]
        shard = shard_of(name.partition("-")[0])
        target = f"{marks_of(run, phase, shard)}/{STARTS}/{name}" if shard is not None else path
        if target != path:
            store.create(target, secrets.token_bytes(8))
            store.delete(path)


class _Attempts:
    """Marks of what is being worked on, in the folder of the run or of a shard. A mark that a worker finds when it
    begins was left by a worker that died.

    So a part that kills its worker is set aside, and not tried for ever.
    """

    def __init__(self, config: RunConfig, folder: str) -> None:
        be_patient(config.launcher.storage_patience)
        self._store = Store(config.output)
        self._folder = f"{folder}/{STARTS}"
        self._deaths = Counter(path.rpartition("/")[2].rpartition("-")[0] for path in self._store.listing(self._folder))

    def died_in(self, name: str) -> int:
        """Return how many workers had died in an item when this one began it."""
        return self._deaths[name]

    @contextlib.contextmanager
    def marked(self, name: str) -> Iterator[None]:
        """Mark a part or chunk inside the `with` block. Raises `AsideError` if three workers have died in it."""
        mark, token = "", secrets.token_bytes(8)
        try:
            for number in range(MAX_STARTS):
                mark = f"{self._folder}/{name}-{number}"
                if self._store.create(mark, token):
                    break
            else:
                raise AsideError(
                    f"{name} killed its worker {MAX_STARTS} times and {ASIDE}; look for the cause "
                    "(memory?) in the machine's log, then run again"
                )
            yield
            self._store.delete(mark)  # it has ended, well or not; only a process that dies leaves its mark
        except HostDiedError:
            self._deaths[name] += 1
            raise
        except BaseException:  # also where a signal comes while the mark is made
            with contextlib.suppress(MissingError):
                if mark and self._store.read(mark) == token:
                    self._store.delete(mark)
            raise


class _SharedOrAlone:
    """A lock that admits many at once, or one alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone = 0  # how many are inside or waiting

    @contextlib.contextmanager
    def enter(self, *, alone: bool) -> Iterator[None]:
        """Wait until nobody else is inside (`alone`), or nobody wants to be alone."""
        with self._changed:
            if alone:
                self._alone += 1
                self._changed.wait_for(lambda: self._inside == 0)
            else:
                self._changed.wait_for(lambda: self._alone == 0)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._alone -= alone
                self._changed.notify_all()


def attempts_at(store: Store, folder: str) -> list[str]:
    """Return the marks below a folder: of work in progress, and of workers that died."""
    return list(store.listing(f"{folder}/{STARTS}"))


def clear_attempts(store: Store, folder: str) -> None:
    """Delete the marks below a folder, whose workers were stopped and did not die."""
    for path in attempts_at(store, folder):
        store.delete(path)


def fold_chunks(config: RunConfig, ordered: Identity | None, chunks: Sequence[Chunk], compacts: bool) -> None:
    """Write a ledger of finished chunks while others are worked on: a run that begins later reads fewer receipts.

    What killed attempts at their parts left is deleted first: later only `pipeline gc` would look for it.

    Args:
        config: the configuration, with what is frozen.
        ordered: the identity of the machine where the run was started; None on that machine.
        chunks: the chunks, of whose parts all have the same stages, whichever those are; the others are left out.
        compacts: whether small ledgers are merged then.
    """
    if ordered:
        check_identity(ordered, config)
    be_patient(config.launcher.storage_patience)
    store = Store(config.output)
    state = read_state(store, View.of(config, chunks), ledgers=False)
    sweep(store, state, whole=False)
    fold(store, state)
    if compacts:
        compact(store)


def failed_event(where: str, error: BaseException) -> Event:
    """Return an exception as an event."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} …"
    if not isinstance(error, PipelineError):  # our own errors are sentences
        text = f"{type(error).__name__}: {text}"
    return Event(
        kind="failed",
        where=where,
        error=without_credentials(text),
        detail=without_credentials("".join(traceback.format_exception(error))),
        fatal=isinstance(error, (StorageError, StartError)),
        away=isinstance(error, AwayError) or is_transient(error),  # of inputs, as their client reports it
    )
