"""`export --share`: N processes write what one would, whatever their order, and whichever of them are killed."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError, PipelineError
from pipeline.corpus.exports import exports_of
from pipeline.export import ExportOptions, export_corpus
from pipeline.select.command import SelectOptions
from tests.pipeline.export.exported import WHERE
from tests.support.cli import pipeline, said
from tests.support.corpora import make_corpus
from tests.support.processes import start

RULES = SelectOptions(where=WHERE)


def export(
    corpus: Corpus, to: object, share: tuple[int, int] | None, kind: str = "parquet", rules: SelectOptions = RULES
) -> str:
    shown = io.StringIO()
    options = ExportOptions(kind, str(to), rules, share=share)
    export_corpus(Console(file=shown, width=200), corpus.url, Corpus(corpus.url), options)
    return shown.getvalue()


def files(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    record = json.loads(found["export.json"])
    del record["seal"]
    return found | {"export.json": record}


@pytest.mark.parametrize("kind", ["parquet", "lcm"])
def test_shares_in_any_order_write_what_one_process_does(corpus: Corpus, tmp_path: Path, kind: str) -> None:
    export(corpus, tmp_path / "one/to", None, kind)
    more = len(corpus.parts) + 2  # than there are parts
    for number, order in enumerate(([3, 1, 2], [1], range(more, 0, -1))):
        to = tmp_path / f"{number}/to"
        said = [export(corpus, to, (which, len(order)), kind) for which in order]
        assert all("to be written" in one for one in said[:-1]) and " written to " in said[-1]
        assert f"{to} is complete" in export(corpus, to, (1, len(order)), kind)
        made, wanted = files(to), files(tmp_path / "one/to")
        for name in set(made) - {"datacard.yaml"}:  # which names the folder
            assert made[name] == wanted[name] or name == "export.json"
        assert made.keys() == wanted.keys()
        made["export.json"]["files"].pop("datacard.yaml", None), wanted["export.json"]["files"].pop("datacard.yaml", 0)
        assert made["export.json"] == wanted["export.json"]
        assert exports_of(corpus.store).records[-1].sentences == made["export.json"]["written"]["sentences"]


def test_on_an_object_store(corpus: Corpus, bucket: str) -> None:
    for which in (2, 1):
        export(corpus, f"{bucket}/shares", (which, 2))
    names = [name.rpartition("/")[2] for name in fsspec.filesystem("s3").find(f"{bucket}/shares")]
    assert "export.json" in names and not [name for name in names if name.endswith("of-2.json")]


def test_shares_at_the_same_time_also_twice(tmp_path: Path) -> None:
    corpus, to = Corpus(str(make_corpus(tmp_path))), tmp_path / "to"
    export(corpus, tmp_path / "one", None, rules=SelectOptions())
    arguments = ("export", corpus.url, "--format", "parquet", "--to", to, "--share")
    under_way = [start(*arguments, f"{which}/4") for which in (1, 2, 3, 4, 2, 4)]
    said = [one.communicate()[0] for one in under_way]
    assert all(one.returncode == 0 for one in under_way), said
    assert f"{to} is complete" in pipeline(*arguments, "3/4").stdout
    made, wanted = files(to), files(tmp_path / "one")
    assert made == wanted


def test_a_share_that_is_killed_or_fails_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it writes its files, or the share that completes the export is killed, before or after that."""
    corpus, to = Corpus(str(make_corpus(tmp_path))), tmp_path / "to"
    export(corpus, tmp_path / "one", None, rules=SelectOptions())
    arguments = [str(one) for one in ("export", corpus.url, "--format", "parquet", "--to", to, "--share", "1/2")]
    for function in ("write_wide", "_complete", "Shares.forget"):
        dies = (
            f"import os; import pipeline.export as e; done = e.{function}\n"
            f"e.{function} = lambda *given: (done(*given), os.kill(os.getpid(), 9))\n"
        )
        killed = subprocess.Popen([sys.executable, "-c", f"{dies}from pipeline.cli import main; main()", *arguments])
        assert killed.wait() == -signal.SIGKILL and list(to.rglob("*.parquet"))
        if function == "write_wide":
            export(corpus, to, (2, 2), rules=SelectOptions())
        assert (to / "export.json").exists() == (function != "write_wide")
        if function == "write_wide":
            (to / "shares/.1-of-2.json.0123abcd.tmp").touch()  # of one that was killed while it wrote its note
    (next(to.rglob("*.parquet")).parent / ".part.parquet.0123abcd.tmp").touch()
    assert "is complete" in pipeline(*arguments).stdout
    next(to.rglob(".*.tmp")).unlink()
    assert files(to) == files(tmp_path / "one")


