"""Fitted artifacts on disk: which ones apply to a configuration, and the records of how they were made.

An artifact is in `fits/<name>.<fp8>-<content6>.safetensors`, named after its generation and content as well, so that a
fit that was interrupted gives the same file; its record, `fits/<name>.<fp8>-<generation>.json`, is created last and
never changed. The fingerprint covers what was asked for (settings, models, size of the pilot), not the rows that were
read: those are frozen with the record, and `--refit` adds a generation. Cost: one listing and one small read per fit.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field

from pipeline.base.errors import CorpusError, DamagedError, visible
from pipeline.config.frozen import FitRef, Frozen
from pipeline.config.stages import FITS
from pipeline.corpus.fingerprint import content_digest, difference, fingerprint
from pipeline.corpus.kept_before import kept_before
from pipeline.corpus.recipes import segment_recipe, stage_recipe
from pipeline.storage import layout
from pipeline.storage.records import Record, read_json, sealed
from pipeline.storage.store import Store, named

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig
    from pipeline.corpus.view import View
    from stages.scaler.robust import RobustScaler

_RECORD = re.compile(
    rf"{layout.FITS}/(?P<name>[a-z]+)\.(?P<fingerprint>[0-9a-f]{{8}})-(?P<generation>[0-9]{{3}})\.json"
)
_ARTIFACT = re.compile(r"[a-z]+\.[0-9a-f]{8}-[0-9a-f]{6}\.safetensors")
_CHECKPOINT = "-checkpoint.safetensors"  # ends the name of a checkpoint
REMEDY = "restore it from a copy, or fit the corpus as it is now: delete it, then pipeline run --refit"
Numbers = Mapping[str, float | list[float]]
Kind = TypeVar("Kind", "FitRecord", "Rate")


class FitRecord(Record):
    """How an artifact was made: what was asked for, the rows that were read, and measures of its quality."""

    name: str
    fingerprint: str
    generation: int
    recipe: dict[str, Any]
    path: str
    bytes: int
    digest: str
    content: str  # digest of the tensors
    source: str | None  # the file of another corpus that it was taken from
    chunks: list[str]  # the pilot
    # of these chunks; none by earlier versions, or for an artifact of another corpus
    fingerprints: list[str] = Field(default_factory=list)
    rows: int  # of the pilot that were looked at
    numbers: dict[str, float | list[float]]
    seconds: float
    device: str
    created: float
    card: str | None = None  # digest of the model card beside the artifact, of a fine-tuned decoder

    @property
    def card_path(self) -> str:
        """Return where the model card of a fine-tuned decoder is."""
        return self.path.removesuffix(".safetensors") + ".yaml"

    @property
    def files(self) -> dict[str, str]:
        """Return the files that the record vouches for, with their digests."""
        return {self.path: self.digest} | ({self.card_path: self.card} if self.card else {})

    def ref(self, record: str) -> FitRef:
        """Return the artifact as this record, which is in the file `record`, vouches for it."""
        return FitRef(self.path, self.digest, self.content, record)


class Rate(Record):
    """The share of rows that a stage samples, if its settings give a number of rows."""

    stage: str
    rows: int  # asked for
    estimated: float  # rows of the whole corpus, by the pilot's and the bytes of all inputs
    rate: float


def freeze(store: Store, config: RunConfig, refit: Collection[str] = ()) -> RunConfig:
    """Return the configuration with what the corpus has decided so far, except for the fits that are to be
    made again.

    Args:
        store: the corpus.
        config: the configuration as its file gives it.
        refit: the names of fits that are to be made again.

    Returns:
        The configuration with references to existing fits, with the rates of sampled stages, and with the metadata
            columns that an earlier version gave files.
    """
    newest: dict[tuple[str, str], str] = {}
    present = set(store.find(layout.FITS))
    for path in sorted(present):
        found = _RECORD.fullmatch(path)
        if found:
            newest[found["name"], found["fingerprint"]] = path
    rates = {}
    for stage in config.asked_stages():
        path = rate_path(config, stage.name)
        if path in present:
            rates[stage.name] = _read(store, path, Rate).rate
    frozen = Frozen(rates=rates, kept=kept_before(store, config))
    for name in FITS:
        recipe = fit_recipe(config.with_frozen(frozen), name)
        newest_record = newest.get((name, fingerprint(recipe)[:8])) if recipe and name not in refit else None
        if newest_record:
            record = read_record(store, newest_record)
            frozen = replace(frozen, fits={**frozen.fits, name: record.ref(newest_record)})
    return config.with_frozen(frozen)


def fit_recipe(config: RunConfig, name: str) -> dict[str, Any] | None:
    """Return what an artifact depends on, except for the rows; None if it is not asked for, or not known yet."""
    settings = getattr(config, name)
    if settings is None or config.encode is None:
        return None
    recipe = {
        "fit": name,
        "version": settings.version,
        "segment": fingerprint(segment_recipe(config)),
        "encode": fingerprint(stage_recipe(config.encode, config.frozen)),
    }
    if settings.file:
        return {**recipe, "file": settings.file}
    fitted = {key: value for key, value in settings.meaningful().items() if key not in settings.only_applied}
    recipe |= {name: fitted, "pilot": config.fit.meaningful() | {"seed": config.seed}}
    if limits := _limits(config):  # a trial's fits are not those of the corpus
        recipe["limits"] = limits
    if name == "decoder":
        recipe["split"] = config.split.meaningful()  # what it must not learn from
        needed = [fit for key, fit in (("noise", "scaler"), ("codes", "rvq")) if getattr(settings, key)]
        if not config.frozen.fits.keys() >= set(needed):
            return None
        return recipe | {fit: config.frozen.fits[fit].content for fit in needed}
    if name == "predictor":
        scored = [stage for stage in config.scoring_the_pilot().row_stages() if stage.name == "fragility"]
        return {**recipe, "fragility": fingerprint(stage_recipe(scored[0], config.frozen))} if scored else None
    return recipe


def fit_reasons(store: Store, config: RunConfig, name: str) -> list[str]:
    """Say why an artifact is to be fitted: it is new, or settings differ from those of the last fit.

    Args:
        store: the corpus.
        config: the configuration, with what is frozen.
        name: a fit, one of `FITS`.

    Returns:
        One line per reason.
    """
    paths = (found for one in store.find(layout.FITS) if (found := _RECORD.fullmatch(one)) and found["name"] == name)
    records = [_read(store, found[0], FitRecord) for found in paths]
    recipe = fit_recipe(config, name)
    if not records:
        return ["new"]
    if recipe is None:
        return ["after the fits that it depends on"]
    last = max(records, key=lambda one: one.created)
    changed = difference(last.recipe, recipe)
    others = ("segment", "encode", "fragility", "scaler", "rvq")  # of which only fingerprints are known
    named = (one.partition(":")[0] for one in changed)
    reasons = [
        f"the result of {key} changed" if key in others else line for key, line in zip(named, changed, strict=True)
    ]
    return reasons or ["--refit asks for it"]


def check_used(store: Store, config: RunConfig, view: View, refit: Collection[str] = ()) -> None:
    """Refuse to go on with other fits than before only because a record is lost, or is that of another corpus.

    A new fit has other values if the corpus has changed since, and everything that is made with it changes too.

    Args:
        store: the corpus.
        config: the configuration of the run.
        view: the newest one, which says what was used.
        refit: the names of fits that are to be made again.

    Raises:
        DamagedError: if the record of a fit that would be used is missing, or holds another fit.
    """
    for name, path in view.fits.items():
        found, recipe = _RECORD.fullmatch(path), fit_recipe(config, name) if name not in refit else None
        if found and recipe and found["fingerprint"] == fingerprint(recipe)[:8] and not store.exists(path):
            raise DamagedError(f"{store.url}/{path}", "it is missing", lost_remedy(name))
        fit = config.frozen.fits.get(name)
        if fit and fit.record == path:
            _check_content(store, view, name, fit.content)


def record_of(store: Store, view: View, name: str) -> FitRecord | None:
    """Return the record of the fit that a view uses.

    Args:
        store: the corpus.
        view: what is read.
        name: a fit, one of `FITS`.

    Returns:
        The record; None if the view does not use such a fit.

    Raises:
        CorpusError: if the record is missing or damaged, or holds another fit than the run used.
    """
    path = view.fits.get(name)
    if path is None:
        return None
    record = read_record(store, path)
    _check_content(store, view, name, record.content)
    return record


def used_artifact(store: Store, view: View, name: str) -> bytes | None:
    """Return the bytes of the fit that a view uses.

    Args:
        store: the corpus.
        view: what is read.
        name: a fit, one of `FITS`.

    Returns:
        The bytes; None if the view does not use such a fit.

    Raises:
        CorpusError: if the fit or its record is missing or damaged, or is not the one that the run used.
    """
    record = record_of(store, view, name)
    return read_artifact(store, record.ref(view.fits[name])) if record else None


def _check_content(store: Store, view: View, name: str, content: str) -> None:
    """Raise `DamagedError` if the values of a fit are not those that a view's run used."""
    used = view.fit_contents.get(name, content)
    if used != content:
        what = f"it is not the {name} that the newest run used, but another one ({content[:8]}…, not {used[:8]}…)"
        raise DamagedError(f"{store.url}/{view.fits[name]}", what, lost_remedy(name))


