"""Runs whose corpus lies on a bad S3: the same corpus as on a good disk, or an end in words."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.base.errors import StorageError
from pipeline.corpus.accounting import Accounting, compute_accounting
from pipeline.corpus.reader import Corpus
from pipeline.inputs import list_files
from pipeline.maintenance.verify import check
from pipeline.run.tasks import failed_event
from pipeline.storage import retry
from pipeline.storage.store import Store
from tests.conftest import MakeConfig, data_digests, sample_documents, write_config, write_jsonl
from tests.faults.s3_proxy import S3Proxy
from tests.support.cli import pipeline, said
from tests.support.inputs import COMPRESS, entry, jsonl, read_all, texts
from tests.support.processes import Process, start
from tests.support.runs import bring_up_to_date
from tests.support.trainings import make_corpus, write_card

pytestmark = pytest.mark.faults

SMALL_TRAINING = {
    "model": "small.yaml", "name": "m", "steps": 4, "batch_concepts": 128, "micro_concepts": 64, "validate_every": 0,
    "validation_concepts": 20, "evaluate_sentences": 0, "checkpoint_every": 1, "keep_checkpoints": 1,
}  # fmt: skip
FAMILIES = {"documents", "sentences", "embeddings", "status", "codes", "chunks", "receipts", "fits", "recipes"}
ROOM = "make space there, or have the quota raised, then run the same command again: finished work is kept"
SMALL_PARTS = {"autobleu": None, "segment": {"method": "spacy-capped", "max_chars": 40}}


@pytest.fixture
def bad(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., S3Proxy]]:
    """Puts a bad proxy before the bucket, for this process and those that it starts."""
    good = os.environ["AWS_ENDPOINT_URL"]
    proxies: list[S3Proxy] = []

    def start(**faults: float) -> S3Proxy:
        proxies.append(S3Proxy(good, **faults).__enter__())
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxies[0].url)
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # of clients with the good address
        return proxies[0]

    yield start
    for proxy in proxies:
        proxy.__exit__()


def books_of(url: str) -> Accounting:
    corpus = Corpus(url)
    accounting = compute_accounting(corpus.store, corpus.chunks)
    assert accounting.complete and not accounting.problems, accounting.problems
    return accounting


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The corpus of `make_config` on a good disk."""
    folder = tmp_path_factory.mktemp("good")
    for name, count in (("libreoffice-eng", 6), ("postgresql-eng", 4), ("libreoffice-deu", 4)):
        write_jsonl(folder / "in" / f"{name}.jsonl", sample_documents(name, count))
    bring_up_to_date(write_config(folder, **SMALL_PARTS))
    return data_digests(folder / "out")


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_the_same_corpus_and_every_repetition_counted(
    make_config: MakeConfig, bucket: str, expected: dict[str, str], bad: Callable[..., S3Proxy], launcher: str
) -> None:
    proxy = bad(refused=0.03, lost=0.03, broken=0.02)
    path = make_config(**SMALL_PARTS, output=f"{bucket}/corpus")
    run = pipeline("run", path, "--launcher", launcher)
    assert run.returncode == 0, run
    assert proxy.faults["refused"] > 0 and proxy.faults["lost"] > 0, proxy.faults
    faults = proxy.faults.total()
    proxy.shares.clear()
    assert data_digests(f"{bucket}/corpus") == expected
    accounting = books_of(f"{bucket}/corpus")
    (summary,) = (one for one in Store(f"{bucket}/corpus").find("runs") if one.endswith("summary.json"))
    of_driver = json.loads(Store(f"{bucket}/corpus").read(summary)).get("storage_retries", {})
    counted = accounting.repeated + sum(of_driver.values())
    # every fault brings one repetition; not told: what a process repeated after its last receipt
    assert 0.3 * faults < counted <= faults, (counted, proxy.faults)
    assert f"storage     {accounting.repeated} requests had to be repeated" in " ".join(run.stdout.split("\n")), (
        run.stdout
    )


