"""The training loop of a small SONAR model: steps, checkpoints that hold no code, and exact resuming."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from recipes.muon import Muon
from recipes.sonar.batches import Batches, TokenBatch, TrainingSet
from recipes.sonar.export import loaded, networks
from recipes.sonar.recipe import RecipeProgress, SonarRecipe, TrainingBudget, lesson, schedule
from stages.device import prepare_cuda
from stages.sonar.card import ModelCard
from stages.sonar.cross_entropy import mixed_precision, projected_cross_entropy
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder


def cross_entropy(
    encoder: SonarTextEncoder, decoder: SonarTextDecoder, batch: TokenBatch, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return mean over the target's tokens, nats."""
    with mixed_precision(batch.source.device.type, dtype):
        hidden = decoder.hidden(batch.target_in, encoder(batch.source, batch.mask)).flatten(0, 1)
    target = batch.target_out.flatten()
    if batch.kept is not None:
        hidden, target = hidden.index_select(0, batch.kept), target.index_select(0, batch.kept)
    return projected_cross_entropy(hidden, decoder.embedding.weight, target, dtype)


class Trainer:
    """Networks, optimizers and the place in the data; one file holds them all.

    card: of the weights that are trained further where the recipe says so, else only the size of its vocabulary counts.
    weights: of each corpus, see `Batches`. device: where the networks, the optimizers and the tokens lie.
    """

    def __init__(
        self,
        recipe: SonarRecipe,
        card: ModelCard,
        data: TrainingSet,
        folder: Path,
        weights: Sequence[float] | None = None,
        device: str = "cpu",
    ) -> None:
        torch.manual_seed(recipe.seed)
        prepare_cuda(device)
        self.recipe, self.folder = recipe, folder
        encoder, decoder = loaded(card, recipe) if recipe.start else networks(recipe, card.vocab_size)
        self.encoder, self.decoder = encoder.to(device), decoder.to(device)
        self.encoder.embedding.weight = self.decoder.embedding.weight
        self.batches = Batches(
            data,
            seed=recipe.seed,
            aligned_share=recipe.aligned_share,
            weights=weights,
            thinned=recipe.thinned,
            round_size=recipe.round_size,
            device=device,
        )
        # the shared embedding is the encoder's and the decoder's: once is enough
        named = {id(p): (name, p) for n in (self.encoder, self.decoder) for name, p in n.named_parameters()}
        self.parameters = [parameter for _, parameter in named.values()]
        self.optimizers = optimizers(recipe, list(named.values()))
        self.progress = RecipeProgress()

    @property
    def path(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def save(self) -> None:
        tensors = {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
        del tensors["encoder.embedding.weight"]  # the decoder's
        tensors |= {f"decoder.{name}": value for name, value in self.decoder.state_dict().items()}
        for number, optimizer in enumerate(self.optimizers):
            for parameter, memory in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{number}.{parameter}.{name}": value for name, value in memory.items()}
        about = {"recipe": json.dumps(asdict(self.recipe)), "progress": json.dumps(asdict(self.progress))}
        tensors = {name: value.detach().cpu() for name, value in tensors.items()}
        save_file(tensors, self.path.with_suffix(".half"), metadata=about)
        self.path.with_suffix(".half").replace(self.path)

    def resume(self) -> None:
        """Go on from a checkpoint. Raises ValueError if the checkpoint was made by another recipe."""
        with safe_open(self.path, framework="pt") as file:
            about = file.metadata()
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        mine, kept = json.loads(json.dumps(asdict(self.recipe))), json.loads(about["recipe"])
        kept.setdefault("round_size", SonarRecipe.round_size)  # which older recipes do not state
        differing = [f"{key}: {kept.get(key)} → {mine[key]}" for key in mine if kept.get(key) != mine[key]]
        if differing:
            raise ValueError(f"{self.path} was made by another recipe ({'; '.join(differing)}); take another --out")
        tensors["encoder.embedding.weight"] = tensors["decoder.embedding.weight"]
        for role, network in (("encoder.", self.encoder), ("decoder.", self.decoder)):
            network.load_state_dict(
                {name.removeprefix(role): value for name, value in tensors.items() if name.startswith(role)}
            )
        for number, optimizer in enumerate(self.optimizers):
            state = optimizer.state_dict()
            for name, value in tensors.items():
                if name.startswith(f"optimizer.{number}."):
                    _, _, parameter, kind = name.split(".")
                    state["state"].setdefault(int(parameter), {})[kind] = value
            optimizer.load_state_dict(state)
        self.progress = RecipeProgress(**json.loads(about["progress"]))

    def run(self, budget: TrainingBudget, stop: int | None = None, save_seconds: float = 300.0) -> None:
        """Train until the budget is used up, printing a line every 50 steps and saving every five minutes.

        With `stop` it stops at that step, in the middle of the schedule, to be resumed.
        """
        at = self.progress
        before, began, saved, tokens_before = at.seconds, time.monotonic(), time.monotonic(), at.tokens
        left_before = budget.left(at)
        plan: list[Any] = []
        planned = -1
        losses: list[Tensor] = []  # on a GPU none is waited for before it is printed
        lessons = list(itertools.accumulate(steps for _, steps in self.recipe.curriculum))
        while (left := budget.left(at)) > 0 and at.step != stop:
            if planned != at.round:
                plan, planned = self.batches.plan(at.round, *lesson(self.recipe, at.step)), at.round
            if at.in_round == len(plan) or (at.step in lessons and at.in_round):
                at.round, at.in_round = at.round + 1, 0
                continue
            batch = self.batches.batch(plan[at.in_round])
            losses.append(self.step(batch, schedule(at.step, left, self.recipe.warmup, self.recipe.decay)))
            at.tokens += batch.tokens
            at.in_round += 1
            at.step += 1
            seconds = time.monotonic() - began
            at.seconds = before + seconds
            if at.step % 50 == 0:
                self._note(losses)
                loss, rate = sum(at.losses) / len(at.losses), (at.tokens - tokens_before) / seconds
                wait = seconds * budget.left(at) / max(left_before - budget.left(at), 1e-9)
                print(
                    f"step {at.step}  loss {loss:.3f}  {at.tokens / 1e6:.2f} M tokens  {rate:.0f}/s  "
                    f"left {wait / 60:.0f} min",
                    flush=True,
                )
                at.losses.clear()
            if time.monotonic() - saved > save_seconds:
                self._note(losses)
                self.save()
                saved = time.monotonic()
        self._note(losses)
        self.save()

    def _note(self, losses: list[Tensor]) -> None:
        """Move losses to the progress. Raises ValueError if one is not finite, after which no weights are kept."""
        self.progress.losses += [found.item() for found in losses]
        losses.clear()
        if not all(map(math.isfinite, self.progress.losses)):
            raise ValueError(
                f"the loss is NaN or infinite at step {self.progress.step} or shortly before; start over with a lower "
                "--learning-rate"
            )

    def step(self, batch: TokenBatch, rate: float) -> Tensor:
        """Take one step. rate: of the base learning rate. Returns the loss before it, a scalar on the device."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * rate
        loss = cross_entropy(self.encoder, self.decoder, batch, self.recipe.dtype)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def optimizers(recipe: SonarRecipe, parameters: list[tuple[str, nn.Parameter]]) -> list[torch.optim.Optimizer]:
    """Return Muon for the layers' matrices, AdamW for embeddings, norms and biases."""
    matrices = [p for name, p in parameters if p.ndim == 2 and not name.startswith("embedding.")]
    others = [p for name, p in parameters if p.ndim != 2 or name.startswith("embedding.")]
    rate = recipe.learning_rate
    adamw = torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    chosen: list[torch.optim.Optimizer] = [Muon(matrices, lr=rate, dtype=recipe.dtype), adamw]
    for optimizer in chosen:
        for group in optimizer.param_groups:
            group["base_lr"] = rate
    return chosen
