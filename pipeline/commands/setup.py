"""Commands for setting up and planning: models, schema, doctor, flops."""

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


def flops(
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="CARD", help="an LCM that ships, or a card; may be repeated (default: Two-Tower)"
        ),
    ] = None,
    sonar: Annotated[str, typer.Option(metavar="CARD", help="encoder and decoder")] = "sonar",
    tokens: Annotated[
        str, typer.Option(metavar="N,…", help="lengths of a text, prompt and output together")
    ] = "500,2000,8000,32000,128000",
    sentence_tokens: Annotated[
        str, typer.Option(metavar="N,…", help="tokens per sentence; `pipeline status` shows those of a corpus")
    ] = "10,20,40",
    sentences: Annotated[int, typer.Option(min=1, metavar="N", help="training: sentences of a document")] = 78,
    generated: Annotated[float, typer.Option(metavar="SHARE", help="share of a text that is written")] = 0.5,
    steps: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="diffusion models: denoising steps per sentence (default: 40)"),
    ] = None,
    guidance: Annotated[
        float | None, typer.Option(min=0, help="guidance scale (default: the paper's); 1 turns guidance off")
    ] = None,
    mfu: Annotated[float, typer.Option(min=0.001, max=1, help="share of the peak that a device gives")] = 0.4,
    peak: Annotated[float, typer.Option(min=0.001, metavar="TFLOPS", help="peak of a device, TFLOP/s")] = 989.4,
    price: Annotated[float | None, typer.Option(min=0, help="of an hour of a device, in any currency")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="also draw the figure: .svg, .png or .pdf")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Calculate the operations, time and price of training an LCM and of writing text with it, beside two LLMs.

    The counts are theoretical (LCM paper, section 2.5.1 and Figure 13): products and
    attention, with keys and values kept. Every assumption is printed. The peak is
    that of an H100 in bfloat16 unless --peak says otherwise.

    Examples:

      pipeline flops --tokens 2000,200000 --plot flops.svg

      pipeline flops --model lcm-two-tower-7b --model lcm-base-1.6b --price 2.5
    """
    from pipeline.planning.flops import Assumptions
    from pipeline.planning.flops_command import FlopsOptions, show_flops

    chosen = tuple(models or ("lcm-two-tower-1.6b", "lcm-two-tower-7b"))
    assumed = Assumptions(generated, steps, guidance, mfu, peak, price)
    show_flops(out, FlopsOptions(chosen, sonar, tokens, sentence_tokens, sentences, assumed, plot, as_json))
