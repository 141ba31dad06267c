"""The process of one tracker: takes lines of metrics.jsonl from its standard input, and answers each message.

    python -m pipeline.training.trackers.process wandb

Libraries of trackers start threads, wait for networks and register work for the end of the process; here none of that
can touch a training. It ends when its standard input does, so no signal to the training needs to reach it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pipeline.storage.remote import without_credentials
from pipeline.training.status import Numbers
from pipeline.training.trackers.about import About, Attachment, Tracker

NOTHING_BESIDES = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}  # unless somebody says so
SECRETS = ("KEY", "TOKEN", "PASSWORD", "SECRET", "CREDENTIAL")  # in names of variables whose values are never shown
LONGEST = 300  # characters of an error


def tracker_of(name: str, about: About) -> Tracker:
    """Return the tracker of a name; its library is imported here."""
    if name == "wandb":
        from pipeline.training.trackers.weights_and_biases import WeightsAndBiases

        return WeightsAndBiases(about)
    from pipeline.training.trackers.mlflow_store import MlflowStore

    return MlflowStore(about)


def serve(name: str, receive: Callable[[], str], answer: Callable[[dict[str, Any]], None]) -> None:
    """Answer messages until there are none; a tracker that raises an error is not asked again.

    Args:
        name: the tracker, as `train.trackers` names it.
        receive: returns the next message as JSON; empty at the end.
        answer: sends an answer.
    """
    tracker: Tracker | None = None
    last: dict[str, int] = {}
    end = "stopped"
    try:
        while text := receive():
            message = json.loads(text)
            if "about" in message:
                tracker = tracker_of(name, About.model_validate(message["about"]))
                last = tracker.begin()
            assert tracker
            if "lines" in message:
                new: list[Numbers] = [one for one in message["lines"] if one["step"] > last.get(one["kind"], -1)]
                if new:
                    tracker.log(new)
            if "attachment" in message:
                tracker.attach(Attachment.model_validate(message["attachment"]))
            if "end" in message:
                end = ""
                tracker.end(message["end"])
            answer({"done": True})
        if tracker and end:
            tracker.end(end)
    except Exception as error:  # a library may raise anything
        answer({"lost": said(error)})
        with contextlib.suppress(Exception):
            if tracker and end:
                tracker.end("lost")


def said(error: Exception) -> str:
    """Return an error in one line, without anything that is secret."""
    text = " ".join(str(error).split()) or "no reason given"
    for key, value in os.environ.items():
        if len(value) >= 6 and any(word in key.upper() for word in SECRETS):
            text = text.replace(value, "…")
    return f"{type(error).__name__}: {without_credentials(text)[:LONGEST]}"


def main() -> None:
    """Run the process. What libraries print goes nowhere: the pipe is for answers."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(one, signal.SIG_IGN)
    for key, value in NOTHING_BESIDES.items():
        os.environ.setdefault(key, value)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    serve(sys.argv[1], sys.stdin.readline, answer)


if __name__ == "__main__":
    main()