def lost_remedy(name: str) -> str:
    """Say what to do if a fit is lost."""
    return (
        "restore it from a copy, or fit the corpus as it is now, which gives other values if it has changed since: "
        f"pipeline run --refit {name}"
    )


def next_generation(store: Store, config: RunConfig, name: str, refit: bool) -> int:
    """Return the number of the fit that is to be made.

    Args:
        store: the corpus.
        config: the configuration, with what is frozen.
        name: a fit, one of `FITS`.
        refit: whether a fit with the same recipe is to be made again.

    Returns:
        0, or with `refit` one more than the newest with the same recipe.
    """
    fp8 = fingerprint(fit_recipe(config, name))[:8]
    records = (found for one in store.find(layout.FITS) if (found := _RECORD.fullmatch(one)))
    taken = [int(one["generation"]) for one in records if (one["name"], one["fingerprint"]) == (name, fp8)]
    return max(taken, default=-1) + 1 if refit else 0


def commit_fit(
    store: Store, config: RunConfig, name: str, generation: int, data: bytes, *, source: str | None,
    chunks: list[str], rows: int, numbers: Numbers, seconds: float, device: str, fingerprints: Sequence[str] = (),
    card: Callable[[str], bytes] | None = None,
) -> FitRecord:  # fmt: skip
    """Write an artifact, then its record; if another run was faster, return that run's record.

    Args:
        store: the corpus.
        config: the configuration, with what is frozen.
        name: a fit, one of `FITS`.
        generation: what `next_generation` returns.
        data: the content of the artifact's file, in safetensors format.
        source: where an imported artifact came from; None if it was fitted here.
        chunks: the ids of the chunks that it was fitted on.
        rows: how many sentences it was fitted on.
        numbers: figures of the fit, such as errors on held-out rows.
        seconds: how long the fit took.
        device: where it was computed.
        fingerprints: those of the chunks: of their input, and of how it was read and segmented.
        card: a function that returns the model card that lies beside the artifact, from the name of its file.

    Returns:
        The record that exists now.
    """
    from stages.artifact import content_of  # torch

    recipe = fit_recipe(config, name)
    assert recipe, name
    fp8 = fingerprint(recipe)[:8]
    digest = content_digest(data)
    content = [generation, digest, card("").decode() if card else ""]  # no other fit has the file or the card
    path = f"{layout.FITS}/{name}.{fp8}-{fingerprint(content)[:6]}.safetensors"
    record = FitRecord(
        name=name, fingerprint=fingerprint(recipe), generation=generation, recipe=recipe, path=path, bytes=len(data),
        digest=digest, content=content_of(name, data), source=source, chunks=chunks, rows=rows,
        fingerprints=list(fingerprints), numbers=dict(numbers), seconds=round(seconds, 3), device=device,
        created=time.time(),
    )  # fmt: skip
    store.write(path, data)
    if card:
        described = card(path.rpartition("/")[2])
        store.write(record.card_path, described)
        record = record.model_copy(update={"card": content_digest(described)})
    where = _record_path(name, record.fingerprint, generation)
    if store.create(where, sealed(record.model_dump_json(indent=1))):
        return record
    first = read_record(store, where)
    for one in record.files.keys() - first.files.keys():
        store.delete(one)
    return first


