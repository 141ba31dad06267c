"""The YAML header of a dataset card, with the names that the Hub and `datasets` give things; and the numbers in it,
added up while rows are written.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.inputs.splits import SPLITS
from stages.language.identifier import SONAR_CODES

# The licences that the Hub lists, of those that texts and models usually have.
LICENCES = (
    "agpl-3.0", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "bsl-1.0", "cc", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0",
    "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0",
    "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0",
    "cc0-1.0", "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "isc", "lgpl", "lgpl-2.1", "lgpl-3.0", "mit", "mpl-2.0", "odbl",
    "odc-by", "other", "pddl", "postgresql", "unknown", "unlicense",
)  # fmt: skip
UNKNOWN = "unknown"
_TWO_LETTERS = {codes[0].split("_")[0]: label for label, codes in SONAR_CODES.items() if len(label) == 2} | {
    "bho": "bho", "nob": "nb", "ibo": "ig", "hau": "ha", "zul": "zu", "xho": "xh", "kin": "rw", "lin": "ln",
    "tir": "ti", "tso": "ts", "tsn": "tn", "ssw": "ss", "sna": "sn", "wol": "wo", "aka": "ak", "bam": "bm",
    "ewe": "ee", "fao": "fo", "fij": "fj", "kik": "ki", "lug": "lg", "mri": "mi", "nya": "ny", "run": "rn",
    "sag": "sg", "smo": "sm", "sot": "st", "twi": "tw", "dzo": "dz",
}  # fmt: skip
_SIZES = ((10**3, "1K"), (10**4, "10K"), (10**5, "100K"), (10**6, "1M"), (10**7, "10M"), (10**8, "100M"),
          (10**9, "1B"), (10**10, "10B"), (10**11, "100B"), (10**12, "1T"))  # fmt: skip

MOST_ROWS = 2_000_000  # kept for quantiles and plots: the first ones, in the random order of the parts


def iso_code(lang: str) -> str:
    """Return the ISO 639-1 code of a SONAR code such as `deu_Latn` (`de`), or ISO 639-3 where there is none (`ban`).

    Text that is no such code stays, without its script.
    """
    code = lang.partition("_")[0]
    return _TWO_LETTERS.get(code, code)


def licence_id(text: str) -> str:
    """Return the Hub's name of the licence that a model's card states first (`MIT (weights). …` is `mit`)."""
    first = re.split(r" \(|\. |; |, ", text)[0].strip().lower()
    return first if first in LICENCES else "other"


def size_category(rows: int) -> str:
    """Return the Hub's category of a number of rows, such as `10K<n<100K`."""
    below = "n<1K"
    for (low, name), (_, upper) in zip(_SIZES, (*_SIZES[1:], (0, "")), strict=True):
        if rows >= low:
            below = f"{name}<n<{upper}" if upper else "n>1T"
    return below


def header(name: str, licences: list[str], figures: ExportFigures, file_bytes: int) -> dict[str, Any]:
    """Return the YAML header of a dataset card.

    Args:
        name: the name of the corpus.
        licences: the licences of the texts and of the encoder, as the Hub names them.
        figures: the numbers of the written rows.
        file_bytes: the size of the Parquet files.

    Returns:
        Field → value.
    """
    splits = [split for split in SPLITS if split in figures.rows]
    rows = sum(figures.rows.values())
    return {
        "pretty_name": name,
        "language": sorted({iso_code(lang) for lang in figures.langs}),
        "license": list(dict.fromkeys(licences)),
        "size_categories": [size_category(rows)],
        "task_categories": ["feature-extraction", "sentence-similarity"],
        "tags": ["sonar", "sentence-embeddings", "large-concept-model", "sonar-pipeline"],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": split, "path": f"data/{split}/*.parquet"} for split in splits],
            }
        ],
        "dataset_info": {
            "config_name": "default",
            "features": features(figures.schema) if figures.schema else [],
            "splits": [
                {"name": split, "num_bytes": figures.bytes[split], "num_examples": figures.rows[split]}
                for split in splits
            ],
            "download_size": file_bytes,
            "dataset_size": sum(figures.bytes.values()),
        },
    }


def features(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the features of `datasets` for the columns of Parquet files."""
    return [{"name": field.name, **_feature(field.type)} for field in schema]


def _feature(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_list(kind):
        inner = _feature(kind.value_type)
        return {"list": inner.get("dtype") or inner.get("struct") or inner}
    if pa.types.is_struct(kind):
        return {"struct": [{"name": one.name, **_feature(one.type)} for one in kind]}
    names = {pa.float32(): "float32", pa.float64(): "float64", pa.float16(): "float16", pa.date32(): "date32"}
    return {"dtype": names.get(kind, str(kind))}


@dataclass
class ExportFigures:
    """Counts of all rows; lengths and scores of the first `MOST_ROWS`."""

    schema: pa.Schema | None = None
    rows: Counter[str] = field(default_factory=Counter)  # by split
    bytes: Counter[str] = field(default_factory=Counter)  # in Arrow's memory, by split
    langs: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)  # by language
    _kept: list[tuple[npt.NDArray[np.object_], npt.NDArray[np.int32], npt.NDArray[np.float32]]] = field(
        default_factory=list
    )
    kept_rows: int = 0

    def add(self, split: str, table: pa.Table) -> None:
        """Count the rows of a table as it is written."""
        self.schema = table.schema
        self.rows[split] += table.num_rows
        self.bytes[split] += table.nbytes
        for one in (
            table.select(["lang", "tokens"])
            .group_by("lang")
            .aggregate([("tokens", "sum"), ("lang", "count")])
            .to_pylist()
        ):
            self.langs[one["lang"]] += one["lang_count"]
            self.tokens[one["lang"]] += one["tokens_sum"]
        if self.kept_rows < MOST_ROWS:
            scored = "autobleu" in table.column_names
            scores = table["autobleu"].to_numpy() if scored else np.full(table.num_rows, np.nan)
            langs = np.asarray(table["lang"].to_pylist(), dtype=object)
            self._kept.append((langs, table["chars"].to_numpy(), scores.astype(np.float32)))
            self.kept_rows += table.num_rows

    def arrays(self) -> tuple[list[str], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return languages, those with most sentences first, and of each kept row its language's place there, its
        length in characters, and its AutoBLEU or NaN.
        """
        names = sorted(self.langs, key=lambda name: (-self.langs[name], name))
        place = {name: number for number, name in enumerate(names)}
        lang = np.array([place[one] for langs, _, _ in self._kept for one in langs], np.int32)
        chars = np.concatenate([chars for _, chars, _ in self._kept]).astype(np.int32)
        return names, lang, chars, np.concatenate([scores for _, _, scores in self._kept])
