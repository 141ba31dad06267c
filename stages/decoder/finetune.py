"""Trains a decoder further on perturbed embeddings (LCM 2.3.5, 2.5.2): the encoder stays, embeddings come from the
corpus, and the loss is the cross-entropy of each sentence's tokens given its embedding.

Every draw follows from the seed and the number of the step, so a checkpoint holds weights, the optimizer and three
numbers, and a training that resumes from it gets the same bits on the same CPU. Cost: 6 · parameters FLOP per token;
memory: 16 bytes per parameter, the embeddings in float16, and the activations of a step.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stages.artifact import checkpoint_bytes, from_checkpoint, to_bytes
from stages.batching import Indices, Tokens
from stages.decoder.settings import DecoderSettings
from stages.device import compute_dtype, prepare_cuda
from stages.fragility.noise import noise, perturbed
from stages.rvq.codebooks import Codebooks
from stages.scaler.robust import RobustScaler
from stages.sonar.card import ModelCard
from stages.sonar.checkpoint import as_stored, load_decoder
from stages.sonar.cross_entropy import mixed_precision, projected_cross_entropy
from stages.sonar.likelihood import sentence_losses, teacher_forced
from stages.sonar.networks import SonarTextDecoder

KIND = "decoder"  # of artifacts
CLIP_NORM = 1.0
MEASURED_STEPS = 50  # over which a noted loss is averaged
LEVELS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)  # noise at which held-out sentences are measured
_ROUND, _STEP = 1, 2  # what random numbers are for

Progress = Callable[[int, int], None]  # steps done, of how many


@dataclass(frozen=True)
class DecoderSentences:
    """What is learned from, or measured.

    embeddings: (rows, dim) float16; targets: `[language] pieces </s>` of each; codes: (rows, codebooks), where they are
    asked for; u: (rows,) the rows' numbers in [0, 1), of which their noise is drawn where they are measured.
    """

    embeddings: npt.NDArray[np.float16]
    targets: Tokens
    u: npt.NDArray[np.float64]
    codes: npt.NDArray[np.uint16] | None = None

    def __len__(self) -> int:
        return len(self.embeddings)

    def digest(self) -> str:
        """Return what changes whenever one of the rows does."""
        found = hashlib.blake2b(digest_size=16)
        for one in (self.embeddings, self.targets.ids, self.targets.offsets, self.codes):
            found.update(b"" if one is None else np.ascontiguousarray(one).data)
        return found.hexdigest()


class CheckpointFile:
    """Where a checkpoint lies: `read` gives its bytes, or None; `write` replaces it as a whole."""

    def read(self) -> bytes | None:
        """Return the bytes of the checkpoint; None if there is none."""
        return None

    def write(self, data: bytes) -> None:
        """Replace the checkpoint."""


@dataclass
class Progressed:
    """The place of a fit: steps done, the round through the sentences, batches of that round that are done; and the
    losses so far, `mean` over every `MEASURED_STEPS` steps, `recent` those that are not averaged yet.
    """

    step: int = 0
    round: int = 0
    in_round: int = 0
    tokens: int = 0
    mean: list[float] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)


class FineTuning:
    """A decoder that is being trained.

    Args:
        card: the decoder to begin with.
        sentences: the sentences to learn, with embeddings and codes.
        settings: the section `decoder`.
        scaler: the scaler in whose space noise is added; None without noise.
        codebooks: the codebooks whose sums are decoded; None without codes.
        made_of: the fingerprint of everything that the result depends on, except the rows, whose digest is added; a
            checkpoint of another one is not continued.
        device: where it is trained: `cpu`, `cuda:0`, `mps`.
    """

    def __init__(
        self,
        card: ModelCard,
        sentences: DecoderSentences,
        settings: DecoderSettings,
        *,
        scaler: RobustScaler | None,
        codebooks: Codebooks | None,
        made_of: str,
        device: str,
    ) -> None:
        _check(card, sentences, settings, scaler, codebooks)
        prepare_cuda(device)
        self.settings, self.sentences, self.device = settings, sentences, device
        self.scaler, self.codebooks = scaler, codebooks.to(device) if codebooks else None
        self.made_of = f"{made_of} {sentences.digest()}"
        # float16, which `auto` means elsewhere on GPUs, has no room for gradients
        bfloat16 = settings.precision == "auto" and device.startswith("cuda")
        self.dtype = torch.bfloat16 if bfloat16 else compute_dtype(settings.precision, device)
        self.network = load_decoder(card, torch.float32, device).train().requires_grad_(True)
        self.parameters = list(self.network.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        )
        self.at = Progressed()

    def run(self, file: CheckpointFile, progress: Progress, stop: int | None = None) -> None:
        """Train to the last step, or to `stop`.

        The checkpoint is written from time to time, and at `stop`.

        Args:
            file: where checkpoints are written.
            progress: is told (steps done, all steps), first those that a checkpoint brought.
            stop: end before this step; None for the last. ValueError is raised if the loss is not a number any more.
        """
        saved, steps = time.monotonic(), self.settings.steps
        progress(self.at.step, steps)
        for rows in self._batches():
            if self.at.step >= steps or self.at.step == stop:
                break
            self._step(rows)
            progress(self.at.step, steps)
            if time.monotonic() - saved > self.settings.checkpoint_seconds and self.at.step < steps:
                file.write(self.checkpoint())
                saved = time.monotonic()
        if self.at.step == stop:
            file.write(self.checkpoint())

    def checkpoint(self) -> bytes:
        """Return weights, optimizer and place in one file."""
        tensors = {f"decoder.{name}": value for name, value in self.network.state_dict().items()}
        for number, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
        return checkpoint_bytes(tensors, {"made_of": self.made_of, "at": vars(self.at)})

    def resume(self, data: bytes) -> bool:
        """Resume from a checkpoint. Returns False, and changes nothing, for a checkpoint of other rows or settings.

        Raises ValueError for a file that is no checkpoint, or in which anything has changed since it was written.
        """
        tensors, about = from_checkpoint(data)
        if about["made_of"] != self.made_of:
            return False
        weights = {name.removeprefix("decoder."): one for name, one in tensors.items() if name.startswith("decoder.")}
        self.network.load_state_dict(weights)
        state = self.optimizer.state_dict()
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, number, kind = name.split(".")
                state["state"].setdefault(int(number), {})[kind] = value
        self.optimizer.load_state_dict(state)
        self.at = Progressed(**about["at"])
        return True

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights as a model file has them. Raises ValueError if they are not finite in float16."""
        return as_stored(self.network, "the fine-tuned decoder")

    def numbers(self) -> dict[str, float | list[float]]:
        """Describe the training: steps, tokens, and the mean loss of every `MEASURED_STEPS`, in nats per token."""
        losses = self.at.mean + ([float(np.mean(self.at.recent))] if self.at.recent else [])
        return {"steps": float(self.at.step), "tokens": float(self.at.tokens), "loss": losses}

    def _batches(self) -> Iterator[Indices]:
        """Yield the rows of one step after the other, from the present place on."""
        while True:
            plan = _round(self.sentences.targets.lengths, self.settings, self.at.round)
            while self.at.in_round < len(plan):
                yield plan[self.at.in_round]
            self.at.round, self.at.in_round = self.at.round + 1, 0

    def _step(self, rows: Indices) -> None:
        at, settings = self.at, self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * _rate(at.step, settings)
        embeddings = self.given(rows, np.random.default_rng((settings.seed, _STEP, at.step)))
        inputs, judged, labels = (one.to(self.device) for one in teacher_forced(self.sentences.targets, rows))
        with mixed_precision(self.device, self.dtype):
            hidden = self.network.hidden(inputs, embeddings).flatten(0, 1)[judged]
        weight = _output(self.network)
        loss = projected_cross_entropy(hidden, weight, labels, self.dtype)
        loss.backward()
        if not math.isfinite(found := loss.item()):
            raise ValueError(f"the loss is {found} at step {at.step}; lower decoder.learning_rate")
        nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        at.step, at.in_round, at.tokens = at.step + 1, at.in_round + 1, at.tokens + len(labels)
        at.recent.append(found)
        if len(at.recent) == MEASURED_STEPS:
            at.mean.append(float(np.mean(at.recent)))
            at.recent.clear()

    def given(self, rows: Indices, rng: np.random.Generator) -> Tensor:
        """Return the perturbed embeddings of rows, (rows, dim) float32 on the device: of each one with noise of a level
        of its own (LCM eq. 27), one dequantised, or the exact one.
        """
        settings, count = self.settings, len(rows)
        # everything is drawn in any case, so that a setting changes nothing but what it is about
        kind, which, alpha, first = rng.random((4, count))
        eps = rng.standard_normal((count, self.sentences.embeddings.shape[1]), dtype=np.float32)
        exact = torch.from_numpy(self.sentences.embeddings[rows]).to(self.device, torch.float32)
        found = exact
        if self.scaler is not None and settings.noise:
            levels, noise_of = (torch.from_numpy(one).to(self.device) for one in (alpha, eps))
            found = perturbed(exact, noise_of, levels, self.scaler)
        if self.codebooks is not None and settings.codes:
            counts = prefix_lengths(which, first, len(self.codebooks.centroids), settings)
            dequantised = self._dequantised(rows, counts)
            coded = (rng.random(count) < 0.5) if settings.noise else np.ones(count, np.bool_)
            found = torch.where(torch.from_numpy(coded).to(self.device)[:, None], dequantised, found)
        kept = torch.from_numpy(kind < settings.exact).to(self.device)
        return torch.where(kept[:, None], exact, found)

    def _dequantised(self, rows: Indices, counts: Indices) -> Tensor:
        """Return (rows, dim) float32, of each row the sum of the centroids of its first `counts` codes."""
        assert self.codebooks is not None and self.sentences.codes is not None
        codes = torch.from_numpy(self.sentences.codes[rows].astype(np.int64)).to(self.device)
        wanted = torch.from_numpy(counts).to(self.device)
        found = torch.zeros((len(rows), self.sentences.embeddings.shape[1]), device=self.device)
        for level, centroids in enumerate(self.codebooks.centroids):
            found += centroids[codes[:, level]].float() * (wanted > level)[:, None]
        return found