def rate_path(config: RunConfig, stage: str) -> str:
    """Return where the rate of a sample of `rows` rows is stored; a trial with limited inputs has a rate of its own."""
    rows = getattr(getattr(getattr(config, stage), "sample", None), "rows", "share")
    limits = _limits(config)
    trial = f"-{fingerprint(limits)[:8]}" if limits else ""
    return f"{layout.FITS}/rates/{stage}-{rows}{trial}.json"


def _limits(config: RunConfig) -> dict[str, int]:
    """Return the `limit` of each input that has one."""
    return {str(one.name): one.limit for one in config.input if one.limit is not None}


def commit_rate(store: Store, config: RunConfig, stage: str, rows: int, estimated: float) -> Rate:
    """Freeze the rate of a sampled stage; if another run was faster, return that run's rate.

    Args:
        store: the corpus.
        config: the configuration of the run.
        stage: the name of the stage.
        rows: how many rows the sample should have.
        estimated: how many rows the corpus will probably have.

    Returns:
        The rate that holds from now on, between 0 and 1.
    """
    rate = Rate(stage=stage, rows=rows, estimated=estimated, rate=min(1.0, rows / estimated))
    path = rate_path(config, stage)
    return rate if store.create(path, sealed(rate.model_dump_json())) else _read(store, path, Rate)