def test_a_store_that_goes_away_for_a_while(
    make_config: MakeConfig, bucket: str, expected: dict[str, str], bad: Callable[..., S3Proxy]
) -> None:
    proxy = bad()
    path = make_config(**SMALL_PARTS, output=f"{bucket}/corpus")
    process = started(path, proxy)
    proxy.go_away(8.0)
    shown, _ = process.communicate(timeout=600)
    assert process.returncode == 0 and proxy.faults["gone"] >= 3, (shown, proxy.faults)
    assert data_digests(f"{bucket}/corpus") == expected
    assert books_of(f"{bucket}/corpus").repeated > 0


def test_killed_while_it_writes_and_resumed(
    make_config: MakeConfig, bucket: str, expected: dict[str, str], bad: Callable[..., S3Proxy]
) -> None:
    proxy = bad(latency=0.005, refused=0.02, lost=0.02)
    path = make_config(**SMALL_PARTS, output=f"{bucket}/corpus")
    moments = random.Random("kill on S3")
    for _ in range(3):
        before = proxy.requests
        process = start("run", path)
        after = before + moments.randint(40, 100)
        wait_until(lambda after=after, process=process: proxy.requests > after or process.poll() is not None)
        assert process.poll() is None, "the run was over before the kill: use a larger corpus"
        process.kill()
        process.wait()
    last = pipeline("run", path)
    assert last.returncode == 0, last
    proxy.shares.clear()
    assert data_digests(f"{bucket}/corpus") == expected
    books_of(f"{bucket}/corpus")


