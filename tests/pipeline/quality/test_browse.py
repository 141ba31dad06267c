"""The page over a corpus: what it finds is what is there, and nobody else gets in; the real command, a real browser."""

from __future__ import annotations

import csv
import http.client
import io
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.corpus.part_reader import PartReader
from pipeline.quality.browse import find, listening, server_of
from pipeline.quality.browse.differences import LONGEST, differences
from pipeline.quality.browse.find import Finder, Question, values_of
from pipeline.quality.browse.guard import HEADERS
from pipeline.quality.browse.neighbours import COUNT, neighbours
from pipeline.quality.browse.shown import around, looked_at, shown_columns, shown_rows
from pipeline.quality.browse.use import use_of
from pipeline.quality.browse.watch import GivenUpError, Watch
from pipeline.storage import layout
from tests.conftest import write_config, write_jsonl
from tests.support.chromium import chromium
from tests.support.cli import PIPELINE, pipeline, said
from tests.support.corpora import ROW_GROUP_ROWS, made_once, make_corpus
from tests.support.hostile import EVIL, ODD, make_hostile_corpus

SECONDS = 60.0  # until the server listens, on a machine that does much else
LOWS = "autobleu < 60 or contains(text, 'the')"


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
        return made_once(tmp_path_factory, "export", make_corpus) / "out"  # that of the exports


