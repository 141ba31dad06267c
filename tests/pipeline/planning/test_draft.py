"""`pipeline init` writes a corpus.yaml for files that it looks at, and that file runs as it stands."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.config.load import load_config
from pipeline.inputs import LangColumn, LangDetect
from pipeline.inputs.listing import format_hint
from pipeline.planning.draft import STRIP
from tests.conftest import sample_documents, write_jsonl
from tests.pipeline.planning.drafts import ENGLISH, drafted, here
from tests.support.cli import pipeline, said

GERMAN = "Der Brief kam am Montag, und niemand wusste, wer ihn geschrieben hatte. Am Abend lasen wir ihn noch einmal."
SWEDISH = "Brevet kom på måndagen, och ingen visste vem som hade skrivit det. På kvällen läste vi det en gång till."

__all__ = ["here"]


def test_a_folder_of_several_kinds_gives_a_file_that_runs(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data/help.jsonl", sample_documents("libreoffice-deu", 3))
    (tmp_path / "data/notes").mkdir()
    (tmp_path / "data/notes/one.txt").write_text(ENGLISH)
    (tmp_path / "data/picture.png").write_bytes(b"\x89PNG")
    config = drafted("data")
    table, notes = config.input
    assert (table.text, table.id, table.lang) == ("text", "id", LangColumn(column="lang"))
    assert notes.path.endswith("data/**/*.txt") and notes.lang == "eng_Latn"
    assert config.name == "data" and config.encode and config.encode.model == "sonar-tiny"
    text = (tmp_path / "corpus.yaml").read_text()
    assert "# keep: [title]" in text and "1 file .png" in text
    assert config.split.validation == 0.1, "of a few documents a hundredth is none"
    done = pipeline("run", "corpus.yaml", "--until", "segment")
    assert done.returncode == 0 and "4 in = 4 kept" in done.stdout, said(done)


def test_a_file_that_ends_too_early_is_told(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"lang": "eng_Latn", "text": f"{ENGLISH} {number}"}) + "\n" for number in range(60))
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-100])
    done = pipeline("init", "in.jsonl.gz")
    what = r"1 record of the first \d+ records of in.jsonl.gz cannot be read, with this error for the first: gzip: "
    assert done.returncode == 0 and re.search(rf"in.jsonl.gz: {what}the file ends in", said(done)), said(done)
    assert re.search(f"# {what}", (tmp_path / "corpus.yaml").read_text()) and load_config("corpus.yaml")


def test_front_matter_is_told_with_a_command_that_removes_it(tmp_path: Path) -> None:
    texts = {"a": f"---\ntitle: One\n---\n{ENGLISH}\n---\n", "b": f"{ENGLISH}\n---\nmore\n---\n"}
    texts["c/rule"] = f"---\n\n{ENGLISH}\n\n---\n"
    (tmp_path / "data/c").mkdir(parents=True)
    for name, text in texts.items():
        (tmp_path / f"data/{name}.md").write_text(text)
    (tmp_path / "data/c/crlf.md").write_bytes(texts["a"].replace("\n", "\r\n").encode())
    told = said(pipeline("init", "data", "--to", "corpus.yaml"))
    assert "2 of the 4 files examined begin with front matter (--- … ---)" in " ".join(told.split()), told
    assert STRIP in told
    subprocess.run(STRIP, shell=True, check=True, cwd=tmp_path / "data")
    assert (tmp_path / "data/a.md").read_text() == f"{ENGLISH}\n---\n"
    assert (tmp_path / "data/c/crlf.md").read_bytes().startswith(ENGLISH.encode()[:20])
    assert all((tmp_path / f"data/{name}.md").read_text() == texts[name] for name in ("b", "c/rule"))


def test_documents_of_small_files_are_counted(tmp_path: Path) -> None:
    rows = [{"lang": "rus_Cyrl", "text": f"Это предложение {number}."} for number in range(120)]
    Path("json").mkdir()
    Path("json/a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))  # escapes: 6 bytes a letter
    Path("json/b.jsonl").write_text(json.dumps(rows[0] | {"text": "Очень длинный текст. " * 5000}) + "\n")
    assert "# 121 documents: 10% of them" in said(pipeline("init", "json", "--to", "-"))
    Path("tables").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), "tables/a.parquet")
    assert "# 120 documents: 10% of them" in said(pipeline("init", "tables", "--to", "-"))


def test_shares_of_languages_are_of_documents_and_tables_have_a_hint(tmp_path: Path) -> None:
    rows = [{"id": str(n), "text": ENGLISH, "tags": ["a"], "year": 2010 + n} for n in range(9)]
    pq.write_table(
        pa.table({"text": [GERMAN] * 30, "day": pa.array([datetime.date(2020, 1, 1)] * 30)}), tmp_path / "data.parquet"
    )
    write_jsonl(tmp_path / "data/e.jsonl", rows)
    for n in range(27):
        (tmp_path / f"data/{n}.txt").write_text(GERMAN)
    (tmp_path / "data/table.CSV").write_text("id,text\n1,x\n")
    drafted("data")
    text = (tmp_path / "corpus.yaml").read_text()
    assert "deu_Latn 75%, eng_Latn 25%" in text and "# keep: [tags, year]" in text, text
    assert "1 file .CSV" in text and "pipeline.inputs.delimited IN.csv OUT.parquet" in text
    drafted("data.parquet", "--to", "two.yaml")
    assert "# keep: [day]" in (tmp_path / "two.yaml").read_text()


def test_what_may_be_uncommented_is_valid(tmp_path: Path) -> None:
    rows = sample_documents("libreoffice-eng", 2)
    write_jsonl(tmp_path / "data.jsonl", [one | {"plan": ["b"], "topics": ["a", None], "sizes": [1]} for one in rows])
    drafted("data.jsonl")
    lines = (tmp_path / "corpus.yaml").read_text().split("\n")
    begin = lines.index("# What to uncomment next:")
    whole = [line.removeprefix("# ") if at > begin else line for at, line in enumerate(lines)]
    (tmp_path / "corpus.yaml").write_text("\n".join(whole).replace("# keep:", "keep:"))
    config = load_config("corpus.yaml")
    assert config.language and config.noise and config.duplicates
    assert config.rvq and config.train and config.fragility and config.select and config.plans
    assert sorted(config.input[0].keep) == ["sizes", "title", "topics"] and config.plans.column == "topics"


def test_columns_without_usual_names_and_languages_by_detection(tmp_path: Path) -> None:
    rows = {"nr": [1, 2, 3], "headline": ["a", "b", "c"], "story": [GERMAN, GERMAN + " Ende.", GERMAN + " Aus."]}
    pq.write_table(pa.table(rows), tmp_path / "stories.parquet")
    (one,) = drafted("stories.parquet").input
    assert (one.text, one.id, one.lang) == ("story", None, "deu_Latn")
    assert "keep: [nr, headline]" in (tmp_path / "corpus.yaml").read_text()


def test_several_languages_and_those_that_the_small_model_does_not_know(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "x.jsonl", [{"uuid": str(n), "content": t} for n, t in enumerate((ENGLISH, SWEDISH))])
    config = drafted("x.jsonl")
    assert isinstance(config.input[0].lang, LangDetect) and config.encode and config.encode.model == "sonar"
    assert (config.input[0].text, config.input[0].id) == ("content", "uuid")


@pytest.mark.parametrize(("count", "end"), [(6, "ita_Latn 17%."), (8, "ita_Latn 12% and 2 more.")])
def test_languages_that_are_not_named_are_counted(tmp_path: Path, count: int, end: str) -> None:
    langs = ["eng_Latn", "deu_Latn", "fra_Latn", "spa_Latn", "por_Latn", "ita_Latn", "swe_Latn", "pol_Latn"][:count]
    write_jsonl(tmp_path / "x.jsonl", [{"id": lang, "lang": lang, "text": ENGLISH} for lang in langs])
    drafted("x.jsonl")
    (line,) = (one for one in (tmp_path / "corpus.yaml").read_text().splitlines() if one.startswith("# Languages:"))
    assert end in line and "swe_Latn" not in line.partition(". ")[0], line


def test_ids_alike_are_no_ids_and_odd_names_are_quoted(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "a b: [c].jsonl", [{"id": "same", "my: text #1": ENGLISH}, {"id": "same", "my: text #1": ENGLISH}]
    )
    (one,) = drafted(tmp_path / "a b: [[]c[]].jsonl").input
    assert one.id is None and one.text == "my: text #1" and one.lang == "eng_Latn"


@pytest.mark.parametrize(
    ("file", "place", "name"),
    [
        ("books.v1/a.jsonl", "books.v1", "books.v1"),
        ("novels.v1/a.jsonl", "novels.v1/*.jsonl", "novels.v1"),
        ("dätä/a.jsonl", "./dätä/", "dätä"),
        ("中文.jsonl", "中文.jsonl", "中文"),
        ("bz2/a.jsonl", "bz2", "bz2"),
        ("हिन्दी/x/part-0.jsonl", "हिन्दी/**/part-*.jsonl", "हिन्दी"),
        ("here/a.jsonl", "here/.", "here"),
        ("my  books: 1.jsonl", "my  books: 1.jsonl", "my-books-1"),
        ("+/a.jsonl", "+", "corpus"),
    ],
)
def test_a_corpus_is_called_like_its_data(file: str, place: str, name: str) -> None:
    write_jsonl(Path(file), [{"id": "1", "text": ENGLISH}])
    config = drafted(place)
    assert config.name == name and config.output.endswith(f"/runs/{name}")
    Path("corpus.yaml").unlink()
    for number in (2, 3):
        Path(config.output).mkdir(parents=True)
        again = pipeline("init", place)
        assert f"runs/{name} exists already, so this corpus is called {name}-{number}" in again.stdout, said(again)
        config = load_config("corpus.yaml")
        Path("corpus.yaml").unlink()
    assert drafted(place, "--name", name).name == name


def test_a_folder_may_be_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jsonl(tmp_path / "letters/a.jsonl", [{"id": "1", "text": ENGLISH}])
    monkeypatch.chdir(tmp_path / "letters")
    for place in (".", "*.jsonl", "../letters"):
        printed = pipeline("init", place, "--to", "-")
        assert yaml.safe_load(printed.stdout)["name"] == "letters", said(printed)


def test_the_corpus_of_folders_below_lies_where_they_are_not_read(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "notes/a.jsonl", [{"id": "1", "text": ENGLISH}])
    config = drafted(".", "--name", "mine")
    assert config.output == str(tmp_path / "_runs/mine")
    assert pipeline("run", "corpus.yaml", "--until", "segment").returncode == 0
    again = pipeline("plan", "corpus.yaml")
    assert again.returncode == 0 and re.search(r"segment +1 chunk", again.stdout), said(again)
    Path("corpus.yaml").write_text(Path("corpus.yaml").read_text().replace("_runs/", "runs/"))
    inside = pipeline("plan", "corpus.yaml")
    assert inside.returncode == 2 and "put it into a folder whose name begins with _" in inside.stderr


def test_a_corpus_is_not_taken_for_documents(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"id": "1", "text": ENGLISH}])
    drafted(".", "--name", "mine")
    assert pipeline("run", "corpus.yaml", "--until", "segment").returncode == 0
    Path("corpus.yaml").unlink()
    (only,) = drafted(".").input
    assert only.path == str(tmp_path / "*.jsonl")


@pytest.mark.parametrize(
    "places",
    [
        ["books/", "./books"],
        ["books", "books/../books"],
        ["books/*.jsonl", "books"],
        ["books/a.jsonl", "books", "books/a.jsonl"],
    ],
)
def test_what_is_named_twice_is_read_once(tmp_path: Path, places: list[str]) -> None:
    for name in "ab":
        write_jsonl(tmp_path / f"books/{name}.jsonl", [{"id": name, "text": ENGLISH}])
    (only,) = drafted(*places).input
    assert only.path == str(tmp_path / "books/*.jsonl")


def test_a_corpus_whose_files_a_pattern_would_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "p/a").mkdir(parents=True)
    (tmp_path / "p/corpus").mkdir()
    for name in ("a/x", "corpus/y"):
        pq.write_table(pa.table({"id": ["1"], "text": [ENGLISH]}), tmp_path / f"p/{name}.parquet")
    (tmp_path / "p/corpus/corpus.json").write_text("{}")
    refused = pipeline("init", "p", "--to", "-")
    assert refused.returncode == 2 and "corpus is a corpus, and p/**/*.parquet would read" in refused.stderr


def test_a_file_that_is_there_is_kept_and_nothing_to_read_is_said(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data.jsonl", sample_documents("libreoffice-eng", 1))
    (tmp_path / "corpus.yaml").write_text("mine")
    refused = pipeline("init", "data.jsonl")
    assert refused.returncode == 2 and "corpus.yaml exists already" in refused.stderr
    assert (tmp_path / "corpus.yaml").read_text() == "mine"
    printed = pipeline("init", "data.jsonl", "--to", "-", "--name", "other")
    assert yaml.safe_load(printed.stdout)["name"] == "other"
    (tmp_path / "empty").mkdir()
    odd = os.fsdecode(b"caf\xe9")
    (tmp_path / odd).mkdir()
    for place, why in (
        ("empty", "no file of a known format"),
        ("nowhere", "nowhere does not exist"),
        (odd, "caf\\udce9: this is not UTF-8"),
    ):
        done = pipeline("init", place, "--to", "-")
        assert done.returncode == 2 and why in done.stderr, said(done)


def test_records_that_nobody_would_write_by_hand(tmp_path: Path) -> None:
    odd = [
        {"id": "1", "lang": "eng_Latn", "text": ENGLISH, "a\nlauncher: slurm": 1, "\ud800": 2},
        {"id": "2", "lang": "eng_Latn", "text": "half \ud800 of a pair"},
        {"id": "3", "lang": ["eng_Latn"], "text": {"no": "text"}},
        {"id": "4", "lang": "eng_Latn\nlauncher: slurm", "text": None},
    ]
    odd += [{"id": str(n), "lang": "eng_Latn", "text": ENGLISH} for n in range(5, 30)]
    lines = [json.dumps(one) for one in odd] + ["{broken", "[1, 2]", '{"id": 1e999}']
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    config = drafted("data.jsonl")
    text = (tmp_path / "corpus.yaml").read_text()
    assert config.launcher.kind == "auto" and "slurm" not in text
    assert config.input[0].text == "text" and isinstance(config.input[0].lang, LangColumn)
    assert "eng_Latn 100%" in text and "keep" not in text


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.json", '[{"id": 1, "text": "One."}, {"id": 2, "text": "Two."}]', "jq -c '.[]' FILE"),
        ("a.json", '{"results": [{"id": 1, "text": "One."}]}', "documents lie in a list, results"),
        ("b.json", '[\n {"id": 1, "text": "One."}\n]', "over many lines (jq -c '.[]' FILE makes lines of it)"),
        ("c.json", '{\n "id": 1,\n "text": "One."\n}', "over many lines (jq -c '.' FILE makes lines of it)"),
        ("a.jsonl", '"One sentence."\n"Another."\n', "no record becomes a document, the first because of this: the li"),
        ("a.csv", "id,text\n1,One.\n", "a table becomes Parquet by: python -m"),
    ],
)
def test_other_formats_are_told_with_a_way_to_convert_them(tmp_path: Path, name: str, content: str, told: str) -> None:
    (tmp_path / name).write_text(content)
    done = pipeline("init", name, "--to", "-")
    assert done.returncode == 2 and told in done.stderr, said(done)


def test_what_is_written_and_cannot_run_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "\\u0000"}\n{"x": 1}\n')
    done = pipeline("init", "a.jsonl")
    assert done.returncode == 2 and "corpus.yaml is written, but it cannot run as it is" in done.stderr, said(done)
    assert (tmp_path / "corpus.yaml").exists()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["a.txt"], "a.txt is empty (0 bytes); give files that hold documents, or leave this out"),
        (["a.jsonl"], "a.jsonl is empty (0 bytes); give"),
        (["a.md", "b.md"], "./*.md matches 2 files, which are all empty (0 bytes); give"),
    ],
)
def test_empty_files_are_told(names: list[str], told: str) -> None:
    for name in names:
        Path(name).touch()
    done = pipeline("init", "." if len(names) > 1 else names[0], "--to", "corpus.yaml")
    assert done.returncode == 2 and told in done.stderr and not Path("corpus.yaml").exists(), said(done)
    write_jsonl(Path("good.jsonl"), [{"id": "1", "text": "The cat sat on the mat."}] * 3)
    Path("a.jsonl").unlink(missing_ok=True)
    done = pipeline("init", ".", "--to", "corpus.yaml")
    assert done.returncode == 0, said(done)
    empty = [f"./*{kind}" for kind in (".md", ".txt") if any(Path().glob(f"*{kind}"))]
    line = f"# Not read, because all of these files are empty: {', '.join(empty)}."
    assert (line in Path("corpus.yaml").read_text("utf-8")) == bool(empty)


def test_the_language_of_all_texts_that_could_be_judged_is_written(tmp_path: Path) -> None:
    uncertain = "Call Anna Schmidt re: Paris"
    for number, text in enumerate([ENGLISH] * 5 + [uncertain, "12:30", " \n"]):
        (tmp_path / f"{number}.txt").write_text(text)
    assert (
        "lang: eng_Latn                # 2 texts of those examined are uncertain"
        in pipeline("init", ".", "--to", "-").stdout
    )
    (tmp_path / "9.txt").write_text(SWEDISH)
    text = pipeline("init", ".", "--to", "-").stdout
    assert "eng_Latn, swe_Latn; 2 texts of those examined are uncertain, and would be set aside" in text


def test_blank_lines_a_packed_parquet_file_and_the_name_of_the_file_are_told(tmp_path: Path) -> None:
    (tmp_path / "blank.jsonl").write_text("\n\n \n")
    done = pipeline("init", "blank.jsonl")
    assert done.returncode == 2 and "blank.jsonl: there are only blank lines; give" in done.stderr, said(done)
    (tmp_path / "mix").mkdir()
    (tmp_path / "mix/p.parquet.gz").write_bytes(b"PAR1")
    (tmp_path / "mix/a.txt").write_text(" \n")
    done = pipeline("init", "mix", "--to", "mix/my corpus.yaml")
    text = (tmp_path / "mix/my corpus.yaml").read_text()
    assert done.returncode == 0 and "there is nothing visible in the files examined" in done.stdout, said(done)
    assert "1 file .gz" in text and "unpack it (gzip -d FILE)" in text and "plan 'mix/my corpus.yaml'" in text
    done = pipeline("init", "mix/*.gz")
    assert done.returncode == 2 and "mix/*.gz: p.parquet.gz is a compressed" in done.stderr, said(done)


def test_values_in_names_of_folders_are_told_with_a_way_to_have_them(tmp_path: Path) -> None:
    table = pa.table({"id": ["a", "b"], "text": ["One here.", "Two here."], "year": [2010, 2011]})
    hive = pa_dataset.partitioning(pa.schema([("year", pa.int64())]), flavor="hive")
    pa_dataset.write_dataset(table, tmp_path / "in", format="parquet", partitioning=hive)
    told = "year stands in the names of folders (year=201"
    text = pipeline("init", "in", "--to", "-").stdout
    assert told in text
    path = tmp_path / "corpus.yaml"
    path.write_text(text.replace("    id: id", "    id: id\n    keep: {year: int64}"))
    refused = pipeline("plan", path)
    assert refused.returncode == 2 and told in refused.stderr, said(refused)
    code = refused.stderr.partition('python -c "')[2].partition('" FOLDER COPY')[0]
    subprocess.run([sys.executable, "-c", code, "in", "COPY"], check=True, cwd=tmp_path)
    path.write_text(path.read_text().replace("path: in/", "path: COPY/"))
    assert pipeline("plan", path).returncode == 0


@pytest.mark.parametrize(
    ("extension", "told"),
    [
        ("zip", "unzip FILE"),
        ("tar.gz", "tar xf FILE"),
        ("log", "`format: text`"),
        ("PDF", "pdftotext FILE"),
        ("docx", "pandoc -t plain FILE"),
        ("warc.gz", "warcio"),
        ("csv.gz", "python -m pipeline.inputs.delimited IN.csv OUT.parquet"),
    ],
)
def test_each_kind_of_file_that_is_not_read_has_a_way_on(tmp_path: Path, extension: str, told: str) -> None:
    (tmp_path / f"a.{extension}").write_text("x")
    done = pipeline("init", f"a.{extension}")
    assert done.returncode == 2 and told in done.stderr and ".parquet, and .jsonl" in done.stderr, said(done)


def test_arrow_files_and_what_lies_beside_them(tmp_path: Path) -> None:
    table = pa.table({"text": ["One.", "Two."]})
    (tmp_path / "ds/train").mkdir(parents=True)
    with pa.ipc.new_stream(tmp_path / "ds/train/data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    with pa.ipc.new_file(tmp_path / "IN.feather", table.schema) as file:
        file.write_table(table)
    for name in ("dataset_dict.json", "train/state.json", "train/dataset_info.json"):
        (tmp_path / "ds" / name).write_text('{\n  "splits": ["train"]\n}')
    for name in ("ds", "IN.feather"):
        done = pipeline("init", name)
        assert done.returncode == 2 and "Arrow and Feather files become Parquet" in done.stderr, said(done)
        assert "json:" not in done.stderr, said(done)
    for name in ("ds/train/data-00000-of-00001.arrow", "IN.feather"):
        (command,) = re.findall(r"python -c (\".*\")", format_hint(name))
        command = command.replace("IN.arrow", name)
        subprocess.run(["bash", "-c", f"{sys.executable} -c {command}"], check=True, cwd=tmp_path)
        assert pq.read_table(tmp_path / "OUT.parquet").equals(table)


def test_files_of_a_folder_that_are_no_documents_are_left_out_with_a_note_and_named_together_where_none_is(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "settings.json").write_text('{"a": 1}')
    (folder / "numbers.jsonl").write_text('{"b": 1}\n')
    none = pipeline("init", "data")
    assert none.returncode == 2, said(none)
    assert "*.json: no column holds texts; columns: a;" in none.stderr, said(none)
    assert "*.jsonl: no column holds texts; columns: b;" in none.stderr, said(none)
    (folder / "letter.txt").write_text(ENGLISH)
    done = pipeline("init", "data")
    assert done.returncode == 0, said(done)
    assert re.search(r"not read: data/\*\.json: no column holds texts.*\nnot read: data/\*\.jsonl: ", done.stdout)
    written = Path("corpus.yaml").read_text()
    assert "# Not read: data/*.json: no column" in written and "leave these files out" not in written
    assert [one.path.rpartition("/")[2] for one in load_config(Path("corpus.yaml")).input] == ["*.txt"]
