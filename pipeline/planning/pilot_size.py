"""How many sentences fits have to learn from, and parts a corpus has, before anything is computed: by the bytes of the
inputs and the settings.

For example, at the paper's size fragility samples 50 million of 310 billion sentences. A pilot of 2 million has 323 of
them, too few for a predictor that then weights all sentences; `fit.scored_rows: 500_000` scores a quarter of the pilot.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted, number
from pipeline.config.run_config import RunConfig
from pipeline.inputs import Chunk, ChunkTable
from stages.predictor.settings import LEAST_ROWS
from stages.sampling import Rows

STORED_BYTES, COMPRESSED_BYTES = 90, 32  # of input per sentence, as in the sample's books and manuals
FEW_SCORED = 2000  # rows that the predictor needs to learn well
ENOUGH_SCORED = 150  # rows, about: so that chance leaves at least `LEAST_ROWS`
FEW_DRAWN = 3.0  # rows that a sample draws, about: with one chance in twenty it draws none
NONE_DRAWN = 0.04  # such a chance, and less for large shares of few rows; a share of 1 draws all
SMALL_SHARE = 0.1  # from which on a few rows are not hardly any of them
UNLIKELY = 5.0  # standard deviations
MANY_PARTS = 200_000  # each has files and receipts; where there would be more of them, larger ones are proposed
LARGE_PART, LARGE_CHUNK = 1_000_000, 1 << 30  # sentences (2 GB of embeddings), bytes of input
POINTS_PER_UNIT = 39  # rows for each centroid that make good codebooks


def sentences_in(chunk: Chunk) -> int:
    """Estimate how many sentences a chunk will give."""
    return _sentences(chunk.bytes, chunk.compression, chunk.format)


def _sentences(stored: int, compression: str | None, kind: str) -> int:
    return stored // (COMPRESSED_BYTES if compression or kind == "parquet" else STORED_BYTES)


def sentences_of(chunks: Sequence[Chunk]) -> int:
    """Estimate how many sentences all these chunks will give; a second for three million."""
    columns = ChunkTable.of(chunks).columns("bytes", "compression", "format")
    return sum(_sentences(*one) for lists in columns for one in zip(*lists, strict=True))


def pilot_rows(config: RunConfig, sentences: float) -> float:
    """Return about how many sentences the pilot has, in a corpus of this many."""
    return min(float(config.fit.rows), sentences)


def scored_rows(config: RunConfig, sentences: float) -> float:
    """Return about how many sentences of the pilot are scored for the predictor, in a corpus of this many."""
    return pilot_rows(config, sentences) * _scored_share(config, sentences)


def _scored_share(config: RunConfig, sentences: float) -> float:
    """Return which share of the pilot fragility scores, in a corpus of this many sentences."""
    assert config.fragility
    sample = config.frozen.rates.get("fragility", config.fragility.sample)
    rate = min(1.0, sample.rows / max(1.0, sentences)) if isinstance(sample, Rows) else sample
    return max(rate, config.fit.scored_rate)


def check_scored(config: RunConfig, chunks: Sequence[Chunk]) -> None:
    """Raise `ConfigError` if the predictor would learn from far fewer sentences than the pilot could give it."""
    if not config.fragility:
        return
    sentences = sentences_of(chunks)
    pilot, scored = pilot_rows(config, sentences), scored_rows(config, sentences)
    if scored < FEW_SCORED and pilot >= 10 * FEW_SCORED:
        raise ConfigError(
            f"{config.place('fit')}: of the pilot's {number(pilot)} sentences about {number(scored)} would be scored "
            f"by fragility, and the predictor would learn from them alone; {FEW_SCORED} are needed, and half a million "
            "are good: set fit.scored_rows, which scores more of the pilot and nothing else, or raise fragility.sample"
        )


def check_learnable(config: RunConfig, sentences: float, count: str) -> None:
    """Raise `ConfigError` if the predictor has too few rows to learn from, even if the corpus has so many sentences.

    Args:
        config: the settings of the run, with the rates that earlier runs fixed.
        sentences: the most sentences that the corpus may have.
        count: how the message counts them, such as `the inputs hold fewer than 30 sentences`.

    Raises:
        ConfigError: if fewer rows than the predictor needs would be scored by fragility.
    """
    if not config.predictor or not config.fragility:
        return
    expected = sentences * _scored_share(config, sentences)  # at most: the pilot may be less, and ends with a chunk
    if min(sentences, expected + UNLIKELY * math.sqrt(expected) + UNLIKELY * (expected < sentences)) >= LEAST_ROWS:
        return
    about = f"about {number(expected)}" if expected >= 1 else "hardly one"
    raise ConfigError(
        f"predictor learns from sentences that fragility has scored, from {LEAST_ROWS} at least; {count}, of which "
        f"fragility would score {about}: {_more_scored(config, sentences)}"
    )


def _more_scored(config: RunConfig, sentences: float) -> str:
    """Say what gives the predictor enough rows in a corpus of so many sentences."""
    pilot = pilot_rows(config, sentences)
    if sentences < LEAST_ROWS:
        return "leave out predictor, or add documents"
    if pilot < LEAST_ROWS:
        return f"raise fit.rows ({number(pilot)})"
    needed = (
        math.ceil(100 * min(1.0, ENOUGH_SCORED / pilot)) / 100 if pilot < 100 * ENOUGH_SCORED else ENOUGH_SCORED / pilot
    )
    return (
        f"raise fragility.sample to {needed:.2g} or more, or set fit.scored_rows, which scores more of the pilot alone"
    )


def drawn(config: RunConfig, stages: Collection[str], sentences: float) -> Iterator[str]:
    """Yield warnings of samples that probably draw no row.

    Args:
        config: the settings of the run.
        stages: names of the stages that will compute something; the others give no warning.
        sentences: the estimated number of sentences that they draw from.

    Returns:
        One message for each stage whose sample is too small.
    """
    for settings in config.asked_stages():
        sample = getattr(settings, "sample", 1.0)
        if settings.name not in stages or isinstance(sample, Rows) or sentences <= 0:
            continue
        none = (1 - sample) ** sentences  # the chance that no sentence is drawn
        if 0 < sample * sentences < FEW_DRAWN and none > NONE_DRAWN:
            wanted = min(sentences, 10 * FEW_DRAWN)
            some = "none, probably, " if none > 0.5 else "hardly any " if sample < SMALL_SHARE else "perhaps none "
            yield (
                f"{settings.name}.sample {sample:g} draws {some}of about {counted(round(sentences), 'sentence')}; a "
                f"sample of {wanted / sentences:.2g} draws about {number(wanted)}"
            )


def doubts(config: RunConfig, sentences: float) -> Iterator[str]:
    """Yield warnings of fits that get fewer sentences from the pilot than they ask for, in a corpus of this many.

    Nothing is said of fits that exist or come from a file, nor of corpora that have no more sentences.
    """
    pilot = pilot_rows(config, sentences)
    if config.predictor and config.fragility and not config.predictor.file and "predictor" not in config.frozen.fits:
        expected = min(scored_rows(config, sentences), float(config.predictor.rows))
        if sentences and expected < min(ENOUGH_SCORED, sentences):
            more = "raise predictor.rows" if expected == config.predictor.rows else _more_scored(config, sentences)
            yield (
                f"the predictor would learn from about {number(expected)} sentences that fragility has scored, of "
                f"about {number(sentences)}; with fewer than {LEAST_ROWS} the run stops once they are scored: {more}"
            )
    if config.rvq and not config.rvq.file and "rvq" not in config.frozen.fits and pilot < sentences:
        wanted = min(float(config.rvq.rows), sentences)
        if pilot < wanted:
            least = POINTS_PER_UNIT * config.rvq.units
            few = f"; {number(least)} are the least for {config.rvq.units} units" * (pilot < least)
            yield (
                f"rvq asks for {number(wanted)} sentences, and the pilot holds {number(pilot)}{few}: raise fit.rows, "
                "or lower rvq.rows"
            )


def small_parts(config: RunConfig, sentences: float, chunks: int) -> Iterator[str]:
    """Yield a warning if a corpus that is not begun would have very many parts.

    Args:
        config: the settings of the run.
        sentences: the estimated number of sentences.
        chunks: the number of chunks.

    Returns:
        One message, or none.
    """
    parts = sentences / config.part_sentences + chunks / 2  # the rest of a chunk is a part too
    if parts > MANY_PARTS and config.part_sentences < LARGE_PART:
        yield (
            f"about {number(round(parts))} parts, each with several files and receipts: with part_sentences: "
            f"{LARGE_PART} and chunk_bytes: {max(LARGE_CHUNK, config.chunk_bytes)} there are far fewer; decide before "
            "the first run, since other values make everything again"
        )
