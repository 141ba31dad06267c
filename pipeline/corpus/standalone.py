"""A trained model without its corpus: what its folder says about itself. Imports no torch.

    model.json               what it is and how it was trained, as in train/NAME of the corpus
    model.safetensors        weights, float32
    scaler.safetensors       its robust scaler
    codebooks.safetensors    of a quantised model
    text.json                models for segmenting, encoding and decoding, options of sampling, licence; written last
    README.md                the same for people, with its evaluation

`pipeline export-model` writes such folders; those that ship are in `conf/lcm/`.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from pipeline.storage.records import read_json
from pipeline.storage.store import Store
from stages.autobleu.settings import AutobleuSettings
from stages.encode.settings import EncodeSettings
from stages.segment.settings import SegmentSettings

TEXT = "text.json"
VERSION = 1
REMEDY = "export the model again: pipeline export-model CORPUS --model NAME --to FOLDER"


class TextModels(BaseModel):
    """Which models turn texts into embeddings and embeddings into texts.

    artifacts: digests of the encoder's files; those of another encoder are refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    segment: SegmentSettings
    encode: EncodeSettings
    decode: AutobleuSettings
    artifacts: dict[str, str]


def text_models(corpus: Corpus) -> TextModels:
    """Return the models that the newest run of a corpus names.

    The decoder is that of `autobleu.model`, and that of `encode.model` where there is no such section.
    """
    config = newest_config(corpus.store)
    autobleu = config.get("autobleu") or {"model": config["encode"]["model"]}
    decode = {"model": autobleu["model"], "precision": autobleu.get("precision", "auto")}
    about = {"segment": config["segment"], "encode": config["encode"], "decode": decode}
    return TextModels.model_validate_json(json.dumps(about | {"artifacts": corpus.view.stages["encode"]["artifacts"]}))


class StandaloneRecord(BaseModel):
    """The content of text.json.

    kind, objective, parameters, steps: of the model. corpus: the name of the corpus that it learned from. sampling:
    options that its training set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: int = VERSION
    name: str
    kind: str
    objective: str
    parameters: int
    steps: int
    corpus: str
    licence: str
    text: TextModels
    sampling: dict[str, Any]


def standalone(place: str) -> StandaloneRecord:
    """Read what the model in a folder says about itself. Raises `MissingError` or `DamagedError`."""
    return read_json(Store(place), TEXT, StandaloneRecord, REMEDY)
