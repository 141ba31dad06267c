"""How many chunks the first launches of a run segment, before and after some are known."""

from __future__ import annotations

import pytest

from pipeline.corpus.states import ChunkState
from pipeline.inputs.chunk import Chunk
from pipeline.run.pilot import pilot_of

BYTES = 900_000  # about 10 000 sentences


def states(*sentences: int | None, size: int = BYTES) -> list[ChunkState]:
    """Chunks that are segmented, with that many sentences, or not yet (None)."""
    found = []
    for n, count in enumerate(sentences):
        chunk = Chunk(
            f"{n:012d}-00000", "in", "a.jsonl", "a.jsonl", "jsonl", "", n * size, n * size + size, size, None, ""
        )
        found.append(ChunkState(chunk, "f" * 32, None if count is None else ((0,), count)))
    return found


@pytest.mark.parametrize(
    ("rows", "size", "chunks"),
    [
        (400_000, BYTES, 46),  # 40 by what their bytes say, and a margin: a second launch would load all models again
        (10_000, BYTES, 8),
        (400_000, 10 * BYTES, 8),
        (4_000_000, BYTES, 100),
    ],
)
def test_the_first_launch_has_about_as_many_chunks_as_the_pilot_needs(rows: int, size: int, chunks: int) -> None:
    pilot = pilot_of(states(*[None] * 100, size=size), rows)
    assert (len(pilot.chunks), pilot.enough) == (chunks, False)


def test_what_is_known_of_the_first_chunks_decides_about_further_ones() -> None:
    known = [5_000] * 46
    assert len(pilot_of(states(*known, *[None] * 100), 400_000).chunks) == 46 + 40  # 34 hold the rest
    done = pilot_of(states(*known, *known, *[None] * 20), 400_000)
    assert (len(done.chunks), done.enough) == (80, True)  # the others were begun, and count for the whole corpus


def test_chunks_without_a_sentence_say_nothing_about_others() -> None:
    assert len(pilot_of(states(0, 0, *[None] * 50), 20_000).chunks) == 2 + 8
    assert pilot_of(states(0, 0), 20_000).enough
