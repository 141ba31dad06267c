"""Writes a trained model to a folder of its own, and finds such models.

`pipeline/corpus/standalone.py` says what is in the folder.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import load, save

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.formats import counted, number, size
from pipeline.base.messages import print_plain
from pipeline.config.science import BASELINES
from pipeline.corpus.fingerprint import content_digest, fingerprint
from pipeline.corpus.reader import Corpus
from pipeline.corpus.recipes import segment_part_fingerprint
from pipeline.corpus.runs import read_config
from pipeline.corpus.standalone import TEXT, StandaloneRecord, TextModels, text_models
from pipeline.corpus.view import VIEW_FILE, View
from pipeline.storage.export_target import ExportTarget
from pipeline.storage.layout import RUNS, data_owner, part_number, part_owner
from pipeline.storage.records import sealed
from pipeline.storage.store import Store
from pipeline.training.data.index import Index, is_present, read_index
from pipeline.training.evaluation.text_codec import TextCodec
from pipeline.training.evaluation.trained import sampling_of
from pipeline.training.metric_names import TITLES
from pipeline.training.model_file import CODEBOOKS, codebooks_bytes, load_model
from pipeline.training.model_header import ModelHeader
from pipeline.training.record import Pinned, located
from pipeline.training.status import EVALUATION, MODEL, SCALER, WEIGHTS, EvaluationTable, read_evaluation
from stages.lcm.card import trained_lcms
from stages.segment.settings import SegmentSettings
from stages.sonar.card import load_card

_SHAPE = ("model_dim", "heads", "inner_dim", "layers", "contextualizer_layers", "denoiser_layers", "context")


def place_of(model: str) -> str:
    """Return the folder of a model that is named without a corpus. Raises `ConfigError` if there is none."""
    store, folder = located(model)
    if store.exists(f"{folder}/{TEXT}"):
        return f"{store.url.rstrip('/')}/{folder}"
    what = f"it has no {TEXT}" if store.exists(f"{folder}/{MODEL}") else "there is no such model"
    raise ConfigError(
        f"--model {model}: {what}; without CORPUS, give a model that ships ({', '.join(trained_lcms())}) or a "
        "folder that pipeline export-model has written; for a training of a corpus, give the corpus as well"
    )


def codec_of(record: StandaloneRecord, place: str, device: str) -> TextCodec:
    """Return the models for segmenting, encoding and decoding that a standalone model names.

    Args:
        record: what the model's folder says of them.
        place: the folder, for messages.
        device: where they compute: `cpu`, `cuda:0`, `mps`.

    Returns:
        The codec; its models are loaded when they are needed.
    """
    return TextCodec(record.text, place, "use a model that was trained with these", device)


def export_model(
    console: Console, corpus: Corpus, place: str, to: str, licence: str, name: str | None = None, half: bool = False
) -> None:
    """Write a trained model of a corpus to a folder of its own.

    Args:
        console: where to say what was written.
        corpus: the corpus that it was trained on.
        place: its folder, …/train/NAME.
        to: the folder to create, at any fsspec URL.
        licence: of the weights.
        name: of the model, if that is not the name of the training.
        half: whether the weights are rounded to float16; a model that is loaded is float32 all the same.

    Raises:
        ConfigError: if the folder to create is not empty, another export writes to it, or the newest run of the
            corpus has another encoder than the model learned from.
        CorpusError: if the training is not finished, its files are damaged, or a weight is too large for float16.
    """
    store, run = located(place)
    if not store.exists(f"{run}/{MODEL}"):
        raise CorpusError(f"{place} holds no finished model; finish the training first: pipeline train corpus.yaml")
    target = ExportTarget(to, corpus.url)
    model, about = load_model(place)  # checks all that is copied
    record = StandaloneRecord(
        name=name or run.rpartition("/")[2],
        kind=about.card.kind,
        objective=about.card.objective,
        parameters=sum(one.numel() for one in model.parameters()),
        steps=about.steps,
        corpus=corpus.view.name,
        licence=licence,
        text=_text_models(console, corpus, place, about.pinned),
        sampling=sampling_of(place),
    )
    figures = _evaluation(console, store, run, about.weights)
    files = {path: store.read(f"{run}/{path}") for path in (MODEL, WEIGHTS, SCALER)}
    if half:
        files[WEIGHTS] = _in_half(files[WEIGHTS], place)
        about = about.model_copy(update={"weights": content_digest(files[WEIGHTS])})
        files[MODEL] = sealed(about.model_dump_json(indent=1))
    if about.pinned.codebooks is not None:
        files[CODEBOOKS] = codebooks_bytes(store, about.pinned)
    files["README.md"] = _readme(record, about, figures).encode()
    files[TEXT] = sealed(record.model_dump_json(indent=1))
    with target.claimed():
        for path, data in files.items():
            with target.file(path) as file:
                file.write(data)
    written = f"{counted(len(files), 'file')}, {size(sum(map(len, files.values())))}"
    print_plain(console, f"{target.url} written ({written})")
    for card in dict.fromkeys((record.text.encode.model, record.text.decode.model, record.text.segment.sat)):
        if card.endswith((".yaml", ".yml")):
            print_plain(
                console,
                f"{card} is not part of it: a machine that uses this model needs that card, and its files, at the same "
                "place",
                style="yellow",
            )
    print_plain(console, f"Use it: pipeline generate --model {target.url} --prompt story.txt")


def _text_models(console: Console, corpus: Corpus, place: str, pinned: Pinned) -> TextModels:
    """Return the models of the newest run, with the segmenter that cut the documents from which a model learned.

    Raises `ConfigError` if the encoder is not the one that it learned from.
    """
    text, index = text_models(corpus), _index(corpus, pinned)
    encoder = fingerprint(text.artifacts)
    if encoder != pinned.encoder:
        raise ConfigError(
            f"{place} was trained on embeddings of {index.about.model if index else 'another encoder'} "
            f"({pinned.encoder[:8]}); the newest run of {corpus.url} made those of {text.encode.model} "
            f"({encoder[:8]}), which the model never saw: run the corpus again with the encoder of the training "
            "(encode.model) and export the model then, or train one on these embeddings, with another train.name"
        )
    segment = segmenter_of(corpus, pinned)
    if segment is None:
        say_segmenter_is_unknown(console, f"{TEXT} has")
        return text
    return text.model_copy(update={"segment": segment})


def _index(corpus: Corpus, pinned: Pinned) -> Index | None:
    present = [one.digest for one in pinned.indexes[:1] if is_present(corpus, one.digest)]
    return read_index(corpus, present[0]) if present else None


def say_segmenter_is_unknown(console: Console, what: str) -> None:
    """Say that `segmenter_of` found nothing. `what`: what happens with the settings of the newest run instead."""
    print_plain(
        console,
        f"{what} the section segment of the newest run: how the documents that the model learned from were cut is "
        "no longer known",
        style="yellow",
    )


def segmenter_of(corpus: Corpus, pinned: Pinned) -> SegmentSettings | None:
    """Return the settings by which the documents were cut from which a model learned; None if they are not known.

    They are those of the newest run that has the first part of the index.
    """
    index = _index(corpus, pinned)
    if index is None:
        return None
    part, written = data_owner(index.parts["sentences"][0].as_py())
    chunk, number = part_owner(part), part_number(part)
    for folder in (f"{RUNS}/{name}" for name in reversed(corpus.store.folders(RUNS))):
        if not corpus.store.exists(f"{folder}/{VIEW_FILE}"):
            continue
        with contextlib.suppress(CorpusError, ValidationError):  # damaged, or of a version with other settings
            listed = View.read(corpus.store, folder).listed
            row = pc.index(listed.chunks.table["id"], chunk).as_py()
            if row >= 0 and segment_part_fingerprint(listed[row][1], number)[:8] == written:
                return SegmentSettings.model_validate_json(json.dumps(read_config(corpus.store, folder)["segment"]))
    return None


def _in_half(data: bytes, place: str) -> bytes:
    """Return a file of weights with the numbers in float16. Raises `CorpusError` if one is beyond its range."""
    weights = {name: one.half() if one.is_floating_point() else one for name, one in load(data).items()}
    if lost := sorted(name for name, one in weights.items() if not torch.isfinite(one).all()):
        raise CorpusError(
            f"{place}: {counted(len(lost), 'tensor')} hold numbers beyond float16's 65 504 ({lost[0]}); export the "
            "model without --half"
        )
    return save(weights, {"format": "pt"})


def _evaluation(console: Console, store: Store, run: str, weights: str) -> EvaluationTable | None:
    """Return the evaluation on the test split beside a model, if there is one: its own figures and those of baselines,
    not of other models that were evaluated with it, which may have the same name in another corpus.

    `weights`: the digest of its weights. Raises `DamagedError` for a table that cannot be read.
    """
    path = f"{run}/{EVALUATION}/test.json"
    if not store.exists(path):
        return None
    found, own = read_evaluation(store, path), run.rpartition("/")[2]
    names = {name: name.partition(" (step ")[0] for name in found.models}  # or unfinished
    rows = found.models.items()
    known = {name for name, row in rows if row.weights == weights and names[name].rpartition("/")[2] == own}
    # of an earlier version, or of a model that was unfinished, which its name says
    mine = known or {name for name, row in rows if not row.weights and names[name] == own}
    if not mine:
        what = f"{store.url}/{path} has no figures of {own}, so the README shows none"
        print_plain(console, what, style="yellow")
        return None
    return found.model_copy(
        update={
            "models": {
                own if name in known else name: row
                for name, row in rows
                if name in mine or (names[name] in BASELINES and not row.weights)
            }
        }
    )


def _readme(record: StandaloneRecord, about: ModelHeader, figures: EvaluationTable | None) -> str:
    """Return the description of a model for people, in Markdown."""
    encoder, text, card = load_card(record.text.encode.model), record.text, about.card
    shape = {key: value for key, value in card.recorded().items() if key in _SHAPE and value is not None}
    objective = "" if card.objective == "mse" else f" (objective {card.objective})"
    lines = [
        f"# {record.name}",
        "",
        f"A Large Concept Model of the kind `{card.kind}`{objective} over embeddings of "
        f"{encoder.name} ({about.pinned.dim} dimensions). It continues a text, sentence by sentence:",
        "",
        "```sh",
        f"pipeline generate --model {record.name} --prompt story.txt",
        "```",
        "",
        f"- **Training**: {number(about.steps)} steps of {number(about.pinned.settings['batch_concepts'])} sentences "
        f"of the corpus `{record.corpus}`{_others(about)}; `model.json` has all settings.",
        f"- **Architecture**: {', '.join(f'{key} {value}' for key, value in shape.items())}; "
        f"{number(record.parameters)} parameters.",
        f"- **Text**: segmented by `{text.segment.method}`, at most {text.segment.max_chars} characters per sentence; "
        f"decoded by {text.decode.model}.",
        f"- **Licence**: {record.licence}. The embeddings are under the licence of {encoder.name}: "
        f"{encoder.licence.partition('. ')[0].rstrip('.')}.",
    ]
    return "\n".join([*lines, *(_figures(figures) if figures else []), ""])


def _others(about: ModelHeader) -> str:
    """Say which other corpora a model learned from: their names, not the places where they were, and their weights."""
    own, others = about.pinned.settings.get("weight", 1.0), about.pinned.settings.get("corpora") or ()
    if not others:
        return ""
    said = (f"`{one['path'].rstrip('/').rpartition('/')[2]}` (weight {one['weight']:g})" for one in others)
    return f" (weight {own:g}) and of {', '.join(said)}"


def _figures(evaluated: EvaluationTable) -> list[str]:
    """Return the lines of a table of figures."""
    rows = {name: row.metrics for name, row in evaluated.models.items()}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    if not names:
        return []
    said = f"{evaluated.said}; ± two standard errors, over documents"
    lines = ["", f"Evaluation on held-out documents (`pipeline evaluate`): {said}", ""]
    lines += [f"| | {' | '.join(TITLES.get(one, one) for one in names)} |", f"|---|{'---:|' * len(names)}"]
    return lines + [f"| {name} | {' | '.join(_cell(row.get(one)) for one in names)} |" for name, row in rows.items()]


def _cell(figure: Any) -> str:
    value, error = (figure.get("mean"), figure.get("error")) if isinstance(figure, Mapping) else (figure, None)
    if not isinstance(value, int | float):
        return "–"
    return f"{value:.4g} ± {2 * error:.2g}" if isinstance(error, int | float) else f"{value:.4g}"
