"""Made-up chunks and parts, as Ray Data passes them on."""

from __future__ import annotations

from launchers.ray_data import Item
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk


def chunk(number: int) -> Chunk:
    return Chunk(f"{number:012x}", "in", f"{number}.txt", "", "text", "", 0, -1, 1000, None, "")


def part_item(number: int) -> tuple[str, Item]:
    ref = PartRef(part=f"{number:012x}-00000", fingerprint="0" * 32)
    return ref.part, Item({"part": ref.model_dump()}, 10)


def chunk_item(number: int) -> tuple[str, Item]:
    one = chunk(number)
    return one.id, Item({"chunk": one.to_json()}, 30)
