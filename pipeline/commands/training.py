"""Commands that train Large Concept Models on a corpus, and look at what came out."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.commands.options import CorpusPlace, open_corpus, out


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
