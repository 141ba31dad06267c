"""Real sentences for benchmarks: the sample corpus that ships, segmented as a run would do it."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass

import pyarrow as pa

from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings
from stages.shipped import SAMPLE
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer


@dataclass(frozen=True)
class Sentences:
    """Distinct sentences in the order in which they arrive: file by file, document by document."""

    texts: list[str]
    langs: list[str]

    def part(self) -> pa.Table:
        """Return what the encode stage reads."""
        return pa.table({"sentences.text": pa.array(self.texts), "sentences.lang": pa.array(self.langs)})

    def by_language(self) -> dict[str, list[int]]:
        """Map each language to the places of its sentences, in order."""
        places: dict[str, list[int]] = {}
        for place, lang in enumerate(self.langs):
            places.setdefault(lang, []).append(place)
        return places


def sample_sentences(count: int, model: str = "sonar-tiny") -> Sentences:
    """Return about `count` sentences, the same number from each file of the sample and so from all of its languages.

    Copies are left out: the encode stage would encode them once, and that is not what its speed is about.
    """
    segmenter = Segmenter(SegmentSettings(model=model), SonarTokenizer(load_card(model)).count)
    files = sorted(SAMPLE.glob("*.jsonl.gz"))
    found: dict[tuple[str, str], None] = {}
    for number, file in enumerate(files, start=1):
        wanted = count * number // len(files)
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                if len(found) >= wanted:
                    break
                document = json.loads(line)
                for text in segmenter.segment([document["text"]], [document["lang"]]).text.to_pylist():
                    if len(found) < wanted:
                        found[text, document["lang"]] = None
    return Sentences([text for text, _ in found], [lang for _, lang in found])