def test_bytes_that_change_behind_a_receipt(make_config: MakeConfig, bucket: str, expected: dict[str, str]) -> None:
    url = f"{bucket}/corpus"
    path = make_config(**SMALL_PARTS, output=url)
    bring_up_to_date(path)
    store = Store(url)
    changed = [store.find(family)[1] for family in ("embeddings", "sentences")]
    for name in changed:
        data = bytearray(store.read(name))
        data[len(data) // 2] ^= 1
        store.write(name, bytes(data))
    found = pipeline("verify", url, "--repair")
    assert found.returncode == 1 and all(name in found.stdout for name in changed), found
    again = pipeline("run", path)
    assert again.returncode == 0, again
    assert data_digests(url) == expected
    assert not check(Corpus(url), lambda read: None)


def test_credentials_that_run_out_stop_the_run(
    make_config: MakeConfig, bucket: str, expected: dict[str, str], bad: Callable[..., S3Proxy]
) -> None:
    proxy = bad()
    path = make_config(**SMALL_PARTS, output=f"{bucket}/corpus")
    process = started(path, proxy)
    proxy.expired = True
    shown, _ = process.communicate(timeout=600)
    assert process.returncode == 1 and "Traceback" not in shown, shown
    assert "(PermissionError); let these credentials" in " ".join(shown.split())
    assert proxy.faults["expired"] < 20, "it went on asking"
    proxy.expired = False
    assert pipeline("run", path).returncode == 0
    assert data_digests(f"{bucket}/corpus") == expected


@pytest.mark.parametrize(
    ("answer", "first", "words"),
    [
        ("quota", "receipts/segment/", ROOM),
        ("full", "embeddings/", ROOM),
        ("denied", "receipts/encode/", "(PermissionError); let these credentials"),
    ],
)
def test_a_store_that_takes_nothing_more(
    make_config: MakeConfig, bucket: str, expected: dict[str, str], bad: Callable[..., S3Proxy],
    answer: str, first: str, words: str,
) -> None:  # fmt: skip
    proxy, url = bad(), f"{bucket}/corpus"
    proxy.full, proxy.filled_by = answer, re.compile(f"/corpus/corpus/{first}")
    path = make_config(**SMALL_PARTS, output=url)
    process = start("run", path)
    shown, _ = process.communicate(timeout=600)
    assert process.returncode == 1 and "Traceback" not in shown, shown
    assert words in " ".join(shown.split()) and 0 < proxy.faults["full"] < 6, (shown, proxy.faults)
    finished = Store(url).find("receipts")
    proxy.make_room()
    done = pipeline("run", path)
    assert done.returncode == 0, said(done)
    assert data_digests(url) == expected and set(finished) <= set(Store(url).find("receipts"))


def test_an_export_to_a_store_that_is_full_at_its_end(
    make_config: MakeConfig, bucket: str, tmp_path: Path, bad: Callable[..., S3Proxy]
) -> None:
    proxy, to = bad(), f"{bucket}/to"
    bring_up_to_date(make_config(**SMALL_PARTS))
    command = ("export", tmp_path / "out", "--format", "parquet", "--to")
    proxy.full, proxy.filled_by = "full", re.compile(r"/corpus/to/\.?export\.json")
    done = pipeline(*command, to)
    assert done.returncode == 1 and ROOM in " ".join(said(done).split()), said(done)
    assert not Store(to).find("") and not Store(str(tmp_path / "out")).find("exports")
    proxy.make_room()
    done = pipeline(*command, to)
    assert done.returncode == 0, said(done)
    assert Store(to).exists("export.json") and len(Store(str(tmp_path / "out")).find("exports")) == 1


@pytest.mark.parametrize(
    ("variable", "value", "bucket_name", "words"),
    [
        ("AWS_ACCESS_KEY_ID", None, "corpus", "NoCredentialsError); give credentials: environment variables"),
        ("AWS_DEFAULT_REGION", "us-east-1", "nobodys", "there is no bucket nobodys; make it, or correct its name"),
    ],
)
def test_a_store_that_cannot_be_used(
    make_config: MakeConfig,
    bucket: str,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str | None,
    bucket_name: str,
    words: str,
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    if value is None:
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.delenv(variable)
    run = pipeline("run", make_config(output=f"s3://{bucket_name}/corpus"))
    shown = " ".join((run.stdout + run.stderr).split())
    assert run.returncode in (1, 2) and words in shown and "Traceback" not in shown, run
    assert not retry.take_retry_counts(), "it asked again, in vain"


def test_training_purging_and_gc_on_a_store_that_answers_503(
    bucket: str, bad: Callable[..., S3Proxy], tmp_path: Path
) -> None:
    """The weights, the rows that are left and the files that go are those of a good store, though each of these
    commands was killed while requests were refused, and typed again.
    """
    url = f"{bucket}/corpus"
    path = make_corpus(tmp_path, output=url)
    write_card(tmp_path)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"train": SMALL_TRAINING}))
    (tmp_path / "ids.txt").write_text(sample_documents("libreoffice-eng", 1)[0]["id"] + "\n")
    commands: tuple[tuple[object, ...], ...] = (
        ("train",), ("purge", "--ids", tmp_path / "ids.txt"), ("run", "--until", "rvq"),
        ("gc", "--delete", "--yes", "--older-views"),
    )  # fmt: skip

    def everything() -> tuple[bytes, dict[str, str], Counter[str]]:
        store = Store(url)
        there = Counter(one.partition("/")[0] for one in store.find("") if one.partition("/")[0] in FAMILIES)
        assert there.keys() >= {"embeddings", "receipts", "fits"}
        return store.read("train/m/model.safetensors"), data_digests(url), there

    fs = fsspec.filesystem("s3")
    fs.get("corpus/corpus", str(tmp_path / "saved"), recursive=True)
    for command, *options in commands:
        ended = pipeline(command, path, *options)
        assert ended.returncode == 0, ended
    expected = everything()
    proxy = bad()
    fs = fsspec.filesystem("s3")
    fs.rm("corpus/corpus", recursive=True)
    fs.put(str(tmp_path / "saved") + "/", "corpus/corpus", recursive=True)
    for command, *options in commands:
        proxy.shares.update(refused=0.05, lost=0.02)
        before = proxy.faults["refused"]
        process = start(command, path, *options)
        wait_until(lambda least=before + 2, process=process: (
            proxy.faults["refused"] > least or process.poll() is not None
        ))  # fmt: skip
        process.kill()
        process.wait()
        ended = pipeline(command, path, *options)
        assert ended.returncode == 0 and "Traceback" not in said(ended), ended
        assert proxy.faults["refused"] > before, f"{command} met no 503"
    proxy.shares.clear()
    assert everything() == expected
    assert pipeline("verify", url).returncode == 0


