"""What a plan expects of documents that nobody has segmented yet, and how far that is from what comes."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline import Corpus
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.corpus.accounting import compute_accounting
from pipeline.planning import estimate as estimate_module
from pipeline.planning import examined as module
from pipeline.planning import pilot_size
from pipeline.planning import rates as rates_module
from pipeline.planning.estimate import ASSUMED, HERE, MACHINE, estimate_of
from pipeline.planning.plan import make_plan
from pipeline.planning.rates import machine, machine_rate
from pipeline.planning.sentence_counts import SentenceCounter
from pipeline.planning.workload import rate_of
from pipeline.run import calibrate as calibrate_module
from pipeline.storage.records import sealed
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.corpora import begin_without_packing
from tests.support.runs import bring_up_to_date, run


def as_jsonl(folder: Path, documents: list[dict[str, object]]) -> None:
    write_jsonl(folder / "in.jsonl", documents)


def as_gzip(folder: Path, documents: list[dict[str, object]]) -> None:
    lines = "".join(json.dumps(one) + "\n" for one in documents)
    (folder / "in.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


def as_parquet(folder: Path, documents: list[dict[str, object]]) -> None:
    pq.write_table(pa.Table.from_pylist(documents), folder / "in.parquet", row_group_size=10)


def as_text(folder: Path, documents: list[dict[str, object]]) -> None:
    (folder / "in").mkdir()
    for number, one in enumerate(documents):
        (folder / f"in/{number:03d}.txt").write_text(str(one["text"]))


def config_of(folder: Path) -> Path:
    source = {"path": "in" if (folder / "in").is_dir() else "in.*", "name": "in", "lang": "eng_Latn"}
    return write_config(folder, input=[source], autobleu=None, encode=None, chunk_bytes=64 << 20)


@pytest.mark.parametrize("write", [as_jsonl, as_gzip, as_parquet, as_text], ids=lambda one: one.__name__)
@pytest.mark.parametrize("characters", [4000, 1 << 18])
def test_it_is_near_to_what_comes(
    tmp_path: Path, write: Callable[..., None], characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all documents are looked at, and where a few are."""
    monkeypatch.setattr(module, "SAMPLE_CHARACTERS", characters)
    short, long = sample_documents("libreoffice-eng", 10), sample_documents("postgresql-eng", 10)
    write(tmp_path, [one for pair in zip(short, long, strict=True) for one in pair])
    path = config_of(tmp_path)
    found = estimate_of(make_plan(load_config(path)))
    bring_up_to_date(path)
    sentences = Corpus(str(tmp_path / "out")).rows
    assert found.documents == 20 if characters > 4000 else 0 < found.documents < 12
    within = 0.3 if characters > 4000 else 0.6
    assert abs(sentences / found.sentences - 1) < within
    assert 0.1 < found.error < 0.5 and found.stages["segment"].source == ASSUMED
    tokens = Corpus(str(tmp_path / "out")).to_arrow("tokens")["tokens"]
    assert found.tokens and abs(sum(tokens.to_pylist()) / found.tokens - 1) < within


def test_documents_that_will_be_set_aside_for_their_ids_do_not_count(tmp_path: Path) -> None:
    write_jsonl(
        tmp_path / "in.jsonl", [{"id": str(one % 5), "text": "One. Two.", "lang": "eng_Latn"} for one in range(50)]
    )
    source = {"path": "in.jsonl", "id": "id", "lang": "eng_Latn"}
    for rule, sentences in (("keep-first", 10), ("keep-all", 100)):
        path = write_config(tmp_path, input=[source], autobleu=None, encode=None, duplicate_ids=rule)
        assert estimate_of(make_plan(load_config(path))).sentences == pytest.approx(sentences)


def test_of_many_tiny_files_some_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_FILES", 10)
    as_text(tmp_path, [{"text": "Hi.\n"}] * 60)
    found = estimate_of(make_plan(load_config(config_of(tmp_path))))
    assert (found.documents, found.sentences) == (10, 60)


