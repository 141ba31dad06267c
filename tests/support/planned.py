"""A small corpus whose inputs bring plans of paragraphs: as lists in Parquet, as texts and lists in JSONL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.conftest import write_config, write_jsonl

ENTRY = {"id": "id", "lang": {"column": "lang"}, "keep": ["topics", "answer"]}
INPUTS = [ENTRY | {"path": "in/*.parquet", "name": "lists"}, ENTRY | {"path": "in/*.jsonl", "name": "texts"}]
SETTINGS: dict[str, Any] = {
    "input": INPUTS,
    "encode": {"model": "sonar-tiny"},
    "segment": {"method": "spacy-capped"},
    "plans": {"column": "topics"},
    "autobleu": None,
}


def document(number: int, lang: str, topics: Any, *paragraphs: str) -> dict[str, Any]:
    text = "\n\n".join(one.format(number) for one in paragraphs)
    answer = text.index("\n\n") - 3 if number % 3 == 0 and "\n\n" in text else None  # in the first paragraph
    return {"id": f"{lang}-{number:03d}", "lang": lang, "topics": topics, "text": text, "answer": answer}


def documents(times: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Documents with lists of plans, and documents of which some have one text, others a list or nothing."""
    lists, texts = [], []
    for n in range(times):
        file = (
            "The file {} was saved. It is on the disk {0}. It may stay.",
            "Open it again {}. Then look.",
            "Close {}.",
        )
        file = tuple(one.replace("{0}", "{}").replace("{}", str(n)) for one in file)
        lists.append(document(3 * n, "eng_Latn", [f" Saving file {n} ", "", "Closing it"], *file))
        chinese = ("文件{}已打开。请等待。", "文件{}已保存。现在可以关闭。")
        lists.append(document(3 * n + 1, "zho_Hans", [None, f"保存文件{n}"], *chinese))
        lists.append(
            document(
                3 * n + 2,
                "deu_Latn",
                [f"Das Öffnen {n}", "zu viel", "viel zu viel"],
                "Die Datei {} geht auf. Sie ist da.",
            )
        )
        texts.append(
            document(
                3 * n, "fra_Latn", f"La fenêtre {n}", "La fenêtre {} est ouverte. Elle est grande.", "Elle se ferme {}."
            )
        )
        texts.append(
            document(3 * n + 1, "eng_Latn", [f"A window {n}"], "A window {} opens. Choose a name.", "It is done {}.")
        )
        texts.append(document(3 * n + 2, "eng_Latn", None, "Nothing is planned here {}. It is only text."))
    return lists, texts


def write_planned(folder: Path, times: int = 6, **sections: Any) -> Path:
    """Write inputs, and the corpus.yaml of a corpus with their plans."""
    lists, texts = documents(times)
    (folder / "in").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(lists), folder / "in" / "lists.parquet")
    write_jsonl(folder / "in" / "texts.jsonl", texts)
    return write_config(folder, **(SETTINGS | sections))


def expected_plans(times: int) -> dict[str, list[str]]:
    """Document → its plans by paragraph, as far as it has these paragraphs; an empty text is none."""
    found: dict[str, list[str]] = {}
    for one in [row for rows in documents(times) for row in rows]:
        given = one["topics"] if isinstance(one["topics"], list) else [one["topics"]]
        paragraphs = one["text"].count("\n\n") + 1
        found[one["id"]] = [(given[at] or "").strip() if at < len(given) else "" for at in range(paragraphs)]
    return found
