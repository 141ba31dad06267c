"""A corpus with documents that are held out, and models with fresh weights in it."""

from __future__ import annotations

from pathlib import Path

import torch

from pipeline import Corpus
from pipeline.config.select import SelectSettings
from pipeline.config.train import TrainSettings
from pipeline.corpus.fingerprint import content_digest
from pipeline.corpus.fits import fitted_scaler, read_record
from pipeline.training.data.index import make_index
from pipeline.training.model_file import codebooks_of, save_model
from pipeline.training.model_header import ModelHeader
from pipeline.training.record import RECORD, Pinned, Started
from pipeline.training.status import SCALER
from stages.lcm.build import build
from stages.lcm.card import LcmCard
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.runs import run as run_corpus

CONTEXT = 12
CARDS = {
    kind: LcmCard(
        name=f"lcm-{kind}", description="a test", licence="none", kind=kind, model_dim=32, heads=2, inner_dim=48,
        context=CONTEXT, **more,
    )
    for kind, more in (
        ("base", {"layers": 1}),
        ("two-tower", {"contextualizer_layers": 1, "denoiser_layers": 1, "diffusion": {}}),
    )
}  # fmt: skip


def make_corpus(folder: Path, split: dict[str, float], **sections: object) -> Corpus:
    write_jsonl(
        folder / "in/all.jsonl", [*sample_documents("libreoffice-eng", 6), *sample_documents("libreoffice-deu", 6)]
    )
    run_corpus(path := write_config(folder, split=split, scaler={}, autobleu=None, **sections))
    return Corpus(str(path.parent / "out"))


def fit(corpus: Corpus, name: str) -> dict[str, str]:
    """Return what a training is pinned to of a fit of the corpus."""
    record = corpus.view.fits[name]
    return dict(vars(read_record(corpus.store, record).ref(record)))


def write_model(corpus: Corpus, name: str, card: LcmCard, **changes: object) -> None:
    index = make_index(corpus, SelectSettings())
    scaler = fitted_scaler(corpus.store, corpus.view)
    assert scaler is not None
    pinned = Pinned(
        card=card.recorded(), settings=TrainSettings(steps=7).pinned(), select=None, indexes=[],
        codebooks=fit(corpus, "rvq") if card.quantised else None,
        encoder=index.about.encoder, dim=index.dim, scaler=fit(corpus, "scaler"),
    ).model_copy(update=changes)  # fmt: skip
    torch.manual_seed(1)
    model = build(card, scaler, codebooks_of(corpus.store, pinned))
    data = scaler.to_bytes({})
    about = ModelHeader(steps=7, pinned=pinned, scaler=content_digest(data), torch=torch.__version__)
    save_model(corpus.store, f"train/{name}", model.state_dict(), about)
    corpus.store.write(f"train/{name}/{SCALER}", data)
    settings = TrainSettings(steps=7, init_from=pinned.settings.get("init_from"))
    started = Started(pinned=pinned, settings=settings)
    corpus.store.write(f"train/{name}/{RECORD}", started.model_dump_json().encode())
