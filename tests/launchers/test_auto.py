"""`launcher: auto`: this process for little work or for one worker, else Ray; the record of a run says which it was."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml

from launchers import inline
from launchers.devices import devices
from launchers.launch import SHORT_SECONDS, choose_for
from launchers.segmenting_process import SegmentingProcess
from pipeline.config.load import load_config
from pipeline.planning.estimate import estimate_of
from pipeline.planning.plan import Plan, make_plan
from pipeline.planning.workload import FAST_GPU, busy_seconds_of, segmenters_per_visitor
from pipeline.run.tasks import PartTask, _Attempts
from pipeline.storage.store import Store
from stages.computing import segmented, tell_segmented
from stages.fragility.card import shipped_external_cards
from tests.conftest import MakeConfig, data_digests, write_jsonl
from tests.support.cli import pipeline, said
from tests.support.runs import planned


@pytest.mark.parametrize(
    ("seconds", "cores", "gpus", "segmenters", "taken"),
    [
        (0, 1, 0, None, "inline"),
        (SHORT_SECONDS - 1, 64, 8, None, "inline"),
        (SHORT_SECONDS, 64, 8, None, "local"),
        (1e9, 64, 0, None, "local"),
        (1e9, 64, 1, None, "local"),
        (1e9, 64, 1, 1, "inline"),
        (1e9, 64, 2, 1, "local"),
        (1e9, 2, 1, None, "inline"),
        (1e9, 3, 1, None, "local"),
        (1e9, 1, 0, None, "inline"),
    ],
)
def test_what_is_taken(seconds: float, cores: int, gpus: int, segmenters: int | None, taken: str) -> None:
    assert choose_for(seconds, cores, gpus, segmenters)[0] == taken


def busy(plan: Plan, cores: int, gpus: int) -> float:
    return busy_seconds_of(plan, estimate_of(plan).sentences, cores, gpus)


def test_the_estimate_grows_with_the_work_and_falls_with_the_machine(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    small = make_plan(load_config(path))
    seconds = busy(small, 2, 0)
    assert 0 < busy(small, 2, 1) < busy(small, 64, 0) < seconds < SHORT_SECONDS
    text = (tmp_path / "in/libreoffice-eng.jsonl").read_text()
    copies = (text.replace('"id": "', f'"id": "{number}-') for number in range(2000))
    (tmp_path / "in/large.jsonl").write_text("".join(copies))
    assert busy(make_plan(load_config(path)), 2, 0) > SHORT_SECONDS
    limited = make_plan(load_config(path, ["input.0.path=in/large.jsonl", "input.0.limit=2"]))
    assert 0 < busy(limited, 2, 0) < seconds
    padded = tmp_path / "in/padded.jsonl"  # of records that hold much more than their text
    write_jsonl(
        padded,
        [{"id": str(n), "text": "A short text. Of two.", "lang": "eng_Latn", "html": "x" * 9000} for n in range(999)],
    )
    assert 0 < busy(make_plan(load_config(path, ["input.0.path=in/padded.jsonl"])), 2, 0) < 30
    published = make_plan(load_config(path, ["encode.model=sonar", "input.0.path=in/libreoffice-eng.jsonl"]))
    assert busy(published, 2, 0) > 20 * seconds


def test_segmenters_are_estimated_by_what_visits_take(make_config: MakeConfig) -> None:
    """A stage that takes longer leaves fewer of them; a rate that was measured is preferred to what is assumed."""
    path = make_config()
    whole = make_plan(load_config(path, ["encode.model=sonar", "autobleu.model=sonar"]))
    encoding = make_plan(load_config(path, ["encode.model=sonar", "autobleu=null"]))
    for gpu in (False, True):
        some, few = (segmenters_per_visitor(plan, gpu, 96) or 0 for plan in (encoding, whole))
        assert 0 < few <= some
    assert some == 1.5 * FAST_GPU / 6000, "nobody has measured either"
    encoding.work["encode"].rate, encoding.work["segment"].rate = 2000.0, 4000.0
    assert segmenters_per_visitor(encoding, True, 96) == pytest.approx(1.5 * 2000 / 4000)
    only = make_plan(load_config(path), only="segment")
    assert segmenters_per_visitor(only, True, 96) is None


def test_a_small_corpus_runs_in_this_process_and_its_record_says_so(make_config: MakeConfig, tmp_path: Path) -> None:
    done = pipeline("run", make_config(launcher=None, autobleu=None))
    assert done.returncode == 0, said(done)
    shown = " ".join(done.stdout.split())  # lines are folded where a path is long
    assert "; launcher inline (about" in shown and "of work)" in shown
    (record,) = tmp_path.glob("out/runs/*/corpus.yaml")
    assert yaml.safe_load(record.read_text())["launcher"]["kind"] == "inline"
    again = pipeline("run", make_config(launcher="auto", autobleu=None))
    assert "Nothing to do." in again.stdout, "launchers mean nothing to the corpus"


@pytest.mark.slow
def test_a_process_that_segments_beside_gives_the_same_bytes_though_it_dies(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = make_config()
    assert pipeline("run", path, "--set", f"output={tmp_path / 'whole'}").returncode == 0
    plan, folder = planned(path)
    device = devices()[0]
    tell_segmented(0)
    with contextlib.closing(inline.InlineWorkers()) as workers:
        events = list(workers._run_beside(plan, folder, PartTask(plan.config, folder, device, plan.stages)))
    kinds = [event.kind for event in events]
    assert kinds.count("chunk") == 3 and kinds.count("part") == kinds.count("segmented") and "failed" not in kinds
    assert segmented() > 1000, "it tells how much text is done"
    assert data_digests(tmp_path / "out") == data_digests(tmp_path / "whole")
    plan, folder = planned(path, f"output={tmp_path / 'dies'}")
    with SegmentingProcess(plan.config, device) as segmenting:
        segmenting.segment(plan.chunks_to_segment(), folder)
        while not segmenting._host:
            pass
        segmenting._host._process.kill()
        kinds = []
        while not segmenting.over:
            kinds += [event.kind for event in segmenting.wait()]
    assert kinds.count("chunk") == 3 and "failed" not in kinds


@pytest.mark.slow
def test_a_process_that_segments_goes_on_after_chunks_without_text(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    for number in range(3):
        (tmp_path / f"in/{number}.jsonl").write_text("\n")
    plan, folder = planned(path)
    chunks = sorted(plan.chunks_to_segment(), key=lambda chunk: chunk.bytes)
    assert len(chunks) > 3
    with SegmentingProcess(plan.config, devices()[0]) as segmenting:
        segmenting.segment(chunks, folder)
        kinds = []
        while not segmenting.over:
            kinds += [event.kind for event in segmenting.wait()]
    assert kinds.count("chunk") == len(chunks) and kinds.count("segmented") >= 3 and "failed" not in kinds


@pytest.mark.slow
def test_a_process_that_segments_ends_when_nobody_wants_it_and_leaves_no_mark(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    plan, folder = planned(make_config())
    with SegmentingProcess(plan.config, devices()[0]) as segmenting:
        segmenting.segment(plan.chunks_to_segment(), folder)
        next(segmenting.wait())
        assert segmenting._host
        process = segmenting._host._process
    assert process.poll() is not None
    assert not list((tmp_path / "out" / folder / "starts").glob("*"))


def test_a_model_whose_package_is_missing_is_told_of_before_any_work(make_config: MakeConfig, tmp_path: Path) -> None:
    shipped = yaml.safe_load(shipped_external_cards()["minilm"].read_text())
    card = tmp_path / "other.yaml"
    card.write_text(yaml.safe_dump(shipped | {"model": "package:no_such_package/model"}))
    done = pipeline("run", make_config(scaler={}, fragility={"external": str(card)}))
    assert done.returncode == 2
    assert "the package no-such-package is not installed; pip install no-such-package" in said(done)
    assert not (tmp_path / "out").exists()


def test_a_signal_while_a_mark_is_made_leaves_none(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as a worker that died; a mark of one that did die stays."""
    config, create = load_config(make_config()), Store.create
    store = Store(config.output)
    store.create("runs/one/starts/part-0", b"of a worker that died")

    def interrupted(this: Store, path: str, data: bytes) -> bool:
        if create(this, path, data):
            raise KeyboardInterrupt
        return False

    attempts = _Attempts(config, "runs/one")
    monkeypatch.setattr(Store, "create", interrupted)
    with pytest.raises(KeyboardInterrupt), attempts.marked("part"):
        raise AssertionError
    assert store.find("runs/one/starts") == ["runs/one/starts/part-0"]
