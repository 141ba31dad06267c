"""corpus.yaml → a checked `RunConfig`: line numbers, `--set`, short forms, and all mistakes explained at once.

Loading takes milliseconds: nothing here imports torch, Ray or spaCy.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError, model_validator

from pipeline.base.errors import ConfigError
from pipeline.base.formats import plain
from pipeline.config.causes import causes, key_of, renamed, value_of, without
from pipeline.config.explain import SHOWN, explain, models_along, models_in, near_key
from pipeline.config.frozen import SettingPlaces
from pipeline.config.run_config import RunConfig
from pipeline.config.stages import SECTIONS
from pipeline.config.train import MICRO_CONCEPTS
from pipeline.inputs import InputError, InputSettings, resolve_inputs
from pipeline.storage.remote import holds_credentials
from stages.lcm.card import trained_lcms
from stages.shipped import FOLDER
from stages.stage import meaning
from stages.yaml_text import load_yaml

MAY_BE_EMPTY = (*SECTIONS, "split", "fit", "report", "train", "launcher")  # `encode:` alone means all its defaults
SALVAGES = 5  # rounds of removing wrong values
SURE = 0.75  # likeness of a name from which on its section is read as what was meant


class _Loader(yaml.SafeLoader):
    """Reads numbers as YAML 1.2 defines them: `1e-3` is a number (YAML 1.1 wants 1.0e-3), and `24:00:00` is text.

    YAML 1.1 reads numbers with colons to base 60, so a time limit of 24:00:00 would become 86400 minutes.
    """

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]  # types-PyYAML has none
        return self.DEFAULT_SCALAR_TAG if tag in _NUMBER_TAGS and ":" in value else tag


_NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_FLOAT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver(_NUMBER_TAGS[1], _FLOAT, list("-+0123456789"))


class _Salvaged(RunConfig):
    """What remains of a configuration without its mistakes; its sections need not fit together."""

    input: tuple[InputSettings, ...] = meaning((), description="where documents come from, if that is right")

    @model_validator(mode="after")
    def _stages_fit(self) -> _Salvaged:
        return self


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a corpus.yaml, apply `--set a.b=c` overrides, and check everything that the file alone can tell.

    Relative inputs and outputs are relative to the file's folder. A bare name (`sample`) is a configuration that ships
    with the package; its output goes to `runs/<name>` below the working directory. Raises `ConfigError` with one line
    per mistake.
    """
    config, mistakes = read_config(path, overrides)
    if mistakes or config is None:
        raise ConfigError("\n".join(mistakes))
    return config


def read_config(path: str | Path, overrides: Sequence[str] = ()) -> tuple[RunConfig | None, list[str]]:
    """Return the configuration and its mistakes, one line each.

    If there are mistakes, the configuration is what remains without them, only to be checked further; None if too
    little remains. Raises `ConfigError` if the file cannot be read at all.
    """
    path = Path(path)
    shipped = _shipped(path)
    path = shipped or path
    data, node, lines, mistakes = read_yaml(path, "a corpus.yaml", "name, output, input …")
    set_here: dict[tuple[str, ...], str] = {}
    _leave_out_nulls(data, node)
    for override in overrides:
        _apply(data, override)
        keys = tuple(override.partition("=")[0].split("."))
        made = [keys[:depth] for depth in range(1, len(keys)) if keys[:depth] not in lines]  # sections it makes
        set_here |= dict.fromkeys([*made, keys], f"--set {plain(override, SHOWN)}")
    by_hand = {key: f"--set {'.'.join(key)}" for key in set_here}  # without the value
    _no_credentials(data, lines | by_hand, (), str(path))
    _defaults(data, path.resolve().parent)
    places = lines | set_here
    config, more = _validated(path, data, places)
    mistakes = list(dict.fromkeys([*mistakes, *more]))
    if config is None:
        return None, mistakes
    config = config.with_places(SettingPlaces(places | {(): str(path)}))
    base = str(path.resolve().parent)
    if "::" in config.output:
        told = f"output {config.output} holds ::, which makes a chained URL; give a folder, or a plain URL, without ::"
        mistakes.append(f"{config.place('output')}: {told}")
    try:
        inputs = tuple(resolve_inputs(config.input, base))
    except InputError as error:
        return None, [*mistakes, f"{config.place('input')}: {error}"]
    output = str(Path.cwd() / "runs" / config.name) if shipped else _resolve(config.output, base)
    for number, one in enumerate(inputs):
        folder = one.path.partition("**")[0].rstrip("/")  # a pattern without ** reaches no folder below
        below = f"{output}/".removeprefix(f"{folder}/").split("/")
        if f"{output}/".startswith(f"{folder}/") and not any(part[:1] in (".", "_") for part in below if part):
            place = config.place("input", str(number), "path")
            mistakes.append(
                f"{place}: output {output} lies inside input {one.path}, which would read it; move it, "
                "or put it into a folder whose name begins with _, which inputs leave out"
            )
    return config.model_copy(update={"output": output, "input": inputs}), mistakes


