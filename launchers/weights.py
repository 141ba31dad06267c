"""Looks for the models of a run before it starts: those that ship must be installed, and others are fetched once.

A thousand nodes would ask their publisher at once. So the first scheduler job fetches and checks; the files lie in the
cache folders of SONAR models (`PIPELINE_CACHE`) and of Hugging Face (`HF_HOME`), which all nodes must share for this to
help. Each node then reads a file once to check it (`stages.fetch.checked_sha256`). Cost: nothing but that check if they
are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from pipeline.base.errors import StartError
from pipeline.base.formats import counted, size
from pipeline.config.run_config import RunConfig
from stages.cards import CardError
from stages.causal_lm import load_language_card
from stages.fragility.card import load_external_card
from stages.language.card import load_identifier_card
from stages.segment.sat.card import load_sat_card
from stages.shipped import how_to_get
from stages.sonar.card import FileRole, load_card


def fetch_weights(console: Console, config: RunConfig) -> None:
    """Fetch and check what the stages of a run load. Raises `StartError` if a model cannot be had."""
    try:
        places = set()
        for name, role in sorted(set(_files(config))):
            card = load_card(name)
            card.verify(role)
            places.add(card.path(role))
        if config.fragility:
            load_external_card(config.fragility.external).files()
        if config.language and config.language.identifier:
            load_identifier_card(config.language.identifier).files()
        if config.plans and config.plans.lm:
            load_language_card(config.plans.lm).files()
        if config.segment.uses_sat:
            _fetch_sat(config.segment.sat)
    except CardError as error:
        raise StartError(f"the models of this run cannot be loaded here: {error}") from error
    stored = sum(path.stat().st_size for path in places)
    console.print(f"models: {counted(len(places), 'file')} of SONAR, {size(stored)}, checked", highlight=False)


def check_shipped(config: RunConfig) -> None:
    """Raise `CardError` if a run loads a file of a model that ships, and that file is not installed here."""
    paths = [(name, load_card(name).path(role)) for name, role in _files(config)]
    if config.segment.uses_sat and (folder := (sat := load_sat_card(config.segment.sat)).folder(sat.model)):
        paths += [(sat.name, folder / name) for name in sat.sha256]
    for name, path in paths:
        if not path.is_file() and (remedy := how_to_get(path)):
            raise CardError(f"card {name}: {path} is not there; {remedy}")


def _files(config: RunConfig) -> Iterator[tuple[str, FileRole]]:
    """Yield the files that are loaded: the name of a card, and which of its files."""
    yield config.segment.model, "tokenizer"
    if config.encode:
        yield config.encode.model, "encoder"
    for stage in (config.autobleu, config.fragility, config.decoder):
        if stage:
            yield stage.model, "decoder"
            yield stage.model, "tokenizer"


def _fetch_sat(name: str) -> None:
    card = load_sat_card(name)
    for place in card.missing():
        repository, colon, file = place.partition(": ")
        if colon and not Path(place).is_absolute():
            from huggingface_hub import hf_hub_download

            try:
                hf_hub_download(repository, file)
            except (OSError, ValueError, RuntimeError) as error:
                raise CardError(
                    f"card {card.name}: {place} cannot be fetched ({str(error).splitlines()[0]}); run `pipeline models "
                    f"{card.name} --fetch` where there is a network"
                ) from error
    card.verify()
