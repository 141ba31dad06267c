"""Page headers are read as pyarrow writes them, whatever they hold."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.inputs.pages import FEW_BYTES, LARGE_PAGE, PageError, largest_dictionary
from stages.arrow import columns_of_group
from tests.support.inputs import entry, only_rejected, read_all


def dictionaries_of(path: Path, columns: list[str]) -> int:
    """The largest dictionary of a file of one row group, whose pages are walked to the end."""
    with path.open("rb") as file:
        metadata = pq.ParquetFile(path).metadata
        assert metadata.row_group(0).total_byte_size < FEW_BYTES
        stored = [one for one in columns_of_group(metadata, 0) if one.path_in_schema.split(".")[0] in columns]
        return largest_dictionary(file, stored, local=False)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": codec, "data_page_version": version, "use_dictionary": dictionary, **more}
        for codec in ("zstd", "snappy", "gzip", "lz4", "brotli")
        for version, dictionary, more in (
            ("1.0", True, {}),
            ("2.0", False, {"write_page_checksum": True}),
            ("2.0", True, {"write_page_index": True, "data_page_size": 64}),
        )
    ],
    ids=lambda one: "-".join(map(str, one.values())),
)
def test_every_page_of_every_kind_is_passed(tmp_path: Path, options: dict[str, Any]) -> None:
    table = pa.table({
        "text": [f"{'long ' * 600}{number}" if number % 9 else None for number in range(300)],
        "more": [{"a": [number] * (number % 3), "b": -1.5} for number in range(300)],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet", **options)
    found = dictionaries_of(tmp_path / "a.parquet", ["text", "more"])
    assert (600_000 < found < 2_000_000) if options["use_dictionary"] else found == 0
    assert dictionaries_of(tmp_path / "a.parquet", ["more"]) < 10_000 and not dictionaries_of(
        tmp_path / "a.parquet", []
    )


def test_what_is_no_header_is_told(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "a.parquet", use_dictionary=False)
    whole = (tmp_path / "a.parquet").read_bytes()
    column = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0)
    tried = set[bool]()
    for place in range(4, 4 + column.total_compressed_size):
        for byte in (0, 0xFF, 0x1C, 0x15):
            (tmp_path / "b.parquet").write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            with (tmp_path / "b.parquet").open("rb") as file:
                try:
                    largest_dictionary(file, [column], local=False)
                    tried.add(True)
                except PageError as error:
                    assert str(error)
                    tried.add(False)
    assert tried == {True, False}


def test_a_page_that_grows_is_found_in_a_large_column_too(tmp_path: Path) -> None:
    """Of the column as a whole, 2 MiB are stored, which may become 200 MiB; of the page of the long text, 2 kB."""
    noise = random.Random(0).randbytes(FEW_BYTES).hex()
    table = pa.table({"text": [noise, noise[::-1], "a" * (LARGE_PAGE + 1), "The end."]})
    options: dict[str, Any] = {"compression": "zstd", "data_page_size": 100, "write_batch_size": 1}
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, **options)
    assert (tmp_path / "a.parquet").stat().st_size > 2 * FEW_BYTES
    rejected = only_rejected(read_all(entry(tmp_path / "a.parquet")))
    assert rejected.records == 4 and rejected.error.startswith("text: a page of 33554443 bytes is stored in ")
