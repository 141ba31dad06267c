"""The output of commands with `--json`: one object for scripts, with stable keys (docs/reference/json.md has them all).

Every object begins with `schema` (1) and `command`. Keys may be added, but not renamed or removed without a new schema
number. Times are in seconds, sizes in bytes, shares between 0 and 1; unknown values are null.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.base.messages import json_for_output, write_out

if TYPE_CHECKING:
    from pipeline.corpus.reader import Corpus
    from pipeline.doctor.checks import Check
    from pipeline.maintenance.gc import Garbage
    from pipeline.maintenance.records import Finding
    from pipeline.maintenance.verify_command import Comparison
    from pipeline.monitor.further import FurtherWork
    from pipeline.monitor.run_status import Cluster
    from pipeline.planning.plan import Plan
    from pipeline.planning.removal import ViewChange
    from pipeline.quality.inspect import InspectOptions
    from pipeline.select.command import SelectOptions
    from pipeline.storage.store import Store

SCHEMA = 1


def print_json(command: str, value: Mapping[str, Any]) -> None:
    """Print an object for scripts, without numbers that JSON cannot represent."""
    write_out(json_for_output({"schema": SCHEMA, "command": command} | plain(value)) + "\n")


def plain(value: Any) -> Any:
    """Convert values to JSON: dataclasses become objects, tuples lists, not-a-number and infinity null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if hasattr(value, "item") else str(value)


def status(corpus: Corpus, cluster: Cluster) -> tuple[dict[str, Any], bool]:
    """Return the run, the accounting, the trainings and the exports; and whether all is well."""
    from pipeline.corpus.accounting import compute_accounting
    from pipeline.corpus.runs import EXPECTATIONS
    from pipeline.monitor.exports import export_states
    from pipeline.monitor.run_status import RunWatcher
    from pipeline.training.status import training_statuses

    state = RunWatcher(corpus.store, cluster).poll()
    accounting = compute_accounting(corpus.store, corpus.chunks)
    trainings = [
        {
            "run": one.run,
            "steps": one.steps,
            "of": one.of,
            "finished": one.finished,
            "failed": one.failed or None,
            "damaged": one.damaged or None,
            "job": one.job.id if one.job else None,
        }
        for one in training_statuses(corpus.store)
    ]
    run = None
    if state:
        run = {
            "run": state.run,
            "launcher": state.launcher,
            "under_way": not state.over,
            "done": state.done,
            "stopped": state.stopped or None,
            "lost": state.lost or None,
            "phases": state.phases,
            "jobs": {job: word.partition(" ")[0] for job, word in state.jobs.items()},
            "failures": state.failures,
            "set_aside": state.set_aside,
            "expectations": (state.summary or {}).get(EXPECTATIONS, []),
        }
    fine = not accounting.problems and (not run or run["under_way"] or run["done"] or not (state and state.failures))
    fine = bool(fine) and not any(one["damaged"] or (one["failed"] and not one["finished"]) for one in trainings)
    exports = export_states(corpus)
    fine = fine and not any(one.damaged for one in exports)
    counted = plain(accounting) | {"complete": accounting.complete}
    named: dict[str, Any] = {"corpus": corpus.url, "name": corpus.view.name}
    return named | {"fine": fine, "run": run, "accounting": counted, "trainings": trainings, "exports": exports}, fine


def plan(
    made: Plan, change: ViewChange | None, further: list[FurtherWork], warnings: Sequence[str] = ()
) -> dict[str, Any]:
    """Return work by stage with reasons, an estimate, what else is done, and what enters and leaves the corpus.

    Args:
        made: what the run would do.
        change: what would enter and leave the corpus; None if nothing was compared.
        further: work that follows the run, such as a training.
        warnings: what the first records of the inputs tell of surprises to come.

    Returns:
        A mapping of JSON values and of dataclasses, which `plain` turns into JSON values.
    """
    from pipeline.planning.estimate import estimate_of

    stages = [
        {
            "stage": one.stage,
            "done": one.done,
            "left": one.left,
            "sentences_done": one.sentences_done,
            "sentences_left": one.sentences_left,
            "sentences_a_second": one.rate,
            "seconds_left": one.seconds_left,
            "reasons": +one.reasons,
        }
        for one in made.work.values()
    ]
    moves = {
        "leaving": change.leaving if change else (),
        "entering": change.entering if change else (),
        "names": change.names if change else None,
        "needs_consent": bool(change and change.needs_consent),
    }
    done = made.nothing_to_do and not any(one.left or one.refused for one in further)
    return {
        "corpus": made.config.output,
        "name": made.config.name,
        "nothing_to_do": done,
        "estimate": estimate_of(made) if made.launches or made.waiting else None,
        "stages": stages,
        "chunks_to_segment": len(made.chunks_to_segment()),
        "same_files": made.same_files,
        "further": further,
        "view": moves,
        "warnings": warnings,
    }


