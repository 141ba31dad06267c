"""What `pipeline evaluate` does: the metrics of LCM 2.4.1 for trained models and two trivial baselines, on one split.

All are given the same documents, wrapped at the smallest context of the models. The table goes to the terminal, and as
JSON and CSV beside every model: train/<run>/evaluation/<split>.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from torch import Tensor

from pipeline.corpus import Corpus
from pipeline.errors import ConfigError, CorpusError
from pipeline.inputs.splits import SPLITS
from pipeline.select.command import Rules, selection_of
from pipeline.show import counted, number
from pipeline.storage.store import Store
from pipeline.train.data.index import Index, make_index
from pipeline.train.evaluation.held_out import HeldOut, held_out
from pipeline.train.evaluation.measure import DECODED, METRICS, Figure, Judge, measure, predictions
from pipeline.train.evaluation.table import Row, show, to_csv, to_json
from pipeline.train.evaluation.words import Words
from pipeline.train.model_file import About, load_model
from pipeline.train.record import RECORD, Started
from stages.lcm.baselines import Mean, Predictor, Previous, Truth
from stages.lcm.language_card import load_language_card
from stages.lcm.language_model import LanguageModel
from stages.lcm.model import Lcm, Sampling, paper_sampling

POOL = 2048  # sentences that contrastive accuracy compares with
CONTEXT = 128  # sentences a document is wrapped at, where only baselines are evaluated


@dataclass(frozen=True)
class Wishes:
    """The options of the command, as `pipeline/commands/training.py` explains them."""

    models: tuple[str, ...] = ()
    split: str = "test"
    sentences: int = 10_000
    metrics: str = "l2,l2_squared,l2_r,par,ca"
    language_model: str | None = None
    mi_sentences: int = 500
    seed: int = 0
    sampling: dict[str, Any] | None = None  # replaces the paper's


@dataclass(frozen=True)
class Trained:
    """A model of the table. place: its folder, …/train/NAME."""

    place: str
    model: Lcm
    about: About
    sampling: Sampling

    @property
    def name(self) -> str:
        """Of its run of training."""
        return self.place.rstrip("/").rpartition("/")[2]


def evaluate(
    console: Console, place: str, corpus: Corpus, wishes: Wishes, find_device: Callable[[], str]
) -> dict[str, Row]:
    """Print the table, write it beside the models, and return it. find_device: where networks compute.

    Raises `ConfigError` for wishes that cannot be, before anything long begins.
    """
    wanted = _metrics(wishes)
    if wishes.split not in SPLITS:
        raise ConfigError(f"--split {wishes.split}: there is no such split; splits are {', '.join(SPLITS)}")
    card = load_language_card(wishes.language_model) if wishes.language_model else None
    index = make_index(corpus, selection_of(place, corpus, Rules()).settings)
    device = find_device()
    trained = [load_trained(one, index, device, False, wishes.sampling) for one in places_of(corpus, wishes.models)]
    context = min((one.model.card.context for one in trained), default=CONTEXT)
    held = held_out(index, wishes.split, max_sentences=context, sentences=wishes.sentences)
    words = Words(corpus, device)
    if DECODED & set(wanted):
        for lang in sorted(set(held.langs)):
            words.check_language(lang, "decoding sentences in")
    language_model = LanguageModel(card, device=device) if card else None
    judge = Judge(held, wanted, pool_of(held, wishes.seed), words, language_model, wishes.mi_sentences, device)
    rows: dict[str, Row] = {}
    for name, predictor, sampling, steps in _predictors(trained, corpus):
        found = _figures(console, name, judge, partial(predictions, predictor, held, sampling, wishes.seed, device))
        rows[name] = Row(found, steps, asdict(sampling) if steps is not None else None)
    about = _about(index, held, judge, wishes)
    if not trained:
        console.print("No model is trained on this corpus yet: pipeline train corpus.yaml", style="yellow")
    show(console, rows, about)
    answering = [one.name for one in trained if one.about.pinned.settings.get("answers")]
    if answering:
        console.print(
            f"{', '.join(answering)}: trained on answers; these metrics are over all sentences, prompts too",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    for one in trained:
        url, folder = one.place.rstrip("/").rsplit("/", 1)
        for ending, text in ((".json", to_json(rows, about)), (".csv", to_csv(rows))):
            path = f"{folder}/evaluation/{wishes.split}{ending}"
            Store(url).write(path, text.encode())
            console.print(f"{url}/{path} written", markup=False, highlight=False, soft_wrap=True)
    return rows


def _figures(console: Console, name: str, judge: Judge, predict: Callable[[], Tensor]) -> dict[str, Figure]:
    with console.status(f"{escape(name)}: predicting") as status:
        try:
            return measure(judge, predict(), lambda step: status.update(f"{escape(name)}: {step}"))
        except ValueError as error:
            raise CorpusError(f"{name}: {error}") from error


def evaluate_trained(console: Console, url: str, run: str, find_device: Callable[[], str]) -> None:
    """What a training ends with: its metrics on the test split, or on that of validation if there is none."""
    corpus = Corpus(url)
    sentences = Started.model_validate_json(corpus.store.read(f"{run}/{RECORD}")).settings.evaluate_sentences
    splits = make_index(corpus, selection_of(url, corpus, Rules()).settings).about.splits
    split = next((one for one in ("test", "validation") if splits[one][0]), None)
    if not sentences or not split or corpus.store.exists(f"{run}/evaluation/{split}.json"):
        return
    wishes = Wishes((run.rpartition("/")[2],), split, sentences)
    evaluate(console, url, corpus, wishes, find_device)


def places_of(corpus: Corpus, asked: tuple[str, ...]) -> list[str]:
    """Folders of models: names of runs of training of the corpus or paths, all runs if none is named."""
    here = [name for name in corpus.store.folders("train") if corpus.store.exists(f"train/{name}/{RECORD}")]
    base = corpus.store.url.rstrip("/")
    return [one if "/" in one else f"{base}/train/{one}" for one in dict.fromkeys(asked or here)]


def load_trained(
    place: str, index: Index, device: str, generating: bool, sampling: dict[str, Any] | None = None
) -> Trained:
    """A model, which must be of the corpus's encoder. sampling: replaces what the paper chose for its kind."""
    model, about = load_model(place, device)
    if (about.pinned.encoder, about.pinned.dim) != (index.about.encoder, index.dim):
        raise ConfigError(
            f"{place} was trained on embeddings of {about.pinned.dim} dimensions by the encoder "
            f"{about.pinned.encoder[:8]}; those of {index.url} have {index.dim}, by {index.about.model} "
            f"({index.about.encoder[:8]}): name a model that was trained with the same encoder"
        )
    return Trained(place, model, about, replace(paper_sampling(model.card.kind, generating), **(sampling or {})))