def read_record(store: Store, path: str) -> FitRecord:
    """Read the record of a fit that a view names. Raises `CorpusError` if it is missing or damaged."""
    record = _read(store, path, FitRecord)
    if path != _record_path(record.name, record.fingerprint, record.generation):
        what = f"it is the record of {visible(record.name)} {visible(record.fingerprint[:8])}-{record.generation:03d}"
        raise DamagedError(f"{store.url}/{path}", what, REMEDY)
    named(record.path, layout.FITS, _ARTIFACT, by=f"{store.url}/{path}", remedy=REMEDY)
    return record


def _record_path(name: str, fingerprint: str, generation: int) -> str:
    """Return the path of a fit's record."""
    return f"{layout.FITS}/{name}.{fingerprint[:8]}-{generation:03d}.json"


def checkpoint_path(fingerprint: str) -> str:
    """Return the path of the checkpoint from which an interrupted fine-tuning of a decoder goes on."""
    return f"{layout.FITS}/decoder.{fingerprint[:8]}{_CHECKPOINT}"


def is_checkpoint(path: str) -> bool:
    """Return whether a file is the checkpoint of a fine-tuning of a decoder."""
    return path.startswith(f"{layout.FITS}/decoder.") and path.endswith(_CHECKPOINT)


def check_checkpoint(store: Store, path: str) -> None:
    """Read the checkpoint of a fine-tuning. Raises `CorpusError` if it is damaged, or is not the one that its name
    says.
    """
    from stages.artifact import from_checkpoint  # torch

    remedy = "delete it: the decoder is fine-tuned from the beginning"
    try:
        made_of = str(from_checkpoint(store.read(path))[1].get("made_of"))
    except ValueError as error:
        raise DamagedError(f"{store.url}/{path}", str(error), remedy) from error
    if path != checkpoint_path(made_of):
        raise DamagedError(f"{store.url}/{path}", "it is the checkpoint of another fine-tuning", remedy)


def read_artifact(store: Store, fit: FitRef) -> bytes:
    """Return the bytes of an artifact. Raises `CorpusError` if they differ from those that were frozen."""
    remedy = f"delete {fit.record} and run again: an older fit with these settings is used then, or a new one is made"
    if not store.exists(fit.path):
        raise CorpusError(f"{store.url}/{fit.path} is missing, though a record names it; restore it, or {remedy}")
    data = store.read(fit.path)
    if content_digest(data) != fit.digest:
        raise CorpusError(
            f"{store.url}/{fit.path} was changed or damaged (its digest is not {fit.digest[:8]}…); {remedy}"
        )
    return data


def fitted_scaler(store: Store, view: View) -> RobustScaler | None:
    """Return the robust scaler that a view names, if there is one. Raises `CorpusError` as `used_artifact` does."""
    data = used_artifact(store, view, "scaler")
    if data is None:
        return None
    from stages.scaler.robust import RobustScaler  # torch

    return RobustScaler.from_bytes(data)


def _read(store: Store, path: str, kind: type[Kind]) -> Kind:
    return read_json(store, path, kind, REMEDY)
