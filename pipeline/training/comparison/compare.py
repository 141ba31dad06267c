"""What `pipeline compare-objectives` does: train every row with every seed, evaluate all on the same sentences, and
write the results.

Running it again continues where it stopped: trainings resume from their checkpoints, and what was evaluated is not
evaluated again unless the training, or the way of evaluating, is another. The three files are written after each row
and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.formats import counted, number
from pipeline.base.messages import print_plain
from pipeline.config.run_config import RunConfig
from pipeline.config.science import Science, ScienceSettings
from pipeline.config.select import SelectSettings
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.reader import Corpus
from pipeline.inputs.splits import SPLITS
from pipeline.storage.records import read_json, sealed
from pipeline.storage.store import Store
from pipeline.training.comparison.begun import (
    begun,
    check_begun,
    check_trained,
    conflict,
    pinned_of,
    place_of,
    seen_by_rows,
)
from pipeline.training.comparison.clock import steps_by_clock, timed
from pipeline.training.comparison.results import (
    EPOCHS,
    SENTENCES,
    Measurement,
    Results,
    SeedResult,
    to_markdown,
    to_svg,
)
from pipeline.training.data.index import Index, make_index, read_index
from pipeline.training.data.order import mean_sentences
from pipeline.training.data.sequences import Sequences
from pipeline.training.evaluation.evaluate import EvaluateOptions, evaluate, metrics_of
from pipeline.training.evaluation.held_out import HeldOut, fitting
from pipeline.training.evaluation.measure import BY_NEIGHBOURS, DECODED, LIKELIHOOD
from pipeline.training.evaluation.table import ResultRow
from pipeline.training.evaluation.text_codec import TextCodec
from pipeline.training.model_file import load_model
from pipeline.training.record import RECORD, Pinned, changes, places_of_indexes, read_started
from pipeline.training.run import check_index, check_other, check_sources, indexed, train
from pipeline.training.status import Numbers, read_metrics
from pipeline.training.through_decoder import HERE as DECODER
from pipeline.training.through_decoder import card_of, decoder_of
from pipeline.training.tokens import HERE as TOKENIZER
from pipeline.training.tokens import Tokeniser, tokenizer_card
from stages.causal_lm import load_language_card
from stages.lcm.metrics import gradient_diversity
from stages.lcm.sonar_llm import SonarLlm

RESULTS, TABLE, PLOT = "results.json", "results.md", "results.svg"
DIVERSITY_DOCUMENTS = 16  # a mini-batch of the split, by which gradient diversity is measured
POOL_SEED = 0


def compare(
    console: Console,
    science: Science,
    find_device: Callable[[], str],
    to_markdown: Callable[[ScienceSettings, Results], str] = to_markdown,
    to_svg: Callable[[ScienceSettings, Results], bytes] = to_svg,
) -> Results:
    """Train and evaluate every row that is not done yet, and compare them.

    Args:
        console: where progress is shown.
        science: the settings; `ConfigError` is raised before anything is trained if they are not possible.
        find_device: says where models are trained; it is called once everything else is checked.
        to_markdown: writes the tables.
        to_svg: draws the figures.

    Returns:
        The table of results.
    """
    comparison = _Comparison(console, science, find_device, to_markdown, to_svg)
    comparison.check()
    comparison.all()
    return comparison.shown


@dataclass
class _Comparison:
    console: Console
    science: Science
    find_device: Callable[[], str]
    to_markdown: Callable[[ScienceSettings, Results], str]
    to_svg: Callable[[ScienceSettings, Results], bytes]
    seen: dict[str, frozenset[str]] = field(default_factory=dict)  # row → hashes of held-out texts that it learns from

    def check(self) -> None:
        settings = self.science.settings
        if "mi" in settings.metrics and not settings.language_model:
            raise ConfigError("metrics has mi, which needs language_model: gpt2, smollm2 or a card's file")
        metrics_of(",".join(settings.metrics), settings.language_model)
        if settings.language_model:
            load_language_card(settings.language_model)
        if settings.split not in SPLITS:
            raise ConfigError(f"split is {settings.split}; splits are {', '.join(SPLITS)}")
        _ = self._fitted
        learned = {row: self._checked(row) for row in settings.trained}
        others = [folder for row, (own, *_) in learned.items() for folder in self._of_others(row, own)]
        if others:
            raise ConfigError(
                f"{self.science.section}: the corpus has changed since these were trained, so that they would be "
                f"compared with what learns from other documents: {', '.join(others)}; delete these folders, and they "
                "are trained again"
            )
        self.seen = seen_by_rows(self.console, self.science, learned, self.index, self._fitted[0])
        _ = self.held, self.results
        for row in settings.trained:
            for seed in settings.seeds:
                if pinned := begun(self.science.config(row, seed)):
                    check_begun(self._named(row), self._without_measuring(row, seed, pinned))
        for row in settings.trained:
            if row in self.results.steps and not self._is_measured(row):
                del self.results.steps[row]

    def _checked(self, row: str) -> list[Index]:
        """Return what a row is to be trained on, its own corpus first. Raises `ConfigError` or `CorpusError` if it
        cannot be.
        """
        config = self.science.config(row, self.science.settings.seeds[0])
        assert config.train is not None
        try:
            own, *mixed = indexed(config, config.train, Corpus(config.output), "select")
            begins = not all(begun(self.science.config(row, seed)) for seed in self.science.settings.seeds)
            index, others = own(), [make() for make in mixed if begins]  # what is trained is pinned to its others
            check_index(index, config.train, config.train.card)
            for other in others:
                check_other(other, config.train.card)
            check_sources([index, *others], config.train, config.train.card)
            if (index.about.encoder, index.dim) != (self.index.about.encoder, self.index.dim):
                raise ConfigError(
                    f"{index.url} was encoded by {index.about.model} ({index.dim} dimensions), {self.index.url} by "
                    f"{self.index.about.model} ({self.index.dim}): what is trained on the one cannot be evaluated on "
                    "the other; name a corpus of the same encoder"
                )
        except (ConfigError, CorpusError) as error:
            raise type(error)(f"{self.science.section}.{row}: {error}") from error
        return [index, *others]

    def _of_others(self, row: str, index: Index) -> Iterator[str]:
        """Yield the folders of trainings of a row that learned from another index than this one."""
        for seed in self.science.settings.seeds:
            config = self.science.config(row, seed)
            assert config.train is not None
            store, run = Store(config.output), config.train.folder
            if store.exists(f"{run}/{RECORD}") and pinned_of(store, run).indexes[0].digest != index.digest:
                yield f"{store.url}/{run}"

    def all(self) -> None:
        settings = self.science.settings
        for seed in settings.seeds:  # so that all rows are known with one seed before any is with two
            for row in settings.objectives:
                self._row(row, seed)
        self._write()  # also where all is evaluated already: files may be lost, and claims may be others
        print_plain(self.console, self.to_markdown(settings, self.shown))
        for name in (RESULTS, TABLE, PLOT):
            print_plain(self.console, f"{self.store.url}/{name} written")

    @cached_property
    def store(self) -> Store:
        return Store(self.science.output)

    @cached_property
    def corpus(self) -> Corpus:
        return Corpus(self.science.corpus.output)

    @cached_property
    def index(self) -> Index:
        selected = self.science.corpus.select or SelectSettings()
        return make_index(self.corpus, selected, origin=self.science.evaluated)

    @property
    def context(self) -> int:
        """Sentences at which documents are wrapped for all rows; fewer where a row has plans, which take room."""
        return self._fitted[1]

    @property
    def held(self) -> HeldOut:
        """The documents on which all rows are judged: those that none of them has seen."""
        return self._judged[0]

    @cached_property
    def _judged(self) -> tuple[HeldOut, str]:
        """The documents, and what is said of those that were left out."""
        held = self._fitted[0]
        gone = self.left_out
        left_out = [one in gone for one in held.hashes]
        if not any(left_out):
            return held, ""
        rows = ", ".join(self.seen)
        said = f"{counted(held.wholes_among(left_out), 'document')} of the split"
        said += f" {self.science.settings.split} that {rows} learned from"
        found = held.without(left_out)
        if not any(length > 1 for length in found.lengths.tolist()):
            raise ConfigError(
                f"{self.science.section}: nothing is left to judge by: all documents of the split "
                f"{self.science.settings.split} are among those that {rows} learned from, by other corpora, another "
                "split or initial weights; name another split, or leave these rows out"
            )
        print_plain(self.console, f"left out for all rows: {said}", style="yellow")
        return found, said

    @property
    def left_out(self) -> frozenset[str]:
        """Hashes of the texts that any row has seen."""
        return frozenset().union(*self.seen.values())

    @cached_property
    def _fitted(self) -> tuple[HeldOut, int]:
        settings = self.science.settings
        configs = (self.science.config(row, settings.seeds[0]).train for row in settings.trained)
        contexts = [(one.card.context, one.plans) for one in configs if one]
        return fitting(
            self.index,
            settings.split,
            max_sentences=min(context for context, _ in contexts),
            sentences=settings.sentences,
            planning=[context for context, plans in contexts if plans != "none"],
        )

    @cached_property
    def results(self) -> Results:
        """Return the results of an earlier run of the command, if there are any; `DamagedError` if they are damaged."""
        found = Results()
        if self.store.exists(RESULTS):
            remedy = "delete it, or give another output: trainings stay, and only evaluations are made again"
            found = read_json(self.store, RESULTS, Results, remedy)
        found.about = {
            "corpus": self.index.about.corpus,
            "sentences judged": f"{len(self.held.judged):,} of the split {self.science.settings.split}"
            + (", drawn at random" if self.held.drawn else ""),
            **({"left out": self._judged[1]} if self._judged[1] else {}),
            "encoder": self.index.about.model,
        }
        return found

    @property
    def shown(self) -> Results:
        """The results with the seeds of the file, as far as they were judged by the present documents and models."""
        return self.results.of(self.science.settings.seeds, self._asked_of_baselines)

    def _row(self, row: str, seed: int) -> None:
        one = self.science.settings.objectives[row]
        config = self._config(one.of or row, seed)
        assert config.train is not None
        check_begun(self._named(one.of or row), config)
        check_trained(config)
        train(self.console, config)
        run, store = config.train.folder, Store(config.output)
        asked = fingerprint([read_started(store, run).pinned.digest, one.sampling, self._asked_of_baselines])
        done = self.results.rows.get(row, {}).get(str(seed))
        if done and done.asked == asked:
            if done.judged != self._asked_of_baselines:  # of an earlier version
                self.results.rows[row][str(seed)] = done.model_copy(update={"judged": self._asked_of_baselines})
                self._write()
            self.console.print(f"{row}, seed {seed}: is evaluated already", markup=False, highlight=False)
            return
        known = self.results.baselines.values()
        with_baselines = not known or any(one.asked != self._asked_of_baselines for one in known)
        rows = self._evaluate(f"{store.url.rstrip('/')}/{run}", one.sampling, with_baselines)
        name = run.rpartition("/")[2]
        figures = _figures(rows.pop(name)) | self._of_training(config, run)
        found = SeedResult(asked=asked, judged=self._asked_of_baselines, steps=config.train.steps, figures=figures)
        self.results.rows.setdefault(row, {})[str(seed)] = found
        for baseline, result in rows.items():
            self.results.baselines[baseline] = SeedResult(
                asked=self._asked_of_baselines, judged=self._asked_of_baselines, steps=0, figures=_figures(result)
            )
        self._write()

    @cached_property
    def _asked_of_baselines(self) -> str:
        settings = self.science.settings
        judged = [self.index.digest, settings.split, settings.sentences, sorted(settings.metrics), self.context]
        if (DECODED | LIKELIHOOD) & set(settings.metrics):
            words = TextCodec.of(self.corpus, "cpu")  # nothing is loaded
            judged += [words.decoder_card.decoder_digest, words.longest]
        if BY_NEIGHBOURS & set(settings.metrics) and len(set(self._fitted[0].ids)) < len(self._fitted[0].ids):
            judged += ["neighbours across the cuts of wrapped documents"]  # they were not left out in earlier versions
        if len(set(self._fitted[0].ids)) < len(set(self._fitted[0].wholes)):
            judged += ["documents with one id apart"]  # they were one document in earlier versions
        if self._fitted[0].drawn:
            judged += ["drawn at random"]  # they were the first ones of the split in earlier versions
        if "mi" in settings.metrics:
            judged += [f"language model {settings.language_model}"]
        if self.left_out:
            judged += [sorted(self.left_out)]
        return fingerprint(judged)

    def _config(self, row: str, seed: int) -> RunConfig:
        """Return the configuration of a training, with the number of steps that its minutes allow."""
        settings = self.science.settings
        other = settings.objectives[row].steps_of
        if other is not None:
            theirs = self._config(other, seed).train
            assert theirs is not None
            return self.science.config(row, seed, theirs.steps)
        minutes = settings.minutes_of(row)
        if minutes is None:
            return self.science.config(row, seed)
        if row not in self.results.steps:
            self.results.steps[row] = steps_by_clock(self.console, self.science, row, seed)
            self.results.timed[row] = timed(self.science, row, minutes)
            self._write()
        return self.science.config(row, seed, self.results.steps[row])

    def _named(self, row: str) -> str:
        return f"{self.science.section}.{row}"

    def _without_measuring(self, row: str, seed: int, pinned: Pinned) -> RunConfig:
        """Return the configuration of a training that is begun; with its own steps if those of the row are unknown."""
        settings = self.science.settings
        source = settings.objectives[row].steps_of or row
        if settings.minutes_of(source) is None or source in self.results.steps:
            return self._config(row, seed)
        return self.science.config(row, seed, pinned.settings["steps"])

    def _is_measured(self, row: str) -> bool:
        """Return whether the known steps of a row are those that its minutes allow now, or cannot be others any more.

        Raises `ConfigError` if they would be others, and models are trained in so many steps.
        """
        settings = self.science.settings
        minutes = settings.minutes_of(row)
        if minutes is None or settings.objectives[row].steps_of:
            return True
        now, then = timed(self.science, row, minutes), self.results.timed.get(row)
        if now == then:
            return True
        rows = [one for one in settings.trained if row in (one, settings.objectives[one].steps_of)]
        configs = [self.science.config(one, seed) for one in rows for seed in settings.seeds]
        places = [place_of(one) for one in configs if begun(one)]
        if places and then is None:
            print_plain(
                self.console,
                f"{row}: its number of steps, {number(self.results.steps[row])}, was measured by an earlier version, "
                f"which did not note for which minutes; whether it is that of {minutes:g} minutes cannot be told",
                style="yellow",
            )
            return True
        if places and then is not None:
            changed = changes(then.model_dump(exclude={"train"}), now.model_dump(exclude={"train"}))
            raise conflict(self._named(row), places, changed or [f"the section train of {row}"])
        return False

    def _evaluate(self, place: str, sampling: dict[str, Any], baselines: bool) -> dict[str, ResultRow]:
        settings = self.science.settings
        options = EvaluateOptions(
            models=(place,),
            split=settings.split,
            sentences=settings.sentences,
            metrics=",".join(settings.metrics),
            language_model=settings.language_model if "mi" in settings.metrics else None,
            seed=POOL_SEED,
            sampling=sampling,
            context=self.context,
            baselines=baselines,
            left_out=self.left_out,
        )
        return evaluate(self.console, self.corpus, options, self.find_device, lambda: self.index)

    def _of_training(self, config: RunConfig, run: str) -> dict[str, Measurement]:
        """Return what is known of a training besides metrics of its predictions."""
        assert config.train is not None
        store = Store(config.output)
        lines = [one for one in read_metrics(store, run) if one["kind"] == "train"]
        each = [_flops_of_sentence(one) for one in lines if one.get("concepts_per_second") and one.get("tflops")]
        model, about = load_model(f"{store.url.rstrip('/')}/{run}", self.find_device())
        found = {"parameters": Measurement(mean=float(sum(one.numel() for one in model.parameters())))}
        places = places_of_indexes(about.pinned, config.train)
        indexes = [
            read_index(Corpus(url or config.output), one.digest)
            for url, one in zip(places, about.pinned.indexes, strict=True)
        ]
        learned = indexes[0]
        found[SENTENCES] = Measurement(mean=float(sum(one.about.splits["train"][2] for one in indexes)))
        if len(indexes) == 1:  # of a mix, every corpus has epochs of its own
            sequences = Sequences.of(learned, "train")
            filled = mean_sentences(sequences, model.card.context, config.train.micro_concepts, config.train.seed)
            read = config.train.steps * config.train.per_step * filled
            found[EPOCHS] = Measurement(mean=read / learned.sentences("train"))
        if each:
            found["flops_per_step"] = Measurement(mean=config.train.batch_concepts * sum(each) / len(each))
        if lines and all("cpu_seconds" in one for one in lines):  # not in logs of earlier versions
            found["cpu_seconds"] = Measurement(mean=sum(one["cpu_seconds"] * _processes(one) for one in lines))
        if isinstance(model, SonarLlm):
            model.use(decoder_of(about.pinned))
        tokenise = None
        if about.pinned.decoder:
            tokenise = Tokeniser(card_of(about.pinned), DECODER)
        elif about.pinned.tokenizer:
            tokenise = Tokeniser(tokenizer_card(about.pinned.tokenizer), TOKENIZER)
        batch = next(self.held.batches("cpu", tokenise))
        few = min(DIVERSITY_DOCUMENTS, len(batch.lengths))
        if few > 1 and not model.card.quantised and not learned.about.plans:  # held-out batches have no codes, no plans
            batch = next(batch.split(few)).to(self.find_device())
            model.begin_step(0, config.train.steps)
            found["gradient_diversity"] = Measurement(mean=gradient_diversity(model, batch))
        return found

    def _write(self) -> None:
        settings = self.science.settings
        self.store.write(RESULTS, sealed(self.results.model_dump_json(indent=1)))
        self.store.write(TABLE, self.to_markdown(settings, self.shown).encode())
        self.store.write(PLOT, self.to_svg(settings, self.shown))


def _processes(line: Numbers) -> int:
    """Return of how many processes, which share the work equally, a line of a training's log tells one's figures."""
    return int(line.get("processes", 1))  # not in logs of earlier versions


def _flops_of_sentence(line: Numbers) -> float:
    """Return the FLOPs of all processes for one sentence, by a line of a training's log."""
    return 1e12 * float(line["tflops"]) * _processes(line) / float(line["concepts_per_second"])


def _figures(row: ResultRow) -> dict[str, Measurement]:
    """Return the figures that are numbers."""
    return {
        name: Measurement(mean=one.mean, error=one.error if one.error == one.error else 0.0, documents=one.documents)
        for name, one in row.figures.items()
        if one.mean == one.mean
    }