def prefix_lengths(
    which: npt.NDArray[np.float64], first: npt.NDArray[np.float64], codebooks: int, settings: DecoderSettings
) -> Indices:
    """Return how many of its codebooks each row gets.

    That is all of them or, with the probability `prefix_share`, between ⌈least_codebooks · codebooks⌉ and all.

    Args:
        which: (rows,) uniform in [0, 1), decides whether a row gets fewer.
        first: (rows,) uniform in [0, 1), decides how many those get.
        codebooks: how many codebooks there are.
        settings: the section `decoder`.

    Returns:
        (rows,) int64.
    """
    least = math.ceil(settings.least_codebooks * codebooks - 1e-9)
    fewer = least + np.floor(first * (codebooks + 1 - least)).astype(np.int64)
    return np.where(which < settings.prefix_share, fewer, codebooks)


def held_out_numbers(
    card: ModelCard,
    network: SonarTextDecoder,
    held: DecoderSentences,
    scaler: RobustScaler | None,
    progress: Progress = lambda done, of: None,
) -> dict[str, float | list[float]]:
    """Measure the original and the fine-tuned decoder on held-out sentences, at each level of noise.

    Args:
        card: the original decoder.
        network: the fine-tuned decoder.
        held: the held-out sentences.
        scaler: the scaler in whose space noise is added; None to measure without noise only.
        progress: is told (measurements done, all of them): one per decoder and level of noise.

    Returns:
        `held_out_rows`, `noise_levels`, and nats per token as `nats_before` and `nats`.
    """
    device = str(network.embedding.weight.device)
    levels = LEVELS if scaler is not None else LEVELS[:1]
    progress(0, 2 * len(levels))
    first = load_decoder(card, torch.float32, device)
    found: dict[str, float | list[float]] = {"held_out_rows": float(len(held)), "noise_levels": list(levels)}
    for name, one in (("nats_before", first), ("nats", network.eval().requires_grad_(False))):
        nats: list[float] = []
        for level in levels:
            nats.append(_nats(one, held, scaler, level, device))
            progress(len(nats) + len(levels) * (name == "nats"), 2 * len(levels))
        found[name] = nats
    return found


