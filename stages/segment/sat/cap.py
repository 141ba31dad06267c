"""The cap by probabilities: where a sentence is too long, the cuts that are together the most probable (LCM 2.2).

A sentence that exceeds a limit is cut at the places that have the largest sum of log odds among all ways to hold the
limits, by an exact dynamic programme. Places that the model says nothing of, but that white space, punctuation or a
script without spaces makes acceptable, are worse than any word of the model; where nothing is acceptable either, cuts
lie between grapheme clusters, and inside a cluster only if it alone is over the limit.

Tokens of a piece are those of its words, for the tokenizers of SONAR never join words: the programme knows them exactly
at white space, and inside of words as the word's share. Where that share was wrong, the sentence is solved again with a
lower limit. Cost: a few passes over the characters of long sentences, and a few operations on arrays per piece.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stages.segment.characters import PUNCTUATION, UNSPACED, cluster_ends
from stages.segment.pieces import Pieces
from stages.segment.text import Flags, Indices, Text

SILENT, HARD, INSIDE_CLUSTER = -1e2, -1e6, -1e9  # log odds of cuts that no probability speaks for

Floats = NDArray[np.float64]


class _Measure(NamedTuple):
    """A way to measure pieces. One from ink character i to j has the size `end[j] − start[i]`."""

    start: Floats  # (ink,)
    end: Floats  # (ink,)
    limit: Floats  # (sentences,) largest size of a piece, for each of the sentences in question


class _Nodes(NamedTuple):
    """Where pieces may end, in order. One that opens stands before each sentence; every path goes through them."""

    ink: Indices  # the ink character after which the node is; of an opening node, the one before its sentence
    gain: Floats
    sentence: Indices
    opens: Flags

    def sorted(self) -> _Nodes:
        order = np.lexsort((~self.opens, self.ink, self.sentence))
        return _Nodes(self.ink[order], self.gain[order], self.sentence[order], self.opens[order])


def fit(pieces: Pieces, odds: NDArray[np.float32]) -> int:
    """Break what exceeds the limits. Returns how many single characters have too many tokens all the same.

    odds: (ink,) log odds of a sentence's end after each ink character, less those of the threshold; −inf for none.
    """
    text, limits = pieces.text, pieces.limits
    first, last = pieces.first, pieces.last
    chars = float(limits.max_chars or np.inf)
    written = text.written.astype(np.float64)
    long = pieces.too_long()
    if len(long):
        _solve(pieces, odds, first[long], last[long], [_Measure(written, written + 1, np.full(len(long), chars))])
    most = float((limits.max_tokens or 0) - limits.overhead)
    budget = np.full(len(first), most + 1)
    while True:
        over = pieces.too_many_tokens()
        over = over[pieces.chars[over] > 1]
        if not len(over):
            return len(pieces.too_many_tokens())
        worst = np.zeros(len(first))
        np.maximum.at(worst, pieces.sentence[over], pieces.tokens[over] - limits.overhead)
        rows = np.flatnonzero(worst)
        # at first the limit itself; later, where words were cut and became more tokens, accordingly less
        lower = np.floor(budget[rows] * most / np.maximum(worst[rows], 1))
        budget[rows] = np.where(budget[rows] > most, most, np.minimum(budget[rows] - 1, lower))
        start, end = _tokens(pieces, first[rows], last[rows])
        longest = np.where(budget[rows] > 0, chars, 1.0)  # what words cost alone said nothing: single characters
        measures = [_Measure(start, end, np.maximum(budget[rows], 0.0)), _Measure(written, written + 1, longest)]
        _solve(pieces, odds, first[rows], last[rows], measures)


def _inside(text: Text, first: Indices, last: Indices) -> Flags:
    """Return the ink characters of sentences without the last one of each."""
    steps = np.zeros(len(text.ink) + 1, np.int64)
    np.add.at(steps, first, 1)
    np.add.at(steps, last, -1)
    return np.cumsum(steps[:-1]) > 0


def _tokens(pieces: Pieces, first: Indices, last: Indices) -> tuple[Floats, Floats]:
    """Count the tokens up to and including each ink character, within the given sentences only."""
    text = pieces.text
    inside = _inside(text, first, last)
    ends = inside & text.gap
    ends[last] = True
    inside[last] = True
    end = np.flatnonzero(ends)
    start = np.flatnonzero(inside & np.append(True, ends[:-1] | ~inside[:-1]))
    counts = np.maximum(1, pieces.limits.count(text.slices(start, end)) - pieces.limits.overhead)
    share = np.zeros(len(text.ink))
    share[np.flatnonzero(inside)] = np.repeat(counts / (end - start + 1), end - start + 1)
    total = np.cumsum(share)
    return total - share, total


def _solve(pieces: Pieces, odds: NDArray[np.float32], first: Indices, last: Indices, measures: list[_Measure]) -> None:
    """Cut sentences again, from ink character `first[s]` to `last[s]`, so that no measure exceeds its limit."""
    text = pieces.text
    inside = _inside(text, first, last)
    nodes = _nodes(text, odds, first, last, inside)
    nodes = _with_hard_nodes(text, nodes, measures)
    index = np.arange(len(nodes.ink))
    left = np.maximum.accumulate(np.where(nodes.opens, index, 0))
    begin = np.minimum(nodes.ink + 1, len(text.ink) - 1)
    for measure in measures:
        reach = measure.end[np.maximum(nodes.ink, 0)] - measure.limit[nodes.sentence] - 1e-6
        left = np.maximum(left, np.searchsorted(measure.start[begin], reach))
    left = np.where(nodes.opens, index - 1, np.minimum(left, index - 1))
    left[0] = 0
    path = best_cuts(nodes.gain, left)
    path = path[~nodes.opens[path]]
    pieces.recut(inside, nodes.ink[path], nodes.gain[path] <= HARD)


def _nodes(text: Text, odds: NDArray[np.float32], first: Indices, last: Indices, inside: Flags) -> _Nodes:
    """Return the nodes of each sentence: one that opens it, its acceptable places, and its end."""
    unspaced = (text.kind[text.ink] & UNSPACED) != 0
    between_letters = unspaced | ((text.kind[text.ink] & PUNCTUATION) != 0)
    between_letters[:-1] |= unspaced[1:]
    places = np.flatnonzero(inside & (text.gap | between_letters) & ~text.joins_next)
    count = np.arange(len(first))
    return _Nodes(
        np.concatenate((first - 1, places, last)),
        np.concatenate((np.zeros(len(first)), np.clip(odds[places], SILENT, 0.0), np.zeros(len(first)))),
        np.concatenate((count, np.searchsorted(last, places), count)),
        np.concatenate((np.ones(len(first), np.bool_), np.zeros(len(places) + len(last), np.bool_))),
    ).sorted()


def _with_hard_nodes(text: Text, nodes: _Nodes, measures: list[_Measure]) -> _Nodes:
    """Add nodes where two neighbouring ones are too far apart."""
    begin = np.minimum(nodes.ink[:-1] + 1, len(text.ink) - 1)
    far = np.zeros(len(begin), np.bool_)
    for measure in measures:
        far |= measure.end[np.maximum(nodes.ink[1:], 0)] - measure.start[begin] > measure.limit[nodes.sentence[1:]]
    far &= ~nodes.opens[1:]
    added = [nodes]
    for row in np.flatnonzero(far).tolist():
        sentence, low, high = int(nodes.sentence[row + 1]), int(nodes.ink[row]) + 1, int(nodes.ink[row + 1])
        ink, gain = _clusters(text, low, high, [(one.start, one.end, float(one.limit[sentence])) for one in measures])
        added.append(_Nodes(ink, gain, np.full(len(ink), sentence), np.zeros(len(ink), np.bool_)))
    if len(added) == 1:
        return nodes
    return _Nodes(*(np.concatenate(columns) for columns in zip(*added, strict=True))).sorted()


def _clusters(text: Text, low: int, high: int, measures: list[tuple[Floats, Floats, float]]) -> tuple[Indices, Floats]:
    """Return where the grapheme clusters from ink character `low` to `high` (excluded) end.

    In a cluster that exceeds a limit, every character counts as an end. There is no white space in between.
    """
    run = text.text[int(text.ink[low]) : int(text.ink[high]) + 1]
    if run.isascii():  # every character is a cluster
        return np.arange(low, high), np.full(high - low, HARD)
    ends = low - 1 + np.array(list(cluster_ends(run)), np.int64)
    starts = np.append(low, ends[:-1] + 1)
    big = np.zeros(len(ends), np.bool_)
    for start, end, limit in measures:
        big |= end[ends] - start[starts] > limit
    inner = [np.arange(a, b) for a, b in zip(starts[big].tolist(), ends[big].tolist(), strict=True)]
    ink = np.concatenate((ends[:-1], *inner))
    gain = np.full(len(ink), INSIDE_CLUSTER)
    gain[: len(ends) - 1] = HARD
    return ink, gain


def best_cuts(gains: NDArray[np.float64], left: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nodes to cut at: the path from node 0 to the last node with the largest sum of gains.

    Nodes are the places where a piece may end. With gains of at most 0, choosing one more node never helps by itself.
    So, in a block of nodes that can all be reached from its beginning, the best predecessor of a node is in the block
    before, or is a node of its own block that was itself reached from there: two running maxima solve a block. Cost: a
    few array operations per block, which is about one piece.

    gains: (nodes,), at most 0. left: (nodes,), the first node from which a piece that ends at this node can start;
    never smaller than the one before, and less than the node itself. Among equals the longest last pieces are chosen.
    Returns the nodes of the path without node 0; the last node is the last of them.
    """
    nodes = len(gains)
    score = np.empty(nodes)
    score[0] = 0.0
    stops = np.searchsorted(left, np.arange(nodes), side="right").tolist()  # after what can be reached from a node
    start, end = 0, 1  # the block before, as a range of nodes
    while end < nodes:
        stop = stops[end - 1]
        if end - start == 1:  # every path goes through it: sums start over, so that rounding does not depend on what
            score[start] = 0.0  # stands before
        reachable = np.maximum.accumulate(score[start:end][::-1])[::-1]
        gain = gains[end:stop]
        direct = gain + reachable[left[end:stop] - start]
        score[end] = direct[0]
        np.maximum(direct[1:], gain[1:] + np.maximum.accumulate(direct)[:-1], out=score[end + 1 : stop])
        start, end = end, stop
    path = []
    firsts = left.tolist()
    node = nodes - 1
    while node > 0:
        path.append(node)
        first = firsts[node]
        node = first + int(score[first:node].argmax())
    return np.array(path[::-1], np.int64)
