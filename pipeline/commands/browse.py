"""The command that opens a corpus in a browser: browse."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.commands.options import CorpusPlace, open_corpus, out


def browse(
    where: CorpusPlace,
    condition: Annotated[
        str | None, typer.Option("--where", metavar="CONDITION", help="begin with the rows that satisfy this condition")
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="N",
            help="port to listen on, on this machine only \\[any free one]",
            show_default=False,
        ),
    ] = 0,
    index: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="an index that corpus.build_index wrote: finds nearest sentences faster"),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="open the page in this machine's browser")] = False,
) -> None:
    """Look around in a corpus in a browser: filter, sort, documents, differences, nearest sentences.

    The command prints an address and serves the page until Ctrl-C. Only this machine
    can open it, and only by the whole address, which holds a secret. On another
    machine, forward the port first: ssh -L PORT:127.0.0.1:PORT HOST.

    Filters are conditions as for inspect --where. Rows come from the corpus page by
    page, so millions of them take no longer to open. Rows that a filter keeps can be
    downloaded (JSON lines, CSV, Parquet) or used as a `select`. Nothing is changed.

    Examples:

      pipeline browse runs/sample

      pipeline browse runs/sample --where "autobleu < 20" --open

      pipeline browse s3://mine/corpus --port 8000
    """
    from pipeline.quality.browse import BrowseOptions, browse_corpus

    browse_corpus(out, open_corpus(where), BrowseOptions(condition, port, index, open_page))