@torch.inference_mode()
def _nats(
    network: SonarTextDecoder, held: DecoderSentences, scaler: RobustScaler | None, level: float, device: str
) -> float:
    x = torch.from_numpy(held.embeddings).to(device, torch.float32)
    if scaler is not None and level:
        alpha = np.full(len(held), level)
        eps = torch.from_numpy(noise(held.u, alpha, 0, x.shape[1])).to(device)
        x = perturbed(x, eps, torch.from_numpy(alpha).to(device), scaler)
    losses = sentence_losses(network, x, held.targets)
    return float(losses.sum(dtype=torch.float64)) / float((held.targets.lengths - 1).sum())


def _check(
    card: ModelCard,
    sentences: DecoderSentences,
    settings: DecoderSettings,
    scaler: RobustScaler | None,
    codebooks: Codebooks | None,
) -> None:
    """Raise ValueError for what does not fit together."""
    if not len(sentences):
        raise ValueError("no sentence of a training document is among them; raise decoder.rows or fit.rows")
    dim = sentences.embeddings.shape[1]
    if dim != card.dim:
        raise ValueError(
            f"decoder.model {card.name} takes embeddings of {card.dim} dimensions, those of the corpus have {dim}: "
            "name the decoder of encode.model"
        )
    if settings.codes and (codebooks is None or sentences.codes is None):
        raise ValueError(
            "decoder.codes needs codebooks and codes: add a section `rvq: {}`, or set decoder.codes: false"
        )
    if settings.noise and scaler is None:
        raise ValueError("decoder.noise needs the robust scaler: add a section `scaler: {}`")
    if codebooks is not None and settings.codes and codebooks.centroids.shape[2] != dim:
        raise ValueError(f"the codebooks are of {codebooks.centroids.shape[2]} dimensions, the embeddings of {dim}")


