"""The page as a browser gets it, from the real command: nobody else gets in, and hostile text stays text."""

from __future__ import annotations

import csv
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import CorpusError, MissingError
from pipeline.corpus.part_reader import PartReader
from pipeline.corpus.tombstones import create_tombstone
from pipeline.quality.browse import BrowseOptions, browse_corpus, listening, server_of
from pipeline.quality.browse.find import Finder, Question, Watch
from pipeline.quality.browse.guard import HEADERS
from pipeline.quality.browse.server import _Served
from pipeline.quality.browse.shown import COUNT, looked_at, neighbours
from pipeline.storage import layout
from tests.conftest import write_config, write_jsonl
from tests.pipeline.quality.browse.expected import expected
from tests.pipeline.quality.browse.served import SECONDS, Served, answer_of, browsed, in_a_thread
from tests.support.chromium import chromium
from tests.support.cli import pipeline, said
from tests.support.corpora import ROW_GROUP_ROWS, made_once
from tests.support.hostile import EVIL, ODD, make_hostile_corpus


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(str(made_once(tmp_path_factory, "hostile", make_hostile_corpus) / "out"))


@pytest.fixture(scope="module")
def server(hostile: Corpus) -> Iterator[Served]:
    with browsed(hostile.url) as found:
        yield found


def test_only_who_knows_the_address_gets_in(server: Served) -> None:
    good = server.get("")
    assert good.status == 200 and good.getheader("content-type") == "text/html; charset=utf-8"
    for path in ("/", "/favicon.ico", "/corpus", f"/{server.token[:-1]}/corpus", f"/{'x' * 32}/", f"/{server.token}x/",
                 f"/x/../{server.token}/corpus", "//", "/%2e%2e/"):  # fmt: skip
        assert server.get(path).status == 403, path
    assert server.get(f"/{server.token}").getheader("location") == f"/{server.token}/"
    assert (
        server.get("../pipeline/cli.py").status == server.get("nothing").status == server.get("page.html").status == 404
    )
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "ODD"):
        refused = server.get("corpus", method)
        assert refused.status == 405 and refused.getheader("allow") == "GET", method
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "localhost.", "", "[::2]"):
        assert server.get("corpus", headers={"Host": host}).status in (400, 421), host
    for host in ("localhost", "LOCALHOST:8000", f"127.0.0.1:{server.port}", "[::1]:80"):  # tunnels have other ports
        assert server.get("corpus", headers={"Host": host}).status == 200, host


def test_every_answer_is_closed(server: Served) -> None:
    answers = [
        server.get(path) for path in ("", "browse.js", "browse.css", "base.css", "corpus", "rows", "nothing", "/x")
    ]
    answers += [server.get("corpus", "POST"), server.get("", headers={"Host": "evil.example"})]
    for one in answers:
        for name, value in HEADERS.items():
            assert one.getheader(name) == value
        assert one.getheader("server") is None and one.getheader("set-cookie") is None
        assert one.getheader("access-control-allow-origin") is None
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    page = server.get("").read().decode()
    assert "<script>" not in page and not re.search(r"\son\w+=|style=|https?://", page)
    script = server.get("browse.js").read().decode()
    assert not re.search(r"innerHTML|insertAdjacent|document\.write|\beval\b|new Function|https?://", script)


