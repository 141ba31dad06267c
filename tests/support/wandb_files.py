"""Reads what Weights & Biases writes offline: records of its own protocol, in blocks as LevelDB's log has."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER, START = 32768, struct.Struct("<IHB"), 7
WHOLE, LAST = 1, 4  # kinds of pieces after which a record is complete


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a run-….wandb."""
    from wandb.proto import wandb_internal_pb2

    data, at, piece = path.read_bytes(), START, b""
    while at + HEADER.size <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER.size:
            at += left
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        at += HEADER.size
        piece += data[at : at + length]
        at += length
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(piece)
            piece = b""
            yield record


def read_run(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Return the configuration of a run, its history by step, and its summary."""
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    history = []
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            config |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
        if kind == "summary":
            summary |= {_key(one): json.loads(one.value_json) for one in record.summary.update}
        if kind == "history":
            history.append({_key(one): json.loads(one.value_json) for one in record.history.item})
    return config, history, summary


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)
