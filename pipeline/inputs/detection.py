"""Implements `lang: detect`: identifies the language of a document's text, or says why the document cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pipeline.base.errors import starting
from pipeline.inputs.documents import BadRecordError
from pipeline.inputs.settings import DetectSettings
from stages.language import identifier
from stages.segment import marks

NOT_CERTAIN = "language not certain"

Detector = Callable[[str], tuple[str, float]]


def detector(settings: DetectSettings, languages: Collection[str] | None) -> Detector:
    """Return a function that gives SONAR code and confidence of a text, or raises BadRecordError.

    `languages` are the codes that documents may have; None allows any. A text of nothing but white space is dropped for
    the same reason as after segmenting. Raises StartError if the identification model is missing.
    """
    with starting("lang: detect"):
        identify = identifier().identify
    stated = "state the language of such documents (lang: eng_Latn, or {column: NAME})"

    def detect(text: str) -> tuple[str, float]:
        found = identify(text)
        if found is None:
            if not marks.INK.search(text):
                raise BadRecordError("no text", "there is only white space", kind="dropped")
            raise BadRecordError(NOT_CERTAIN, f"the text has no letter to tell its language by; {stated}")
        seems = f"the text looks like {found.label!r} with confidence {found.confidence:.3f}"
        if found.confidence < settings.threshold:
            what = f"{seems}, below lang.detect.threshold {settings.threshold}; {stated}, or lower the threshold"
            raise BadRecordError(NOT_CERTAIN, what)
        if found.lang is None:
            what = f"{seems}, for which SONAR has no code in this script; leave such documents out"
            raise BadRecordError("unknown language", f"{what}, or {stated}")
        if languages is not None and found.lang not in languages:
            what = f"{seems}: {found.lang}, which is not among the model's {len(languages)} languages"
            raise BadRecordError("unknown language", f"{what}; use a model that knows it, or leave such documents out")
        return found.lang, found.confidence

    return detect