def test_answers_of_the_server(server: Served, hostile: Corpus) -> None:
    about = server.ask("corpus")["done"]
    assert about["rows"] == hostile.rows and about["name"].startswith("</script><script>window.hacked=1")
    assert {one["name"] for one in about["columns"]} == set(hostile.catalogue) - {"embedding"}
    where = "chars > 20 and lang == 'eng_Latn'"
    done = server.ask("rows", where=where, sort="autobleu", down=1, start=3, count=30, columns="lang\tautobleu\tnope")[
        "done"
    ]
    places = expected(hostile, Question(where, "autobleu", True))
    assert [(one["part"], one["row"]) for one in done["rows"]] == places[3:33]
    assert done["found"] == len(places) and set(done["rows"][0]["values"]) == {"lang", "autobleu"}
    row = hostile.table("text", "decoded", "part", "row").to_pylist()[0]
    one = server.ask("row", part=row["part"], row=row["row"])["done"]
    if row["text"].isprintable():
        assert "".join(text for _, text in one["text"]) == row["text"]
    assert len(server.ask("nearest", part=row["part"], row=row["row"])["done"]["rows"]) == COUNT
    for path, asked, message in (
        ("rows", {"where": "chars <"}, "filter: expected a column"),
        ("rows", {"where": "embedding > 2"}, "not one value per row"),
        ("rows", {"sort": "nope"}, "there is no column nope"),
        ("rows", {"start": "-1"}, "start is '-1'; give a whole number"),
        ("rows", {"start": "9" * 40}, "give a whole number"),
        ("rows", {"count": "\x1b[31m"}, "give a whole number"),
        ("row", {"part": "../../etc/passwd"}, "has no part ../../etc/passwd"),
        ("row", {"part": row["part"], "row": 10**9}, "there is no row number"),
        ("document", {}, "has no part"),
        ("nearest", {"part": row["part"], "row": 10**9}, "there is no row number"),
        ("use", {"where": "matches(text, '(')"}, "not a regular expression"),
        ("download", {"format": "exe"}, "allowed: jsonl, csv, parquet"),
        ("download", {"format": "csv", "columns": "text\tembedding"}, "holds a vector"),
        ("download", {"format": "csv", "where": "no"}, "there is no column no"),
    ):  # fmt: skip
        answer = server.ask(path, **asked)
        assert message in answer["error"] and "Traceback" not in answer["error"], (path, asked, answer)
    assert "there is no column xxx" in server.ask("rows", where="x" * 10_000)["error"]


def test_hostile_text_stays_text(server: Served, hostile: Corpus) -> None:
    answer = server.get("rows", where="contains(doc_id, 'hacked')", columns="doc_id\ttitle\tsource", count=200)
    assert answer.getheader("content-type") == "application/x-ndjson"
    body = answer.read().decode()
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", body)
    rows = [one["values"] for one in json.loads(body.splitlines()[-1])["done"]["rows"]]
    assert rows and all("</script>" in one["doc_id"] and "\\u202egnp" in one["title"] for one in rows)
    download = server.get("download", format="csv", columns="text\tdoc_id")
    disposition = download.getheader("content-disposition") or ""
    assert re.fullmatch(r'attachment; filename="[\w-]{1,80}\.csv"', disposition), disposition
    lines = list(csv.reader(io.StringIO(download.read().decode("utf-8-sig"), newline="")))
    assert len(lines) == hostile.rows + 1 and not [one for one in lines if one[0].startswith(("=", "+", "-", "@"))]
    assert any(ODD[:20] in one[0] or EVIL[:20] in one[0] for one in lines)


def test_downloads_are_what_inspect_writes(server: Served, hostile: Corpus, tmp_path: Path) -> None:
    for ending, where in (("jsonl", "autobleu < 50"), ("csv", ""), ("parquet", "chars > 10"), ("jsonl", "chars < 0")):
        file = tmp_path / f"rows.{ending}"
        asked = {"where": where} if where else {}
        assert pipeline("inspect", hostile.url, "--to", file, *(["--where", where] if where else [])).returncode == 0
        answer = server.get("download", format=ending, **asked)
        body = answer.read()
        assert answer.status == 200
        if ending == "parquet":
            assert pq.read_table(io.BytesIO(body)).equals(pq.read_table(file))
        else:
            assert body == file.read_bytes()


