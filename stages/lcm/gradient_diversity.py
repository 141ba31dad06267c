"""Gradient diversity of a mini-batch (Yin et al. 2018; Heo et al. 2025, 4.1): how little its documents agree on a step.

GD = Σ_i ‖g_i‖² / ‖Σ_i g_i‖², g_i being the gradient of document i's loss: 1/n where all n are the same, 1 where
they are orthogonal. Cost: a backward pass for each document; memory: three times the gradients.
"""

from __future__ import annotations

import torch

from stages.lcm.batch import Batch
from stages.lcm.model import Lcm


def gradient_diversity(model: Lcm, batch: Batch) -> float:
    """Return the gradient diversity of the documents of a batch, by the losses that a model in training mode learns by;
    NaN where all are 0.

    Each document's random numbers (dropout, noise) are the same. The model's gradients are dropped.
    """
    training = model.training
    model.train()
    parameters = [one for one in model.parameters() if one.requires_grad]
    total = [torch.zeros_like(one, dtype=torch.float64) for one in parameters]
    squares = 0.0
    for document in batch.split():
        torch.manual_seed(0)
        loss = (document.weights * model.losses(document)).sum()
        for so_far, gradient in zip(total, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if gradient is not None:
                so_far += gradient
                squares += float(gradient.double().square().sum())
    model.train(training)
    together = sum(float(one.square().sum()) for one in total)
    return squares / together if together else float("nan")