def test_whose_answer_was_lost_knows_its_own_file(bucket: str, bad: Callable[..., S3Proxy]) -> None:
    proxy = bad(lost=0.2, seed=2)
    store = Store(f"{bucket}/corpus")
    made = [store.create(f"a/{number}", f"mine {number}".encode()) for number in range(12)]
    assert all(made) and proxy.faults["lost"] >= 2
    again = [store.create(f"a/{number}", b"theirs") for number in range(12)]
    assert not any(again)
    assert [store.read(f"a/{number}") for number in range(12)] == [f"mine {number}".encode() for number in range(12)]


def test_of_many_writers_one_wins_though_answers_are_lost(bucket: str, bad: Callable[..., S3Proxy]) -> None:
    bad(lost=0.2, refused=0.1)
    store = Store(f"{bucket}/corpus")
    store.find("")
    for round_ in range(5):
        won: list[bytes] = []

        def write(data: bytes, name: str = f"one-{round_}", won: list[bytes] = won) -> None:
            if store.create(name, data):
                won.append(data)

        writers = [threading.Thread(target=write, args=(b"%d" % number,)) for number in range(6)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert won == [store.read(f"one-{round_}")]


def test_row_groups_are_read_though_bodies_break_off(
    make_config: MakeConfig, bucket: str, bad: Callable[..., S3Proxy]
) -> None:
    path = make_config(output=f"{bucket}/corpus", autobleu=None)
    bring_up_to_date(path)
    expected = Corpus(f"{bucket}/corpus").table("text", "embedding")
    proxy = bad(broken=0.1)
    assert Corpus(f"{bucket}/corpus").table("text", "embedding").equals(expected)
    assert proxy.faults["broken"] > 0


def test_inputs_are_read_though_bodies_break_off(bucket: str, bad: Callable[..., S3Proxy], tmp_path: Path) -> None:
    fs = fsspec.filesystem("s3")
    values = [f"text {number}" for number in range(200)]
    fs.pipe_file("corpus/in/a.jsonl", jsonl([{"text": text} for text in values]))
    fs.pipe_file("corpus/in/b.jsonl.zst", COMPRESS[".zst"](jsonl([{"text": text} for text in values])))
    pq.write_table(pa.table({"text": values}), tmp_path / "c.parquet", row_group_size=20)
    fs.put_file(str(tmp_path / "c.parquet"), "corpus/in/c.parquet")
    proxy = bad(refused=0.06, lost=0.06, broken=0.15)
    retry.take_retry_counts()
    assert texts(read_all(entry(f"{bucket}/in"), chunk_bytes=2000)) == values * 3
    assert all(proxy.faults.values()) and len(proxy.faults) == 3, proxy.faults
    assert retry.take_retry_counts().total() == proxy.faults.total()


def test_bodies_cut_short_with_a_length_that_fits_are_read_again(
    make_config: MakeConfig, bucket: str, bad: Callable[..., S3Proxy], tmp_path: Path
) -> None:
    """Whole objects have a checksum, by which the client notices that; ranges have none."""
    fs = fsspec.filesystem("s3")
    values = [f"text {number}" for number in range(200)]
    fs.pipe_file("corpus/in/a.jsonl", jsonl([{"text": text} for text in values]))
    pq.write_table(pa.table({"text": values}), tmp_path / "b.parquet", row_group_size=20)
    fs.put_file(str(tmp_path / "b.parquet"), "corpus/in/b.parquet")
    bring_up_to_date(make_config(output=f"{bucket}/corpus", autobleu=None))
    expected = Corpus(f"{bucket}/corpus").table("text", "embedding")
    proxy = bad(short=0.2)
    assert texts(read_all(entry(f"{bucket}/in"), chunk_bytes=2000)) == values * 2
    assert Corpus(f"{bucket}/corpus").table("text", "embedding").equals(expected)
    assert proxy.faults["short"] > 3


def test_a_whole_run_on_a_store_that_cuts_bodies_and_is_late(
    make_config: MakeConfig, bucket: str, expected: dict[str, str], bad: Callable[..., S3Proxy]
) -> None:
    proxy = bad(short=0.1, slow=0.02)
    path = make_config(**SMALL_PARTS, output=f"{bucket}/corpus")
    done = pipeline("run", path)
    assert done.returncode == 0, said(done)
    assert proxy.faults["short"], proxy.faults
    proxy.shares.clear()
    assert pipeline("verify", path).returncode == 0
    assert data_digests(f"{bucket}/corpus") == expected


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ("embeddings/", "is missing, though a receipt vouches for it; pipeline verify"),
        ("receipts/encode/", "the corpus is not complete"),
        (r"lock/\.now-", "nothing that is written there can be relied on"),
    ],
)
def test_what_a_store_says_that_it_has_and_has_not_is_told_and_made_again(
    make_config: MakeConfig, bucket: str, expected: dict[str, str], bad: Callable[..., S3Proxy], lost: str, told: str
) -> None:
    proxy = bad()
    proxy.unstored.append(re.compile(f"PUT /corpus/corpus/{lost}"))
    path = make_config(**SMALL_PARTS, output=f"{bucket}/corpus")
    done = pipeline("run", path)
    assert done.returncode == 1 and told in " ".join(said(done).split()), said(done)
    assert proxy.faults["unstored"] == 1
    pipeline("verify", path, "--repair")  # there may be no corpus yet, or nothing to repair
    done = pipeline("run", path)
    assert done.returncode == 0, said(done)
    assert pipeline("verify", path).returncode == 0
    assert data_digests(f"{bucket}/corpus") == expected