def test_damage_is_told_and_an_early_end_is_seen(
    hostile: Corpus, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus = Corpus(str(shutil.copytree(hostile.url, tmp_path / "out")))
    (one, *_) = corpus.parts
    for family, another in (("embeddings", "language"), ("language", "embeddings")):
        (damaged,) = (tmp_path / "out" / family).rglob(f"{one}.*")
        (source,) = (Path(hostile.url) / another).rglob(f"{one}.*")
        damaged.write_bytes(source.read_bytes())
    with in_a_thread(corpus) as get:
        assert "is damaged: it has no embedding" in answer_of(get(f"nearest?part={one}&row=0"))["error"]
        with pytest.raises(http.client.IncompleteRead):
            get("download?format=csv").read()
    told = capfd.readouterr().err
    assert told.count("\n") == 1 and f"/language/{one[:2]}/{one}" in told and "is damaged: it has no" in told, told


def test_what_is_purged_while_the_page_is_open(tmp_path: Path) -> None:
    texts = ["Keep this sentence.", "Forget that sentence."]
    records = [{"id": text[0], "lang": "eng_Latn", "title": "t", "text": text} for text in texts]
    write_jsonl(tmp_path / "in/a.jsonl", records)
    config = write_config(tmp_path, encode=None, autobleu=None)
    assert pipeline("run", config).returncode == 0
    (tmp_path / "ids").write_text("F\n")
    with in_a_thread(Corpus(str(tmp_path / "out"))) as get:

        def seen() -> tuple[int, list[str]]:
            answer = answer_of(get("rows"))["done"]
            shown = ["".join(piece[1] for piece in row["text"]) for row in answer["rows"]]
            assert [json.loads(line)["text"] for line in get("download?format=jsonl").read().splitlines()] == shown
            return answer["opened"], shown

        assert seen() == (0, texts)
        assert pipeline("purge", tmp_path / "out", "--ids", tmp_path / "ids").returncode == 0
        assert seen() == (1, texts[:1])
        part = answer_of(get("rows"))["done"]["rows"][0]["part"]
        assert pipeline("run", config).returncode == 0
        summary = max((tmp_path / "out/runs").glob("*/summary.json"))
        summary.rename(tmp_path / "later")  # as while the run has erased files and has not ended
        assert seen() == (2, texts[:1])
        (tmp_path / "later").rename(summary)
        opened, shown = seen()
        assert opened > 2 and shown == texts[:1]
        old, new = (answer_of(get(f"row?part={part}&row=0&opened={one}")) for one in (1, opened))
        assert "has changed since this page was made; reload" in old["error"] and new["done"]["opened"] == opened


def test_a_download_breaks_off_when_documents_are_purged(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.quality.browse.server.LOOKED_SECONDS", -1.0)
    copy = Corpus(str(shutil.copytree(corpus.url, tmp_path / "out")))
    served = _Served(copy, None)
    now = served._now()
    pieces = served._unchanged(now, iter([b"1", b"2"]))
    assert next(pieces) == b"1"
    create_tombstone(copy.store, ["an id"], {}, "a test")
    with pytest.raises(CorpusError, match="broke off, since documents were purged meanwhile; download it again"):
        next(pieces)

    def gone() -> Iterator[bytes]:
        yield b"1"
        raise MissingError("the file is missing, though a receipt names it")

    now = served._now()
    run = copy.store.folders(layout.RUNS)[-1]
    newer = shutil.copytree(tmp_path / "out/runs" / run, tmp_path / f"out/runs/9{run[1:]}")
    (newer / "summary.json").touch()
    with pytest.raises(CorpusError, match="broke off, since the corpus has changed meanwhile"):
        list(served._unchanged(now, gone()))
    with pytest.raises(MissingError):
        list(served._unchanged(served._now(), gone()))


@pytest.mark.slow  # a second process starts
def test_two_servers_and_their_ports(server: Served, grouped: Path, hostile: Corpus) -> None:
    with browsed(hostile.url, "--where", "autobleu < 20") as other:
        assert other.port != server.port and other.token != server.token
        assert other.address.endswith("/?where=autobleu+%3C+20")
        assert other.get(f"/{server.token}/corpus").status == 403 and server.get(f"/{other.token}/corpus").status == 403
        assert server.ask("corpus")["done"] == other.ask("corpus")["done"]
        taken = pipeline("browse", hostile.url, "--port", other.port)
        assert taken.returncode == 2 and f"--port {other.port} is used by another program" in said(taken)
    with socket.create_connection(("127.0.0.1", server.port)) as odd:  # no HTTP at all
        odd.sendall(b"\x16\x03\x01\x00\xff" * 99)
        odd.recv(1000)
    assert server.ask("corpus")["done"]["rows"] == hostile.rows


def test_it_listens_on_the_loopback_device_only(server: Served) -> None:
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert {one[1] for one in listening if one[1].endswith(f":{server.port:04X}") and one[3] == "0A"} == {
        f"0100007F:{server.port:04X}"
    }
    assert f":{server.port:04X} " not in Path("/proc/net/tcp6").read_text()


class _Interrupting(io.StringIO):
    """A terminal whose reader presses Ctrl-C as soon as a line is there."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self._line = line

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._line in text:
            os.kill(os.getpid(), signal.SIGINT)
        return written


@pytest.mark.parametrize("line", ["http://127.0.0.1:", "Ctrl-C ends it."])
def test_a_request_to_stop_that_comes_at_once_is_a_good_end(
    hostile: Corpus, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ended with code 130, or with warnings of the server, which had not begun."""
    terminal = _Interrupting(line)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here, as in the background
    try:
        browse_corpus(Console(file=terminal), hostile, BrowseOptions())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert terminal.getvalue().endswith("Ctrl-C ends it.\n") and capfd.readouterr() == ("", "")


def test_what_cannot_be_browsed(tmp_path: Path, hostile: Corpus) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [{"id": "1", "lang": "eng_Latn", "title": "t", "text": " "}])
    assert pipeline("run", write_config(tmp_path)).returncode == 0
    none = pipeline("browse", tmp_path / "out")
    assert none.returncode == 1 and "has no sentence yet" in said(none)
    hostile.build_index(tmp_path / "euclidean.index", metric="euclidean")
    os.mkfifo(tmp_path / "pipe.index")
    for options, message in (
        (["--index", str(tmp_path / "euclidean.index")], "the index is for metric='euclidean', not 'cosine'"),
        (["--index", str(tmp_path / "pipe.index")], "pipe.index is damaged (it is a folder, pipe or device"),
        (["--where", "nope < 3"], "there is no column nope"),
        (["--port", "70000"], "less than or equal to 65535"),
        (["--index", str(tmp_path / "no.index")], "there is no index"),
    ):
        done = pipeline("browse", hostile.url, *options)
        assert done.returncode and message in said(done)


def test_of_one_sentence_without_scores_or_embeddings(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [{"id": "only", "lang": "eng_Latn", "title": "t", "text": "One sentence."}])
    assert pipeline("run", write_config(tmp_path, encode=None, autobleu=None)).returncode == 0
    corpus = Corpus(str(tmp_path / "out"))
    one = looked_at(corpus, corpus.parts[0], 0)
    assert one["text"] == [["=", "One sentence."]] and one["decoded"] is None and one["document"]["sentences"] == 1
    with pytest.raises(CorpusError, match="there is no column embedding: its stage has not run"):
        neighbours(corpus, corpus.parts[0], 0, None, None, Watch())
    found = Finder(corpus).find(Question("chars > 1", "doc_id"), 0, 25, Watch())
    assert found.places == [(corpus.parts[0], 0)] and found.whole
    assert pipeline("browse", corpus.url, "--where", "autobleu < 3").returncode == 2


@pytest.mark.slow  # waits for a slow disk
def test_work_ends_when_nobody_waits_for_it(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that needs 0.2 s per row group: progress is told, and a closed connection ends the reading."""
    groups = [0]
    read = PartReader.read

    def slowly(reader: PartReader, *asked: Any) -> pa.Table:
        groups[0] += 1
        time.sleep(0.2)
        return read(reader, *asked)

    monkeypatch.setattr(PartReader, "read", slowly)
    listener = listening(0)
    server = server_of(corpus, "secret", None)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        for path in ("rows?where=chars+%3E+1&sort=chars", f"nearest?part={corpus.parts[0]}&row=0"):
            connection = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=SECONDS)
            connection.request("GET", f"/secret/{path}")
            answer = connection.getresponse()
            lines = [json.loads(answer.readline()) for _ in range(3)]
            assert all(set(one) == {"read", "found"} for one in lines) and lines[-1]["read"] < corpus.rows
            answer.close()
            connection.close()
            before = -1
            while before != groups[0]:
                before = groups[0]
                time.sleep(0.8)
            assert groups[0] < corpus.rows / ROW_GROUP_ROWS, "all was read"
            groups[0] = 0
    finally:
        server.should_exit = True
        thread.join(SECONDS)
    assert not thread.is_alive()


@pytest.mark.slow  # a browser starts
@pytest.mark.parametrize(("width", "height", "dark"), [(1280, 900, False), (400, 800, True)])
def test_in_a_browser(server: Served, hostile: Corpus, width: int, height: int, dark: bool) -> None:
    """Nothing is logged, asked of others, or run that is not ours; mouse and keys do what they say."""
    rows = "document.querySelectorAll('#body tr').length"
    status = "document.getElementById('status').textContent"
    with chromium() as browser:
        page = browser.page()
        page.look(width, height, dark=dark)
        page.open(server.address)
        page.wait_for(f"{rows} == 50")
        assert page.js("document.getElementById('name').textContent").startswith("</script><script>window.hacked=1")
        assert page.js("document.documentElement.scrollWidth <= innerWidth")
        body = page.js("getComputedStyle(document.body).backgroundColor")
        assert body == ("rgb(23, 23, 26)" if dark else "rgb(253, 253, 254)")
        page.key("n")
        page.wait_for(f"{status}.startsWith('Rows 51–100')")
        page.js("history.back()")
        page.wait_for(f"{status}.startsWith('Rows 1–50')")

        page.key("/")
        assert page.js("document.activeElement.id") == "where"
        page.ask("Input.insertText", text="contains(doc_id, 'hacked')")
        page.key("Enter")
        page.wait_for(f"{status}.includes('satisfy the filter')")
        found = hostile.to_arrow("row", where="contains(doc_id, 'hacked')").num_rows
        assert page.js(rows) == found and page.js("document.querySelectorAll('#body del').length") > 0
        page.js("[...document.getElementById('sort').options].find(one => one.value === 'chars').selected = true")
        page.js("document.getElementById('sort').dispatchEvent(new Event('change'))")
        page.wait_for("location.search.includes('sort=chars')")
        page.wait_for("document.querySelector('th[aria-sort=ascending]')?.textContent.startsWith('chars')")
        page.js("document.activeElement.blur()")
        page.key("j")
        assert page.js("document.activeElement.className") == "open"
        page.js("document.activeElement.click()")
        page.wait_for("!document.getElementById('panel').hidden")
        panel = page.js("document.getElementById('panel').textContent")
        assert "window.hacked" in panel and "\\u202egnp.exe" in panel
        page.js("[...document.querySelectorAll('#panel button')].find(one => one.textContent === 'Find').click()")
        page.wait_for(f"document.querySelectorAll('#panel .near li').length == {COUNT}")
        page.js("document.querySelector('#panel .near button').click()")
        page.wait_for("!document.querySelector('#panel .title button').hidden")  # the way back
        page.key("Escape")
        assert page.js("document.getElementById('panel').hidden && document.activeElement.className") == "open"

        page.js("document.getElementById('take').click()")
        page.wait_for("document.getElementById('use').open")
        link = page.js("document.getElementById('as-jsonl').href")
        assert link.startswith(server.address) and "hacked" in link
        assert page.js("document.getElementById('use-yaml').textContent") == "select: contains(doc_id, 'hacked')"
        page.js("document.getElementById('use').close()")
        page.js("document.getElementById('where').value = 'chars < <'")
        page.js("document.getElementById('bar').requestSubmit()")
        page.wait_for("!document.getElementById('wrong').hidden")
        assert "filter: expected a column" in page.js("document.getElementById('wrong').textContent")

        assert page.js("document.querySelectorAll('script, img, svg, iframe, object').length") == 1
        assert page.js("typeof window.hacked") == "undefined" and page.messages == []
        assert all(one.startswith((server.address, "data:,")) for one in page.requests)
        refused = "try { document.body.innerHTML = '<b>x</b>'; 'done' } catch (error) { error.name }"
        assert page.js(refused) == "TypeError"  # no text becomes markup


@pytest.mark.slow  # a browser starts
def test_numbers_that_are_none_and_many_columns_in_a_browser(tmp_path: Path) -> None:
    """NaN and infinities are told from null, and each value makes filters that keep its row. The page stays as wide as
    the window, however many columns are shown.
    """
    scores = [1.5, float("nan"), None, float("inf"), float("-inf")]
    ids, text = [f"{at}-{'long' * 9}" for at in range(len(scores))], ["One sentence."] * len(scores)
    table = {"id": ids, "text": text, "lang": ["eng_Latn"] * len(scores), "score": scores}
    wide = ["no condition can name `this", *(f"wide {at}" for at in range(9))]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(table | dict.fromkeys(wide, ids)), tmp_path / "in/a.parquet")
    source = {"path": "in/*.parquet", "id": "id", "lang": {"column": "lang"}, "keep": ["score", *wide]}
    assert pipeline("run", write_config(tmp_path, input=[source], encode=None, autobleu=None)).returncode == 0
    corpus = Corpus(str(tmp_path / "out"))
    with chromium() as browser, browsed(corpus.url) as server:
        page = browser.page()
        page.look(1280, 900)
        names = ["doc_id", "score", *wide]
        for at, (shown, conditions) in enumerate((
            ("1.5", ["score <= 1.5", "score >= 1.5", "score == 1.5"]),
            ("NaN", ["score != score"]),
            ("–", ["score is null"]),
            ("inf", ["score <= 1e999", "score >= 1e999", "score == 1e999"]),
            ("-inf", ["score <= -1e999", "score >= -1e999", "score == -1e999"]),
        )):  # fmt: skip
            term = "[...document.querySelectorAll('#panel dt')].find(one => one.textContent === 'score')"
            buttons = f"[...{term}.nextSibling.querySelectorAll('button')]"
            for number, condition in enumerate(conditions):
                page.open(f"{server.address}?{urlencode({'columns': chr(9).join(names)})}")
                page.wait_for(f"document.querySelectorAll('#body tr').length == {len(scores)}")
                assert page.js("document.documentElement.scrollWidth <= innerWidth")
                assert (
                    page.js(
                        f"document.querySelectorAll('#body tr')[{at}].querySelector('[data-label=score]').textContent"
                    )
                    == shown
                )
                page.js(f"document.querySelectorAll('#body .open')[{at}].click()")
                page.wait_for("!document.getElementById('panel').hidden")
                assert page.js(f"{buttons}.length") == len(conditions)
                assert not page.js(
                    "[...document.querySelectorAll('#panel button')].some(one => /name `/.test(one.title))"
                )
                page.js(f"{buttons}[{number}].click()")
                page.wait_for("document.getElementById('status').textContent.includes('satisfy the filter')")
                assert page.js("document.getElementById('where').value") == condition
                found = corpus.to_arrow("doc_id", where=condition)["doc_id"].to_pylist()
                assert ids[at] in found and page.js("document.querySelectorAll('#body tr').length") == len(found)
        assert page.messages == []
