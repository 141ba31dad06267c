"""Commands for setting up: models, schema, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.commands.options import out


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="a model that ships with the package, or the path of a card")
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="download its files now, and check them against their digests")
    ] = False,
) -> None:
    """List the models with size, languages, licence, and whether they are on this machine; or show one in full.

    Example: pipeline models sonar --fetch
    """
    from pipeline.doctor.models import answer

    answer(out, name, fetch)


def schema(
    to: Annotated[
        str | None, typer.Option(metavar="FILE", help="write the schema to this file instead of printing it")
    ] = None,
) -> None:
    """Print the JSON schema of corpus.yaml, which editors use to complete and check it while you type.

    Examples:

      pipeline schema --to corpus.schema.json

      pipeline schema | jq '.properties | keys'

    VS Code (YAML extension), Neovim, Emacs and others use the schema if a
    corpus.yaml beside it begins with this line:

      # yaml-language-server: $schema=corpus.schema.json
    """
    from pipeline.config.schema import print_schema, write_schema

    if to is None:
        print_schema()
    else:
        write_schema(out, to)


def doctor(
    config: Annotated[
        Path | None, typer.Argument(metavar="CORPUS.YAML", help="a corpus.yaml to check against this machine")
    ] = None,
    ray: Annotated[bool, typer.Option(help="also start Ray once, which takes some seconds")] = True,
) -> None:
    """Check whether this machine can run the pipeline, and say what to do where it cannot.

    It checks Python and libraries, CPU and GPUs, memory, limits, disk, Ray, SLURM,
    models, and whether credentials of object stores are found (their values are
    never shown). With a corpus.yaml it also checks the inputs (the first records
    of each), the models, whether the output can be written, and whether SLURM
    would accept the jobs.

    ✓ fine; – absent and not needed; ! works, but needs attention; ✗ stops a run.
    Exit code 1 if anything is ✗.

    Examples:

      pipeline doctor

      pipeline doctor corpus.yaml --no-ray
    """
    from launchers.slurm.jobs import describe
    from launchers.trial import start_ray
    from pipeline.doctor import examine, show

    if not show(out, examine(config, start_ray if ray else None, describe)):
        raise typer.Exit(1)
