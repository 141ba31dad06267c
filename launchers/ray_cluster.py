"""Uses an existing Ray cluster: this process joins it as the driver, and every node works.

First, each node is asked whether it has the same code, libraries and models, and sees the corpus and the inputs. Nodes
may come and go: the work of a lost node is done by others, and a new node gets actors within seconds; one with other
code or models ends the run with a message. The cluster decides who may join: if it asks for a token,
RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) hold it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from launchers import actor_pool
from launchers.local import ENVIRONMENT, shut_down, without_native_log
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.interrupts import is_asked_to_stop, stopped_by_exit
from pipeline.config.run_config import RunConfig
from pipeline.coordination.identity import code_digest, identity, obstacles
from pipeline.corpus.events import Event
from pipeline.inputs import files_of
from pipeline.planning.plan import Plan
from pipeline.storage.store import Store

ANSWER_SECONDS = 180.0  # seconds for a node to start a process and load our code
CONNECT_SECONDS = 10.0  # for an address to take a connection
LOOK_SECONDS, LOOKS = 2.0, 3  # between looks for the head of the cluster; how many it misses before that is told
GONE_SECONDS = 40.0  # that the head may be away; Ray ends this process after 60, and then its run is not closed
HEAD_IS_GONE = (
    "\nThe head of the Ray cluster, {place}, takes no connections: it has ended, or the network is interrupted. "
    "This command ends if the head stays away for {seconds:.0f} s. Finished work is kept: once the cluster is up "
    "again, run the same command again.\n"
)
HEAD_IS_BACK = "The head of the Ray cluster takes connections again.\n"
HOST_AND_PORT = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:/@\[\]]+)):(?P<port>\d{1,5})")
ADDRESSES = (
    "--address HOST:6379 or auto (a cluster to join), or http://HOST:8265 (where to submit a job); --launcher local "
    "starts a Ray on this machine"
)
RAY_TRIES = "RAY_gcs_server_port_wait_time_s"  # how often Ray tries to join, 40 seconds each; by default 20 times
TOKEN_HINT = "RAY_AUTH_MODE=token with RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, if it asks for a token"


def checked_address(config: RunConfig) -> str:
    """Return the cluster's address. Raises `ConfigError` if the configuration gives none, or what cannot be one."""
    address = config.launcher.address
    if not address:
        raise ConfigError(f"launcher.kind is ray, but there is no address: give {ADDRESSES}")
    if address.startswith("ray://"):
        raise ConfigError(
            "launcher.address: ray:// is Ray Client, which cannot drive a run; give HOST:6379 to join the cluster, or "
            "http://HOST:8265 to submit"
        )
    found = HOST_AND_PORT.fullmatch(address)
    with_port = found and 0 < int(found["port"]) < 1 << 16
    if address != "auto" and not address.startswith(("http://", "https://")) and not with_port:
        raise ConfigError(f"launcher.address: {address!r} is no address of a Ray cluster; give {ADDRESSES}")
    return address


def run(plan: Plan, folder: str) -> Iterator[Event]:
    """Join, ask every node, carry out the plan; a fatal event is the last.

    Raises `ConfigError` if no cluster answers, `CorpusError` if a node cannot take part.
    """
    with joined(checked_address(plan.config)):
        first = {one.chunk.input: one.chunk for one in plan.chunks}
        check_nodes(plan.config, folder, [next(files_of(chunk)).url for chunk in first.values()])
        yield from actor_pool.run(plan, folder)


