"""SONAR-LLM (Dragunov et al. 2025): Base-LCM that learns by the words of the next sentence, through a frozen decoder.

The prediction of each sentence goes, denormalised, into SONAR's decoder in the place of its embedding, and the loss is
−log p of the true sentence's tokens, teacher-forced, summed over them (their eq. 1). The gradient passes through the
decoder into the prediction; the decoder learns nothing and is not part of the model's weights, which are Base-LCM's.

Cost: a forward and a backward pass of the decoder for each target, many times that of the model itself; with
`targets_per_document` only for that many targets of a document, drawn again each step, whose losses count for the
others. Memory besides Base-LCM's: see `stages/sonar/likelihood.py`; bounded, whatever the batch.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from stages.batching import Indices
from stages.lcm.base import BaseLcm
from stages.lcm.batch import Batch
from stages.lcm.card import LcmCard
from stages.lcm.metrics import documents_of
from stages.lcm.packing import check_lengths
from stages.scaler.robust import RobustScaler
from stages.sonar.flops import decoder_flops
from stages.sonar.likelihood import sentence_losses
from stages.sonar.networks import DecoderLayer, SonarTextDecoder


class SonarLlm(BaseLcm):
    """Predicts as Base-LCM does; the module's docstring says what it learns from the decoder given to `use`."""

    def __init__(self, card: LcmCard, scaler: RobustScaler) -> None:
        super().__init__(card, scaler)
        self.targets_per_document = card.through.targets_per_document
        self._decoder: list[SonarTextDecoder] = []  # in a list, so that its weights are not among the model's

    def use(self, decoder: SonarTextDecoder) -> None:
        """Learn through this decoder. Raises ValueError if it takes embeddings of another dimension."""
        dim, takes = self.scaling.median.numel(), decoder.embedding.weight.shape[1]
        if dim != takes:
            raise ValueError(
                f"the decoder takes embeddings of {takes} dimensions, these have {dim}: name that of the encoder"
            )
        self._decoder = [decoder.eval().requires_grad_(False)]

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss in nats of every sentence, the first of a document too; 0 for prompts, which have no weight.

        While it trains, with `targets_per_document`, 0 for all that were not drawn, and multiples for those that were:
        sums over a document have the same mean. Raises ValueError without a decoder, or tokens.
        """
        check_lengths(batch.lengths, self.card.context)
        if not self._decoder or batch.tokens is None:
            lacking = "a decoder" if not self._decoder else "the tokens of its sentences"
            raise ValueError(f"{self.card.name} learns by words and has not been given {lacking}")
        predicted = self.scaling.denormalize(self._predict(self.scaling.normalize(batch.embeddings), batch.packing))
        rows, times = self._targets(batch)
        places = torch.from_numpy(rows).to(predicted.device, non_blocking=True)
        decoder = self._decoder[0].to(predicted.device)
        found = sentence_losses(decoder, predicted.index_select(0, places), batch.tokens.select(rows))
        counted = found * torch.from_numpy(times).to(found.device, found.dtype, non_blocking=True)
        return torch.zeros(batch.sentences, device=found.device).index_copy(0, places, counted)

    def flops(self, batch: Batch) -> float:
        """Count the operations of `losses`: the decoder's passes too, forward and, into its input, backward."""
        found = super().flops(batch)
        if not self._decoder or batch.tokens is None:
            return found
        targets = batch.target_rows
        share = 1.0
        if self.targets_per_document is not None and self.training:
            counts = np.bincount(documents_of(batch.lengths).numpy()[targets])
            share = np.minimum(counts, self.targets_per_document).sum() / max(1, counts.sum())
        decoder = self._decoder[0]
        vocabulary, dim = decoder.embedding.weight.shape
        ffn_dim = cast("DecoderLayer", decoder.layers[0]).ffn.inner_proj.out_features
        lengths = (batch.tokens.lengths[targets] - 1).tolist()
        forward = decoder_flops(lengths, dim=dim, layers=len(decoder.layers), ffn_dim=ffn_dim, vocab_size=vocabulary)
        return found + 2 * share * forward

    def _targets(self, batch: Batch) -> tuple[Indices, np.ndarray[tuple[int], np.dtype[np.float32]]]:
        """Return the rows whose losses are computed, ascending, and how many targets each stands for."""
        rows = batch.target_rows
        if self.targets_per_document is None or not self.training or not len(rows):
            return rows, np.ones(len(rows), np.float32)
        document = documents_of(batch.lengths).numpy()[rows]
        drawn = torch.rand(len(rows)).numpy()  # by PyTorch's generator of the host, which steps seed
        order = np.lexsort((drawn, document))
        counts = np.bincount(document)
        rank = np.arange(len(rows)) - (np.cumsum(counts) - counts)[document]  # in `order`, documents follow each other
        chosen = np.sort(order[rank < self.targets_per_document])
        times = counts[document[chosen]] / np.minimum(counts[document[chosen]], self.targets_per_document)
        return rows[chosen], times.astype(np.float32)