@pytest.mark.parametrize("write", [as_jsonl, as_gzip], ids=lambda one: one.__name__)
def test_of_a_file_that_is_cut_by_a_limit_only_those_documents_count(
    tmp_path: Path, write: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of six documents are looked at, and the file has thirty."""
    monkeypatch.setattr(module, "SAMPLE_CHARACTERS", 600)
    text = "One sentence stands here. Another one follows it. That is all of it.\n" * 4
    write(tmp_path, [{"id": str(number), "text": f"{number}. {text}"} for number in range(30)])
    source = {"path": "in.*", "name": "in", "lang": "eng_Latn", "limit": 6}
    config = load_config(write_config(tmp_path, input=[source], autobleu=None, encode=None))
    found = estimate_of(make_plan(config))
    assert found.documents == 3
    assert found.sentences == pytest.approx(6 * SentenceCounter(config.segment).sentences(f"0. {text}", "eng_Latn"))


def test_chunks_that_are_segmented_say_more_than_marks(tmp_path: Path) -> None:
    documents = sample_documents("libreoffice-eng", 12)
    begin_without_packing(tmp_path / "out")
    for number in range(6):
        write_jsonl(tmp_path / f"in/{number}.jsonl", documents[:6] if number < 3 else documents[6:])
    source = {"path": "in/*.jsonl", "name": "in", "lang": "eng_Latn", "id": "id"}
    path = write_config(tmp_path, input=[source], autobleu=None, encode=None)
    expected = estimate_of(make_plan(load_config(path)))
    for number in range(5):
        (tmp_path / f"in/{number}.jsonl").rename(tmp_path / f"in/{number}.kept")
    bring_up_to_date(write_config(tmp_path, input=[source], autobleu=None, encode=None))
    for number in range(5):
        (tmp_path / f"in/{number}.kept").rename(tmp_path / f"in/{number}.jsonl")
    found = estimate_of(make_plan(load_config(path)))
    assert found.documents == 0 and expected.documents == 36
    assert found.stages["segment"].source == HERE and found.stages["segment"].seconds
    assert abs(found.sentences / (expected.sentences * 5 / 6) - 1) < 0.5


@pytest.mark.parametrize("packed", [False, True])
def test_files_that_are_compressed_are_not_taken_for_plain_ones(tmp_path: Path, packed: bool) -> None:
    """A byte of theirs holds several times as much."""
    if not packed:
        begin_without_packing(tmp_path / "out")
    documents = sample_documents("postgresql-eng", 24)
    (tmp_path / "in").mkdir()
    for number in range(3):
        write_jsonl(tmp_path / f"in/{number}.jsonl", documents[4 * number :][:4])
    source = {"path": "in/*", "name": "in", "lang": "eng_Latn", "id": "id"}
    path = write_config(tmp_path, input=[source], autobleu=None, encode=None, chunk_bytes=1 << 20)
    run(path)
    before = Corpus(str(tmp_path / "out")).rows
    for number in range(3, 6):
        lines = "".join(json.dumps(one) + "\n" for one in documents[4 * number :][:4])
        (tmp_path / f"in/{number}.jsonl.GZ").write_bytes(gzip.compress(lines.encode()))
    found = estimate_of(make_plan(load_config(path)))
    run(path)
    came = Corpus(str(tmp_path / "out")).rows - before
    assert found.documents == 12
    assert came / found.sentences == pytest.approx(1, abs=0.4) and found.error >= 0.15


def test_a_rate_is_of_the_most_work(tmp_path: Path) -> None:
    """A part of one sentence says how long it takes to begin."""
    begin_without_packing(tmp_path / "out")
    documents = sample_documents("libreoffice-eng", 40)
    write_jsonl(tmp_path / "in/large.jsonl", documents[1:])
    write_jsonl(tmp_path / "in/small.jsonl", documents[:1])
    source = {"path": "in/*.jsonl", "name": "in", "lang": "eng_Latn", "id": "id"}
    path = write_config(tmp_path, input=[source], autobleu=None, encode=None)
    run(path)
    write_jsonl(tmp_path / "in/large.jsonl", documents[2:])
    plan = make_plan(load_config(path))
    now, found = plan.work["segment"], estimate_of(plan).stages["segment"]
    before = estimate_module._older_counters(plan, "segment")
    assert now.rate and found.seconds and now.sentences_done < before["segment/rows"] / 10
    rate = before["segment/rows"] / estimate_module.seconds_of(before, "segment")
    assert found.sentences / found.seconds == pytest.approx(rate) and rate != pytest.approx(now.rate)


def test_one_strange_document_is_not_its_language(tmp_path: Path) -> None:
    strange = {"text": base64.b64encode(hashlib.sha512(b"seed").digest() * 500).decode(), "id": "strange"}
    as_jsonl(tmp_path, [strange, *sample_documents("postgresql-eng", 10)])
    source = {"path": "in.jsonl", "name": "in", "lang": "eng_Latn", "id": "id"}
    path = write_config(tmp_path, input=[source], autobleu=None, encode=None, segment={"model": "sonar-tiny"})
    assert not estimate_of(make_plan(load_config(path))).warnings


def test_the_plan_shows_it_and_the_run_compares(tmp_path: Path) -> None:
    as_jsonl(tmp_path, sample_documents("libreoffice-eng", 8))
    source = {"path": "in.jsonl", "name": "in", "lang": "eng_Latn"}
    path = write_config(tmp_path, input=[source], autobleu=None, report=None)
    shown = " ".join(said(pipeline("plan", path)).split())
    assert re.search(r"segment 0 chunks 1 chunk about \d+ about [\d ]+ about \d+ s", shown), shown
    assert re.search(r"encode 0 parts 0 parts about \d+ about [\d ]+ about", shown), shown
    assert re.search(
        r"Remaining: about \d+ sentences of [\d ]+ tokens \(± 15%, by sentence-final marks in 8 documents\), [\d.]+ kB",
        shown,
    )
    assert "Times are for one worker. Rates: encode from the model's card; segment roughly assumed." in shown
    shown = run(path)
    told = re.search(r"estimate: (\d+) new sentences, (\d+) ± 15% were expected \(actual/estimated (\S+)\)", shown)
    assert told and int(told[1]) == Corpus(str(tmp_path / "out")).rows and 0.7 < float(told[3]) < 1.3
    assert "Remaining" not in said(pipeline("plan", path)) and "estimate" not in run(path)
    same = " ".join(said(pipeline("plan", path, "--set", "input.0.limit=4")).split())
    assert "tokens (± 10%)" in same, same
    changed = " ".join(said(pipeline("plan", path, "--set", "segment.max_chars=40")).split())
    expected = re.search(r"Remaining: about (\d+) sentences of [\d ]+ tokens \(± 15%, by sentence-final", changed)
    assert "Rates: segment, encode measured in this corpus." in changed  # speeds of the older settings serve
    shown = run(path, "segment.max_chars=40")
    told = re.search(r"estimate: (\d+) sentences with those that were copied, (\d+) ± 15% were expected", shown)
    assert expected and told and 0.75 < int(told[2]) / Corpus(str(tmp_path / "out")).rows < 1.33, (changed, shown)


def test_bytes_to_write_are_those_of_every_stage_that_is_left(tmp_path: Path) -> None:
    """Where one file is only segmented, and where of four one is done, two are segmented and one is new."""
    documents = sample_documents("libreoffice-eng", 16)
    begin_without_packing(tmp_path / "out")
    source = {"path": "in/*.jsonl", "name": "in", "lang": "eng_Latn", "id": "id"}
    path = write_config(tmp_path, input=[source], autobleu={"sample": 0.5, "length_factor": 1.0}, report=None)

    def add(*numbers: int) -> None:
        for number in numbers:
            write_jsonl(tmp_path / f"in/{number}.jsonl", documents[4 * number :][:4])

    def stored() -> int:
        corpus = Corpus(str(tmp_path / "out"))
        return sum(compute_accounting(corpus.store, corpus.chunks).data_bytes.values())

    def actual() -> float:
        """How much a run writes, for each byte that was expected."""
        expected, before = estimate_of(make_plan(load_config(path))).stored_bytes, stored()
        bring_up_to_date(path)
        return (stored() - before) / expected

    add(0)
    assert pipeline("run", path, "--until", "segment").returncode == 0
    shown = said(pipeline("plan", path))
    assert re.search(r"Remaining: about [\d.]+ kB to write\.", shown), shown
    assert 0.5 < actual() < 2, "by the schema"
    add(1, 2)
    assert pipeline("run", path, "--until", "segment").returncode == 0
    add(3)
    assert 0.8 < actual() < 1.25, "as the first file measured it"


def test_rows_that_are_copied_are_not_taken_for_work(tmp_path: Path) -> None:
    """One record more in a file costs the sentences of that record."""
    as_jsonl(tmp_path, sample_documents("libreoffice-eng", 8))
    source = {"path": "in.jsonl", "id": "id", "lang": "eng_Latn"}
    path = write_config(tmp_path, input=[source], autobleu=None, report=None)
    assert "are copied" not in said(pipeline("plan", path))
    run(path)
    rows = Corpus(str(tmp_path / "out")).rows
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write(json.dumps({"id": "new", "text": "One more."}) + "\n")
    assert "documents that come out the same are copied, not computed again" in said(pipeline("plan", path))
    assert f"estimate: {rows + 1} sentences with those that were copied, " in run(path)


def test_a_lower_limit_is_no_surprise(tmp_path: Path) -> None:
    """What a chunk had counts as far as the limit goes; so does a higher limit, or none."""
    as_jsonl(tmp_path, sample_documents("libreoffice-eng", 40))
    path = config_of(tmp_path)
    run(path, "input.0.limit=16")
    for limit in ("8", "24", "null"):
        options = ("--set", f"input.0.limit={limit}", "--accept-removal")
        told = re.search(r"actual/estimated ([\d.]+)\)", said(pipeline("run", path, *options)))
        assert told and 0.6 < float(told[1]) < 1.6, (limit, told)


def rates(folder: Path) -> list[Path]:
    return sorted((folder / rates_module.FOLDER).iterdir())


def test_a_run_keeps_the_rates_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of another corpus uses them, unless their file is damaged, of another machine or not sealed."""
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rates_module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(estimate_module, "SETUP_SECONDS", 0.0)
    for name in ("one", "other"):
        as_jsonl(tmp_path / name, sample_documents("libreoffice-eng", 6))
        config_of(tmp_path / name)
    run(tmp_path / "one/corpus.yaml")
    (file,) = rates(tmp_path / "cache")
    config = load_config(tmp_path / "other/corpus.yaml")
    found = estimate_of(make_plan(config))
    assert found.stages["segment"].source == MACHINE and found.stages["segment"].seconds
    rate = machine_rate(config, "segment")
    assert rate and rate.sentences == Corpus(str(tmp_path / "one/out")).rows
    assert rate.per_second(2 * rate.tokens / rate.sentences) == pytest.approx(rate.per_second(None) / 2)
    good = file.read_bytes()
    value = json.loads(good)
    del value["seal"]
    damages = [
        b"",
        good[:-9],
        good.replace(b'"segment"', b'"segmenT"'),
        json.dumps(value).encode(),
        *(sealed(json.dumps(value | {key: wrong})) for key, wrong in (("seconds", 0), ("machine", "another"))),
    ]
    for damage in damages:
        file.write_bytes(damage)
        assert estimate_of(make_plan(config)).stages["segment"].source == ASSUMED, damage
    file.write_bytes(good)
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    machine.cache_clear()
    assert machine_rate(config, "segment") is None
    machine.cache_clear()


def test_seconds_of_a_first_try_are_no_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting up libraries takes most of them: neither this corpus nor another is estimated by them."""
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rates_module, "LEAST_SECONDS", 0.0)
    as_jsonl(tmp_path, sample_documents("libreoffice-eng", 12))
    path = config_of(tmp_path)
    config = load_config(path)
    rates_module.keep_rate(config, "segment", 50_000, 1_400_000, 100)

    def kept() -> float:
        rate = machine_rate(config, "segment")
        assert rate
        return rate.sentences

    run(path, "input.0.limit=6")
    found = estimate_of(make_plan(config)).stages["segment"]
    assert found.source == MACHINE and found.seconds and kept() == 50_000
    rates_module.keep_rate(config, "segment", 1000, 28_000, 20)  # little beside that
    assert kept() == 50_000
    rates_module.keep_rate(config, "segment", 10_000, 280_000, 50)
    assert kept() == 10_000
    rates_module.keep_rate(config, "segment", 100, 2800, 1, asked=True)
    assert kept() == 100


def test_the_plan_measures_this_machine_when_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(rates_module, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(calibrate_module, "SECONDS", 0.01)
    as_jsonl(tmp_path, sample_documents("libreoffice-eng", 6))
    path = write_config(tmp_path, input=[{"path": "in.jsonl", "lang": "eng_Latn"}])
    done = pipeline("plan", path, "--calibrate", "--json")
    stages = json.loads(done.stdout)["estimate"]["stages"]
    assert {name: stages[name]["source"] for name in stages} == dict.fromkeys(
        ("segment", "encode", "autobleu"), MACHINE
    )
    assert re.search(
        r"calibration on this machine \(.*\), .*: segment [\d ]+, encode [\d ]+, autobleu [\d ]+", done.stderr
    )
    assert len(rates(tmp_path / "cache")) == 3 and not (tmp_path / "out").exists()
    assert " measured on this machine." in " ".join(said(pipeline("plan", path)).split())


def test_what_cannot_be_read_is_left_to_the_run(tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_bytes(b"PAR1 is not enough")
    (tmp_path / "in.jsonl").write_text("")
    found = estimate_of(make_plan(load_config(config_of(tmp_path))))
    assert found.sentences == 0 and found.documents == 0


def test_small_parts_of_a_large_corpus_are_told_before_it_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_jsonl(tmp_path, sample_documents("libreoffice-eng", 8))
    path = write_config(tmp_path, input=[{"path": "in.*", "lang": "eng_Latn"}], autobleu=None, part_sentences=100)
    assert "part_sentences" not in said(pipeline("plan", path))
    monkeypatch.setattr(pilot_size, "MANY_PARTS", 2)
    shown = said(pipeline("plan", path))
    assert re.search(r"Warning: about \d+ parts, .* part_sentences: 1000000 and chunk_bytes: 1073741824", shown), shown
    assert "part_sentences" not in said(pipeline("plan", path, "--set", "part_sentences=1_000_000"))
    run(path)
    write_jsonl(tmp_path / "in.2.jsonl", sample_documents("libreoffice-eng", 9)[8:])
    assert "part_sentences" not in said(pipeline("plan", path)), "too late: what is made would be made again"


@pytest.mark.parametrize(("each", "last"), [(0.001, 2048), (0.3, 128), (10.0, 8)])
def test_calibration_measures_large_batches_also_on_slow_machines(
    monkeypatch: pytest.MonkeyPatch, each: float, last: int
) -> None:
    seconds = 0.0

    def work(start: int, stop: int) -> int:
        nonlocal seconds
        seconds += each * math.sqrt(stop - start)  # a batch of four times the size takes twice as long, not four times
        return stop - start

    monkeypatch.setattr(calibrate_module.time, "perf_counter", lambda: seconds)
    monkeypatch.setattr(calibrate_module, "MOST", 2048)
    assert calibrate_module._measure(work, 10_000).rows == last


def test_rates_by_the_card_follow_the_size_of_the_network(tmp_path: Path) -> None:
    def of(**sections: object) -> RunConfig:
        return load_config(write_config(tmp_path, **sections))

    names = ("sonar-tiny", "sonar")
    small, large = (rate_of(of(encode={"model": name}, autobleu=None), "encode", 1000) for name in names)
    assert small and large and small > 20 * large
    half, all_ = (rate_of(of(autobleu={"sample": share}), "autobleu", 1000) for share in (0.5, 1.0))
    assert half and all_ and half == pytest.approx(2 * all_)
    assert rate_of(of(), "scaler", 1000) is None
    sat, rules = (rate_of(of(segment={"method": one}), "segment", 1000) for one in ("sat-capped", "spacy-capped"))
    assert sat and rules and rules > 5 * sat


@pytest.mark.parametrize("folded", [True, False])
def test_tokens_are_those_of_the_chunks_that_are_left(tmp_path: Path, folded: bool) -> None:
    """An input of long sentences is segmented again, or gets another file, beside one of short ones."""
    long = "The committee that had been appointed in the spring of that year to look into the matter met again"
    for name, text in (("short", "It rains. "), ("long", f"{long}. ")):
        write_jsonl(tmp_path / f"in/{name}.jsonl", [{"id": f"{name}{n}", "text": text * 20} for n in range(20)])

    def config(**long_input: object) -> Path:
        given = [
            {"path": f"in/{name}*.jsonl", "name": name, "id": "id", "lang": "eng_Latn"} for name in ("short", "long")
        ]
        given[1] |= long_input
        return write_config(tmp_path, input=given, autobleu=None, encode=None)

    (run if folded else bring_up_to_date)(config())
    corpus = Corpus(str(tmp_path / "out"))
    tokens = corpus.to_arrow("tokens", where="startswith(doc_id, 'long')")["tokens"].to_numpy()
    again = estimate_of(make_plan(load_config(config(keep=["none"]))))
    assert again.tokens == pytest.approx(tokens.sum(), rel=0.01)
    write_jsonl(tmp_path / "in/long2.jsonl", [{"id": f"more{n}", "text": f"{long}. " * 20} for n in range(20)])
    more = estimate_of(make_plan(load_config(config())))
    assert more.documents == 0 and more.tokens == pytest.approx(more.sentences * tokens.mean(), rel=0.01)


def test_bytes_of_a_new_corpus_are_those_of_compressed_columns(tmp_path: Path) -> None:
    as_jsonl(tmp_path, sample_documents("libreoffice-eng", 300))
    source = {"path": "in.jsonl", "id": "id", "lang": "eng_Latn"}
    path = write_config(tmp_path, input=[source], autobleu=None, encode=None, part_sentences=100_000)
    expected = estimate_of(make_plan(load_config(path))).stored_bytes
    bring_up_to_date(path)
    corpus = Corpus(str(tmp_path / "out"))
    stored = sum(compute_accounting(corpus.store, corpus.chunks).data_bytes.values())
    assert 0.5 < stored / expected < 1.5, "technical texts repeat themselves more than books"
