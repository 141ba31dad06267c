"""Implements `pipeline models`: the cards, which of their files are on this machine, and a bar for fetching them.

SONAR models are fetched by this program, file by file; SaT models by wtpsplit into the cache of Hugging Face. Cards of
Large Concept Models have no files: they are architectures, for which the section `train` of corpus.yaml makes weights.
Those that were trained already and ship lie in folders of their own (`pipeline/corpus/standalone.py`).

The output fits 80 columns. Cards are read, nothing is loaded; only `--fetch` opens a connection.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import yaml
from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from pipeline.base.errors import ConfigError
from pipeline.base.formats import number, size
from pipeline.corpus.standalone import standalone
from stages.fetch import cache_folder, public
from stages.lcm.card import PREFIX, Kind, LcmCard, load_lcm_card, shipped_lcm_cards, trained_lcms
from stages.segment.sat.card import SatCard, hub_name, load_sat_card, shipped_sat_cards
from stages.shipped import how_to_get
from stages.sonar.card import ROLES, FileRole, ModelCard, load_card, meant_by, shipped_cards
from stages.yaml_text import load_yaml

WIDTH = 80


@dataclass(frozen=True)
class FileState:
    """One file of a model: where it is or would be, whether it exists, and its actual or expected size."""

    role: FileRole
    path: Path
    url: str | None
    here: bool
    bytes: int
    exact: bool

    @property
    def amount(self) -> str:
        """Return the size in words."""
        return size(self.bytes) if self.exact else f"~{size(self.bytes)}"


def files_of(card: ModelCard) -> list[FileState]:
    """Return the state of each file on disk."""
    guess = {"encoder": 4 * card.encoder_parameters, "decoder": 4 * card.decoder_parameters, "tokenizer": 5_000_000}
    states = []
    for role in ROLES:
        path, stated = card.path(role), card.file(role)
        here = os.path.isfile(path)  # noqa: PTH113 (Path.is_file raises where it may not look)
        found = path.stat().st_size if here else stated.bytes
        states.append(FileState(role, path, stated.url, here, found or guess[role], found is not None))
    return states


def answer(console: Console, name: str | None, fetch: bool) -> None:
    """Show or fetch models, as `pipeline models` is asked to.

    Args:
        console: where tables are printed.
        name: the name of a model; None to list all.
        fetch: whether to download the model's files.

    Raises:
        ConfigError: if there is nothing to fetch; `CardError` for an unknown name.
    """
    if name is not None and name in trained_lcms():
        if fetch:
            raise ConfigError(f"{name} has no files to fetch: leave out --fetch")
        show_trained_model(console, trained_lcms()[name])
    elif name is not None and _is_lcm(name):
        if fetch:
            raise ConfigError(f"{name} is an architecture without files to fetch: leave out --fetch")
        show_lcm_card(console, load_lcm_card(name))
    elif name is not None and _is_sat(name):
        if fetch:
            fetch_sat_model(console, load_sat_card(name))
        else:
            _show_sat_model(console, load_sat_card(name), name)
    elif name is not None:
        card = load_card(name)
        if fetch:
            fetch_model(console, card)
        else:
            _show_model(console, card, name)
    elif fetch:
        raise ConfigError("--fetch needs the name of a model: pipeline models NAME --fetch")
    else:
        show_models(console)


def show_models(console: Console) -> None:
    """Show all cards that ship, a line each."""
    table = _table("SONAR model", "dim", "layers", "weights", "langs", "licence", "files")
    for card in map(load_card, shipped_cards()):
        table.add_row(
            escape(card.name),
            str(card.dim),
            f"{card.encoder_layers}+{card.decoder_layers}",
            _millions(card.encoder_parameters + card.decoder_parameters),
            str(len(card.languages)),
            escape(re.split(r" \(|\. |; ", card.licence)[0]),
            _summary(files_of(card)),
        )
    console.print(table)
    console.print()
    table = _table("SaT model", "threshold", "licence", "files")
    for sat in map(load_sat_card, shipped_sat_cards()):
        missing = f"{len(sat.missing())} to fetch" if sat.missing() else "here"
        table.add_row(escape(sat.name), f"{sat.threshold:g}", escape(sat.licence.partition(" (")[0]), missing)
    console.print(table)
    console.print()
    table = _table("Large Concept Model", "kind", "layers", "dim", "weights", "context")
    for lcm in map(load_lcm_card, shipped_lcm_cards()):
        weights = _millions(lcm.parameters())
        table.add_row(escape(lcm.name), lcm.kind, _layers(lcm), str(lcm.model_dim), weights, str(lcm.context))
    console.print(table)
    if trained := trained_lcms():
        console.print()
        table = _table("trained model", "kind", "weights", "steps", "encoder", "licence")
        for record in map(standalone, trained.values()):
            columns = (record.kind, _millions(record.parameters), number(record.steps), record.text.encode.model)
            table.add_row(escape(record.name), *columns, escape(record.licence))
        console.print(table)
    _say_how_to_get(console, [file.path for card in map(load_card, shipped_cards()) for file in files_of(card)])
    console.print(
        "\n[bold]pipeline models NAME[/] shows a card in full; with [bold]--fetch[/] it fetches the files.\n"
        f"Fetched files are in {escape(str(cache_folder()))} (PIPELINE_CACHE names another folder).",
        soft_wrap=True,
        highlight=False,
    )


def _show_model(console: Console, card: ModelCard, asked: str) -> None:
    """Show one card in full. `asked`: what the user typed for it."""
    lines = [f"{escape(asked)} is [bold]{escape(card.name)}[/] here."] if meant_by(asked) else []
    lines += [f"[bold]{escape(card.name)}[/]", *_wrapped("", card.description), ""]
    lines += _wrapped("licence", card.licence)
    lines += _wrapped("embedding", f"{card.dim} dimensions, from texts of at most {card.max_tokens} tokens")
    shape = f"{card.heads} heads, feed-forward {card.ffn_dim}"
    for role, layers, count in (
        ("encoder", card.encoder_layers, card.encoder_parameters),
        ("decoder", card.decoder_layers, card.decoder_parameters),
    ):
        lines += _wrapped(role, f"{layers} layers, {shape}, {_millions(count)} parameters")
    lines += _wrapped("tokens", f"{number(card.vocab_size)} ids")
    lines += _wrapped("languages", f"{len(card.languages)}: {', '.join(card.languages)}")
    lines += ["", f"[bold]Files[/] (layout {card.layout})"]
    for state in files_of(card):
        lines += _file_lines(card, state)
    console.print("\n".join(lines), soft_wrap=True, highlight=False)
    if card.scores:
        console.print("\n[bold]Scores[/] on text held out from training", highlight=False)
        console.print(_scores(card.scores, "language"))
    if any(state.url and not state.here for state in files_of(card)):
        console.print(
            f"\n[bold]pipeline models {escape(asked)} --fetch[/] fetches what is missing; else the first run does.",
            soft_wrap=True,
            highlight=False,
        )
    _say_how_to_get(console, [state.path for state in files_of(card)])


def _show_sat_model(console: Console, card: SatCard, asked: str) -> None:
    """Show one card of a SaT model in full. `asked`: what the user typed for it."""
    lines = [f"[bold]{escape(card.name)}[/]", *_wrapped("", card.description), ""]
    lines += _wrapped("licence", card.licence)
    lines += _wrapped("sentences", f"end where the probability is over {card.threshold:g}")
    lines += _wrapped("paragraphs", f"end where it is over {card.paragraph_threshold:g}")
    lines += _wrapped("model", str(card.folder(card.model) or f"https://huggingface.co/{hub_name(card.model)}"))
    missing = card.missing()
    lines += _wrapped("files", f"missing {', '.join(missing)}" if missing else "here")
    console.print("\n".join(lines), soft_wrap=True, highlight=False)
    if card.scores:
        console.print("\n[bold]Scores[/]", highlight=False)
        console.print(_scores(card.scores, "text"))
    if missing and not card.folder(card.model):
        console.print(f"\n[bold]pipeline models {escape(asked)} --fetch[/] fetches them.", highlight=False)
    _say_how_to_get(console, map(Path, missing))


def show_lcm_card(console: Console, card: LcmCard) -> None:
    """Show one card of a Large Concept Model in full."""
    lines = [f"[bold]{escape(card.name)}[/]", *_wrapped("", card.description), ""]
    lines += _wrapped("kind", card.kind)
    lines += _wrapped("layers", f"{_layers(card)}, {card.heads} heads, feed-forward {card.inner_dim}")
    lines += _wrapped("dimensions", f"{card.model_dim}")
    codebooks = " and 64 codebooks of 8192 units" if card.quantised else ""
    what = "a vocabulary of 256206" if card.kind == "token-lm" else f"embeddings of 1024 dimensions{codebooks}"
    lines += _wrapped("weights", f"{_millions(card.parameters())} for {what}")
    tokens = f"; {card.context_tokens} tokens at once" if card.context_tokens else ""
    lines += _wrapped("context", f"{card.context} sentences, at which documents are wrapped{tokens}")
    without = (
        "" if card.kind in ("base", "token-lm") else f", {card.unconditional:.0%} of targets without their context"
    )
    lines += _wrapped("training", f"dropout {card.dropout:g}{without}")
    if card.objective != "mse":
        keys = f", keys {card.contrast.keys}" if card.objective == "contrastive" else ""
        lines += _wrapped("objective", card.objective + keys)
    if card.diffusion is not None:
        lines += _wrapped("noise", f"{card.diffusion.schedule} schedule, {card.diffusion.steps} timesteps")
    console.print("\n".join(lines), soft_wrap=True, highlight=False)


def show_trained_model(console: Console, place: str) -> None:
    """Show what the README.md of a trained model says. `place`: its folder."""
    console.print(Markdown((Path(place) / "README.md").read_text(encoding="utf-8")), width=WIDTH)
    console.print(escape(place), soft_wrap=True, highlight=False)
    _say_how_to_get(console, [Path(place) / "model.safetensors"])


def _say_how_to_get(console: Console, paths: Iterable[Path]) -> None:
    """Show how the first of these files is brought that ships and is not there."""
    for path in paths:
        if not path.is_file() and (remedy := how_to_get(path)):
            console.print(f"\n{escape(f'{path} is not there; {remedy}')}", soft_wrap=True, highlight=False)
            return


def _layers(card: LcmCard) -> str:
    return str(card.layers or f"{card.contextualizer_layers}+{card.denoiser_layers}")


def fetch_sat_model(console: Console, card: SatCard) -> None:
    """Load the model once, which fetches missing files and shows the bars of Hugging Face. Raises CardError."""
    import torch

    from stages.segment.sat.load import load

    load(card, torch.float32, "cpu")
    console.print(f"{escape(card.name)} is here and loads", highlight=False)


def _is_sat(name: str) -> bool:
    """Return whether a name or the path of a card means a SaT model."""
    return _kind(name) == "sat" if name.endswith((".yaml", ".yml")) else name in shipped_sat_cards()


def _is_lcm(name: str) -> bool:
    """Return whether a name or the path of a card means a Large Concept Model."""
    return _kind(name) in get_args(Kind) if name.endswith((".yaml", ".yml")) else name.startswith(PREFIX)


def _kind(path: str) -> str | None:
    """Return the kind that a card's file states."""
    try:
        return str(load_yaml(Path(path).expanduser().read_text(encoding="utf-8"))["kind"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, KeyError):
        return None  # loading the card reports what is wrong with it


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        right = column in ("dim", "layers", "weights", "langs", "threshold")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    return table


def fetch_model(console: Console, card: ModelCard) -> None:
    """Fetch and check every file of a card. Raises CardError as `ModelCard.verify` does."""
    for role in ROLES:
        columns = (BarColumn(20), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(TextColumn(f"{role:9}"), *columns, console=console, transient=True) as progress:
            task = progress.add_task(role, total=card.file(role).bytes)

            def report(done: int, total: int | None, progress: Progress = progress, task: TaskID = task) -> None:
                progress.update(task, completed=done, total=total)

            path = card.verify(role, report)
        console.print(f"{role:9} {size(path.stat().st_size)}, checked: {escape(str(path))}", soft_wrap=True)


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} M" if count < 1e7 else f"{number(count / 1e6)} M"


def _summary(states: list[FileState]) -> str:
    missing = [state for state in states if not state.here]
    if not missing:
        return f"here, {size(sum(state.bytes for state in states))}"
    what = "to fetch" if all(state.url for state in missing) else "missing"
    about = "" if all(state.exact for state in missing) else "~"
    count = f"{len(missing)} " if len(missing) < len(states) else ""
    return f"{count}{what}, {about}{size(sum(state.bytes for state in missing))}"


def _wrapped(label: str, text: str) -> list[str]:
    """Return the lines of a label and its text, broken at 80 columns."""
    first = f"{label:11}" if label else ""
    lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False)
    return [escape(line) for line in lines]


