"""Makes the JSON schema of corpus.yaml for editors from the settings that check the file when it is loaded.

It tells an editor keys, kinds, limits, defaults, choices and descriptions. What needs the whole file or the disk (that
autobleu needs encode, that inputs exist) is checked by `pipeline plan` and `doctor`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console

from pipeline.base.messages import json_for_output, print_plain, write_out
from pipeline.config.load import MAY_BE_EMPTY
from pipeline.config.run_config import RunConfig
from pipeline.storage.replacing import replacing_file
from stages.causal_lm import shipped_language_cards
from stages.fragility.card import shipped_external_cards
from stages.language.card import shipped_identifier_cards
from stages.lcm.card import shipped_lcm_cards
from stages.segment.sat.card import shipped_sat_cards
from stages.sonar.card import shipped_cards

ROLES = {
    "meaning": "Another value makes another corpus: what depends on it is computed again.",
    "execution": "Changes how the work is done, never the result.",
}
ROLES_OF_TRAINING = ROLES | {
    "meaning": "A training goes on only with the value that it began with; --fresh starts over."
}
MODELS = {
    "model": shipped_cards,
    "sat": shipped_sat_cards,
    "external": shipped_external_cards,
    "identifier": shipped_identifier_cards,
    "lm": shipped_language_cards,
}  # settings that name a card, and the cards that ship

Schema = dict[str, Any]


def corpus_schema() -> Schema:
    """Return a JSON schema (draft 2020-12) of everything that `pipeline.config.load_config` accepts as text."""
    schema = RunConfig.model_json_schema()
    definitions: dict[str, Schema] = schema["$defs"]
    for of, one in (("", schema), *definitions.items()):
        one.pop("title", None)
        for name, field in one.get("properties", {}).items():
            of_training = of == "TrainSettings"
            _tidy(field, ROLES_OF_TRAINING if of_training else ROLES)
            if name in MODELS:
                _name_models(field, shipped_lcm_cards() if of_training else MODELS[name]())
    kinds = definitions["LauncherSettings"]["properties"]["kind"]
    for name in (*MAY_BE_EMPTY, "select"):
        field = schema["properties"][name]
        choices = field.pop("anyOf", None) or [{"$ref": field.pop("$ref")}]
        short = {"launcher": [{"enum": kinds["enum"]}], "select": [{"type": "string"}]}.get(name, [])
        empty = [{"type": "null"}] if {"type": "null"} not in choices else []
        field["anyOf"] = [*short, *choices, *empty]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "corpus.yaml", **schema}


def print_schema() -> None:
    """Print the schema to standard output, for a file or another program."""
    write_out(json_for_output(corpus_schema(), 2) + "\n")


def write_schema(console: Console, to: str) -> None:
    """Write the schema to a file or any URL, and say how to use it."""
    with replacing_file(to) as file:
        file.write(json.dumps(corpus_schema(), ensure_ascii=False, indent=2).encode() + b"\n")
    name = to.rpartition("/")[2]
    console.print(f"{to} written; first line for a corpus.yaml beside it:", markup=False, soft_wrap=True)
    print_plain(console, f"# yaml-language-server: $schema={name}")


def _tidy(field: Schema, roles: dict[str, str]) -> None:
    """Keep what a person reads of a setting: what it is for, what it changes, its limits and its default."""
    field.pop("title", None)
    role = roles.get(field.pop("role", ""))
    if role and "description" in field:
        field["description"] = f"{field['description'].rstrip('.')}. {role}"
    if field.get("default", ...) is None or isinstance(field.get("default"), dict):
        del field["default"]
    for one in (field, *field.get("anyOf", ())):
        if one.get("type") == "integer":  # editors read YAML 1.2, where 100_000 is a text; PyYAML reads a number
            one |= {"type": ["integer", "string"], "pattern": "^[0-9][0-9_]*$"}


def _name_models(field: Schema, names: Iterable[str]) -> None:
    others = [one for one in field.get("anyOf", ()) if one["type"] != "string"]  # of a setting that may be null
    field.pop("type", None)
    field["anyOf"] = [{"enum": list(names)}, {"type": "string", "pattern": r"\.ya?ml$"}, *others]
