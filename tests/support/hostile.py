"""A corpus whose texts, ids, names and files try to become markup, code, formulas, or other directions of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.base.errors import STEERS
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline

EVIL = (
    "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1> <!-- ${1} {{ 7*7 }} "
    "\u202egnp.exe\u202c"
)
ODD = "=1+1 <svg onload=window.hacked=1> & javascript:alert(1) \u2028 '\"` and some further words"


def make_hostile_corpus(folder: Path) -> None:
    """Run the pipeline on hostile documents, names and settings, Chinese, and some that are as they should be."""
    hostile = [
        {"id": EVIL, "lang": "eng_Latn", "title": EVIL, "text": f"{EVIL}. A plain sentence after it. {ODD}."},
        {"id": "zh", "lang": "zho_Hans", "title": "标题", "text": "今天天气很好。我们去公园散步。孩子们在湖边玩。"},
    ]
    write_jsonl(folder / "in/b <img src=x onerror=window.hacked=1>.jsonl", hostile)
    for lang in ("eng", "deu"):
        write_jsonl(folder / f"in/{lang}.jsonl", sample_documents(f"libreoffice-{lang}", 5))
    sections: dict[str, Any] = {"name": EVIL, "noise": {}, "language": {}, "duplicates": {}}
    expect = {"documents": ">= 1", "duplicate_sentences": "== 0", "autobleu_mean_by_source": ">= 0"}
    sections |= {"segment": {"method": "spacy-capped", "max_chars": 200}, "autobleu": {"sample": 0.8}}
    path = write_config(folder, **sections, report={"expect": expect, "interactive": True})
    done = pipeline("run", path)
    assert done.returncode == 0 and "report/interactive.html" in done.stdout, done
    shown = done.stdout + done.stderr + pipeline("status", path).stdout
    assert not STEERS.search(shown.replace("\n", "")), shown
