"""The language of sentences against the stated one."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pytest

from stages.language.settings import LanguageSettings
from stages.language.stage import FEW, Language
from stages.stage import Computed, whole

GERMAN = "Der Zug nach München fährt heute leider erst eine halbe Stunde später ab, sagte der Schaffner."
ENGLISH = "The train to the coast leaves half an hour later than usual today, said the conductor to the children."
RUSSIAN = "Поезд на побережье сегодня отправляется на полчаса позже обычного, сказал проводник детям."
CHINESE = "今天开往海边的火车比平时晚半个小时出发，列车员对孩子们这样说，他们听了以后都很失望。"


def run(texts: list[str], langs: list[str], **settings: float) -> Computed:
    stage = Language(LanguageSettings.model_validate(settings))
    stage.setup("cpu")
    part = pa.table({"sentences.text": pa.array(texts, pa.string()), "sentences.lang": pa.array(langs, pa.string())})
    return whole(stage, part)


def test_only_sentences_in_another_language_differ() -> None:
    texts = [ENGLISH, GERMAN, RUSSIAN, CHINESE, "Chapter 3", "1914 – 1918", CHINESE, GERMAN]
    langs = ["eng_Latn"] * 6 + ["zho_Hant", "dik_Latn"]  # a language that the model does not know is not judged
    done = run(texts, langs)
    table = done.families["language"]
    assert table["lang_differs"].to_pylist() == [False, True, True, True, False, False, False, False]
    assert table["lang_detected"].to_pylist()[:4] == ["eng_Latn", "deu_Latn", "rus_Cyrl", "zho_Hans"]
    assert table["lang_detected"][5].as_py() is None and table["lang_confidence_detected"][5].as_py() is None
    assert table["lang_confidence_detected"][1].as_py() > 0.9
    assert done.counts == {"judged": 5.0, "differ": 3.0}


def test_settings_decide_what_is_judged() -> None:
    assert run([GERMAN], ["eng_Latn"], min_letters=500).counts == {"judged": 0.0, "differ": 0.0}
    assert run(["Guten Morgen"], ["eng_Latn"], min_letters=5).counts["judged"] == 1
    assert run([], []).counts == {"judged": 0.0, "differ": 0.0}


def test_many_that_differ_are_warned_of() -> None:
    texts = [GERMAN.replace("München", f"Dorf {number}") for number in range(FEW)]
    with pytest.warns(UserWarning, match=r"more than 2% of the sentences stated as eng_Latn are in another language"):
        run(texts, ["eng_Latn"] * FEW)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(texts, ["deu_Latn"] * FEW)
        run(texts[1:], ["eng_Latn"] * (FEW - 1))
