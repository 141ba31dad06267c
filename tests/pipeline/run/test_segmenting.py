"""Parts close at document ends; the books balance; bad documents are set aside with their reason."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline.inputs.rows as rows
import pipeline.run.chunk_accounting as quarantine
import pipeline.run.segmenting as segmenting
from pipeline.base.errors import CorpusError
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fingerprint import column_digest
from pipeline.corpus.receipts import ChunkReceipt, Receipt
from pipeline.inputs import Chunk, Document, InputSettings, Rejected, SplitSettings, plan_chunks, read_documents
from pipeline.run.segmenting import ChunkSegmenter, Segmentation
from pipeline.storage.store import Store
from stages.segment.normal import Normal
from tests.conftest import MakeConfig, sample_documents, write_jsonl


def run(config: RunConfig) -> tuple[list[Segmentation], list[ChunkReceipt]]:
    segmenter = ChunkSegmenter(config)
    chunks = [chunk for one in config.input for chunk in plan_chunks(one)]
    items = [item for chunk in chunks for item in segmenter.run(chunk)]
    return (
        [item for item in items if isinstance(item, Segmentation)],
        [item for item in items if isinstance(item, ChunkReceipt)],
    )


def test_what_an_earlier_version_wrote_in_another_way_is_kept_and_said(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes in lists were `b'…'`; offsets behind a composed letter, in a cluster longer than the cap, one too low."""
    (tmp_path / "in").mkdir()
    texts = ["One sentence.", "e\u0301" + "\u0302" * 200]
    table = pa.table({"text": texts, "tags": pa.array([[b"a"], [b"b"]], pa.list_(pa.binary()))})
    pq.write_table(table, tmp_path / "in/a.parquet")
    config = load_config(make_config(input=[{"path": "in", "lang": "eng_Latn", "keep": ["tags"]}]))
    with monkeypatch.context() as earlier:
        earlier.setattr(rows, "_has_bytes_or_nanoseconds", lambda kind: False)
        earlier.setattr(
            Normal, "_inside", lambda self, change, places: self.old[change, 0] + places - self.new[change, 0]
        )
        (old,) = run(config)[0]
    (receipt,) = (tmp_path / "out/chunks").rglob("*.json")
    receipt.unlink()
    assert run(config)[0] == [old]
    told = "has documents.tags, sentences.end, sentences.start as an earlier version wrote them, and keeps them"
    assert told in caplog.text
    for path in [receipt, *(tmp_path / "out/receipts").rglob("*.json")]:
        path.unlink()
    run(config)
    written = max((tmp_path / "out/sentences").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    for one in pq.read_table(written).to_pylist():
        text = unicodedata.normalize("NFC", texts[one["doc"]][one["start"] : one["end"]])
        assert text == one["text"], one


def only_file(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/x.jsonl").write_text("".join(line + "\n" for line in lines), "utf-8")


def test_parts_hold_whole_documents_in_order(make_config: MakeConfig, tmp_path: Path) -> None:
    config = load_config(make_config())
    parts, receipts = run(config)
    assert len(parts) > len(receipts) == 3
    ids: list[str] = []
    for receipt in receipts:
        for number, ref in enumerate(receipt.parts):
            assert ref.part == f"{receipt.chunk}-{number:05d}"
            documents = pq.read_table(next((tmp_path / "out/documents").rglob(f"{ref.part}.*"))).to_pylist()
            sentences = pq.read_table(next((tmp_path / "out/sentences").rglob(f"{ref.part}.*")))
            ids += [one["doc_id"] for one in documents]
            for one in documents:
                rows = sentences.slice(one["first_row"], one["rows"])
                assert set(rows["doc"].to_pylist()) == {one["doc"]}
                assert rows["position"].to_pylist() == list(range(one["rows"]))
            assert sum(one["rows"] for one in documents) == sentences.num_rows
            if number < len(receipt.parts) - 1:
                assert sentences.num_rows >= config.part_sentences
                assert sentences.num_rows - documents[-1]["rows"] < config.part_sentences
    expected = [
        one["id"]
        for name, count in (("libreoffice-deu", 4), ("libreoffice-eng", 6), ("postgresql-eng", 4))
        for one in sample_documents(name, count)
    ]
    assert ids == expected


def test_every_bad_document_has_a_reason(make_config: MakeConfig, tmp_path: Path) -> None:
    good = {"id": "good", "lang": "eng_Latn", "text": "It works. It does."}
    lines = [
        json.dumps(good),
        "not json",
        json.dumps(good | {"id": "blank", "text": " \n\t "}),
        json.dumps(good | {"id": "no-lang", "lang": "eng_Lat"}),
        json.dumps({"id": "no-text", "lang": "eng_Latn"}),
        "",
        json.dumps(good | {"id": "unknown", "lang": "swh_Latn"}),
    ]
    only_file(tmp_path, lines)
    _, (receipt,) = run(load_config(make_config()))
    assert receipt.documents_in == 7
    assert receipt.kept == 1
    assert sum(receipt.dropped.values()) == 2 and receipt.dropped["no text"] == 1
    assert sum(receipt.quarantined.values()) == 4
    assert receipt.quarantine
    rows = pq.read_table(tmp_path / "out" / receipt.quarantine.path).to_pylist()
    assert len(rows) == 4
    unknown = next(row for row in rows if row["doc_id"] == "unknown")
    assert unknown["reason"] == "unknown language" and "nearest" in unknown["error"]
    assert unknown["payload"] == lines[-1].encode() and unknown["payload_bytes"] == len(lines[-1])


def test_documents_in_which_nothing_is_visible_are_dropped(make_config: MakeConfig, tmp_path: Path) -> None:
    nothing = ["\u200b", "\u00ad\u200d ", "\ufeff", "\u200e\n\u200f", "\u2060", "\u3164", "\u2800\u2800", "\x01"]
    there = ["\u0600", "\ue000", ".", "a\u200b", "\U0001f600"]
    one = {"id": "0", "lang": "eng_Latn"}
    only_file(tmp_path, [json.dumps(one | {"text": text, "id": text}) for text in (*nothing, *there)])
    _, (receipt,) = run(load_config(make_config()))
    assert (receipt.kept, receipt.dropped) == (len(there), {"no text": len(nothing)})


def test_a_document_without_text_does_not_claim_its_id(make_config: MakeConfig, tmp_path: Path) -> None:
    one = {"id": "1", "lang": "eng_Latn", "text": " "}
    only_file(tmp_path, [json.dumps(one), json.dumps(one | {"text": "Hello."}), json.dumps(one | {"text": "Again."})])
    _, (receipt,) = run(load_config(make_config()))
    assert (receipt.kept, receipt.dropped, receipt.quarantined) == (1, {"no text": 1}, {"duplicate id": 1})


def test_a_chunk_without_any_document_has_a_receipt(make_config: MakeConfig, tmp_path: Path) -> None:
    only_file(tmp_path, [])
    parts, (receipt,) = run(load_config(make_config()))
    assert not parts and receipt.documents_in == 0 and receipt.balance() is None


def test_a_long_document_becomes_numbered_sub_documents(make_config: MakeConfig, tmp_path: Path) -> None:
    text = " ".join(f"This is sentence {n}." for n in range(25))
    only_file(tmp_path, [json.dumps({"id": "long", "lang": "eng_Latn", "text": text})])
    config = load_config(make_config(segment={"max_document_sentences": 10}))
    _, (receipt,) = run(config)
    documents = pq.read_table(next((tmp_path / "out/documents").rglob("*.parquet"))).to_pylist()
    assert [(one["doc_id"], one["subdocument"], one["rows"]) for one in documents] == [
        ("long", 0, 10),
        ("long", 1, 10),
        ("long", 2, 5),
    ]
    assert receipt.kept == 1 and receipt.counts["split_documents"] == 2
    sentences = pq.read_table(next((tmp_path / "out/sentences").rglob("*.parquet")))
    assert sentences["position"].to_pylist() == list(range(25))
    assert all(text[row["start"] : row["end"]] == row["text"] for row in sentences.to_pylist())


def test_sub_documents_may_be_in_several_parts(make_config: MakeConfig, tmp_path: Path) -> None:
    text = " ".join(f"This is sentence {n}." for n in range(450))
    good = {"id": "next", "lang": "eng_Latn", "text": "Another. One."}
    only_file(tmp_path, [json.dumps({"id": "long", "lang": "eng_Latn", "text": text}), json.dumps(good)])
    segment = {"method": "spacy", "max_document_sentences": 120}
    parts, (receipt,) = run(load_config(make_config(segment=segment, part_sentences=200)))
    assert [part.rows for part in parts] == [240, 210, 2]
    rows = [
        row
        for part in parts
        for row in pq.read_table(next((tmp_path / "out/documents").rglob(f"{part.ref.part}.*"))).to_pylist()
    ]
    assert [(row["doc_id"], row["subdocument"], row["doc"], row["first_row"], row["rows"]) for row in rows] == [
        ("long", 0, 0, 0, 120), ("long", 1, 1, 120, 120),
        ("long", 2, 0, 0, 120), ("long", 3, 1, 120, 90), ("next", 0, 0, 0, 2),
    ]  # fmt: skip
    assert receipt.kept == 2 and receipt.counts["split_documents"] == 3


def test_a_chunk_of_nothing_but_bad_records_has_a_short_list(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "LISTED", 3)
    good = json.dumps({"id": "good", "lang": "eng_Latn", "text": "It works."})
    only_file(tmp_path, [*["not json"] * 10, good, *["[]"] * 5, "x" * 5000])
    _, (receipt,) = run(load_config(make_config()))
    assert receipt.quarantined == {"invalid JSON": 11, "not a JSON object": 5} and receipt.kept == 1
    assert receipt.quarantine
    rows = pq.read_table(tmp_path / "out" / receipt.quarantine.path).to_pylist()
    places = [*((line, 9 * (line - 1)) for line in (1, 2, 3, 4)), (12, 91 + len(good))]
    assert [row["record"] for row in rows] == [f"x.jsonl line {line}, byte {byte}" for line, byte in places]
    assert [row["reason"] for row in rows] == ["invalid JSON"] * 4 + ["not a JSON object"]
    assert [row["records"] for row in rows] == [1, 1, 1, 8, 5]
    assert "all later ones" in rows[-1]["error"]


def test_a_reader_that_skips_records_makes_the_chunk_fail(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [json.dumps({"id": str(n), "lang": "eng_Latn", "text": f"Line {n}."}) for n in range(2500)]
    only_file(tmp_path, lines)

    def skipping(
        chunk: Chunk, settings: InputSettings, split: SplitSettings, languages: Sequence[str]
    ) -> Iterator[Document | Rejected]:
        for number, item in enumerate(read_documents(chunk, settings, split, languages), start=1):
            if number % 1000:
                yield item

    monkeypatch.setattr(segmenting, "read_documents", skipping)
    with pytest.raises(CorpusError, match="2500 documents in, but 2498 kept"):
        run(load_config(make_config()))
    assert not Store(str(tmp_path / "out")).find("chunks")


def test_an_input_that_changes_under_a_run_is_noticed(make_config: MakeConfig, tmp_path: Path) -> None:
    config = load_config(make_config(input=[{"path": "in/*.jsonl", "id": "id", "lang": {"column": "lang"}}]))
    write_jsonl(tmp_path / "in/libreoffice-eng.jsonl", sample_documents("libreoffice-eng", 3))
    chunk = next(chunk for one in config.input for chunk in plan_chunks(one) if "eng" in chunk.path)
    first = next(iter(ChunkSegmenter(config).run(chunk)))
    assert isinstance(first, Segmentation)
    write_jsonl(tmp_path / "in/libreoffice-eng.jsonl", list(reversed(sample_documents("libreoffice-eng", 3))))
    with pytest.raises(Exception, match="changed"):
        list(ChunkSegmenter(config).run(chunk))


@pytest.mark.parametrize(
    ("then", "now", "column", "said", "not_said"),
    [
        ("cpu", "cpu (2 threads)", "text", "the input changed during the run", "SaT"),
        ("NVIDIA H100", "NVIDIA H100", "text", "; SaT cut the same text differently (on NVIDIA H100, now", "the input"),
        ("cpu (2 threads)", "NVIDIA H100", "text", "; SaT cut the same text differently (on cpu (2", "the input"),
        ("NVIDIA H100", "NVIDIA H100", "text_hash", "the input changed during the run, or a library did; or SaT", "?"),
    ],
)
def test_a_part_that_comes_out_otherwise_says_why(then: str, now: str, column: str, said: str, not_said: str) -> None:
    chunk = Chunk("0" * 12, "in", "in.jsonl", "", "text", "", 0, -1, 1000, None, "")
    families = {"documents": pa.table({"text_hash": [1, 2]}), "sentences": pa.table({"text": ["a", "b"]})}
    written = {f"{name}.{c}": column_digest(t[c]) for name, t in families.items() for c in t.column_names}
    receipt = Receipt.model_construct(columns=written, counts={}, device=then)
    segmenting._same(families, receipt, "in.jsonl: part", chunk, now)
    changed = {name: digest + "0" if name.endswith(f".{column}") else digest for name, digest in written.items()}
    with pytest.raises(CorpusError) as error:
        segmenting._same(families, receipt.model_copy(update={"columns": changed}), "in.jsonl: part", chunk, now)
    assert said in str(error.value) and not_said not in str(error.value)
    assert str(error.value).endswith("delete that file and run again")