def test_shares_of_different_exports_do_not_mix(corpus: Corpus, tmp_path: Path) -> None:
    to = tmp_path / "to"
    export(corpus, to, (1, 2))
    with pytest.raises(CorpusError, match=r"shares/1-of-2.json is of another export: select, selection was different"):
        export(corpus, to, (2, 2), rules=SelectOptions())
    for share in ((1, 3), None):
        with pytest.raises(ConfigError, match="is not empty"):
            export(corpus, to, share)
    note = to / "shares/1-of-2.json"
    whole = note.read_bytes()
    note.write_bytes(whole.replace(b'"kept": ', b'"kept": 1'))
    with pytest.raises(CorpusError, match=r"shares/1-of-2\.json.*do that share again"):
        export(corpus, to, (2, 2))
    note.write_bytes(whole)
    next(to.rglob("*.parquet")).write_bytes(b"")
    with pytest.raises(CorpusError, match="lacks files"):
        export(corpus, to, (2, 2))
    assert not (to / "export.json").exists()
    shutil.rmtree(to)
    for which in (1, 2):
        export(corpus, to, (which, 2))
    with pytest.raises(ConfigError, match="holds another export, which is finished"):
        export(corpus, to, (1, 2), rules=SelectOptions())


def test_a_damaged_share_completes_nothing_and_a_damaged_export_is_not_complete(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = tmp_path / "to"
    arguments = ("export", corpus.url, "--format", "parquet", "--to", to, "--share")
    assert pipeline(*arguments, "1/2").returncode == 0
    path = sorted(to.rglob("*.parquet"))[0]
    whole = path.read_bytes()
    changed = whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:]

    def refused() -> None:
        done = pipeline(*arguments, "2/2")
        assert done.returncode == 1 and "1 file of this export changed or went away" in said(done), said(done)
        assert path.relative_to(to).as_posix() in said(done) and "export all shares again" in said(done)

    path.write_bytes(changed)
    refused()
    assert not (to / "export.json").exists()
    path.write_bytes(whole)
    assert f"{to} is complete" in pipeline(*arguments, "2/2").stdout
    for data in (changed, whole[:100], b"", None):
        path.unlink() if data is None else path.write_bytes(data)
        refused()
    path.write_bytes(changed)
    with monkeypatch.context() as patch:
        patch.setattr("pipeline.export.shares.CHECKED_BYTES", 1000)  # of a larger one, only sizes are compared
        assert f"{to} is complete" in pipeline(*arguments, "2/2").stdout
    path.write_bytes(whole)
    record = (to / "export.json").read_bytes()
    (to / "export.json").write_bytes(record.replace(b'"sentences": ', b'"sentences": 1', 1))
    assert "export.json is damaged (it is not the text that its seal was made of)" in said(pipeline(*arguments, "2/2"))


def test_a_purge_between_two_shares_ends_the_export(tmp_path: Path) -> None:
    corpus, to = Corpus(str(make_corpus(tmp_path))), tmp_path / "to"
    export(corpus, to, (1, 2))
    (tmp_path / "ids").write_text(str(corpus.documents(corpus.parts[-1])["doc_id"][0]) + "\n")
    assert pipeline("purge", corpus.url, "--ids", tmp_path / "ids").returncode == 0
    with pytest.raises(PipelineError, match=r"is of another export: .*purged was different.*export all shares again"):
        export(corpus, to, (2, 2))


@pytest.mark.parametrize("share", ["0/2", "3/2", "1", "1/0", "x"])
def test_wrong_shares_are_refused(corpus: Corpus, tmp_path: Path, share: str) -> None:
    refused = pipeline("export", corpus.url, "--format", "lcm", "--to", tmp_path / "to", "--share", share)
    assert refused.returncode == 2 and "for instance 3/100" in refused.stderr, refused
    with pytest.raises(ConfigError, match="at most 10000 shares"):
        export(corpus, tmp_path / "to", (1, 1_000_000_000))
    with pytest.raises(ConfigError, match="--share 1/2 is an option of --format parquet, lcm"):
        export(corpus, tmp_path / "to", (1, 2), "numpy")


def test_a_selection_that_keeps_nothing_is_not_completed(corpus: Corpus, tmp_path: Path) -> None:
    rules = replace(RULES, where="chars > 100000")
    export(corpus, tmp_path / "to", (1, 2), rules=rules)
    with pytest.raises(CorpusError, match="keeps no sentence in any share"):
        export(corpus, tmp_path / "to", (2, 2), rules=rules)
