"""Packed documents: attention without padding to the longest, and everything else without padding at all.

A batch is one flat (sentences, …) tensor in which documents follow each other. Only attention needs blocks: documents
are laid first-fit, the longest first, into rows of one width, and a mask keeps them apart. The layout is computed on
the host in numpy (1 ms for 8192 sentences in 300 documents), in training by the loader's threads, and moved to the
device once per batch, where the mask is made. Rows are filled to more than 90 % where lengths vary.

Few shapes: the width is a power of two, and the number of rows has four significant bits (…, 64, 72, 80, …), so that
compiled code and memory are reused; the extra rows cost attention at most an eighth, and nothing elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NARROWEST = 16  # width of a block at least
Indices = npt.NDArray[np.int64]


class _Reorder(torch.autograd.Function):
    """x[there], whose gradient is gradient[back]: a copy as well, where `index_select` would add up in any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return gradients[0].index_select(0, back), None, None


@dataclass(frozen=True)
class Layout:
    """A packing as the host computes it, in one tensor, which moves to the device at once.

    places: (3 · rows · width + positions,) int64: `gather` and `positions` of `Packing`, the document in each slot (−1:
    none), and `scatter`.
    """

    places: Tensor
    rows: int
    width: int


@dataclass(frozen=True)
class Packing:
    """Where each position of a flat tensor lies in blocks, and which keys it attends to.

    gather: (rows, width) int64, the flat position in each slot; 0 in an empty one.
    scatter: (positions,) int64, the slot of each flat position, counted through all rows.
    positions: (rows, width) int64, the place in the document, from 0; 0 in an empty slot.
    own: (rows, width) int64, the slot among the keys of the row that is the position itself.
    mask: (rows, 1, width, keys) bool, True where a position sees a key: itself and those before it in its document.
    Empty slots see only empty slots, never nothing, so that no softmax is over nothing.
    """

    gather: Tensor
    scatter: Tensor
    positions: Tensor
    own: Tensor
    mask: Tensor

    def blocks(self, x: Tensor) -> Tensor:
        """Map (positions, …) to (rows, width, …). Empty slots hold copies of the first position; no gradient leaves
        them.
        """
        packed: Tensor = _Reorder.apply(x, self.gather.flatten(), self.scatter)  # type: ignore[no-untyped-call]
        return packed.view(*self.gather.shape, *x.shape[1:])

    def flat(self, blocks: Tensor) -> Tensor:
        """Map (rows, width, …) to (positions, …). The gradient in empty slots has no meaning: nothing that is computed
        from a full slot may lie there. With the mask nothing does, and `blocks` drops the gradient.
        """
        flat: Tensor = _Reorder.apply(blocks.flatten(0, 1), self.scatter, self.gather.flatten())  # type: ignore[no-untyped-call]
        return flat

    @property
    def preceding(self) -> Tensor:
        """(positions,) int64: how many of its document precede each."""
        return self.positions.flatten().index_select(0, self.scatter)

    @property
    def starts(self) -> Tensor:
        """(positions,) bool: the first of each document."""
        return self.preceding == 0

    @property
    def before(self) -> Tensor:
        """The mask without the position itself: (rows, 1, width, keys). The first of a document sees nothing."""
        slots = torch.arange(self.mask.shape[-1], device=self.mask.device)
        return self.mask & (slots != self.own[:, None, :, None])


def layout_of(lengths: Tensor, alone: bool = False) -> Layout:
    """Return the layout of documents of `lengths` (documents,) int64 sentences on the host; `alone`: one document per
    row.
    """
    counts: Indices = lengths.numpy()
    if not len(counts) or counts.min() < 1:
        raise ValueError(f"every document needs a sentence; the shortest of {len(counts)} has {counts.min(initial=0)}")
    width = max(NARROWEST, 1 << int(counts.max() - 1).bit_length())
    row, slot, rows = (np.arange(len(counts)), np.zeros_like(counts), len(counts)) if alone else _fit(counts, width)
    document = np.repeat(np.arange(len(counts)), counts)
    position = np.arange(len(document)) - (np.cumsum(counts) - counts)[document]
    scatter = (row * width + slot)[document] + position
    layout = np.zeros((3, rows * width), np.int64)
    layout[2] = -1
    layout[:, scatter] = np.arange(len(document)), position, document
    return Layout(torch.from_numpy(np.concatenate([layout.ravel(), scatter])), rows, width)