def _file_lines(card: ModelCard, state: FileState) -> list[str]:
    stated = card.file(state.role)
    where = "here" if state.here else "to fetch" if state.url else "[red]missing[/]"
    lines = [f"{state.role:11}{where}, {state.amount}"]
    if state.url:
        lines.append(f"{'':11}{escape(public(state.url))}")
    lines.append(f"{'':11}{escape(str(state.path))}")
    return [*lines, f"{'':11}sha256 {stated.sha256 or 'not published: recorded beside the file when it is fetched'}"]


def _scores(scores: dict[str, dict[str, float]], rows: str) -> Table:
    """Return a table with a row per language or text and a column per score; transposed if there are more scores."""
    shown = {}
    for score, values in scores.items():
        decimals = max(len(f"{value:.3f}".rstrip("0").partition(".")[2]) for value in values.values())
        shown[score] = {lang: f"{value:,.{decimals}f}".replace(",", " ") for lang, value in values.items()}
    columns, lines = list(shown), list(dict.fromkeys(lang for values in shown.values() for lang in values))
    cells = {(lang, score): cell for score, values in shown.items() for lang, cell in values.items()}
    if len(columns) > len(lines):
        columns, lines, rows = lines, columns, "score"
        cells = {(score, lang): cell for (lang, score), cell in cells.items()}
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(rows)
    for column in columns:
        table.add_column(escape(column), justify="right", vertical="bottom")
    for line in lines:
        table.add_row(escape(line), *(cells.get((line, column), "–") for column in columns))
    return table
