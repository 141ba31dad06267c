"""The best way to cut text under hard limits: an exact dynamic programme, vectorised (LCM 2.2, SaT Capped).

Nodes are the places where a piece may end. Choosing a node costs what the segmenter's probability says, and no piece
may be longer than the limits.

With gains of at most 0, choosing one more node never helps by itself. So, in a block of nodes that can all be reached
from its beginning, the best predecessor of a node is in the block before, or is a node of its own block that was itself
reached from there: two running maxima solve a block. Cost: a few array operations per block, which is about one piece.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def best_cuts(gains: NDArray[np.float64], left: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the nodes to cut at: the path from node 0 to the last node with the largest sum of gains.

    gains: (nodes,), at most 0. left: (nodes,), the first node from which a piece that ends at this node can start;
    never smaller than the one before, and less than the node itself. Among equals the longest last pieces are chosen.
    Returns the nodes of the path without node 0; the last node is the last of them.
    """
    nodes = len(gains)
    score = np.empty(nodes)
    score[0] = 0.0
    stops = np.searchsorted(left, np.arange(nodes), side="right").tolist()  # behind what can be reached from a node
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