def packing_of(layout: Layout, device: str | torch.device) -> Packing:
    """Put a layout on a device, without a wait where it lies there, or in pinned memory."""
    moved, slots = layout.places.to(device, non_blocking=True), 3 * layout.rows * layout.width
    gather, positions, documents = moved[:slots].view(3, layout.rows, layout.width)
    same = documents[:, :, None] == documents[:, None, :]
    earlier = positions[:, :, None] >= positions[:, None, :]
    own = torch.arange(layout.width, device=moved.device).expand(layout.rows, layout.width)
    return Packing(gather, moved[slots:], positions, own, (same & earlier)[:, None])


def pack(lengths: Tensor, device: str | torch.device, alone: bool = False) -> Packing:
    """Return the packing of documents.

    Args:
        lengths: (documents,) int64.
        device: where its tensors are.
        alone: whether each document has a row of its own.

    Returns:
        The packing.
    """
    return packing_of(layout_of(lengths, alone), device)


def last(packing: Packing, lengths: Tensor) -> Packing:
    """Return (documents, …) queries at the last position of each document, for a packing of one document per row."""
    rows = torch.arange(len(lengths), device=packing.gather.device)
    ends = (lengths - 1).to(rows.device)
    return Packing(rows[:, None], rows, ends[:, None], ends[:, None], packing.mask[rows, :, ends][:, :, None])


def interleaved(packing: Packing, dropped: Tensor) -> Packing:
    """Return the layout of clean positions followed by as many noisy ones, in one flat tensor, LCM fig. 7.

    A clean one sees itself and the clean ones before it; a noisy one itself and the clean ones before it, or itself
    alone where `dropped`, (positions,) bool. In a row the noisy ones follow all clean ones; the order means nothing.
    """
    count, (_, width) = len(packing.scatter), packing.gather.shape
    clean = packing.scatter + packing.scatter // width * width
    kept = ~packing.blocks(dropped)[:, None, :, None]
    noisy_rows = with_themselves(packing.before & kept)
    clean_rows = torch.cat([packing.mask, torch.zeros_like(packing.mask)], dim=-1)
    return Packing(
        torch.cat([packing.gather, packing.gather + count], dim=1),
        torch.cat([clean, clean + width]),
        packing.positions.repeat(1, 2),
        torch.cat([packing.own, packing.own + width], dim=1),
        torch.cat([clean_rows, noisy_rows], dim=2),
    )


def with_themselves(mask: Tensor) -> Tensor:
    """Return a mask (rows, 1, width, keys) with `width` keys more, of the queries: each sees its own."""
    own = torch.eye(mask.shape[2], dtype=torch.bool, device=mask.device)
    return torch.cat([mask, own.expand(len(mask), 1, *own.shape)], dim=-1)


def check_lengths(lengths: Tensor, context: int, room: int = 0) -> None:
    """Check that documents fit into the context of a model.

    Args:
        lengths: (documents,) int64, in sentences.
        context: the most sentences that the model can take.
        room: how many more sentences must fit after each document.

    Raises:
        ValueError: if a document is too long.
    """
    longest = int(lengths.max())
    if longest + room > context:
        more = f", and {room} more is wanted" if room else ""
        raise ValueError(
            f"a document has {longest} sentences{more}; the model's context is {context}: wrap documents at "
            f"{context - room} sentences, or take a card with a larger context"
        )


def shifted(x: Tensor, first: Tensor) -> Tensor:
    """Return each of (sentences, dim) in the place of the next one in its document, a zero vector in the
    `first` place.
    """
    return x.roll(1, 0).masked_fill(first[:, None], 0)


def lengthened(x: Tensor, lengths: Tensor) -> Tensor:
    """Return (sentences, dim) with one zero vector more at the end of each document: (sentences + documents, dim)."""
    old = torch.arange(len(x)) + torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    longer = x.new_zeros(len(x) + len(lengths), x.shape[1])
    longer[old.to(x.device)] = x
    return longer


def visible_pairs(lengths: Tensor) -> int:
    """Count the pairs of a position and one that it sees, itself included, over all documents."""
    return int((lengths * (lengths + 1) // 2).sum())


def _fit(counts: Indices, width: int) -> tuple[Indices, Indices, int]:
    """Return the row and first slot of each document, first-fit, the longest first, and the number of rows.

    Documents of one length are laid at once: each row takes as many as fit.
    """
    row, slot = np.zeros_like(counts), np.zeros_like(counts)
    free = np.full(len(counts), width)
    for length in np.unique(counts)[::-1]:
        documents = np.flatnonzero(counts == length)
        fitting = free // length
        until = np.cumsum(fitting)
        order = np.arange(len(documents))
        here = np.searchsorted(until, order, side="right")
        row[documents] = here
        slot[documents] = width - free[here] + (order - until[here] + fitting[here]) * length
        free -= np.bincount(here, minlength=len(free)) * length
    used = int(row.max()) + 1
    step = 1 << max(0, used.bit_length() - 4)
    return row, slot, -(-used // step) * step
