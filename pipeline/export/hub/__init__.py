"""A dataset folder for the Hugging Face Hub: plain Parquet, and a README.md that says what it is and how it was made.

    README.md                       dataset card: YAML header, data statement, quality figures
    data/train/<part>.parquet       as the format parquet writes it (`pipeline/export/wide.py`)
    plots/*.svg                     quality of the sentences that were written

`datasets.load_dataset(FOLDER)` reads the folder as it is, and its name on the Hub once it was pushed (`push.py`). The
same corpus and settings give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from pipeline.base.errors import CorpusError, visible
from pipeline.base.formats import counted, number
from pipeline.corpus.accounting import Accounting, compute_accounting
from pipeline.corpus.exports import view_digest
from pipeline.corpus.runs import newest_config
from pipeline.export.hub.header import UNKNOWN, ExportFigures, header, iso_code, licence_id
from pipeline.export.pieces import ExportTask, Written
from pipeline.export.wide import write_wide
from pipeline.inputs.splits import SPLITS
from pipeline.select.selection import Counts, Selection
from pipeline.storage.remote import is_remote, without_credentials
from stages.cards import CardError
from stages.fetch import FetchError, cache_path, recorded_sha256
from stages.segment.sat.card import load_sat_card
from stages.sonar.card import ROLES, ModelCard, load_card

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$!])")
Draw = Callable[
    [list[str], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.float32]], dict[str, tuple[str, bytes]]
]


def write_hub(task: ExportTask, counts: Counts, licence: str | None, draw: Draw) -> Written:
    """Write every selected sentence, plots, and the card.

    Args:
        task: the sentences, and the folder.
        counts: what the selection removes.
        licence: of the texts, as the Hub names it; None: it is not known.
        draw: draws plots of languages, lengths and AutoBLEU (`pipeline/quality/report`).

    Returns:
        What was written.

    Raises:
        CorpusError: for a damaged file of the corpus.
    """
    figures, target = ExportFigures(), task.target
    written = write_wide(task, figures.add)
    langs, lang, chars, autobleu = figures.arrays()
    plots = draw(langs, lang, chars, autobleu)
    for name, (_, svg) in plots.items():
        with target.file(f"plots/{name}") as file:
            file.write(svg)
    captions = {f"plots/{name}": caption for name, (caption, _) in plots.items()}
    target.write_text("README.md", _dataset_card(task.selection, counts, written, figures, licence, captions))
    written.files += len(plots) + 1
    written.next_step = f"datasets.load_dataset({target.url!r}); --push USER/NAME uploads it to the Hub"
    return written


def _dataset_card(
    selection: Selection,
    counts: Counts,
    written: Written,
    figures: ExportFigures,
    licence: str | None,
    plots: Mapping[str, str],
) -> str:
    """Return the text of README.md.

    Everything in it is taken from the records of the corpus and from what was written. What cannot be known from there
    is said to be unknown: the licence of texts, and digests of models whose cards state none. Text of others is
    escaped.
    """
    corpus = selection.corpus
    config = newest_config(corpus.store)
    encoder = str(config["encode"]["model"])
    try:
        card: ModelCard | None = load_card(encoder)
    except CardError:
        card = None
    licences = [licence or UNKNOWN, licence_id(card.licence) if card else UNKNOWN]
    name = corpus.view.name
    head = yaml.safe_dump(header(name, licences, figures, written.bytes), sort_keys=False, allow_unicode=True)
    accounting = compute_accounting(corpus.store, corpus.chunks)
    parts = [
        f"---\n{head}---\n\n# {escaped(name)}\n",
        _summary(written, figures, counts),
        "## Data statement\n",
        _licence_text(licence, card, encoder),
        "### Inputs\n",
        _inputs(config["input"], accounting),
        "### Filters\n",
        _filters(selection, counts),
        "### Segmenter\n",
        _segmenter(config["segment"]),
        "### Encoder\n",
        _encoder(card, encoder),
        "## Quality\n",
        _quality(figures),
        *(f"![{caption}]({path})\n\n*{caption}.*\n" for path, caption in plots.items()),
        "## Provenance\n",
        _provenance(selection),
    ]
    return "\n".join(parts)


def escaped(text: str) -> str:
    """Return text of others for Markdown: on one line, without a meaning for Markdown or HTML."""
    return _SPECIAL.sub(r"\\\1", visible(text).replace("&", "&amp;"))


def _summary(written: Written, figures: ExportFigures, counts: Counts) -> str:
    rows = sum(figures.rows.values())
    vectors = f", each with its SONAR embedding ({written.dim} dimensions)" if written.dim else "; vectors are left out"
    splits = [
        [split, number(figures.rows[split]), number(written.by_split[split])]
        for split in SPLITS
        if split in figures.rows
    ]
    return (
        f"{number(rows)} sentences of {number(counts.whole + counts.shortened)} documents{vectors}. One row is one "
        "sentence; rows of a document follow each other, and `piece` numbers the stretches of a document that lost "
        "sentences. `part` and `row` say where a sentence stands in the corpus it was taken from.\n\n"
        + _table(("split", "sentences", "sequences"), splits)
    )


def _licence_text(licence: str | None, card: ModelCard | None, encoder: str) -> str:
    texts = f"`{licence}`" if licence else "not stated by whoever made this dataset; ask them before you use the texts"
    of_card = (
        f"{escaped(card.licence)} (model {escaped(card.name)})"
        if card
        else f"unknown: the card of the model {escaped(_last(encoder))} was not on the machine that wrote this"
    )
    return (
        f"- Licence of the texts: {texts}.\n"
        f"- Licence of the encoder, which may bind the embeddings as well: {of_card}.\n"
    )


def _inputs(inputs: Sequence[Mapping[str, Any]], accounting: Accounting) -> str:
    lines = []
    for one in inputs:
        named = {key: one[key] for key in ("name", "text", "id", "lang", "limit") if one.get(key)}
        said = [f"{key} {escaped(_stated(value))}" for key, value in named.items()]
        kept = [str(name) for name in one.get("keep") or ()]
        said += [f"metadata {escaped(', '.join(kept))}"] if kept else []
        lines.append(f"- `{_last(str(one['path'])).replace('`', '')}`: {'; '.join(said)}")
    reasons = [(f"dropped: {escaped(reason)}", number(found)) for reason, found in accounting.dropped.most_common()]
    reasons += [(f"quarantined: {escaped(why)}", number(found)) for why, found in accounting.quarantined.most_common()]
    rows = [("documents in", number(accounting.documents_in)), *reasons, ("documents kept", number(accounting.kept))]
    return "\n".join(lines) + "\n\n" + _table(("accounting", "documents"), rows)


def _stated(value: Any) -> str:
    """`id: id`, `lang: {column: lang}`, or `lang: {detect: {threshold: 0.5}}`, in words."""
    if not isinstance(value, Mapping):
        return str(value)
    if "column" in value:
        return f"column {value['column']}"
    return f"detected, with confidence of at least {value['detect']['threshold']}"


def _filters(selection: Selection, counts: Counts) -> str:
    settings = selection.settings
    where = f"`{settings.where.replace('`', '')}`" if settings.where else "every sentence with a finite embedding"
    rows = [["sentences of the corpus", number(counts.sentences)]]
    rows += [[f"removed: {escaped(reason)}", number(found)] for reason, found in counts.removed.items()]
    return (
        f"{where}; documents that lose sentences: {settings.broken}; sequences of at least "
        f"{counted(settings.min_sentences, 'sentence')}. A sentence counts under the first reason that removes it.\n\n"
        + _table(("selection", "sentences"), [*rows, ["written", number(counts.kept)]])
    )


def _segmenter(settings: Mapping[str, Any]) -> str:
    by_sat = "sat" in str(settings.get("method"))
    left_out = () if by_sat else ("sat", "sat_only", "precision", "batch_tokens")
    shown = {key: value for key, value in settings.items() if key not in left_out}
    shown = {key: value for key, value in shown.items() if value is not None and not isinstance(value, dict | list)}
    lines = [f"- {key}: {escaped(_last(str(value)))}" for key, value in shown.items()]
    if by_sat and settings.get("sat"):
        try:
            sat = load_sat_card(str(settings["sat"]))
        except CardError:
            lines.append("- The card of this SaT model was not on the machine that wrote this: nothing else is known.")
        else:
            lines.append(f"- {escaped(sat.name)}: {escaped(sat.description)} Licence: {escaped(sat.licence)}.")
            lines += [f"- `{name}`: sha256 `{digest}`" for name, digest in sat.sha256.items()] or [
                f"- Its files are named by `{sat.model}` on Hugging Face only: the card states no revision and no "
                "digest, and none can be known offline."
            ]
    return "\n".join(lines) + "\n"


def _encoder(card: ModelCard | None, encoder: str) -> str:
    if card is None:
        return (
            f"{escaped(_last(encoder))}: its card was not on the machine that wrote this, so nothing else is known.\n"
        )
    lines = [f"- {escaped(card.name)}: {escaped(card.description)}", f"- dimensions: {card.dim}"]
    for role in ROLES:
        stated = card.file(role)
        place = without_credentials(stated.url) if stated.url else _last(str(stated.path))
        revision = re.search(r"/resolve/([^/]+)/", stated.url or "")
        facts = [f"`{place}`"]
        if revision:
            pinned = re.fullmatch("[0-9a-f]{40}", revision[1])
            facts.append(f"revision `{revision[1]}`" + ("" if pinned else " (a branch: not pinned)"))
        facts.append(_digest(stated.sha256, stated.url))
        lines.append(f"- {role}: {', '.join(facts)}")
    return "\n".join(lines) + "\n"


def _digest(stated: str | None, url: str | None) -> str:
    if stated:
        return f"sha256 `{stated}`"
    path = cache_path(url) if url else None
    try:
        found = recorded_sha256(path.with_name(f"{path.name}.sha256")) if path else None
    except FetchError as error:
        raise CorpusError(str(error)) from error
    if found:
        return f"sha256 `{found}` (of the copy that was fetched here; its card states none)"
    return "sha256 not known: none is published, and it was not fetched here"


def _quality(figures: ExportFigures) -> str:
    names, lang, chars, autobleu = figures.arrays()
    rows = []
    for place, name in enumerate(names):
        values = autobleu[lang == place]
        values = values[np.isfinite(values)]
        spread = (
            [f"{value:.1f}" for value in (values.mean(), *np.quantile(values, (0.1, 0.5)))]
            if len(values)
            else ["–"] * 3
        )
        of = figures.langs[name]
        mean_tokens = f"{figures.tokens[name] / of:.1f}"
        rows.append([escaped(name), escaped(iso_code(name)), number(of), mean_tokens, number(len(values)), *spread])
    head = ("language", "ISO 639", "sentences", "tokens per sentence", "scored", "AutoBLEU, mean", "p10", "median")
    text = _table(head, rows)
    if np.isfinite(autobleu).any():
        text += (
            "\nAutoBLEU decodes an embedding again and compares the result with its sentence (100: the same words); "
            "what is lost there, no model of embeddings can learn.\n"
        )
    else:
        text += "\nNo sentence was scored: nothing is known of what the embeddings lose.\n"
    total = sum(figures.rows.values())
    if figures.kept_rows < total:
        text += f"\nAutoBLEU and plots are from the first {number(len(chars))} of {number(total)} sentences.\n"
    return text


def _provenance(selection: Selection) -> str:
    view = selection.corpus.view
    rows = [
        ["sonar-pipeline", version("sonar-pipeline")],
        ["corpus view", view_digest(view)],
        ["selection", selection.digest],
    ]
    stages = []
    for recipe in [*view.segment.values(), *view.stages.values()]:  # of each input, which are often alike
        facts = {**recipe.get("artifacts", {}), **recipe.get("fits", {})}
        digests = ", ".join(f"{key} {escaped(str(value))}" for key, value in sorted(facts.items()))
        stages.append((f"stage {recipe['stage']}, version {recipe['version']}", digests or "–"))
    return _table(("what", "version or digest"), [*rows, *dict.fromkeys(stages)])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines]) + "\n"


def _last(place: str) -> str:
    """Return a place without what only one machine knows: the last two steps of a local path, or a URL."""
    if is_remote(place):
        return visible(without_credentials(place))
    return visible("/".join(place.split("/")[-2:]) if place.startswith(("/", "~")) else place)
