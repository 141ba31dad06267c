"""A process that segments beside the one that visits parts, so that neither waits for the other.

It takes chunk after chunk and reports its events; sentences go through storage. If it dies, another process takes the
chunk that it died in, until that is set aside. It ends with the process that started it, however that ends, and then
leaves no mark on its chunk, which is not to blame. Cost: a few seconds of a CPU to start, and 500 MB.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from launchers.actors import set_threads
from pipeline.base.errors import HostDiedError
from pipeline.config.run_config import RunConfig
from pipeline.corpus.events import Event
from pipeline.inputs import Chunk
from pipeline.run.hosts import END_SECONDS, Host, receive, send
from pipeline.run.tasks import MAX_STARTS, SegmentTask, failed_event
from stages.computing import segmented, tell_segmented

TELL_SECONDS = 1.0
NICE = 5  # beside networks on the same cores; beside other programs, a lower priority would starve


class SegmentingProcess:
    """Yields the events of chunks, in order. `device`: where SaT computes.

    It may be given chunks again, of another shard, once it is over: the process stays.
    """

    def __init__(self, config: RunConfig, device: str) -> None:
        self._order = (config, device)
        self._gpu = device != "cpu"
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()  # None: all chunks are done
        self._host: Host | None = None
        self._stopping = threading.Lock()  # held while a process is started or ended
        self._stopped = False
        self._folder = ""
        self.over = True

    def segment(self, chunks: Sequence[Chunk], folder: str) -> None:
        """Begin with these chunks. `folder`: that of the run or of the shard, which holds marks."""
        self.over, self._folder = False, folder
        threading.Thread(target=self._work, args=(chunks,), daemon=True).start()

    def __enter__(self) -> SegmentingProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with self._stopping:
            self._stopped = True
            if self._host:
                self._host.end()
                self._host = None

    def wait(self) -> Iterator[Event]:
        """Yield the next event as soon as there is one, and those that follow; sets `over` after the last one."""
        first = True
        while not self.over and (first or not self._events.empty()):
            event, first = self._events.get(), False
            if event is None:
                self.over = True
            else:
                yield event

    def come(self) -> Iterator[Event]:
        """Yield events that came since the last call, without waiting."""
        return iter(()) if self._events.empty() else self.wait()

    def _work(self, chunks: Sequence[Chunk]) -> None:
        try:
            for chunk in chunks:
                if self._stopped:
                    break
                self._segment(chunk)
        except Exception as error:
            self._events.put(failed_event("segment", error))
        self._events.put(None)

    def _segment(self, chunk: Chunk) -> None:
        """Have a chunk segmented, by one process after the other if they die in it."""
        seen: set[str] = set()
        for _ in range(MAX_STARTS + 1):  # the last one finds the marks of the others, and says so
            host = self._running()
            if not host:
                return
            try:
                send(host.socket, (self._folder, chunk.to_json()))
                while (said := receive(host.socket)) is not None:
                    if isinstance(said, int):
                        tell_segmented(said)
                        continue
                    event = Event.model_validate_json(said)
                    if event.kind != "segmented" or event.where not in seen:
                        seen.add(event.where)
                        self._events.put(event)
                return
            except (EOFError, OSError):
                ended = self._end_of(host)
        died = HostDiedError(f"the process that segments died {MAX_STARTS + 1} times in a row; the last one {ended}")
        self._events.put(failed_event(chunk.path, died))

    def _running(self) -> Host | None:
        """Return the process, started if there is none; None after the end."""
        with self._stopping:
            if not self._host and not self._stopped:
                self._host = Host(self._order, "launchers.segmenting_process", gpu=self._gpu)
            return self._host

    def _end_of(self, host: Host) -> str:
        with self._stopping:
            if self._host is not host:
                return "was stopped"
            self._host = None
            return host.end()


def main(connection: int, life: int) -> None:
    """Segment chunks until the other side closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one is interrupted too, and ends it
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_watch, args=(life,), daemon=True).start()
    asking = socket.socket(fileno=connection)
    answering = threading.Lock()
    threading.Thread(target=_tell, args=(asking, answering), daemon=True).start()
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        config, device = receive(asking)
        set_threads(device, 1, NICE)
        task: SegmentTask | None = None
        try:
            while True:
                folder, text = receive(asking)
                chunk = Chunk.from_json(text)
                if task is None:
                    task = SegmentTask(config, folder, device)
                elif folder != task.folder:
                    task.under(folder)
                with contextlib.closing(task(chunk)) as events:
                    for event in events:
                        with answering:
                            send(asking, event.model_dump_json())
                with answering:
                    send(asking, segmented())
                    send(asking, None)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this process ends already


def _tell(asking: socket.socket, answering: threading.Lock) -> None:
    """Send how many characters have been segmented, whenever that is more."""
    said = 0
    with contextlib.suppress(OSError):
        while True:
            time.sleep(TELL_SECONDS)
            done = segmented()
            if done != said:
                with answering:
                    send(asking, done)
                said = done


def _watch(life: int) -> None:
    os.read(life, 1)  # returns when the process with the other end has ended
    _thread.interrupt_main(signal.SIGTERM)  # takes the mark away
    time.sleep(END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
