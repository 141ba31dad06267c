"""Create-if-absent and whole-object writes, on a local disk and on a real S3 endpoint."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import socket
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from pipeline.base.errors import ConfigError, CorpusError, DamagedError, MissingError, PipelineError, StorageError
from pipeline.storage.export_target import ExportTarget
from pipeline.storage.replacing import replacing_file
from pipeline.storage.store import Store


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A fresh store of each kind."""
    if request.param == "local":
        return Store(str(tmp_path / "corpus"))
    return Store(f"{request.getfixturevalue('bucket')}/corpus")


def test_chained_urls_are_refused(tmp_path: Path) -> None:
    for open_it in (Store, lambda url: replacing_file(url).__enter__(), lambda url: ExportTarget(url, "/corpus")):
        for url in (f"{tmp_path}/a::b", "simplecache::s3://bucket/corpus"):
            with pytest.raises(ConfigError, match=r"::.* holds ::, which makes a chained URL; give a folder"):
                open_it(url)


def test_only_the_first_creates(store: Store) -> None:
    assert store.create("receipts/a.json", b"first")
    assert not store.create("receipts/a.json", b"second")
    assert store.read("receipts/a.json") == b"first"


def test_of_many_writers_one_wins(store: Store) -> None:
    results: list[bool] = []
    writers = [threading.Thread(target=lambda n=n: results.append(store.create("one", b"%d" % n))) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(results) == [False] * 7 + [True]


def test_write_find_exists_delete(store: Store) -> None:
    assert store.find("embeddings") == []
    assert not store.exists("embeddings/a")
    store.write("embeddings/b", b"2")
    store.write("embeddings/a", memoryview(b"1"))
    assert store.find("embeddings") == ["embeddings/a", "embeddings/b"]
    assert store.exists("embeddings/a")
    with store.open("embeddings/b") as file:
        assert file.read() == b"2"
    store.delete("embeddings/a")
    store.delete("embeddings/a")
    assert store.find("embeddings") == ["embeddings/b"]


def test_only_what_has_a_prefix_is_found(store: Store) -> None:
    for path in ("chunks/ab1", "chunks/ab2", "chunks/ac", "chunks/ab/deep/er", "chunks/x/ab", "other/ab"):
        store.write(path, b"")
    assert store.find("chunks", "ab") == ["chunks/ab/deep/er", "chunks/ab1", "chunks/ab2"]
    assert store.find("chunks", "ab/deep/e") == ["chunks/ab/deep/er"]
    assert store.find("chunks", "ab1") == ["chunks/ab1"]
    assert store.find("chunks", "z") == store.find("nothing", "ab") == []
    assert store.find_any("chunks", ["ac", "ab1", "z"]) == ["chunks/ab1", "chunks/ac"]
    assert store.find_any("nothing", ["ab"]) == []


def test_times_are_the_stores(store: Store) -> None:
    before = time.time()
    store.write("claims/a", b"1")
    store.write("claims/deep/b", b"2")
    first = store.modified("claims/a")
    assert before - 2 < first < time.time() + 2  # S3 counts in whole seconds
    assert store.listing("claims") == {"claims/a": first, "claims/deep/b": store.modified("claims/deep/b")}
    time.sleep(1.1)
    store.touch("claims/a")
    assert store.modified("claims/a") > first and store.read("claims/a") == b"1"
    assert store.listing("claims")["claims/a"] == store.modified("claims/a")
    assert store.listing("nothing") == {}
    for ask in (store.modified, store.touch):
        with pytest.raises(CorpusError, match="claims/gone is missing"):
            ask("claims/gone")


def test_a_range_ends_with_the_file(store: Store) -> None:
    store.write("a/ten", b"0123456789")
    store.write("a/empty", b"")
    ranges = {(0, 4): b"0123", (7, 20): b"789", (10, 12): b"", (15, 20): b"", (3, 3): b""}
    for (start, end), expected in ranges.items():
        assert store.read_range("a/ten", start, end) == expected
        assert store.read_range("a/empty", start, end) == b""
    with pytest.raises(MissingError, match="the file a/none is missing"):
        store.read_range("a/none", 5, 9)


def test_all_files_are_below_the_corpus(store: Store) -> None:
    for path in ("corpus.json", "a/one", "a/b/two"):
        store.write(path, b"x")
    assert store.find("") == sorted(store.listing("")) == ["a/b/two", "a/one", "corpus.json"]
    assert store.find("", prefix="a") == ["a/b/two", "a/one"]


def test_a_missing_file_is_named(store: Store) -> None:
    with pytest.raises(CorpusError, match=r"receipts/gone\.json is missing"):
        store.read("receipts/gone.json")


def test_a_store_travels_to_other_processes(store: Store) -> None:
    store.write("a", b"x")
    assert pickle.loads(pickle.dumps(store)).read("a") == b"x"


def test_nothing_temporary_stays(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.create("a", b"1")
    store.create("a", b"2")
    store.write("b", b"3")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b"]


def test_what_is_read_only_is_to_be_made_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another output would be another corpus, without what is purged or deleted here."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StorageError, match=r"system; mount that file system for writing, or .* a new corpus another"):
        Store(str(tmp_path / "corpus")).create("lock/a", b"1")


def test_a_file_that_cannot_get_its_name_is_not_copied_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.html").write_bytes(b"before")

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(PipelineError, match="cannot be written"), replacing_file(str(tmp_path / "page.html")) as file:
        file.write(b"after")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "socket", "link to nothing, or in a circle"])
def test_what_is_no_file_is_told_and_never_read(tmp_path: Path, kind: str) -> None:
    """Reading a pipe or /dev/zero would never end."""
    store, place = Store(str(tmp_path)), tmp_path / "run.json"
    with contextlib.ExitStack() as until:
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "folder":
            place.mkdir()
            (place / "mine.txt").write_text("precious")
        elif kind == "device":
            place.symlink_to("/dev/zero")
        elif kind == "socket":
            listening = until.enter_context(socket.socket(socket.AF_UNIX))
            until.enter_context(contextlib.chdir(tmp_path))  # the name of a socket has at most 107 bytes
            listening.bind(place.name)
        else:
            place.symlink_to(place.name)
        for read in (store.read, store.open, lambda path: store.read_range(path, 0, 8)):
            with pytest.raises(DamagedError, match=rf"run\.json is damaged \(it is a {kind}, not a file\)"):
                read("run.json")
        with pytest.raises(DamagedError, match=rf"run\.json is damaged \(it is a {kind}, not a file\)"):
            store.create("run.json", b"mine")
        if kind == "folder":
            with pytest.raises(DamagedError, match="move it away"):
                store.delete("run.json")
            assert (place / "mine.txt").read_text() == "precious"
        else:
            store.delete("run.json")
            assert not os.path.lexists(place)


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"content")
    (tmp_path / "here").symlink_to("there")
    (tmp_path / "lost").symlink_to("nowhere")
    store = Store(str(tmp_path))
    assert store.read("here") == store.open("here").read() == b"content"
    with pytest.raises(MissingError):
        store.read("lost")
    with pytest.raises(MissingError):
        store.read("there/below")


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "a\0b", "x" * 256, f"a/{'x' * 3000}/b"])
def test_what_can_be_no_path_in_it_is_refused(tmp_path: Path, path: str) -> None:
    """Also names too long for a file system, which are in damaged records: no bare `[Errno 36]`."""
    store = Store(str(tmp_path))
    for use in (store.exists, store.read, store.delete, partial(store.write, data=b"x")):
        with pytest.raises(CorpusError, match="does not lie in the corpus"):
            use(path)