def pool_of(held: HeldOut, seed: int) -> Tensor:
    """Places of the sentences that contrastive accuracy compares with: `POOL` drawn from all, ascending."""
    drawn = torch.randperm(len(held.embeddings), generator=torch.Generator().manual_seed(seed))
    return drawn[:POOL].sort().values


def _metrics(wishes: Wishes) -> tuple[str, ...]:
    names = [name.strip() for name in wishes.metrics.split(",") if name.strip()]
    names += ["mi"] if wishes.language_model and "mi" not in names else []
    unknown = [name for name in names if name not in METRICS]
    if unknown or not names:
        what = f"there is no metric {', '.join(unknown)}" if unknown else "none is named"
        raise ConfigError(f"--metrics {wishes.metrics}: {what}; metrics are {', '.join(METRICS)}")
    if "mi" in names and not wishes.language_model:
        raise ConfigError("--metrics mi needs a language model: --language-model gpt2, smollm2 or a card's file")
    return tuple(names)


def _predictors(trained: list[Trained], corpus: Corpus) -> list[tuple[str, Predictor, Sampling, int | None]]:
    found: list[tuple[str, Predictor, Sampling, int | None]] = []
    for one in trained:
        name = one.name if one.name not in [row[0] for row in found] else one.place
        of = one.about.pinned.settings["steps"]
        name += "" if one.about.steps == of else f" (step {one.about.steps} of {of})"
        found.append((name, one.model, one.sampling, one.about.steps))
    found.append(("previous sentence", Previous(), Sampling(), None))
    scaler = trained[0].model.scaler if trained else _scaler(corpus)
    if scaler is not None:
        found.append(("median vector", Mean(scaler.median), Sampling(), None))
    found.append(("the sentence itself", Truth(), Sampling(), None))
    return found


def _scaler(corpus: Corpus) -> Any:
    from pipeline.fits.records import fitted_scaler

    return fitted_scaler(corpus.store, corpus.view.fits)


def _about(index: Index, held: HeldOut, judge: Judge, wishes: Wishes) -> dict[str, Any]:
    documents, sentences = len(set(held.ids)), len(held.judged)
    said = (
        f"{counted(sentences, 'sentence')} of {counted(documents, 'document')} of {index.about.corpus}, split "
        f"{wishes.split}; contrastive accuracy against {number(len(judge.pool))} sentences"
    )
    return {
        "said": said,
        "corpus": index.about.corpus,
        "index": index.digest,
        "split": wishes.split,
        "documents": documents,
        "sentences": sentences,
        "pool": len(judge.pool),
        "seed": wishes.seed,
        "encoder": index.about.model,
        "decoder": judge.words.decoding.model,
        "language_model": wishes.language_model,
    }
