"""Fine-tunes a decoder on sentences of the pilot: reads them, resumes from a checkpoint, and describes the result by a
model card.

The checkpoint, `fits/decoder.<fp8>-checkpoint.safetensors`, is replaced as a whole, and deleted when the fit is done.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from pipeline.base.errors import CorpusError
from pipeline.base.interrupts import StoppedWithProgress
from pipeline.config.run_config import RunConfig
from pipeline.console.progress import FitProgress
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.fits import Numbers, checkpoint_path, fit_recipe, read_artifact
from pipeline.planning.rates import DECODER, SETUP_SECONDS, keep_rate
from pipeline.run.pilot import PilotSample
from pipeline.storage.store import Store
from stages.arrow import embedding_matrix
from stages.artifact import from_bytes
from stages.batching import Tokens
from stages.decoder.finetune import CheckpointFile, DecoderSentences, FineTuning, held_out_numbers, to_artifact
from stages.decoder.settings import DecoderSettings
from stages.rvq.codebooks import Codebooks
from stages.scaler.robust import RobustScaler
from stages.sonar.card import ModelCard, load_card
from stages.sonar.tokenizer import SonarTokenizer
from stages.stage import OK

_log = logging.getLogger(__name__)
TRAIN = "train"
MEASURED_ROWS = 256  # held-out sentences whose losses are in the record


def fit_decoder(
    store: Store, config: RunConfig, sample: PilotSample, device: str, progress: FitProgress
) -> tuple[Callable[[dict[str, object]], bytes], int, Numbers]:
    """Fine-tune the decoder on the pilot, from the last checkpoint if there is one.

    Args:
        store: the corpus.
        config: the configuration, with what is frozen.
        sample: the sentences to learn from and those to measure on.
        device: where it is trained: `cpu`, `cuda:0`, `mps`.
        progress: shows how many steps are done, then how many measurements.

    Returns:
        A function that makes the artifact's file from its provenance, the number of sentences, and the numbers for the
            record; where the fit was resumed is in the record alone, so that it makes no other file.

    Raises:
        StoppedWithProgress: if it is stopped after it has written a checkpoint.
    """
    settings, encode = config.decoder, config.encode
    assert settings and encode
    card = load_card(settings.model)
    card.check_encoder(load_card(encode.model), "decoder.model")
    learned, held = _read(sample, card, settings)
    scaler = RobustScaler.from_bytes(_artifact(store, config, "scaler")) if settings.noise else None
    codebooks = Codebooks.from_bytes(_artifact(store, config, "rvq")) if settings.codes else None
    recipe = fingerprint(fit_recipe(config, "decoder"))
    training = FineTuning(card, learned, settings, scaler=scaler, codebooks=codebooks, made_of=recipe, device=device)
    file = StoredCheckpoint(store, recipe)
    resumed: dict[str, float] = {}
    if (data := file.read()) is not None:
        try:
            lacks = "" if training.resume(data) else "of other sentences"
        except ValueError as error:
            lacks = f"damaged ({error})"
        if lacks:
            _log.warning("%s is %s: the decoder is fine-tuned from the beginning", file.path, lacks)
        resumed["resumed_at"] = float(training.at.step)
    steps, tokens, started = training.at.step, training.at.tokens, time.monotonic()
    with file.told_when_stopped():
        training.run(file, progress.of)
    if (seconds := time.monotonic() - started) >= SETUP_SECONDS:
        keep_rate(config, DECODER, training.at.step - steps, training.at.tokens - tokens, seconds)
    numbers = training.numbers()
    tensors = training.tensors()
    if len(held):
        with file.told_when_stopped():
            numbers |= held_out_numbers(card, training.network, held, scaler, progress.measuring)
    about = {
        "settings": settings.meaningful(),
        "numbers": numbers,
        "base": card.decoder_digest,
        "encoder": load_card(encode.model).encoder_digest,
    }
    return lambda provenance: to_artifact(tensors, about | {"provenance": provenance}), len(learned), numbers | resumed


class StoredCheckpoint(CheckpointFile):
    """The checkpoint of a fit in its corpus. recipe: the fingerprint of the fit."""

    def __init__(self, store: Store, recipe: str) -> None:
        self._store, self.path = store, checkpoint_path(recipe)
        self._written = False

    def read(self) -> bytes | None:
        """Return the bytes of the checkpoint; None if there is none."""
        return self._store.read(self.path) if self._store.exists(self.path) else None

    def write(self, data: bytes) -> None:
        """Replace the checkpoint."""
        self._store.write(self.path, data)
        self._written = True

    @contextlib.contextmanager
    def told_when_stopped(self) -> Iterator[None]:
        """Raise `StoppedWithProgress` for a `KeyboardInterrupt` that comes after a checkpoint was written."""
        try:
            yield
        except KeyboardInterrupt:
            if self._written:
                raise StoppedWithProgress from None
            raise


def card_of(config: RunConfig, data: bytes) -> Callable[[str], bytes]:
    """Return what makes the model card of a fine-tuned decoder: name of its file → the card's bytes.

    Raises `CorpusError` if the decoder was fine-tuned from another one than `decoder.model` names.
    """
    settings = config.decoder
    assert settings
    base = load_card(settings.model)
    _, about = from_bytes("decoder", data)
    if about["base"] != base.decoder_digest:
        raise CorpusError(
            f"decoder.file {settings.file} was fine-tuned from the decoder {about['base']}, decoder.model "
            f"{settings.model} is {base.decoder_digest} (digests): name the model that it was fine-tuned from"
        )
    digest = hashlib.sha256(data).hexdigest()

    def described(file: str) -> bytes:
        content: dict[str, Any] = {
            "base": settings.model,
            "name": f"{base.name}-{file.partition('.')[2].partition('.')[0]}",
            "description": f"The decoder of {base.name}, fine-tuned on sentences of the corpus {config.name}: "
            f"{_said(about)}.",
            "fine_tuned_on": about["encoder"],
            "scores": {},
            "files": {"decoder": {"path": file, "sha256": digest, "bytes": len(data), "layout": "native"}},
        }
        return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120).encode()

    return described


def check_fits(config: RunConfig, theirs: Mapping[str, Any]) -> None:
    """Raise `CorpusError` if a decoder of another corpus learned with another scaler or other codebooks than those of
    this corpus. theirs: the recipe of its fit.
    """
    settings = config.decoder
    assert settings
    for name in ("scaler", "rvq"):
        ours = config.frozen.fits.get(name)
        if ours and name in theirs and theirs[name] != ours.content:
            raise CorpusError(
                f"decoder.file {settings.file} was fine-tuned with the {name} {theirs[name]}, this corpus has "
                f"{ours.content} (fingerprints): take that corpus's as well ({name}.file), or leave decoder.file out"
            )


def _said(about: Mapping[str, Any]) -> str:
    settings, numbers = about["settings"], about["numbers"]
    kinds = [said for key, said in (("noise", "noise (LCM eq. 27)"), ("codes", "codes of rvq")) if settings[key]]
    return f"embeddings with {' and '.join(kinds) or 'nothing added'}, {numbers['steps']:.0f} steps"


def _artifact(store: Store, config: RunConfig, name: str) -> bytes:
    return read_artifact(store, config.frozen.fits[name])


def _read(sample: PilotSample, card: ModelCard, settings: DecoderSettings) -> tuple[DecoderSentences, DecoderSentences]:
    """Return whole sentences of training documents, and some of held-out ones."""
    columns = ["embedding", "text", "lang", "split", *(["codes"] if settings.codes else [])]
    learned, held, room = [], [], MEASURED_ROWS
    for table in sample.batches(*columns):
        whole = table.filter(pc.equal(table["status"], pa.scalar(OK, pa.uint8())))
        trained = pc.equal(whole["split"], TRAIN)
        learned.append(whole.filter(trained))
        others = whole.filter(pc.invert(trained)).slice(0, room)
        room -= others.num_rows
        held.append(others)
    tokenizer = SonarTokenizer(card)
    found, kept = (_sentences(pa.concat_tables(tables), tokenizer, settings.codes) for tables in (learned, held))
    return found, kept


def _sentences(table: pa.Table, tokenizer: SonarTokenizer, codes: bool) -> DecoderSentences:
    if not table.num_rows:
        dim = tokenizer.card.dim
        return DecoderSentences(np.empty((0, dim), np.float16), Tokens.of([]), np.empty(0))
    texts, langs = table["text"].to_pylist(), np.asarray(table["lang"].to_pylist(), object)
    ids: list[list[int]] = [[]] * len(texts)
    for lang in sorted(set(langs)):
        places = np.flatnonzero(langs == lang)
        for place, of_text in zip(places, tokenizer.encode([texts[at] for at in places], lang), strict=True):
            ids[place] = of_text
    of_rows = np.stack(table["codes"].to_numpy()).astype(np.uint16) if codes else None
    return DecoderSentences(embedding_matrix(table["embedding"]).copy(), Tokens.of(ids), table["u"].to_numpy(), of_rows)