def doctor(checks: list[Check]) -> dict[str, Any]:
    """Return every check: level (good, note, warn, bad), name, what was found, what to do."""
    return {"fine": all(one.level != "bad" for one in checks), "checks": checks}


def models(name: str | None) -> dict[str, Any]:
    """Return all models, or the card of one."""
    from pipeline.corpus.standalone import standalone
    from pipeline.doctor.models import files_of
    from stages.cards import CardError
    from stages.lcm.card import load_lcm_card, shipped_lcm_cards, trained_lcms
    from stages.segment.sat.card import load_sat_card, shipped_sat_cards
    from stages.sonar.card import load_card, shipped_cards

    if name is not None and name in trained_lcms():
        return {"kind": "trained", "model": standalone(trained_lcms()[name]).model_dump(mode="json")}
    if name is not None:
        for kind, load in (("lcm", load_lcm_card), ("sat", load_sat_card)):
            known = shipped_lcm_cards() if kind == "lcm" else shipped_sat_cards()
            if name in known:
                return {"kind": kind, "card": load(name).model_dump(mode="json")}
        card = load_card(name)
        return {"kind": "sonar", "card": card.model_dump(mode="json"), "files": [_file(one) for one in files_of(card)]}
    sonar = []
    for card in map(load_card, shipped_cards()):
        weights = card.encoder_parameters + card.decoder_parameters
        described = {"name": card.name, "dim": card.dim, "parameters": weights, "languages": list(card.languages)}
        sonar.append(described | {"licence": card.licence, "files": [_file(one) for one in files_of(card)]})
    sat = [
        {"name": one.name, "threshold": one.threshold, "licence": one.licence, "missing": one.missing()}
        for one in map(load_sat_card, shipped_sat_cards())
    ]
    lcm = []
    for one in shipped_lcm_cards():
        try:
            described_lcm = load_lcm_card(one)
        except CardError:
            continue
        lcm.append({"name": one, "kind": described_lcm.kind, "parameters": described_lcm.parameters()})
    trained = [
        {"name": one.name, "kind": one.kind, "parameters": one.parameters, "steps": one.steps}
        | {"encoder": one.text.encode.model, "licence": one.licence, "folder": folder}
        for folder, one in ((folder, standalone(folder)) for folder in trained_lcms().values())
    ]
    return {"sonar": sonar, "sat": sat, "lcm": lcm, "trained": trained}


def _file(one: Any) -> dict[str, Any]:
    return {"role": one.role, "path": str(Path(one.path)), "url": one.url, "here": one.here, "bytes": one.bytes}


def verify(store: Store, wrong: list[Finding], repair: bool) -> dict[str, Any]:
    """Return what differs from the receipts and records.

    Args:
        store: the corpus.
        wrong: the findings; empty if all is well.
        repair: whether the findings were repaired.

    Returns:
        A mapping with `corpus`, `fine`, `wrong` and `repaired`.
    """
    return {
        "corpus": store.url,
        "fine": not wrong,
        "wrong": [{"path": one.path, "what": one.what} for one in wrong],
        "repaired": repair and bool(wrong),
    }


def comparison(one: Corpus, other: Corpus, result: Comparison) -> dict[str, Any]:
    """Return the comparison of two corpora.

    Args:
        one: the first corpus.
        other: the second corpus.
        result: what `compare` found.

    Returns:
        A mapping with the two addresses, `fine`, and the fields of the result.
    """
    found: dict[str, Any] = {"corpus": one.url, "other": other.url, "fine": not result.wrong}
    return found | dict(plain(result))