@pytest.fixture
def corpus(grouped: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A corpus of several parts, each of several row groups; half of the rows has a score, some documents a title."""
    monkeypatch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
    corpus = Corpus(str(grouped))
    assert len(corpus.parts) > 2 and corpus.rows > 6 * ROW_GROUP_ROWS
    return corpus


def expected(corpus: Corpus, question: Question) -> list[tuple[str, int]]:
    """Places of the whole answer, by Python's own sorting."""
    names = dict.fromkeys(["part", "row", *([question.sort] if question.sort else [])])
    rows = corpus.to_arrow(*names, where=question.where).to_pylist()
    if question.sort:
        column = question.sort
        known = [row for row in rows if row[column] is not None]
        known.sort(key=lambda row: row[column], reverse=question.descending)  # stable: equal values stay in order
        rows = known + [row for row in rows if row[column] is None]
    return [(row["part"], row["row"]) for row in rows]


@pytest.mark.parametrize("kept", [7, 5000])
@pytest.mark.parametrize("sort", [None, "autobleu", "text", "title", "chars", "row"])
def test_pages_follow_each_other_as_one_answer(
    corpus: Corpus, sort: str | None, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "KEPT", kept)
    for where in (None, LOWS, "chars < 0"):
        for descending in (False, True) if sort else (False,):
            question = Question(where, sort, descending)
            whole, finder, pages = expected(corpus, question), Finder(corpus), list[tuple[str, int]]()
            while True:
                found = finder.find(question, len(pages), 41, Watch())
                pages += found.places
                assert found.found >= min(len(pages) + 1, len(whole))  # says that there is a next page
                if len(found.places) < 41:
                    break
            assert pages == whole and found.whole and found.found == len(whole)
            assert found.read == (corpus.rows if where or sort else len(found.places))
            assert finder.find(question, 10, 5, Watch()).places == whole[10:15]  # backwards
            assert finder.find(question, corpus.rows, 5, Watch()).places == []


def test_a_page_reads_no_more_than_it_needs(corpus: Corpus) -> None:
    finder, watch = Finder(corpus), Watch()
    first = finder.find(Question("chars > 0"), 0, 10, watch)
    assert first.read == watch.read == ROW_GROUP_ROWS and not first.whole and len(first.places) == 10
    assert finder.find(Question("chars > 0"), 10, 10, watch).read == ROW_GROUP_ROWS  # nothing is read twice
    assert finder.find(Question("chars > 0"), 0, 10, watch, all_rows=True).found == corpus.rows
    last = f"part == '{corpus.parts[-1]}'"
    rows = corpus.to_arrow("row", where=last).num_rows
    assert finder.find(
        Question(last), 0, rows - 1, Watch()
    ).whole  # the page ends before its rows do, but all were read
    watch.give_up()
    with pytest.raises(GivenUpError):
        finder.find(Question("chars > 1"), 0, 10, watch)
    assert finder.find(Question("chars > 1"), 0, 10, Watch()).places == expected(corpus, Question("chars > 1"))[:10]


def test_questions_that_cannot_be_answered(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    finder = Finder(corpus)
    for question, message in (
        (Question("chars <"), "filter: expected a column"),
        (Question("autoblue < 3"), "did you mean autobleu"),
        (Question(sort="embedding"), "no order; choose another"),
        (Question(sort="weight"), "its stage has not run"),
    ):
        with pytest.raises(ConfigError, match=message):
            finder.find(question, 0, 10, Watch())
    monkeypatch.setattr(find, "DEEPEST", 50)
    with pytest.raises(ConfigError, match="end at row 50; turn it round, or filter by chars"):
        finder.find(Question(sort="chars"), 45, 10, Watch())


def test_several_threads_ask_the_same(corpus: Corpus) -> None:
    finder, question, found = Finder(corpus), Question(LOWS), dict[int, Any]()
    whole = expected(corpus, question)

    def look(start: int) -> None:
        found[start] = finder.find(question, start, 10, Watch()).places

    threads = [threading.Thread(target=look, args=(start,)) for start in (40, 0, 90, 20, 10, 60)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(places == whole[start : start + 10] for start, places in found.items()) and len(found) == 6


def test_rows_documents_and_neighbours(corpus: Corpus) -> None:
    table = corpus.table("text", "doc_id", "position", "part", "row").to_pylist()
    places = [(one["part"], one["row"]) for one in table][::-17]
    assert [row["text"] for row in values_of(corpus, places, ("text",))] == [one["text"] for one in table][::-17]
    for at in (0, 40, len(table) - 1):
        one = table[at]
        document = looked_at(corpus, one["part"], one["row"])["document"]
        mine = [row for row in table if row["doc_id"] == one["doc_id"] and abs(row["position"] - one["position"]) <= 5]
        assert [row["row"] for row in document["rows"]] == [row["row"] for row in mine]
        assert document["id"] == one["doc_id"] and document["first"] == mine[0]["position"] + 1
        assert len(around(corpus, one["part"], one["row"], 10**9, 0)["rows"]) <= 51
        near = neighbours(corpus, one["part"], one["row"], None, None, Watch())
        exact = corpus.nearest((one["part"], one["row"]), COUNT).to_pylist()
        assert [(row["part"], row["row"], row["score"]) for row in near] == [
            (row["part"], row["row"], row["score"]) for row in exact
        ]
    with pytest.raises(CorpusError, match=f"has {corpus.reader(corpus.parts[0]).rows} rows; there is no row number"):
        looked_at(corpus, corpus.parts[0], 10**6)
    some = corpus.parts[1], 3
    index = corpus.build_index()
    assert neighbours(corpus, *some, None, index, Watch()) == neighbours(corpus, *some, None, None, Watch())
    assert {
        one["values"]["lang"]
        for one in neighbours(corpus, *some, corpus.condition("lang == 'deu_Latn'"), index, Watch())
    } == {"deu_Latn"}
    given_up = Watch()
    given_up.give_up()
    with pytest.raises(GivenUpError):
        neighbours(corpus, corpus.parts[0], 0, None, None, given_up)


def test_metadata_of_every_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each type: shown as JSON holds it, in order if it has one, nulls last, also while rows are thrown away."""
    monkeypatch.setattr(find, "KEPT", 4)
    kinds: dict[str, list[Any]] = {
        "whole": [3, -1, None, 2**60], "part of one": [0.5, None, -1e300, 7.25], "yes": [True, False, None, True],
        "day": ["2010-01-31", None, "1999-12-31", "2024-02-29"], "title": ["b", "ä", "", None],
        "moment": ["2010-01-31T10:00:00Z", "2009-01-31T10:00:00Z", None, "2024-02-29T23:59:59.5Z"],
        "tags": [["x", "<b>"], [], None, ["y"]],
        "publisher": [{"name": "x", "year": 1}, None, {"name": "y", "year": 2}, None],
    }  # fmt: skip
    documents = [
        {
            "id": str(at),
            "lang": "eng_Latn",
            "text": "One sentence. Another one.",
            **{name: values[at] for name, values in kinds.items()},
        }
        for at in range(4)
    ]
    write_jsonl(tmp_path / "in.jsonl", documents)
    keep = dict.fromkeys(kinds, "auto") | {"day": "date", "moment": "timestamp"}
    source = {"path": "in.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": keep}
    assert pipeline("run", write_config(tmp_path, input=[source], encode=None, autobleu=None)).returncode == 0
    corpus = Corpus(str(tmp_path / "out"))
    for name, values in kinds.items():
        for descending in (False, True):
            question = Question("position >= 0", name, descending)
            if name in ("tags", "publisher"):
                with pytest.raises(ConfigError, match="has no order"):
                    Finder(corpus).find(question, 0, 9, Watch())
                continue
            assert Finder(corpus).find(question, 0, 99, Watch()).places == expected(corpus, question)
        for row in shown_rows(corpus, expected(corpus, Question()), shown_columns(corpus, [name, "doc_id"])):
            value = values[int(row["values"]["doc_id"])]
            shown = {2**60: str(2**60)}.get(value, value) if isinstance(value, int) else value
            if name == "moment" and value:
                shown = value.replace("Z", "+00:00").replace(".5", ".500000")
            elif isinstance(value, (list, dict)):
                shown = json.dumps(value)
            assert row["values"][name] == shown
            json.dumps(row, allow_nan=False)


def test_purged_documents_are_not_shown(corpus: Corpus, grouped: Path, tmp_path: Path) -> None:
    """Their rows are still in files, and other rows have other numbers, until the next run."""
    copy = tmp_path / "copy"
    shutil.copytree(grouped, copy)
    gone = corpus.documents(1)["doc_id"][0].as_py()
    (tmp_path / "ids.txt").write_text(f"{gone}\n")
    assert pipeline("purge", copy, "--ids", tmp_path / "ids.txt").returncode == 0
    left = Corpus(str(copy))
    table = left.to_arrow("text", "doc_id", "part", "row").to_pylist()
    assert 0 < len(table) == left.rows < corpus.rows and gone not in {one["doc_id"] for one in table}
    for question in (Question(), Question("chars > 0"), Question(sort="chars")):
        places = Finder(left).find(question, 0, corpus.rows, Watch()).places
        assert places == expected(left, question) and len(places) == left.rows
    for one in table[:: len(table) // 9]:
        found = looked_at(left, one["part"], one["row"])
        assert found["values"]["doc_id"] == found["document"]["id"] == one["doc_id"]
        assert [row["row"] for row in table if row["doc_id"] == one["doc_id"]].index(one["row"]) + 1 in range(
            found["document"]["first"], found["document"]["last"] + 1
        )


def test_the_selection_keeps_the_rows_of_the_filter(corpus: Corpus) -> None:
    for where in ("chars >= 10", "autobleu < 60", "autobleu < 60 and chars > 20\n and not lang == 'deu_Latn'",
                  "not autobleu < 60", "autobleu is null or autobleu < 60"):  # fmt: skip
        use = use_of(corpus, corpus.condition(where))
        selected = yaml.safe_load(use.select)["select"]
        assert corpus.to_arrow("part", "row", where=selected).equals(corpus.to_arrow("part", "row", where=where))
        done = pipeline("select", corpus.url, "--where", selected)
        assert done.returncode == 0, said(done)
        kept = re.search(r"sentences kept +([\d ]+?)  ", done.stdout)
        assert kept and int(kept[1].replace(" ", "")) == corpus.to_arrow("row", where=where).num_rows
    assert (
        "Sentences without autobleu never satisfy the filter"
        in use_of(corpus, corpus.condition("autobleu < 60")).remark
    )
    several = use_of(corpus, corpus.condition(LOWS))
    assert "autobleu can be null" in several.remark and yaml.safe_load(several.select) == {"select": LOWS}
    assert use_of(corpus, None).select == "" and shlex.split(several.inspect)[-1] == LOWS
    for odd in ('text == "$(id) `id` !"', r"text == '\\'"):
        assert shlex.split(use_of(corpus, corpus.condition(odd)).inspect)[-1] == odd


def test_differences_are_marked_by_words_and_signs() -> None:
    assert differences("The ship arrived.", "The sheep arrived.") == (
        [["=", "The "], ["-", "ship"], ["=", " arrived."]],
        [["=", "The "], ["+", "sheep"], ["=", " arrived."]],
    )
    assert differences("今天天气很好。", "今天气候很好。")[1] == [["=", "今天气"], ["+", "候"], ["=", "很好。"]]
    assert differences("क्षेत्र में", "क्षेत्रों में")[0][0] == ["-", "क्षेत्र"]  # vowel signs belong to their word
    for text, decoded in (("", ""), ("a", ""), ("", "b"), ("x\u202ey 1.5", "x y 15"), ("w " * LONGEST, "v")):
        mine, other = differences(text, decoded)
        assert "".join(piece for _, piece in mine) == text and "".join(piece for _, piece in other) == decoded


# The command: a real server on the loopback device


class Served:
    """A running `pipeline browse`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout
        self.about, self.address = process.stdout.readline(), process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/(\?.*)?", self.address)
        assert found, (self.about, self.address)
        self.port, self.token = int(found[1]), found[2]

    def get(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, **asked: object
    ) -> http.client.HTTPResponse:
        """Ask for a path below the token, or from the root if it begins with /."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        query = f"?{urlencode(asked)}" if asked else ""
        connection.request(
            method, f"{path if path.startswith('/') else f'/{self.token}/{path}'}{query}", headers=headers or {}
        )
        return connection.getresponse()

    def ask(self, path: str, **asked: object) -> dict[str, Any]:
        """The last line of an answer."""
        response = self.get(path, **asked)
        found: dict[str, Any] = json.loads(response.read().decode().splitlines()[-1])
        return found


@contextmanager
def browsed(*arguments: object) -> Iterator[Served]:
    command = [PIPELINE, "browse", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield Served(process)
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
        assert (process.returncode, errors) == (0, "")


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
    rows = json.loads(body)["done"]["rows"]
    assert rows and all(
        "</script>" in one["values"]["doc_id"] and "\\u202egnp" in one["values"]["title"] for one in rows
    )
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


def test_what_cannot_be_browsed(tmp_path: Path, hostile: Corpus) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", [{"id": "1", "lang": "eng_Latn", "title": "t", "text": " "}])
    assert pipeline("run", write_config(tmp_path)).returncode == 0
    none = pipeline("browse", tmp_path / "out")
    assert none.returncode == 1 and "has no sentence yet" in said(none)
    for options, message in (
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
