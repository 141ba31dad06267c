"""README.md of a corpus folder: true of every corpus, for people only, and nobody's in the way."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.cli import COMMANDS
from pipeline.corpus.readme import TEXT
from pipeline.maintenance.gc import find_garbage
from pipeline.storage import layout
from tests.support.cli import pipeline
from tests.support.corpora import make_corpus


def test_it_names_every_folder_and_only_commands_that_exist() -> None:
    for folder in (*layout.ROW_FAMILIES, "documents", "quarantine", layout.RUNS, layout.FITS, "receipts", "ledger"):
        assert f"`{folder}/`" in TEXT
    named = set(re.findall(r"`pipeline ([a-z-]+)", TEXT))
    assert named and named <= {command.__name__ for group in COMMANDS.values() for command in group}


def test_it_is_in_every_corpus_and_nothing_depends_on_it(tmp_path: Path) -> None:
    out = make_corpus(tmp_path, until="segment")
    readme = out / "README.md"
    assert readme.read_text() == TEXT and str(tmp_path) not in TEXT
    again = ("run", tmp_path / "corpus.yaml", "--until", "segment")
    readme.write_text("# My own words\n")
    (tmp_path / "ids.txt").write_text("end\n")
    for arguments in (
        ("verify", out),
        ("status", out),
        ("purge", out, "--ids", tmp_path / "ids.txt", "--in-advance"),
        again,
    ):
        done = pipeline(*arguments)
        assert done.returncode == 0, done
        assert readme.read_text() == "# My own words\n", arguments
    from pipeline import Corpus

    assert "README.md" not in find_garbage(Corpus(str(out))).why
    readme.unlink()
    assert pipeline("verify", out).returncode == 0 and not readme.exists()
    config = tmp_path / "corpus.yaml"
    config.write_text(config.read_text().replace("max_chars: 80", "max_chars: 90"))
    assert pipeline(*again).returncode == 0
    assert readme.read_text() == TEXT, "a run that records anything writes it where it is missing"
