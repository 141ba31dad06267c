"""A model in a folder of its own does what it did in its corpus, which is no longer needed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from pipeline import Corpus
from pipeline.config.select import SelectSettings
from pipeline.corpus.standalone import standalone
from pipeline.storage.records import sealed
from pipeline.training.data.index import make_index
from pipeline.training.model_file import load_model
from pipeline.training.record import PinnedIndex
from stages.lcm.card import LcmCard
from tests.pipeline.training.evaluation.corpora import CARDS, CONTEXT, make_corpus, write_model
from tests.support.cli import pipeline, said
from tests.support.runs import run

QUANT = LcmCard(
    name="lcm-quant-d", description="a test", licence="none", kind="quant-d", model_dim=32, heads=2, inner_dim=48,
    context=CONTEXT, layers=1,
)  # fmt: skip
PROMPT = "The file was saved. It is on the disk. Open it again."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("export-model")
    corpus = make_corpus(folder, {"validation": 0.2, "test": 0.3}, rvq={"codebooks": 2, "units": 8})
    for card in (*CARDS.values(), QUANT):
        write_model(corpus, card.kind, card)
    (folder / "prompt.txt").write_text(PROMPT)
    return corpus


@pytest.fixture(scope="module")
def prompt(corpus: Corpus) -> Path:
    return Path(corpus.url).parent / "prompt.txt"


def export(corpus: Corpus, kind: str, to: Path) -> Path:
    done = pipeline("export-model", corpus.url, "--model", kind, "--to", to, "--licence", "cc0-1.0", "--name", "mine")
    assert done.returncode == 0, said(done)
    assert f"pipeline generate --model {to} --prompt story.txt" in done.stdout
    assert "card.yaml is not part of it" in done.stdout  # the corpora of tests have a card that does not ship
    return to


@pytest.mark.parametrize("kind", ["base", "two-tower", "quant-d"])
def test_a_model_says_the_same_without_its_corpus(corpus: Corpus, prompt: Path, tmp_path: Path, kind: str) -> None:
    options = ("--prompt", prompt, "--sentences", 3, "--to", tmp_path / "said.txt")
    done = pipeline("generate", corpus.url, "--model", kind, *options)
    assert done.returncode == 0, said(done)
    texts = (tmp_path / "said.txt").read_text()
    assert texts.strip()
    folder = export(corpus, kind, tmp_path / "own")
    moved = shutil.move(corpus.url, f"{corpus.url}-away")
    try:
        done = pipeline("generate", "--model", folder, *options)
    finally:
        shutil.move(moved, corpus.url)
    assert done.returncode == 0, said(done)
    assert (tmp_path / "said.txt").read_text() == texts


def test_weights_in_float16_take_half_and_are_close(corpus: Corpus, tmp_path: Path) -> None:
    whole = export(corpus, "base", tmp_path / "whole")
    done = pipeline("export-model", corpus.url, "--model", "base", "--to", tmp_path / "half", "--half")
    assert done.returncode == 0, said(done)
    name = "model.safetensors"
    assert (tmp_path / "half" / name).stat().st_size < 0.6 * (whole / name).stat().st_size
    (one, _), (other, _) = load_model(str(whole)), load_model(str(tmp_path / "half"))
    for (key, mine), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert theirs.dtype == mine.dtype
        torch.testing.assert_close(theirs, mine, rtol=1e-3, atol=1e-6, msg=key)


def test_its_readme_and_record_say_what_it_is(corpus: Corpus, tmp_path: Path) -> None:
    both = ("--model", "base", "--model", "two-tower")
    done = pipeline("evaluate", corpus.url, *both, "--sentences", 50, "--metrics", "l2,ca")
    assert done.returncode == 0, said(done)
    evaluated = json.loads((Path(corpus.url) / "train/base/evaluation/test.json").read_text())["models"]
    assert "two-tower" in evaluated
    folder = export(corpus, "base", tmp_path / "own")
    readme = (folder / "README.md").read_text()
    assert "Licence**: cc0-1.0" in readme and "sonar-space-tiny (64 dimensions)" in readme
    assert re.search(r"\(`pipeline evaluate`\): 5\d sentences of .*, split test, drawn at random; contrastive", readme)
    assert "| | ℓ2 | CA |" in readme and "| base | " in readme and "| previous sentence | " in readme
    figure = evaluated["base"]["metrics"]["l2"]
    assert f"| base | {figure['mean']:.4g} ± {2 * figure['error']:.2g} | " in readme and "two-tower" not in readme
    assert "± two standard errors, over documents" in readme
    record = standalone(str(folder))
    assert (record.name, record.kind, record.steps) == ("mine", "base", 7)


def test_of_two_models_of_one_name_each_has_its_own_figures(corpus: Corpus, tmp_path: Path) -> None:
    """The second one is a training of the same name in another corpus."""
    shutil.copytree(corpus.url, tmp_path / "other")
    shutil.rmtree(tmp_path / "other/train/base")
    shutil.move(tmp_path / "other/train/quant-d", tmp_path / "other/train/base")
    other = tmp_path / "other/train/base"
    both = ("--model", "base", "--model", other)
    done = pipeline("evaluate", corpus.url, *both, "--sentences", 50, "--metrics", "l2")
    assert done.returncode == 0, said(done)
    shown = {}
    for url in (corpus.url, tmp_path / "other"):
        table = Path(url) / "train/base/evaluation/test.json"
        figures = {name: row["metrics"]["l2"]["mean"] for name, row in json.loads(table.read_text())["models"].items()}
        assert figures["base"] != figures[str(other)]
        to = tmp_path / f"own-{len(shown)}"
        done = pipeline("export-model", url, "--model", "base", "--to", to)
        assert done.returncode == 0, said(done)
        rows = [line for line in (to / "README.md").read_text().splitlines() if line.startswith("| ")]
        assert not [row for row in rows if str(tmp_path) in row]
        (shown[str(url)],) = [row.split()[3] for row in rows if row.startswith("| base |")]
    assert shown == {corpus.url: f"{figures['base']:.4g}", str(tmp_path / "other"): f"{figures[str(other)]:.4g}"}


def test_figures_of_an_unfinished_model_are_not_called_those_of_the_finished_one(
    corpus: Corpus, tmp_path: Path
) -> None:
    done = pipeline("evaluate", corpus.url, "--model", "base", "--sentences", 50, "--metrics", "l2")
    assert done.returncode == 0, said(done)
    table = Path(corpus.url) / "train/base/evaluation/test.json"
    whole = json.loads(table.read_text())
    row = whole["models"].pop("base") | {"weights": ""}
    whole["models"]["base (step 4 of 7)"] = row
    table.write_bytes(sealed(json.dumps({key: value for key, value in whole.items() if key != "seal"})))
    readme = (export(corpus, "base", tmp_path / "own") / "README.md").read_text()
    assert "| base (step 4 of 7) | " in readme and "| base | " not in readme
    table.unlink()


def test_figures_that_were_changed_are_not_exported(corpus: Corpus, tmp_path: Path) -> None:
    for name in ("base", "two-tower"):
        done = pipeline("evaluate", corpus.url, "--model", name, "--sentences", 50, "--metrics", "l2")
        assert done.returncode == 0, said(done)
    table = Path(corpus.url) / "train/base/evaluation/test.json"
    whole = table.read_text()
    command = ("export-model", corpus.url, "--model", "base", "--to", tmp_path / "own")
    for damaged in (whole.replace('"mean": ', '"mean": 1', 1), whole[:-200], "{}", ""):
        table.write_text(damaged)
        done = pipeline(*command)
        assert done.returncode == 1 and "base/evaluation/test.json is damaged" in said(done), said(done)
        assert "delete it; pipeline evaluate makes it again" in said(done) and not (tmp_path / "own").exists()
        done = pipeline("verify", corpus.url)
        assert done.returncode == 1 and "wrong: train/base/evaluation/test.json" in said(done), said(done)
    shutil.copy(Path(corpus.url) / "train/two-tower/evaluation/test.json", table)
    done = pipeline(*command)
    assert done.returncode == 0 and "test.json has no figures of base, so the README shows none" in said(done), said(
        done
    )
    assert "Evaluation on held-out documents" not in (tmp_path / "own/README.md").read_text()
    table.write_text(whole)
    assert "base/evaluation/test.json" not in said(pipeline("verify", corpus.url))


def test_it_is_evaluated_on_a_corpus_of_its_encoder(corpus: Corpus, tmp_path: Path) -> None:
    folder = export(corpus, "base", tmp_path / "own")
    both = pipeline("evaluate", corpus.url, "--model", "base", "--model", folder, "--sentences", 50, "--metrics", "l2")
    assert both.returncode == 0, said(both)
    lines = [line.split() for line in both.stdout.splitlines() if line.startswith(("base", "own"))]
    assert len(lines) == 2 and lines[0][1:] == lines[1][1:]


def test_a_folder_without_its_text_json_is_told_by_that_name(corpus: Corpus, tmp_path: Path) -> None:
    (export(corpus, "base", tmp_path / "own") / "text.json").unlink()
    done = pipeline("evaluate", corpus.url, "--model", tmp_path / "own", "--sentences", "8")
    assert done.returncode == 1 and "own/text.json is missing" in done.stderr, said(done)
    assert "run.json" not in done.stderr and "export the model again" in done.stderr


def test_the_model_that_ships_continues_a_text(prompt: Path, tmp_path: Path) -> None:
    done = pipeline(
        "generate",
        "--model",
        "lcm-tiny-books",
        "--prompt",
        prompt,
        "--sentences",
        2,
        "--steps",
        5,
        "--to",
        tmp_path / "to",
    )
    assert done.returncode == 0, said(done)
    assert "[it goes on]" in done.stdout and (tmp_path / "to").read_text().strip()
    done = pipeline("models", "lcm-tiny-books")
    assert done.returncode == 0 and "two-tower" in done.stdout, said(done)
    done = pipeline("evaluate", "nowhere", "--model", "lcm-tiny-books")
    assert done.returncode == 1 and "nowhere" in done.stderr and "Traceback" not in said(done)


@pytest.mark.parametrize("name", ["model.safetensors", "scaler.safetensors", "codebooks.safetensors"])
def test_a_damaged_file_is_told(corpus: Corpus, prompt: Path, tmp_path: Path, name: str) -> None:
    folder = export(corpus, "quant-d", tmp_path / "own")
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    done = pipeline("generate", "--model", folder, "--prompt", prompt)
    assert done.returncode == 1 and name in done.stderr and "export the model again" in done.stderr, said(done)
    (folder / name).unlink()
    done = pipeline("generate", "--model", folder, "--prompt", prompt)
    assert done.returncode == 1 and name in done.stderr and "Traceback" not in said(done)


def test_a_card_that_is_none_is_told(corpus: Corpus, prompt: Path, tmp_path: Path) -> None:
    """Sealed by whoever wrote it."""
    folder = export(corpus, "quant-d", tmp_path / "own")
    about = json.loads((folder / "model.json").read_text())
    for changed in ({"unconditional": [[1]]}, {"model_dim": -1}, {"nothing": 1}):
        forged = {key: value for key, value in about.items() if key != "seal"}
        forged["pinned"] = about["pinned"] | {"card": about["pinned"]["card"] | changed}
        (folder / "model.json").write_bytes(sealed(json.dumps(forged)))
        done = pipeline("generate", "--model", folder, "--prompt", prompt)
        assert done.returncode == 1 and "model.json is damaged (card: " in done.stderr, said(done)


def test_a_model_of_another_encoder_than_the_newest_run_has_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    write_model(corpus, "foreign", CARDS["base"], encoder="0123456789" * 6)
    done = pipeline("export-model", corpus.url, "--model", "foreign", "--to", tmp_path / "own")
    assert done.returncode == 2 and not (tmp_path / "own").exists(), said(done)
    assert "was trained on embeddings of another encoder (01234567)" in done.stderr
    assert "encode.model" in done.stderr and "train.name" in done.stderr


def test_the_segmenter_is_that_of_the_training(corpus: Corpus, tmp_path: Path) -> None:
    copy = shutil.copytree(Path(corpus.url).parent, tmp_path / "copy")
    of = Corpus(str(copy / "out"))
    index = make_index(of, SelectSettings())
    write_model(of, "base", CARDS["base"], indexes=[PinnedIndex(url="", digest=index.digest, weight=1.0)])
    run(copy / "corpus.yaml", "segment.max_chars=60")
    exported = export(Corpus(of.url), "base", tmp_path / "own")
    assert standalone(str(exported)).text.segment.max_chars == 80
    (tmp_path / "long.txt").write_text(f"{'It rained on the roof of the old house, ' * 3}and nobody came.")
    done = pipeline("generate", of.url, "--model", "base", "--prompt", tmp_path / "long.txt", "--sentences", "1")
    assert done.stdout.startswith(", ".join(["It rained on the roof of the old house"] * 2)), said(done)
    (path,) = (copy / "out/train/index").glob(f"{index.digest[:12]}.parquet")
    path.unlink()
    done = pipeline("export-model", of.url, "--model", "base", "--to", tmp_path / "new")
    assert done.returncode == 0 and "text.json has the section segment of the newest run" in done.stdout, said(done)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"kind": "two-tower"}, "kind base → two-tower"),
        ({"parameters": 7}, "→ 7"),
        ({"artifacts": {"encoder": "another"}}, "card.yaml "),
    ],
)
def test_the_record_of_another_model_is_told(
    corpus: Corpus, prompt: Path, tmp_path: Path, changed: dict[str, object], told: str
) -> None:
    folder = export(corpus, "base", tmp_path / "own")
    record = json.loads((folder / "text.json").read_text())
    del record["seal"]
    of = record["text"] if "artifacts" in changed else record
    of |= changed
    (folder / "text.json").write_bytes(sealed(json.dumps(record)))
    done = pipeline("generate", "--model", folder, "--prompt", prompt)
    assert done.returncode == 1 and "text.json is not that of the model beside it" in done.stderr, said(done)
    assert told in done.stderr and "export the model again" in done.stderr


def test_what_cannot_be_is_told(corpus: Corpus, prompt: Path, tmp_path: Path) -> None:
    write_model(corpus, "lost", CARDS["base"])
    corpus.store.delete("train/lost/run.json")
    full = tmp_path / "full"
    full.mkdir()
    (full / "a").write_text("a")
    for arguments, message in (
        (("generate", "--model", "nothing", "--prompt", prompt), "there is no such model"),
        (("generate", "--model", f"{corpus.url}/train/base", "--prompt", prompt), "it has no text.json"),
        (("generate", "--model", "nothing", "--split", "test"), "give CORPUS as well"),
        (
            ("generate", corpus.url, "--model", "lost", "--prompt", prompt),
            "run.json is missing, and with it the settings",
        ),
        (("export-model", corpus.url, "--model", "lost", "--to", tmp_path / "new"), "run.json is missing, and with it"),
        (("export-model", corpus.url, "--model", "other", "--to", tmp_path / "new"), "holds no finished model"),
        (("export-model", corpus.url, "--model", "base", "--to", full), "is not empty"),
        (("export-model", corpus.url, "--model", "base", "--to", f"{corpus.url}/new"), "lies inside the corpus"),
    ):
        done = pipeline(*arguments)
        assert done.returncode in (1, 2) and message in done.stderr, said(done)


def test_a_training_begins_with_it(corpus: Corpus, tmp_path: Path) -> None:
    folder = export(corpus, "base", tmp_path / "own")
    card = tmp_path / "card.yaml"
    card.write_text(json.dumps(CARDS["base"].model_dump(mode="json", exclude_none=True)))
    sizes = {"batch_concepts": 64, "micro_concepts": 64, "validation_concepts": 0, "evaluate_sentences": 0}
    settings = {"model": card, "name": "tuned", "init_from": folder, "steps": 1, "warmup_steps": 0, "lr": 1e-9, **sizes}
    options = [f"--set=train.{key}={value}" for key, value in settings.items()]
    done = pipeline("train", Path(corpus.url).parent / "corpus.yaml", *options)
    assert done.returncode == 0, said(done)
    before, after = (load_model(place)[0].state_dict() for place in (str(folder), f"{corpus.url}/train/tuned"))
    assert all(torch.allclose(before[name], after[name], atol=1e-5) for name in before)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("inner_dim", 10**12, "does not have the weights of the model that model.json describes: "),
        ("context", 10**12, "context: Input should be less than or equal to 1000000"),
        ("layers", 10**9, "layers: Input should be less than or equal to 1000"),
        ("layers", 40, "is missing, where ["),
    ],
)
def test_a_header_of_a_larger_model_takes_no_memory(
    corpus: Corpus, prompt: Path, tmp_path: Path, field: str, value: int, told: str
) -> None:
    folder = export(corpus, "quant-d", tmp_path / "own")
    header = json.loads((folder / "model.json").read_text())
    del header["seal"]
    header["pinned"]["card"][field] = value
    (folder / "model.json").write_bytes(sealed(json.dumps(header)))
    done = pipeline("generate", "--model", folder, "--prompt", prompt)
    assert done.returncode == 1 and told in " ".join(done.stderr.split()), said(done)
    assert "Traceback" not in said(done)


def test_every_kind_is_made_without_memory_first(corpus: Corpus) -> None:
    for kind in (*CARDS, QUANT.kind):
        assert load_model(f"{corpus.url}/train/{kind}")[0].state_dict()
