"""Tells an OpenLineage service (Marquez, DataHub, a file, …) which inputs a run reads and which corpus it makes.

OpenLineage's own environment variables say where events go, as for other tools: OPENLINEAGE_URL, OPENLINEAGE_CONFIG or
OPENLINEAGE__TRANSPORT__…; without them nothing is sent. A run begins with START, and ends with COMPLETE, FAIL or, if it
is interrupted, ABORT. Its `runId` follows from the corpus and the folder of the run, so that the job of a cluster that
ends a run names the same one. Events hold no text of documents, and URLs without credentials. A service that does not
answer costs a warning, never the run. Cost: one request each, and reading receipts at the end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rich.console import Console

from pipeline.base.errors import CorpusError
from pipeline.base.extras import missing_extras
from pipeline.base.messages import warn
from pipeline.config.run_config import RunConfig
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import SUMMARY, Summary
from pipeline.storage.records import read_json
from pipeline.storage.remote import without_credentials
from pipeline.storage.store import Store

if TYPE_CHECKING:
    from openlineage.client.event_v2 import OutputDataset, RunEvent

EMITS = 60.0  # seconds until a service is given up; its requests have limits of their own
NAMESPACE = "sonar-pipeline"  # of jobs, unless OPENLINEAGE_NAMESPACE says another
PRODUCER = "https://pypi.org/project/sonar-pipeline"
_PLACES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
_TRANSPORT = "OPENLINEAGE__TRANSPORT__"


def tell(console: Console, config: RunConfig, store: Store, run: str, *, ended: bool) -> None:
    """Say that a run begins, or how it ended according to its summary; nothing if it has none yet.

    Args:
        console: where a warning goes if that fails.
        config: the configuration of the run.
        store: the corpus.
        run: the folder of the run.
        ended: whether the run may have ended.
    """
    wanted = any(os.environ.get(name) for name in _PLACES) or any(name.startswith(_TRANSPORT) for name in os.environ)
    if not wanted or os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return
    if missing := missing_extras(["lineage"]):
        warn(console, f"OpenLineage's variables are set, but no event is sent: {missing}")
        return
    try:
        if ended and not store.exists(f"{run}/{SUMMARY}"):
            return
        _send(config, store, run, ended)
    except Exception as error:  # a library for any service may raise anything
        said = without_credentials(str(error).partition("\n")[0])
        warn(console, f"The OpenLineage event of this run was not taken ({said}); the run itself goes on.")


def dataset_name(url: str) -> tuple[str, str]:
    """Return namespace and name of files as OpenLineage has them: ("s3://bucket", "corpus"), ("file", "/data/mine")."""
    url = without_credentials(url)
    parts = urlsplit(url)
    if "://" not in url or parts.scheme == "file":
        return "file", str(Path(url.removeprefix("file://")).absolute())
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "/"


def _send(config: RunConfig, store: Store, run: str, ended: bool) -> None:
    from openlineage.client.event_v2 import InputDataset, Job, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run, job_type_job

    state = RunState.START
    facets: dict[str, Any] = {}
    if ended:
        summary = read_json(store, f"{run}/{SUMMARY}", Summary, "run again")
        state = RunState.COMPLETE if summary.done else RunState.ABORT if summary.interrupted else RunState.FAIL
        if state == RunState.FAIL:
            said = without_credentials("; ".join(summary.failures[:3])) or "the corpus is not complete"
            facets = {"errorMessage": error_message_run.ErrorMessageRunFacet(said, "PYTHON", producer=PRODUCER)}
    kind = job_type_job.JobTypeJobFacet("BATCH", "SONAR_PIPELINE", "JOB", producer=PRODUCER)
    event = RunEvent(
        eventTime=datetime.now(UTC).isoformat(),
        eventType=state,
        run=Run(str(uuid.uuid5(uuid.NAMESPACE_URL, f"{without_credentials(store.url)}/{run}")), facets),
        job=Job(os.environ.get("OPENLINEAGE_NAMESPACE", NAMESPACE), config.name, {"jobType": kind}),
        inputs=[InputDataset(*dataset_name(one.path)) for one in config.input],
        outputs=[_output(config, store, ended)],
        producer=PRODUCER,
    )
    _emit(event)


def _emit(event: RunEvent) -> None:
    """Send an event, and wait for `EMITS` seconds at most: the file of events may be a pipe that nobody reads.

    Raises what the library raises, `CorpusError` if it finds no place for events, and `TimeoutError`.
    """
    from openlineage.client import OpenLineageClient

    ended: list[BaseException | None] = []

    def emit() -> None:
        try:
            with _logged("openlineage") as said:
                client = OpenLineageClient()
            if said and client.transport.kind == "console":
                raise CorpusError("; ".join(dict.fromkeys(said)))
            client.emit(event)
            client.close(timeout=10.0)
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=emit, daemon=True)
    thread.start()
    thread.join(EMITS)
    if not ended:
        raise TimeoutError(f"nobody took it in {EMITS:.0f} s")
    if ended[0]:
        raise ended[0]


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage().partition("\n")[0])


@contextlib.contextmanager
def _logged(name: str) -> Iterator[list[str]]:
    """Collect the first lines of the warnings that a library logs, which are then not printed, nor their tracebacks."""
    logger, said = logging.getLogger(name), list[str]()
    handler = _Lines(said)
    logger.addHandler(handler)
    propagated, logger.propagate = logger.propagate, False
    try:
        yield said
    finally:
        logger.propagate = propagated
        logger.removeHandler(handler)


def _output(config: RunConfig, store: Store, ended: bool) -> OutputDataset:
    """Describe the corpus; at the end, with its columns and how many rows and files it has."""
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import output_statistics_output_dataset, schema_dataset

    facets: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    if ended:
        try:
            corpus = Corpus(store.url)
            rows, parts, columns = corpus.rows, len(corpus.parts), _columns(corpus)
        except CorpusError:  # of a run that failed before anything could be read
            return OutputDataset(*dataset_name(config.output))
        fields = [schema_dataset.SchemaDatasetFacetFields(name, kind) for name, kind in columns]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)
        counts["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=rows, fileCount=parts, producer=PRODUCER
        )
    return OutputDataset(*dataset_name(config.output), facets=facets, outputFacets=counts)


def _columns(corpus: Corpus) -> Sequence[tuple[str, str]]:
    return [(column.name, str(column.type)) for column in corpus.catalogue.values()]