def _round(lengths: Indices, settings: DecoderSettings, number: int) -> list[Indices]:
    """Return the batches of a round, each sentence once: of like lengths, in random order, none over the tokens."""
    rng = np.random.default_rng((settings.seed, _ROUND, number))
    order = np.lexsort((rng.random(len(lengths)), lengths))
    found, start = [], 0
    while start < len(order):
        end = start + max(1, settings.batch_tokens // int(lengths[order[start]]))
        while end - start > 1 and (min(end, len(order)) - start) * int(lengths[order[min(end, len(order)) - 1]]) > (
            settings.batch_tokens
        ):
            end -= 1
        found.append(order[start:end])
        start = end
    return [found[place] for place in rng.permutation(len(found))]


def _rate(step: int, settings: DecoderSettings) -> float:
    """Return the share of the learning rate: it rises, then falls to 0 as a cosine."""
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    return 0.5 * (1 + math.cos(math.pi * (step - settings.warmup) / max(1, settings.steps - settings.warmup)))


def _output(network: SonarTextDecoder) -> Tensor:
    return network.embedding.weight if network.output is None else network.output.weight


def to_artifact(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    """Return the file of a fine-tuned decoder: one that `load_decoder` reads, and that says what it was made of."""
    return to_bytes(KIND, tensors, about)