def test_no_folder_of_an_input_is_passed_over(bucket: str, bad: Callable[..., S3Proxy]) -> None:
    names = [f"{folder}/{number}.jsonl" for folder in "abcdef" for number in range(2)]
    for name in names:
        fsspec.filesystem("s3").pipe_file(f"corpus/in/{name}", b"{}\n")
    proxy = bad(refused=0.5)
    assert [file.path for file in list_files(entry(f"{bucket}/in/*/*.jsonl"))] == names
    assert proxy.faults["refused"] > 3
    proxy.shares.clear()
    proxy.expired = True
    with pytest.raises(PermissionError, match="expired"):
        list_files(entry(f"{bucket}/in/*/*.jsonl"))


def test_patience_ends(bucket: str, bad: Callable[..., S3Proxy], monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = bad()
    store = Store(f"{bucket}/corpus")
    store.write("a", b"1")
    retry.take_retry_counts()
    monkeypatch.setattr(retry, "current", retry.RetryPolicy(1.0))
    proxy.go_away(60)
    with pytest.raises(StorageError, match="check the network and try again: finished work is kept") as caught:
        store.read("a")
    assert failed_event("part", caught.value).fatal
    assert retry.take_retry_counts()["read"] >= 1


def started(path: Path, proxy: S3Proxy) -> Process:
    """A run that has asked the store for some things."""
    process = start("run", path)
    wait_until(lambda: proxy.requests > 100 or process.poll() is not None)
    return process


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600  # of a busy machine
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)