@contextlib.contextmanager
def joined(address: str, show: bool = False) -> Iterator[None]:
    """Join a cluster. `show`: print the output of its processes. Raises `ConfigError` if no cluster answers."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    try:
        try:
            _check_listening(address)
            with stopped_by_exit(), without_native_log(), _tried_once():
                ray.init(address=address, log_to_driver=show, logging_level=logging.CRITICAL)
        except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
            said = str(error).strip().split("\n")[0]
            raise ConfigError(
                f"launcher.address: cannot join a Ray cluster at {address} ({said}); check the address, that Ray there "
                f"is {ray.__version__} as here, and the token ({TOKEN_HINT}); finished work is kept"
            ) from error
        with _end_of_head_is_told():
            yield
    finally:
        shut_down()


@contextlib.contextmanager
def _end_of_head_is_told() -> Iterator[None]:
    """Tell, on stderr, if the head of the cluster goes away within the `with` block, and ask this process to stop
    before Ray ends it, which it does after a minute and without a word.
    """
    import ray

    place, over = ray.get_runtime_context().gcs_address, threading.Event()
    threading.Thread(target=_watch_head, args=(place, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch_head(place: str, over: threading.Event) -> None:
    host, _, port = place.rpartition(":")
    missed, since = 0, 0.0
    while not (over.wait(LOOK_SECONDS) or is_asked_to_stop()):
        try:
            socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS).close()
        except OSError:
            missed += 1
            if missed == 1:  # not before, or time in which this process was suspended would count
                since = time.monotonic()
            if missed == LOOKS:
                os.write(2, HEAD_IS_GONE.format(place=place, seconds=GONE_SECONDS).encode())
            if missed > LOOKS and time.monotonic() - since > GONE_SECONDS:
                os.kill(os.getpid(), signal.SIGTERM)
                return
        else:
            if missed >= LOOKS:
                os.write(2, HEAD_IS_BACK.encode())
            missed = 0


def _check_listening(address: str) -> None:
    """Raise `OSError` if HOST:PORT takes no connection, also at a second try; Ray would try for 14 minutes."""
    found = HOST_AND_PORT.fullmatch(address)
    if not found:
        return
    place = (found["ipv6"] or found["host"], int(found["port"]))
    try:
        socket.create_connection(place, CONNECT_SECONDS).close()
    except OSError:
        time.sleep(1)
        socket.create_connection(place, CONNECT_SECONDS).close()


@contextlib.contextmanager
def _tried_once() -> Iterator[None]:
    """Have Ray try once to join, unless the environment says otherwise."""
    given = RAY_TRIES in os.environ
    os.environ.setdefault(RAY_TRIES, "1")
    try:
        yield
    finally:
        if not given:
            del os.environ[RAY_TRIES]


def check_nodes(config: RunConfig, folder: str, inputs: Iterable[str]) -> None:
    """Check that every node of the cluster can take part in the work.

    Args:
        config: the configuration.
        folder: a folder in the corpus where a file is written for a moment.
        inputs: files that all nodes must see.

    Raises:
        CorpusError: with a line for each reason why a node cannot take part.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {one["NodeID"]: one for one in ray.nodes() if one["Alive"] and one["Resources"].get("CPU")}
    if not nodes:
        raise CorpusError("the Ray cluster has no node with a CPU; start some: ray start --address=HOST:6379")
    store, mark, token = Store(config.output), f"{folder}/seen-by-all", secrets.token_bytes(16)
    store.write(mark, token)
    question = ray.put((config, identity(config), mark, token, sorted(inputs)))
    look: Any = ray.remote(num_cpus=0, max_retries=0)(_look)
    answers = {
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            code_digest(), [question]
        ): node
        for node in nodes
    }
    try:
        ray.wait(list(answers), num_returns=len(answers), timeout=ANSWER_SECONDS)
        wrong = [
            f"node {nodes[node]['NodeManagerHostname']} ({nodes[node]['NodeManagerAddress']}): {line}"
            for answer, node in answers.items()
            for line in _answer(answer)
        ]
    finally:
        store.delete(mark)
    if wrong:
        raise CorpusError("\n".join(["some nodes of the Ray cluster cannot take part:", *wrong]))


def _answer(answer: Any) -> list[str]:
    import ray

    try:
        lines: list[str] = ray.get(answer, timeout=0)
    except ray.exceptions.GetTimeoutError:
        return [f"it gave no answer in {ANSWER_SECONDS:.0f} s; is it overloaded, or out of memory?"]
    except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
        return []  # the node has left, so nothing will run there
    except ray.exceptions.RayError as error:
        last = str(error).strip().split("\n")[-1]
        return [f"our code does not run there ({last}); install the same version of it on all nodes"]
    return lines


def _look(code: str, question: list[Any]) -> list[str]:
    """Run on a node: say what prevents it from working. The question is read only if the code is the same."""
    import ray

    if code_digest() != code:
        return [f"code is {code_digest()} instead of {code}; install the same version of it on all nodes"]
    return obstacles(*ray.get(question[0]))
