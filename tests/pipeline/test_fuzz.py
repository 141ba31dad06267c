"""Whatever stands in a file or on the command line, a parser gives what it is for, or its own error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.base.errors import ConfigError, CorpusError, DamagedError
from pipeline.conditions.expression import ExpressionError, parse
from pipeline.coordination.leases import Leases
from pipeline.coordination.lock import described, is_held
from pipeline.corpus.ledger import detail_of
from pipeline.corpus.receipts import ChunkReceipt, Receipt
from pipeline.inputs import plan_chunks
from pipeline.maintenance.purge import read_ids
from pipeline.storage.records import Values, parse_json, read_lines, read_yaml, sealed, sealed_yaml
from pipeline.storage.store import Store
from stages.yaml_text import load_yaml
from tests.support.inputs import entry, read

EXAMPLES = settings(max_examples=25)
TYPES = {"text": pa.string(), "chars": pa.int32(), "autobleu": pa.float32()}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
RECEIPT = {
    "stage": "encode", "part": "0123456789ab-00000", "fingerprint": "0" * 32, "recipe": "1" * 32, "inputs": {},
    "files": [], "columns": {}, "rows": 3, "counts": {}, "seconds": {}, "device": "cpu", "created": 1.5,
}  # fmt: skip
WORDS = ["chars", "autobleu", "text", "nothing", ">=", "<", "==", "in", "[", "]", "(", ")", "and", "or", "not", "is",
         "null", "1", "1e999", "'a'", "'", "matches", "contains", ",", "\x00", "(" * 40, "not " * 40]  # fmt: skip


@EXAMPLES
@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join))
@example("matches(text, '(a+)+$')")
def test_conditions(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        parse(text, TYPES, "--where")


@EXAMPLES
@given(key=st.sampled_from(sorted(RECEIPT)), value=JSON, cut=st.integers(0, 400))
def test_receipts_and_rows_of_ledgers(key: str, value: object, cut: int) -> None:
    changed = json.dumps(RECEIPT | {key: value})
    for text in (changed, changed[:cut]):
        for kind in (Receipt, ChunkReceipt):
            with contextlib.suppress(DamagedError):
                parse_json(text, kind, "receipt", "")
        with contextlib.suppress(CorpusError):
            detail_of(json.dumps({"chunk": RECEIPT, "parts": [{"encode": RECEIPT | {key: value}}]})[:cut], "ledger")


@EXAMPLES
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_sealed_record_is_what_it_was_or_damaged(place: int, bit: int) -> None:
    """Whichever bit is another."""
    data = bytearray(sealed(json.dumps(RECEIPT)))
    data[place % len(data)] ^= 1 << bit
    try:
        found = parse_json(bytes(data), Receipt, "receipt", "")
    except DamagedError:
        return
    assert found == Receipt.model_validate(RECEIPT)


@EXAMPLES
@given(content=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
@example(b'{"user": 1, "host": [], "pid": "x", "jobs": ["1; rm"], "run": "../..", "since": "x"}')
def test_leases(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    store = Store(str(tmp_path_factory.mktemp("leases")))
    store.write("lock/run-000.lease", content)
    leases = Leases(store, "lock", 10.0)
    leases.poll()
    holder = leases.holder("run")
    assert leases.alive("run") and isinstance(described(holder), str)
    is_held(holder, True, lambda jobs: True)
    assert "jobs" not in holder or all(one.replace("_", "").isdigit() for one in holder["jobs"])


@EXAMPLES
@given(text=st.text(max_size=60) | JSON.map(lambda value: yaml.safe_dump(value)))
@example("a: &a [*a]")
@example("[" * 60)
@example("a: 0x" + "f" * 6000)
def test_yaml(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    with contextlib.suppress(yaml.YAMLError):
        load_yaml(text)
    store = Store(str(tmp_path_factory.mktemp("yaml")))
    for data in (text.encode("utf-8", "surrogatepass"), b"\xff" + text.encode("utf-8", "surrogatepass")):
        store.write("a.yaml", data)
        with contextlib.suppress(DamagedError):
            assert isinstance(read_yaml(store, "a.yaml", ""), dict)


def test_sealed_yaml_is_what_it_was_or_damaged(tmp_path: Path) -> None:
    store, data = Store(str(tmp_path)), sealed_yaml("name: a\noutput: b\n")
    store.write("a.yaml", data)
    assert read_yaml(store, "a.yaml", "") == {"name": "a", "output": "b"}
    for place in range(len(b"# seal: "), len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        store.write("a.yaml", bytes(changed))
        with pytest.raises(DamagedError):
            read_yaml(store, "a.yaml", "")


@EXAMPLES
@given(lines=st.lists(st.binary(max_size=30) | JSON.map(lambda value: json.dumps(value).encode()), max_size=5))
def test_lines(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    """Logs of ours, documents of others, ids to purge: of documents each line is counted, whatever is in it."""
    folder = tmp_path_factory.mktemp("lines")
    for name in ("some.jsonl", "ids.txt"):
        (folder / name).write_bytes(b"\n".join(lines) + b"\n")
    with contextlib.suppress(DamagedError):
        read_lines(Store(str(folder)), "some.jsonl", Values, "")
    for name in ("some.jsonl", "ids.txt"):
        with contextlib.suppress(ConfigError):
            assert all(read_ids(str(folder / name)))
    source = entry(folder / "some.jsonl")
    read(plan_chunks(source), source)
