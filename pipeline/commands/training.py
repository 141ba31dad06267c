"""Commands that train Large Concept Models on a corpus, and look at what came out."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.commands.options import ConfigPath, CorpusPlace, Overrides, err, load, open_corpus, out


def index(
    place: CorpusPlace,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="sentences must satisfy this, instead of select.where")
    ] = None,
    broken: Annotated[str | None, typer.Option(metavar="HOW", help="instead of select.broken")] = None,
    min_sentences: Annotated[int | None, typer.Option(metavar="N", help="instead of select.min_sentences")] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="kept column: code point where a document's answer begins, which alone is learned"
        ),
    ] = None,
) -> None:
    """Write down which rows of which files training reads: the index, pinned by a digest.

    Training does it by itself; this shows what it would see. What is selected is
    what `pipeline select` shows. Files of a corpus never change, so an index
    stays right while documents are added; `gc` and `purge` may end it. The same
    corpus and selection give the same index, which is then not made again.

    Examples:

      pipeline index corpus.yaml

      pipeline index runs/chats --answers answer_start --min-sentences 2
    """
    from pipeline.select.command import Rules
    from pipeline.train.command import index_corpus

    index_corpus(out, place, open_corpus(place), Rules(where, broken, min_sentences), answers)


def train(
    config: ConfigPath,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="forget what was trained under this name, and begin anew")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(metavar="N", help="on this machine, instead of train.processes")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Train the Large Concept Model of the section `train` on a corpus; `pipeline run` does it at its end.

    Running again goes on from the newest checkpoint, with another number of
    processes too, and gives the same losses as if it had never stopped. Numbers
    go to train/NAME of the corpus: metrics.jsonl, and tensorboard/.

    Examples:

      pipeline train corpus.yaml

      pipeline train corpus.yaml --set train.model=lcm-base-tiny --set train.lr=1e-3

      pipeline train corpus.yaml --processes 2 --set train.parallel=fsdp
    """
    from pipeline.train.run import train as train_model

    chosen = [*(overrides or []), *([f"train.processes={processes}"] if processes else [])]
    try:
        train_model(out, load(config, chosen), fresh)
    except KeyboardInterrupt:
        err.print("Interrupted: run the same command again to go on.")
        raise typer.Exit(130) from None