def gc(corpus: Corpus, found: Garbage, deleted: bool) -> dict[str, Any]:
    """Return files that the newest run does not need, and files that stay although it does not need them.

    Args:
        corpus: the corpus.
        found: files that are not needed, and files that stay all the same.
        deleted: whether the files were deleted.

    Returns:
        A mapping with `files` (path, bytes, why), their `bytes` in total, `kept` and `deleted`.
    """
    files = [{"path": path, "bytes": found.bytes.get(path), "why": why} for path, why in found.why.items()]
    total = sum(found.bytes.values())
    return {"corpus": corpus.url, "files": files, "bytes": total, "kept": found.kept, "deleted": deleted}


def quarantine(corpus: Corpus, reason: str | None, most: int) -> dict[str, Any]:
    """Return counts by reason, and some records of each.

    Args:
        corpus: the corpus.
        reason: show only records of this reason; None for all reasons.
        most: how many records of each reason are shown.

    Returns:
        A mapping with counts in `reasons`, and the `records`.

    Raises:
        ConfigError: if no record has this reason.
    """
    from pipeline.corpus.counters import CHUNK, whole_counts
    from pipeline.corpus.quarantine import check_reason, quarantined_records

    counts = whole_counts(corpus.chunks.total, CHUNK, "quarantined")
    check_reason(reason, counts)
    wanted = {reason: counts[reason]} if reason is not None else dict(counts.most_common())
    records = [one for found in quarantined_records(corpus, wanted, most).values() for one in found]
    return {
        "corpus": corpus.url,
        "reasons": counts,
        "bytes_unreadable": int(corpus.chunks.total.get(f"{CHUNK}/bytes_unreadable", 0)),
        "records": records,
    }


def select(place: str, corpus: Corpus, rules: SelectOptions) -> dict[str, Any]:
    """Return where every sentence and document of the selection went.

    Args:
        place: what the user named: a corpus, or its YAML file.
        corpus: the corpus.
        rules: options of the command that replace those of the section `select`.

    Returns:
        A mapping with the settings, their digest, the counts, and the number of chunks without sentences.
    """
    from rich.console import Console

    from pipeline.console.progress import RowProgress
    from pipeline.select.command import selection_of, unfinished

    selection = selection_of(place, corpus, rules)
    with RowProgress(Console(stderr=True, quiet=True), corpus.rows) as progress:
        counts = selection.count(progress)
    settings = selection.settings.model_dump(mode="json")
    found = {"corpus": corpus.url, "select": settings, "digest": selection.digest, "counts": counts}
    return found | {"chunks_not_segmented": unfinished(corpus)}


def inspect(corpus: Corpus, options: InspectOptions) -> dict[str, Any]:
    """Return quality by language and length, scores, and the worst rows."""
    from pipeline.base.errors import ConfigError
    from pipeline.corpus.accounting import compute_accounting
    from pipeline.quality.inspect import SHOWN_ROWS, SHOWN_WORST, condition_of
    from pipeline.quality.measures import QUANTILES, corpus_bleu_of, measure, measure_scores, worst_rows

    if options.to is not None or options.columns is not None:
        raise ConfigError("--json is for the screen; leave out --to and --columns")
    corpus.check_has_parts()
    condition = condition_of(corpus, options.where, options.lang)
    most = options.max_rows or SHOWN_ROWS
    quality = measure(corpus, most, condition)
    worst = SHOWN_WORST if options.worst is None else options.worst
    rows = worst_rows(corpus, worst, max_rows=most, where=condition) if worst and quality.everything.scored else []
    bleu = corpus_bleu_of(corpus, compute_accounting(corpus.store, corpus.chunks)) if condition is None else {}
    found: dict[str, Any] = {"corpus": corpus.url, "where": condition.text if condition else None}
    found |= {"quantiles": QUANTILES}
    scores = measure_scores(corpus, most, condition)
    return found | dict(plain(quality)) | {"corpus_bleu": bleu, "scores": scores, "worst": rows}
