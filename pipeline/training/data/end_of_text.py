"""The sentences that end documents (LCM 2.3 and 3.1) and paragraphs (4.3): embeddings by the corpus's own encoder, on
the CPU, and codes.

Models learn to end with these; generation stops when an embedding is close to them. Cost: loading the encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.base.errors import ConfigError
from pipeline.corpus.fits import used_artifact
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from stages.arrow import embedding_matrix
from stages.cards import CardError
from stages.encode.settings import EncodeSettings
from stages.registry import build_stage
from stages.stage import whole

END_OF_TEXT, END_OF_RESPONSE, END_OF_PARAGRAPH = "End of text.", "End of response.", "End of paragraph."
TEXTS = (END_OF_TEXT, END_OF_RESPONSE, END_OF_PARAGRAPH)
LANG = "eng_Latn"


@dataclass(frozen=True, eq=False)
class EndOfTextSentences:
    """The sentences `TEXTS`. `embeddings`: (3, dim) float16; `codes`: (3, codebooks) uint16, None if the corpus has
    none.
    """

    embeddings: npt.NDArray[np.float16]
    codes: npt.NDArray[np.uint16] | None


def end_of_text_sentences(corpus: Corpus) -> EndOfTextSentences:
    """Compute them with the encoder and the codebooks that the newest run names.

    Raises `ConfigError` if that encoder is missing, or its files have changed.
    """
    embeddings = _encoded(newest_config(corpus.store), corpus.view.stages["encode"])
    if "codes" not in corpus.catalogue:
        return EndOfTextSentences(embeddings, None)
    from stages.rvq.codebooks import Codebooks

    fitted = used_artifact(corpus.store, corpus.view, "rvq")
    assert fitted is not None  # there are codes
    precision = corpus.view.stages["rvq"]["rvq"]["precision"]
    return EndOfTextSentences(embeddings, Codebooks.from_bytes(fitted).encode(embeddings, precision))


def _encoded(config: dict[str, Any], recipe: dict[str, Any]) -> npt.NDArray[np.float16]:
    settings = EncodeSettings.model_validate(config["encode"])
    try:
        artifacts = settings.artifacts()
        if artifacts != recipe["artifacts"]:
            raise ConfigError(
                f"{END_OF_TEXT!r} needs the encoder of the corpus, but the files of {settings.model} differ from "
                "those that encoded it: restore those, or run the corpus again with these"
            )
        stage = build_stage(settings, {})
        stage.setup("cpu")
    except CardError as error:
        raise ConfigError(f"{END_OF_TEXT!r} needs the encoder of the corpus: {error}") from error
    table = pa.table({"sentences.text": list(TEXTS), "sentences.lang": [LANG] * len(TEXTS)})
    families = whole(stage, table).families
    return embedding_matrix(families["embeddings"]["embedding"])
