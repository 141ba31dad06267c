"""Made-up parts as segmenting leaves them, for benchmarks of what comes after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pipeline.config.run_config import RunConfig
from pipeline.corpus.receipts import PartRef, commit
from pipeline.corpus.recipes import SEGMENT
from pipeline.storage import layout
from pipeline.storage.store import Store

LANG = "eng_Latn"


def segmented_part(config: RunConfig, number: int, texts: Sequence[str]) -> PartRef:
    """Write sentences of one document, and their receipt."""
    rows = len(texts)
    zeros = pa.array(np.zeros(rows, np.int32))
    table = pa.table(
        {
            "doc": zeros,
            "position": pa.array(np.arange(rows, dtype=np.int32)),
            "paragraph": zeros,
            "text": pa.array(texts),
            "lang": pa.array([LANG] * rows),
            **dict.fromkeys(("start", "end", "chars", "tokens"), zeros),
            "u": pa.array(np.zeros(rows)),
        }
    )
    ref = PartRef(part=layout.part_name("0" * 12, number), fingerprint=f"{number:032x}")
    commit(
        Store(config.output),
        stage=SEGMENT,
        part=ref.part,
        fingerprint=ref.fingerprint,
        recipe="",
        inputs={},
        families={"sentences": layout.checked("sentences", table, layout.schema("sentences"), rows)},
        counts={},
        seconds={},
        device="cpu",
    )
    return ref
