"""The language of every sentence by a model of fastText, on the CPU: lid.176 takes about 0.1 ms for a sentence."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stages.language.identifier import SONAR_CODES, identifier
from stages.language.settings import MANY_DIFFER, SHARE, LanguageSettings
from stages.stage import Computed, HostStage

FEW = 50  # judged sentences of a language: of fewer nothing is said

# Languages that the model takes for each other although both are right: dialects, and standards of one language.
_ALIKE = (
    {"arb_Arab", "arz_Arab", "ary_Arab", "apc_Arab", "ajp_Arab", "acm_Arab", "acq_Arab", "aeb_Arab", "ars_Arab"},
    {"bos_Latn", "hrv_Latn", "srp_Latn", "srp_Cyrl"},
    {"nob_Latn", "nno_Latn", "dan_Latn"},
    {"ind_Latn", "zsm_Latn"},
    {"zho_Hans", "zho_Hant", "yue_Hant"},
    {"pes_Arab", "prs_Arab"},
)
_KNOWN = frozenset(code for codes in SONAR_CODES.values() for code in codes)


class Language(HostStage):
    """The language stage; see `LanguageSettings`."""

    def __init__(self, settings: LanguageSettings) -> None:
        self.settings = settings

    def setup(self, device: str) -> None:
        """Load the identification model, which computes on the CPU whatever the device is."""
        identifier(self.settings.identifier)

    def prepare(self, part: pa.Table) -> Computed:
        """Identify the language of every sentence of the part."""
        text, stated = part["sentences.text"].combine_chunks(), part["sentences.lang"].combine_chunks()
        distinct: Any = text.dictionary_encode()
        identify = identifier(self.settings.identifier).identify
        found = [identify(one) for one in distinct.dictionary.to_pylist()]
        detected = pa.array([one.lang if one else None for one in found], pa.string()).take(distinct.indices)
        confidence = pa.array([one.confidence if one else None for one in found], pa.float32()).take(distinct.indices)
        judged = is_judged(text, stated, detected, self.settings.meaningful())
        sure = pc.fill_null(pc.greater_equal(confidence, self.settings.min_confidence), False)
        other = pc.not_equal(pc.fill_null(_group(detected), ""), _group(stated))
        differs = pc.and_(pc.and_(judged, sure), other)
        _warn(stated, judged, differs)
        table = {"lang_detected": detected, "lang_confidence_detected": confidence, "lang_differs": differs}
        return Computed({"language": pa.table(table)}, _counts(judged, differs))

    def recount(self, part: pa.Table, families: Mapping[str, pa.Table], taken: Mapping[str, float]) -> dict[str, float]:
        """Count rows whose languages are there, and warn of them."""
        found = families["language"]
        columns = part["sentences.text"], part["sentences.lang"], found["lang_detected"], found["lang_differs"]
        text, stated, detected, differs = (one.combine_chunks() for one in columns)
        judged = is_judged(text, stated, detected, self.settings.meaningful())
        _warn(stated, judged, differs)
        return _counts(judged, differs)


def is_judged(
    text: pa.Array | pa.ChunkedArray,
    stated: pa.Array | pa.ChunkedArray,
    detected: pa.Array | pa.ChunkedArray,
    settings: Mapping[str, Any],
) -> pa.Array | pa.ChunkedArray:
    """Return which sentences are judged: those of enough letters, of a stated language that the model knows.

    Args:
        text: the sentences.
        stated: their languages as the inputs have them.
        detected: their languages as they were identified; null where none was.
        settings: what `LanguageSettings.meaningful` returns, as recipes keep it.

    Returns:
        A boolean for each sentence.
    """
    letters = pc.count_substring_regex(text, r"\p{L}")
    languages = settings["identifier"]["languages"] if "identifier" in settings else sorted(_KNOWN)
    known = pc.is_in(stated, pa.array(languages, pa.string()))  # of another language the model knows a relative at best
    found: pa.Array = pc.and_(pc.and_(known, pc.is_valid(detected)), pc.greater_equal(letters, settings["min_letters"]))
    return found


def _counts(judged: pa.Array, differs: pa.Array) -> dict[str, float]:
    """Return counts of rows."""
    return {"judged": float(pc.sum(judged).as_py() or 0), "differ": float(pc.sum(differs).as_py() or 0)}


def _group(langs: pa.Array) -> pa.Array:
    """Return each language's group: languages that are written alike count as one."""
    groups = {code: number for number, codes in enumerate(_ALIKE) for code in codes}
    encoded: Any = langs.dictionary_encode()
    names = [f"group {groups[one]}" if one in groups else one for one in encoded.dictionary.to_pylist()]
    return pa.array(names, pa.string()).take(encoded.indices)


def _warn(stated: pa.Array, judged: pa.Array, differs: pa.Array) -> None:
    """Warn of each stated language of which too many sentences are in another one."""
    seen, wrong = np.asarray(judged), np.asarray(differs)
    langs = np.asarray(stated.to_pylist(), object)
    for lang in sorted(set(langs[seen].tolist())):
        here = seen & (langs == lang)
        if here.sum() >= FEW and wrong[here].mean() > SHARE:
            warnings.warn(
                f"{MANY_DIFFER} {lang} are in another language; see them with: "
                f"pipeline inspect CORPUS --where \"lang == '{lang}' and lang_differs\"",
                stacklevel=2,
            )
