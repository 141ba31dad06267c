"""Finds the files of documents below the places that `pipeline init` is given, by kind, each once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.errors import ConfigError
from pipeline.inputs import InputFile, InputSettings, list_files
from pipeline.inputs.chunk import UNREADABLE
from pipeline.inputs.listing import COMPRESSIONS, FORMATS
from pipeline.inputs.settings import InputError
from pipeline.storage import layout
from pipeline.storage.remote import is_remote

ABOUT_DATASETS = ("dataset_dict.json", "dataset_info.json")  # files that Hugging Face datasets writes beside its data
STATE = "state.json"  # the same, where Arrow files are


@dataclass
class FileGroup:
    """Files of one kind below one place, and the pattern that finds them."""

    pattern: str
    files: list[InputFile]

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(one.size for one in self.files)


def groups_of(place: str) -> tuple[list[FileGroup], list[str]]:
    """Return the files below a place by extension, and the names of those that are not documents.

    Raises `ConfigError` if there is nothing, or a pattern would read the files of a corpus.
    """
    if is_remote(place) or is_pattern(place):
        return [FileGroup(place, _listed(place))], []
    path = Path(place).expanduser()
    if path.is_file():
        kind = kind_of(path.name)
        return ([FileGroup(place, _listed(place))], []) if kind else ([], [path.name])
    if not path.is_dir():
        raise ConfigError(f"{place} does not exist; give files, folders, or a pattern in quotes ('data/*.jsonl')")
    kinds: dict[str, bool] = {}  # extension → whether some lie in folders below
    unknown = []
    corpora: list[str] = []
    for below, folders, names in os.walk(path):
        folders[:] = sorted(one for one in folders if one[:1] not in "._")
        if layout.CORPUS_FILE in names and Path(below) != path:  # no documents, but what was made of some
            folders.clear()
            corpora.append(str(Path(below).resolve()))
            continue
        arrow = any(file.endswith(".arrow") for file in names)
        for file in sorted(names):
            if file in ABOUT_DATASETS or (arrow and file == STATE):
                continue
            kind = kind_of(file)
            if kind and file[:1] not in "._":
                kinds[kind] = kinds.get(kind, False) or Path(below) != path
            elif file[:1] not in "._":
                unknown.append(file)
    groups = []
    for kind, deep in sorted(kinds.items()):
        pattern = f"{place.rstrip('/')}/{'**/' * deep}*{kind}"
        found = _listed(pattern)
        inside = [one for one in corpora if deep and any(Path(_real(file)).is_relative_to(one) for file in found)]
        if inside:
            raise ConfigError(
                f"{inside[0]} is a corpus, and {pattern} would read its files as documents; name the folders of "
                "documents one by one"
            )
        groups.append(FileGroup(pattern, found))
    return groups, unknown


def is_pattern(place: str) -> bool:
    """Return whether a place is a pattern, and not the name of something that is there."""
    there = not is_remote(place) and os.path.lexists(Path(place).expanduser())
    return any(sign in place for sign in "*?[") and not there


def once_each(groups: Sequence[FileGroup]) -> list[FileGroup]:
    """Leave out what another group reads too: the same files under another name, or some of them."""
    if len(groups) < 2:
        return list(groups)
    files = [frozenset(_real(file) for file in group.files) for group in groups]
    return [
        group
        for number, group in enumerate(groups)
        if not any(files[number] < other for other in files) and files[number] not in files[:number]
    ]


def _real(file: InputFile) -> str:
    """Return the address of a file; of a local one, its path without links and `..`."""
    return file.url if is_remote(file.url) else str(Path(file.url.removeprefix("file://")).resolve())


def reaches(pattern: str, folder: Path) -> bool:
    """Return whether an input reads what lies in a folder. It leaves out those that begin with _ or a dot."""
    above, deep, _ = pattern.partition("**")
    return (
        bool(deep)
        and not is_remote(pattern)
        and Path(os.path.normpath(folder.absolute())).is_relative_to(os.path.normpath(absolute(above)))
    )


def _listed(place: str) -> list[InputFile]:
    settings = InputSettings(path=absolute(place), lang="und")
    try:
        return [one for one in list_files(settings) if one.format != UNREADABLE]
    except InputError as error:  # nobody has named this input yet
        raise ConfigError(f"{place}: {str(error).removeprefix(f'input {settings.input_name}: ')}") from error


def absolute(place: str) -> str:
    """Return a URL as it is, and a path from the root."""
    return place if is_remote(place) else str(Path(place).expanduser().absolute())


def kind_of(name: str) -> str:
    """Return extension with compression, `.jsonl.gz`; empty for files that are not read."""
    path = Path(name)
    last, inner = path.suffix, Path(path.stem).suffix if path.suffix.lower() in COMPRESSIONS else ""
    if inner.lower() == ".parquet":
        return ""
    return f"{inner}{last}" if (inner or last).lower() in FORMATS else ""
