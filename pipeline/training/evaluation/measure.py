"""The metrics of the LCM paper's Table 3 for one predictor: how good each sentence is that it predicts.

Cost: predicting all sentences once; for `l2_r` and `mi` decoding them, for `l2_r` encoding them again, for `mi` two
passes of the language model, over about 300 tokens per sentence; for `nll` and `bpc` one pass of the decoder over the
true sentences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.training.evaluation.held_out import HeldOut
from pipeline.training.evaluation.text_codec import TextCodec
from pipeline.training.tokens import Tokeniser
from stages.lcm import metrics
from stages.lcm.baselines import SentencePredictor
from stages.lcm.language_model import CONTEXT, LanguageModel
from stages.lcm.model import Sampling
from stages.lcm.text_metrics import rouge_l
from stages.lcm.token_lm import TokenLm
from stages.scaler.robust import RobustScaler
from stages.sonar.card import ModelCard
from stages.sonar.tokenizer import SonarTokenizer

METRICS = ("l2", "l2_squared", "l2_r", "par", "ca", "ca_cosine", "top1", "mi", "nll", "bpc", "rouge_l")
LIKELIHOOD = frozenset(("nll", "bpc"))  # those that need the decoder's likelihood of the true sentence
NORMALISED = frozenset(("ca_cosine", "top1"))  # those that need the scaler
BY_NEIGHBOURS = frozenset(("ca", "ca_cosine", "top1"))  # those that compare with other sentences
DECODED = frozenset(("l2_r", "mi", "rouge_l"))  # those that need the text of what is predicted


@dataclass(frozen=True)
class MetricValue:
    """A mean over sentences, its standard error (documents are what was drawn), and the number of sentences.

    documents: how much each moves the mean (`metrics.influences`), so that means over the same ones can be compared.
    groups: the same of the sentences of each group of documents, where these are grouped.
    """

    mean: float
    error: float
    sentences: int
    documents: tuple[float, ...] = ()
    groups: Mapping[str, MetricValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Judge:
    """What predictions are compared with.

    pool: places of the sentences for `ca`; informed: sentences for `mi`; scaler: for what compares normalised vectors.
    """

    held: HeldOut
    wanted: tuple[str, ...]
    pool: Tensor
    words: TextCodec
    language_model: LanguageModel | None
    informed: int
    device: str
    scaler: RobustScaler | None = None


@torch.inference_mode()
def predictions(predictor: SentencePredictor, held: HeldOut, sampling: Sampling, seed: int, device: str) -> Tensor:
    """Predict every sentence from those before it; the same seed gives the same result, whatever was predicted before.

    Args:
        predictor: a model or a baseline.
        held: the documents.
        sampling: the settings of sampling.
        seed: the seed of PyTorch's generator.
        device: where it computes: `cpu`, `cuda:0`, `mps`.

    Returns:
        (sentences, dim) float32, on the CPU.
    """
    torch.manual_seed(seed)
    return torch.cat([predictor.predict(batch, sampling).float().cpu() for batch in held.batches(device)])


def measure(judge: Judge, predicted: Tensor, done: Callable[[str], None] = lambda step: None) -> dict[str, MetricValue]:
    """Compute the wanted metrics of predictions, over all sentences that have a context.

    Args:
        judge: the documents, the metrics, and the models that they need.
        predicted: (sentences, dim) float32.
        done: is told what is being computed.

    Returns:
        Metric → mean, error and number of sentences. `ConfigError` is raised for a language that the decoder does not
            know.

    Raises:
        ValueError: if a prediction is not finite.
    """
    held, places = judge.held, judge.held.judged
    ours, real = predicted[places], held.embeddings[places]
    if not ours.isfinite().all():
        bad = int((~ours.isfinite().all(dim=1)).sum())
        raise ValueError(f"{bad} of {len(ours)} predictions are not finite: its weights are broken")
    values: dict[str, Tensor] = {}
    weights: dict[str, Tensor] = {}
    if "l2" in judge.wanted:
        values["l2"] = metrics.l2(ours, real)
    if "l2_squared" in judge.wanted:
        values["l2_squared"] = metrics.l2_squared(ours, real)
    if "par" in judge.wanted:
        values["par"] = metrics.paraphrasing(predicted, held.embeddings, held.lengths)[places]
    if "ca" in judge.wanted:
        all_of_them = metrics.contrastive_accuracy(
            predicted.to(judge.device), held.embeddings.to(judge.device), held.origin, judge.pool
        )
        values["ca"] = all_of_them.cpu()[places]
    if NORMALISED & set(judge.wanted) and judge.scaler is not None:
        values |= _by_cosine(judge, predicted, judge.scaler)
    if LIKELIHOOD & set(judge.wanted):
        done("likelihood")
        values_of, weights_of = _likelihood(judge, ours)
        values, weights = values | values_of, weights | weights_of
    if DECODED & set(judge.wanted):
        few = not {"l2_r", "rouge_l"} & set(judge.wanted)
        count = min(judge.informed, len(places)) if few else len(places)
        langs = [held.lang(int(place)) for place in places[:count]]
        done("decoding")
        texts = judge.words.decode(ours[:count], langs)
        if "l2_r" in judge.wanted:
            done("encoding again")
            values["l2_r"] = metrics.l2(judge.words.encode(texts, langs), real)
        if "rouge_l" in judge.wanted:
            true = [held.texts[place] for place in places.tolist()]
            values["rouge_l"] = torch.tensor([rouge_l(*pair) for pair in zip(texts, true, strict=True)])
        if judge.language_model:
            done("mutual information")
            contexts = [held.context(int(place), CONTEXT) for place in places[: judge.informed]]
            found = judge.language_model.mutual_information(contexts, texts[: judge.informed])
            values["mi"], weights["mi"] = found.per_token, found.tokens
    return _means(judge, values, weights)


@torch.inference_mode()
def measure_words(judge: Judge, model: TokenLm, tokenizer: ModelCard, sampling: Sampling) -> dict[str, MetricValue]:
    """Compute the likelihoods of a token language model, on the same sentences; it has no other metrics.

    Args:
        judge: the documents and the metrics.
        model: the token language model.
        tokenizer: the card whose tokenizer the model uses.
        sampling: the settings of sampling.

    Returns:
        Metric → mean, error and number of sentences.

    Raises:
        ValueError: if a likelihood is not finite.
    """
    held, places = judge.held, judge.held.judged
    tokenise = Tokeniser(tokenizer, "train.token_lm.tokenizer")
    batches = held.batches(judge.device, tokenise)
    found = torch.cat([model.likelihoods(batch, sampling.ensemble).double().cpu() for batch in batches])[places]
    if not found.isfinite().all():
        raise ValueError(f"{int((~found.isfinite()).sum())} likelihoods are not finite: its weights are broken")
    texts = [held.texts[place] for place in places.tolist()]
    counts = torch.tensor(SonarTokenizer(tokenizer).count(texts))
    nats = found.where(counts <= tokenizer.max_tokens, torch.nan)  # others were cut
    return _means(judge, *_per_token(nats, counts.clamp(max=tokenizer.max_tokens) - 1, texts))


def _means(judge: Judge, values: dict[str, Tensor], weights: dict[str, Tensor]) -> dict[str, MetricValue]:
    held = judge.held
    document = held.origin[held.judged]
    group = np.asarray(held.groups, object)[held.document[held.judged]] if held.groups else np.empty(0, object)
    found = {}
    for name in METRICS:
        if name in values and name in judge.wanted:
            of = values[name], document[: len(values[name])], weights.get(name)
            each = tuple(metrics.influences(*of)[1].tolist())
            found[name] = MetricValue(*metrics.mean_of(*of), each, _by_group(group[: len(values[name])], *of))
    return found


def _by_group(
    groups: npt.NDArray[np.object_], values: Tensor, documents: Tensor, weights: Tensor | None
) -> dict[str, MetricValue]:
    """Return a metric of each group, the largest first."""
    found = {}
    for name, _ in Counter(groups.tolist()).most_common():
        mine = torch.from_numpy(groups == name)
        of = values[mine], documents[mine], None if weights is None else weights[mine]
        found[name] = MetricValue(*metrics.mean_of(*of))
    return found


def _by_cosine(judge: Judge, predicted: Tensor, scaler: RobustScaler) -> dict[str, Tensor]:
    """Return contrastive accuracy by cosine of normalised embeddings, and whether it is 1: retrieval from the pool."""
    ours, real = (scaler.normalize(one.to(judge.device)) for one in (predicted, judge.held.embeddings))
    units, others = functional.normalize(ours, dim=1), functional.normalize(real, dim=1)
    share = metrics.contrastive_accuracy(units, others, judge.held.origin, judge.pool)
    share = share.where(ours.any(dim=1), torch.nan).cpu()[judge.held.judged]  # a vector of zeros has no direction
    return {"ca_cosine": share, "top1": (share == 1).double().where(share.isfinite(), torch.nan)}


def _likelihood(judge: Judge, ours: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the likelihoods of the true sentences under the decoder, given predictions: values, and what each sentence
    counts in the mean.
    """
    places = judge.held.judged.tolist()
    texts = [judge.held.texts[place] for place in places]
    return _per_token(*judge.words.likelihood(ours, texts, [judge.held.lang(place) for place in places]), texts)


def _per_token(nats: Tensor, tokens: Tensor, texts: list[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return nats per token, bits per character, and what these count; nats: (texts,) −log p; tokens: (texts,)."""
    characters = torch.tensor([float(len(text)) for text in texts], dtype=torch.float64)
    bits = nats / math.log(2) / characters.where(characters > 0, torch.nan)
    return {"nll": nats / tokens, "bpc": bits}, {"nll": tokens, "bpc": characters}