def read_yaml(path: Path, what: str, keys: str) -> tuple[dict[str, Any], Any, dict[tuple[str, ...], str], list[str]]:
    """Read a file of settings.

    Args:
        path: the file.
        what: what such a file is, for messages.
        keys: some of its keys, for messages.

    Returns:
        Its keys and values; the same as a node of YAML; path of keys → where they are; keys that are repeated, one line
        each.

    Raises:
        ConfigError: if it cannot be read, or does not hold keys and values.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give the path of {what}") from error
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        raise ConfigError(
            f"{path}:{line}: not UTF-8 text ({error.reason}); convert it: iconv -f ENCODING -t UTF-8 FILE > NEW"
        ) from error
    try:
        data = load_yaml(text, _Loader)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        told = str(error).replace('in "<unicode string>", line', "in line")
        told += "; indent with spaces, not with tabs" if "'\\t'" in told else ""
        raise ConfigError(f"{path} is not YAML: {told}") from error
    if not isinstance(data, dict):
        holds = "is empty" if data is None else f"holds {'a list' if isinstance(data, list) else 'a single value'}"
        raise ConfigError(f"{path} {holds}; {what} is keys and values ({keys})")
    lines: dict[tuple[str, ...], int] = {}
    repeated = [f"{path}:{line}: {message}" for line, message in _walk(node, (), lines)]
    return data, node, {key: f"{path}:{line}" for key, line in lines.items()}, repeated


def _validated(
    path: Path, data: dict[str, Any], places: dict[tuple[str, ...], str]
) -> tuple[RunConfig | None, list[str]]:
    """Return the configuration, or what remains of it without its mistakes, and the mistakes."""
    try:
        return RunConfig.model_validate_json(json.dumps(data, default=str)), []
    except ValidationError as error:
        errors = [dict(one) for one in error.errors()]
    for one in errors:
        if meant := _meant(one, data):
            key = key_of(one, data)
            moved = {(*key[:-1], meant, *at[len(key) :]): line for at, line in places.items() if at[: len(key)] == key}
            found, more = _validated(path, renamed(data, key, meant), places | moved)
            return found, [*explain(path, one, places, data, RunConfig), *more]
    mistakes: list[str] = []
    told: set[tuple[str, ...]] = set()
    left = data
    for _ in range(SALVAGES):
        new = {key_of(one, left): one for one in causes(errors, left)}
        follows = {key for key in new for old in told if key[: len(old)] == old or old[: len(key)] == key}
        mistakes += [
            line
            for key, one in new.items()
            if key not in follows
            for line in explain(path, one, places, left, RunConfig)
        ]
        told |= new.keys() | {key_of(one, left) for one in errors if one["type"] == "missing"}
        left = without(errors, left)
        try:
            salvaged = _Salvaged.model_validate_json(json.dumps(left, default=str))
        except ValidationError as error:
            errors = [dict(one) for one in error.errors()]
            continue
        salvaged = salvaged.with_places(SettingPlaces(places | {(): str(path)}))
        lost = {key[0] for key in told if len(key) == 1}
        unfit = [(keys, line) for keys, line in salvaged.unfit() if not lost.intersection(re.findall(r"\w+", line))]
        return salvaged, [*mistakes, *(f"{salvaged.place(*keys)}: {line}" for keys, line in unfit)]
    return None, mistakes


NO_CORPUS = ("ablation", "science")  # files in conf/ that are no corpus.yaml


def _shipped(path: Path) -> Path | None:
    """Return the file of a configuration that ships, if `path` is its bare name and not a file here."""
    if path.suffix or path.name != str(path) or path.exists():
        return None
    names = sorted(file.stem for file in FOLDER.glob("*.yaml") if file.stem not in NO_CORPUS)
    if path.name not in names:
        raise ConfigError(f"{path} is neither a file nor a configuration that ships; those are: {', '.join(names)}")
    return FOLDER / f"{path.name}.yaml"


def _resolve(url: str, base: str) -> str:
    return url if "://" in url else os.path.normpath(Path(base, Path(url).expanduser()))


def _no_credentials(value: Any, places: dict[tuple[str, ...], str], where: tuple[str, ...], place: str) -> None:
    """Raise `ConfigError` for a value that holds credentials, because every run keeps a copy of its configuration.

    Args:
        value: a value of the file.
        places: places of keys, in the file or on the command line.
        where: the value's path of keys.
        place: the nearest known place around the value.
    """
    place = places.get(where, place)
    if isinstance(value, str) and holds_credentials(value):
        raise ConfigError(
            f"{place}: {'.'.join(where)} holds credentials (user:password@, a signature, a secret), which every "
            "run would keep in the corpus; leave them out: give environment variables or a profile of the store, or "
            "download the file first"
        )
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            _no_credentials(one, places, (*where, str(key)), place)


def _leave_out_nulls(data: dict[str, Any], node: Any) -> None:
    """Remove sections that are written as `null`, as `--set train=null` does; an empty section has all its defaults."""
    for key, value in node.value:
        written = isinstance(value, yaml.ScalarNode) and value.value != ""
        if written and key.value in MAY_BE_EMPTY and data.get(key.value, key) is None:
            del data[key.value]


def _defaults(data: dict[str, Any], base: Path) -> None:
    """Expand short forms: `launcher: local`, `encode:` (empty), cards beside the file, and models that follow
    encode.model.
    """
    if isinstance(data.get("launcher"), str):
        data["launcher"] = {"kind": data["launcher"]}
    for name in MAY_BE_EMPTY:
        if name in data and data[name] is None:
            data[name] = {}
    for name in SECTIONS:
        section = data.get(name)
        if not isinstance(section, dict):
            continue
        for key in ("model", "sat", "external", "identifier", "lm"):
            if str(section.get(key, "")).endswith((".yaml", ".yml", ".safetensors")):
                section[key] = str(base / section[key])
        if isinstance(section.get("file"), str):
            section["file"] = _resolve(section["file"], str(base))
    train = data.get("train")
    if isinstance(train, dict):
        _paths_of_training(train, base)
        if train.get("steps", 0) is None:  # as `--set train.steps=null` takes them away, for epochs instead
            del train["steps"]
        if isinstance(batch := train.get("batch_concepts"), int) and batch > 0:
            train.setdefault("micro_concepts", min(batch, MICRO_CONCEPTS))
    encode = data.get("encode")
    if isinstance(encode, dict) and "model" in encode:
        for follower in ("segment", "autobleu", "fragility", "decoder"):
            section = data.setdefault(follower, {}) if follower == "segment" else data.get(follower)
            if isinstance(section, dict):
                section.setdefault("model", encode["model"])


def _paths_of_training(train: dict[str, Any], base: Path) -> None:
    """Make the paths of a training's card, other corpora and initial weights relative to the file."""
    if str(train.get("model", "")).endswith((".yaml", ".yml")):
        train["model"] = _resolve(train["model"], str(base))
    through = train.get("sonar_llm")
    if isinstance(through, dict) and str(through.get("decoder", "")).endswith((".yaml", ".yml")):
        through["decoder"] = _resolve(through["decoder"], str(base))
    others = train.get("corpora")
    for section, key in ((train, "init_from"), *((one, "path") for one in others or () if isinstance(one, dict))):
        if isinstance(section.get(key), str) and section[key] not in trained_lcms():
            section[key] = _resolve(section[key], str(base))


