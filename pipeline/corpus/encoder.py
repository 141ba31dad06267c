"""Loads the encoder that made a corpus, for sentences that are to be compared with those of the corpus."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.base.errors import ConfigError, visible
from pipeline.corpus.runs import newest_config
from pipeline.corpus.view import View
from pipeline.storage.store import Store
from stages.arrow import embedding_matrix
from stages.cards import CardError
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings


def load_encoder(store: Store, view: View, device: str) -> Encode:
    """Load the encoder of a view, with the settings of the newest run.

    Args:
        store: the corpus.
        view: the view, whose recipe of `encode` holds the digests of the encoder's files.
        device: where it computes: `cpu`, `cuda:0`, `mps`.

    Returns:
        The stage, ready to encode.

    Raises:
        ConfigError: if the encoder is no longer there, or its files differ from those that encoded the corpus.
    """
    settings = EncodeSettings.model_validate_json(json.dumps(newest_config(store)["encode"]))
    remedy = "run the corpus again with these"
    return prepare_encoder(settings, view.stages["encode"]["artifacts"], store.url, remedy, device)


def prepare_encoder(
    settings: EncodeSettings, artifacts: Mapping[str, str], place: str, remedy: str, device: str
) -> Encode:
    """Load an encoder on a device, after comparing its files with those that were used before.

    Args:
        settings: the settings of the stage `encode`.
        artifacts: role → digest of the files that encoded what is at `place`.
        place: the corpus or model that needs this encoder, for messages.
        remedy: what else can be done if the files differ, for messages.
        device: where it computes: `cpu`, `cuda:0`, `mps`.

    Returns:
        The stage, ready to encode.

    Raises:
        ConfigError: if the encoder is not on this machine, or its files have other digests.
    """
    try:
        if settings.artifacts() != artifacts:
            raise ConfigError(
                f"the files of {settings.model} differ from those that encoded {place}: restore those, or {remedy}"
            )
        stage = Encode(settings)
        stage.setup(device)
    except CardError as error:
        raise ConfigError(f"{place} needs its encoder: {error}") from error
    return stage


def encode_texts(stage: Encode, texts: Sequence[str], langs: Sequence[str]) -> npt.NDArray[np.float16]:
    """Return the embeddings of texts.

    Args:
        stage: the encoder.
        texts: the sentences.
        langs: the language of each, such as `eng_Latn`.

    Returns:
        (texts, dim) float16.
    """
    table = pa.table({"sentences.text": pa.array(texts, pa.string()), "sentences.lang": pa.array(langs, pa.string())})
    found = stage.finish(stage.compute(stage.prepare(table))).families
    return embedding_matrix(found["embeddings"]["embedding"])


def language_of(store: Store, stage: Encode, lang: str | None, there: Callable[[], Sequence[str]]) -> str:
    """Return the language of a sentence: the given one, or the only one of the corpus.

    Args:
        store: the corpus.
        stage: the encoder, which knows certain languages.
        lang: the given language; None if none was given.
        there: returns languages of the corpus's sentences, several if there are several; called where its inputs do not
            all state the same one.

    Returns:
        A language that the encoder knows, such as `eng_Latn`.

    Raises:
        ConfigError: if the encoder does not know the language, or none was given and sentences are in several.
    """
    known = stage.card.languages
    if lang is None:
        stated = {json.dumps(one["lang"]) for one in newest_config(store)["input"]}
        lang = json.loads(stated.pop()) if len(stated) == 1 else None
        if not isinstance(lang, str):
            langs = there()
            if len(langs) != 1:
                several = f"those of {store.url} are in several, among them {' and '.join(map(visible, langs))}"
                raise ConfigError(
                    f"in which language is the sentence? {several if langs else f'{store.url} has none'}; give lang, "
                    f"for instance lang={(langs or ['eng_Latn'])[0]!r}"
                )
            lang = langs[0]
    if lang not in known:
        few = known if len(known) <= 12 else stage.card.nearest_languages(lang)
        raise ConfigError(
            f"lang is {lang!r}, which {stage.card.name} does not know; {'all' if few is known else 'nearest'} of its "
            f"{len(known)} codes: {', '.join(few)}"
        )
    return lang
