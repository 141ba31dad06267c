"""Makes the section on the models that were trained on a corpus: states, curves of the loss, tables of evaluations.

Whoever writes a report reads the trainings (`pipeline/run/trained_models.py`); this only shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.base.errors import visible
from pipeline.quality.report import plots
from pipeline.quality.report.page import Block, Cell, Figure, Note, Section, Table, number

DRAWN = 12  # trainings with a plot
MOST = 100  # rows of the table of trainings
MOST_TABLES = 24


@dataclass(frozen=True)
class LossCurve:
    """Losses by step, of equal length and finite."""

    steps: Sequence[float] = ()
    losses: Sequence[float] = ()


@dataclass(frozen=True)
class TrainedModel:
    """A training. `state`: in words; `wrong`: what is damaged of it, or why it failed.

    `loss`, `validation_loss`: the last ones as text; `validation`, `training`: the curves, thinned to a few hundred
    points.
    """

    name: str
    state: str
    wrong: str = ""
    loss: str = "–"
    validation_loss: str = "–"
    training: LossCurve = field(default_factory=LossCurve)
    validation: LossCurve = field(default_factory=LossCurve)

    @property
    def drawable(self) -> bool:
        """Whether there is a curve: two points of one kind."""
        return max(len(self.training.steps), len(self.validation.steps)) > 1


@dataclass(frozen=True)
class TrainedModels:
    """The trainings of a corpus.

    `evaluations`: tables beside the models, each once; `stamp`: digest of the finished models and of their evaluations,
    from which a later run knows that the report lacks none; empty where there are none. `wrong`: what could not be
    read.
    """

    trainings: Sequence[TrainedModel] = ()
    evaluations: Sequence[Table] = ()
    stamp: str = ""
    wrong: Sequence[str] = ()


NO_MODELS = TrainedModels()


def drawn(found: TrainedModels) -> list[TrainedModel]:
    """Return the trainings whose losses are plotted."""
    return [one for one in found.trainings if one.drawable][:DRAWN]


def models(found: TrainedModels, *, plotted: bool = True) -> Section | None:
    """Show the trainings of a corpus; None where there are none. `plotted`: with plots of their losses."""
    if not found.trainings and not found.wrong:
        return None
    cells: list[list[Cell]] = [[one.name, one.state, one.loss, one.validation_loss] for one in found.trainings[:MOST]]
    head = ("training", "state", "loss", "validation loss")
    blocks: list[Block] = [Note(text, "bad") for text in found.wrong]
    blocks += [Note(f"{one.name}: {one.wrong}", "bad") for one in found.trainings[:MOST] if one.wrong]
    if cells:
        blocks.append(Table(head, cells, text=2))
    if len(found.trainings) > MOST:
        blocks.append(Note(f"{number(len(found.trainings) - MOST)} trainings more are left out.", "plain"))
    if plotted:
        blocks += [Figure(_curves(place, one), visible(one.name)) for place, one in enumerate(drawn(found))]
    curves = sum(one.drawable for one in found.trainings)
    if curves > DRAWN:
        blocks.append(Note(f"Curves are of the first {DRAWN} of {number(curves)} trainings.", "plain"))
    blocks += found.evaluations[:MOST_TABLES]
    if len(found.evaluations) > MOST_TABLES:
        left = number(len(found.evaluations) - MOST_TABLES)
        blocks.append(Note(f"{left} tables of evaluations more are in train/NAME/evaluation.", "plain"))
    lead = (
        "Models that were trained on this corpus, in `train/NAME`. Curves show the loss by step; where a training "
        "logged many steps, means of neighbours."
    )
    if found.evaluations:
        lead += " Evaluations: ± two standard errors, over documents."
    return Section("models", "Models", lead, blocks)


def _curves(place: int, one: TrainedModel) -> str:
    series = {"training": one.training, "validation": one.validation}
    there = {name: (curve.steps, curve.losses) for name, curve in series.items() if curve.steps}
    return plots.losses(f"model-{place}", there)