def _walk(node: Any, where: tuple[str, ...], lines: dict[tuple[str, ...], int]) -> Iterator[tuple[int, str]]:
    """Fill `lines` (path of keys → line) and yield repeated keys, of which YAML itself would silently drop one."""
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                yield line, f"the key {key.value} is repeated (first in line {seen[key.value]}); keep one"
            seen[key.value] = line
            lines[(*where, key.value)] = line
            yield from _walk(value, (*where, key.value), lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*where, str(index))] = value.start_mark.line + 1
            yield from _walk(value, (*where, str(index)), lines)


def _apply(data: dict[str, Any], override: str) -> None:
    """Apply one `a.b=c`; list entries are numbered: `input.0.limit=100`; `train=null` removes a section."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override}: write it as key=value, for instance --set encode.batch_tokens=4096")
    try:
        value = load_yaml(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {plain(override, SHOWN)}: the value is not YAML: {error}") from error
    *parents, last = key.split(".")
    target: Any = data
    for depth, step in enumerate(parents):
        if isinstance(target, list):
            target = _entry(target, step, override)
        else:
            if step == "launcher" and isinstance(target.get(step), str):
                target[step] = {"kind": target[step]}
            if target.get(step) is None:
                target[step] = {}
            target = target[step]
        if not isinstance(target, dict | list):
            raise ConfigError(f"--set {override}: {'.'.join(parents[: depth + 1])} is {target!r}, which has no keys")
    if isinstance(target, list):
        _entry(target, last, override)
        target[int(last)] = value
    elif value is None and text.strip() and not parents:
        target.pop(last, None)  # an empty section in the file is one of defaults
    else:
        target[last] = value


def _entry(target: list[Any], step: str, override: str) -> Any:
    if not step.isdigit() or int(step) >= len(target):
        raise ConfigError(f"--set {override}: {step} is not an entry; allowed are 0 to {len(target) - 1}")
    return target[int(step)]


def _meant(error: dict[str, Any], data: Any) -> str | None:
    """Return the name of the section that was probably meant by an unknown one; None if it is there, too."""
    if error["type"] != "extra_forbidden" or not isinstance(error["input"], dict):
        return None
    where = tuple(str(step) for step in error["loc"])
    near, around = near_key(where, RunConfig, SURE), value_of(data, key_of(error, data)[:-1])
    field = models_along(where[:-1], RunConfig)[-1].model_fields.get(near or "")
    return near if field and near not in around and any(models_in(field.annotation)) else None
