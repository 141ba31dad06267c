"""`pipeline compare-decoders`: figures against the stages' own, errors over documents, what is refused."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from pipeline.base.errors import ConfigError, PipelineError
from pipeline.corpus.reader import Corpus
from pipeline.quality.decoders import DecoderOptions, compare_decoders, verdict
from pipeline.quality.decoders.measure import HeldOutSample, MeanScore, take_held_out
from tests.conftest import TINY_CARD, write_config, write_inputs
from tests.support.runs import RVQ, run

DECODER = {"steps": 60, "batch_tokens": 512, "warmup": 2, "learning_rate": 3e-3, "precision": "float32"}
SECTIONS = {
    "fit": {"rows": 100}, "scaler": {}, "rvq": RVQ, "autobleu": {"precision": "float32", "length_extra": 2},
    "split": {"validation": 0.3}, "decoder": DECODER,
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("decoders")
    write_inputs(folder)
    run(write_config(folder, **SECTIONS))
    return Corpus(str(folder / "out"))


def tuned(corpus: Corpus) -> str:
    (card,) = Path(corpus.url).glob("fits/decoder.*.yaml")
    return str(card)


def unwanted() -> str:
    raise AssertionError("networks compute already")


def options(corpus: Corpus, to: Path, **others: object) -> DecoderOptions:
    given = {"decoders": (str(TINY_CARD), tuned(corpus)), "split": "held-out", "sentences": 40, "levels": "0.5"}
    return DecoderOptions(**{**given, "external": None, "to": str(to), **others})  # type: ignore[arg-type]


def test_its_figures_are_those_of_the_stages(corpus: Corpus, tmp_path: Path) -> None:
    shown = io.StringIO()
    first, second = compare_decoders(Console(file=shown, width=200), corpus, options(corpus, tmp_path), lambda: "cpu")
    sample = take_held_out(corpus, "held-out", 40)
    table = corpus.table("u", "autobleu", "split").to_pandas().sort_values("u")
    held = table[table["split"] != "train"]
    assert len(sample) == min(40, len(held)) and np.array_equal(sample.u, held["u"].to_numpy()[:40])
    assert np.array_equal(first.bleu[:, 0], held["autobleu"].to_numpy()[:40])
    assert first.levels == (0.0, 0.5) and first.codebooks == second.codebooks == (1, 2, 3)
    assert first.by_codebooks.shape == (len(sample), 3) and first.cosine is None
    assert not np.array_equal(first.bleu, second.bleu)
    result = json.loads((tmp_path / "results.json").read_text())
    row = result["rows"]["noise 0.5"]
    assert row["difference"]["mean"] == pytest.approx(float((second.bleu[:, 1] - first.bleu[:, 1]).mean()), abs=1e-4)
    assert all(one.keys() == {"mean", "error"} for one in row["decoders"].values())
    assert result["sentences"] == len(sample) and result["documents"] == len(set(sample.documents.tolist()))
    assert "noise 0.5" in shown.getvalue() and "codebooks 3" in shown.getvalue()
    page = (tmp_path / "index.html").read_text()
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert page.count("<svg") == 4 and sum("Figure" in title for title in titles) == 4
    assert set(re.findall(r"https?://[^/\"]+", page)) <= {"http://www.w3.org"}  # it loads nothing
    for name in ("noise", "codebooks", "length", "distribution"):
        text = (tmp_path / f"{name}.svg").read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg") and "var(" not in text


def test_errors_are_over_documents() -> None:
    rng = np.random.default_rng(0)
    documents = np.repeat(np.arange(30), rng.integers(1, 6, 30))
    values = rng.standard_normal(30)[documents] + 0.1 * rng.standard_normal(len(documents))
    count = len(documents)
    sample = HeldOutSample(
        "test", ["a"] * count, ["eng_Latn"] * count, np.zeros(count), documents, np.zeros((count, 2), np.float16), None
    )
    found = sample.mean(values)
    total = sum(float((values[documents == one] - values.mean()).sum()) ** 2 for one in range(30))
    assert found.mean == pytest.approx(values.mean())
    assert found.error == pytest.approx(math.sqrt(30 / 29 * total) / count)
    assert found.error > values.std() / math.sqrt(count)  # sentences of a document are alike
    whole = HeldOutSample(
        "test", ["a"] * 3, ["e"] * 3, np.zeros(3), np.zeros(3, np.int64), np.zeros((3, 2), np.float16), None
    )
    alone = whole.mean(np.arange(3.0))
    assert math.isnan(alone.error) and str(alone) == "1.0" and verdict(alone) == "unknown"
    assert verdict(MeanScore(1.0, 0.6)) == "undecided" and verdict(MeanScore(-1.0, 0.4)) == "lower"


def test_what_cannot_be_compared_is_said_before_anything_is_decoded(corpus: Corpus, tmp_path: Path) -> None:
    def refused(match: str, **others: object) -> None:
        with pytest.raises(ConfigError, match=match):
            compare_decoders(Console(quiet=True), corpus, options(corpus, tmp_path, **others), unwanted)

    refused("--noise 0.1,1.5: give variances above 0", levels="0.1,1.5")
    refused("--noise a: give variances", levels="a")
    refused("--split train: allowed: held-out, validation, test", split="train")
    refused(r"of a test document to compare decoders on: give split a share", split="test")
    refused("have the same decoder", decoders=(str(TINY_CARD), str(TINY_CARD)))
    refused("the decoder of sonar-tiny decodes embeddings of another encoder", decoders=(str(TINY_CARD), "sonar-tiny"))
    refused("no model is called 'nothing'", decoders=("nothing", str(TINY_CARD)))
    weights = str(Path(tuned(corpus)).with_suffix(".safetensors"))
    refused(f"{weights} holds weights; give the card that .*: {tuned(corpus)}", decoders=(weights, str(TINY_CARD)))
    refused("--external nothing: no external encoder is called", external="nothing")
    other = Path(tuned(corpus)).with_name("other.yaml")
    other.write_text(Path(tuned(corpus)).read_text().replace("fine_tuned_on: ", "fine_tuned_on: f"))
    refused("was fine-tuned on embeddings of the encoder f", decoders=(str(TINY_CARD), str(other)))
    other.unlink()
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=r"file/results/index\.html cannot be written"):
        compare_decoders(Console(quiet=True), corpus, options(corpus, tmp_path / "file/results"), unwanted)
