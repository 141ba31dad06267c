"""Commands for setting up and planning: models, schema, doctor, flops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted
from pipeline.base.messages import print_plain
from pipeline.commands.options import AsJson, Steps, out


def init(
    data: Annotated[list[str], typer.Argument(metavar="DATA…", help="files, folders, or patterns in quotes")],
    to: Annotated[Path, typer.Option(metavar="FILE", help="the file to write; - prints it")] = Path("corpus.yaml"),
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="name of the corpus (default: from the data)")
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="where the corpus goes (default: runs/NAME beside the file)")
    ] = None,
) -> None:
    """Look at files or folders and write a corpus.yaml for them, with comments, that runs.

    It finds the format from the names of the files, and from the first records the
    columns with text and id, the languages, metadata worth keeping, splits and a
    model. Comments in the file suggest what could be added next.

    Examples:

      pipeline init data/

      pipeline init books.jsonl.gz notes/ --to books.yaml --output s3://mine/books
    """
    from pipeline.planning.checks import load_checked
    from pipeline.planning.draft import draft, write_draft

    printed = str(to) == "-"
    text, notes = draft(data, Path("corpus.yaml") if printed else to, name, output)
    if printed:
        out.print(text, end="", markup=False, highlight=False, soft_wrap=True)
        return
    write_draft(text, to)
    try:
        checked = load_checked(to)
    except ConfigError as error:
        raise ConfigError(f"{to} is written, but it cannot run as it is; mend it, or the data:\n{error}") from error
    for note in notes:
        print_plain(out, note)
    print_plain(
        out,
        f"{to}: {counted(len(checked.config.input), 'input')}, model {checked.config.segment.model}; next:\n"
        f"  pipeline plan {to}\n  pipeline run {to}",
    )


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="a model that ships with the package, or the path of a card")
    ] = None,
    fetch: Annotated[
        bool, typer.Option("--fetch", help="download its files now, and check them against their digests")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the models with size, languages, licence, and whether they are on this machine; or show one in full.

    Example: pipeline models sonar --fetch
    """
    from pipeline.doctor.models import answer

    if as_json:
        from pipeline.commands import as_json as shapes

        if fetch:
            raise ConfigError("--json only lists; leave out --fetch")
        shapes.print_json("models", shapes.models(name))
        return
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
    ray: Annotated[bool, typer.Option(help="also start Ray once, which takes a few seconds")] = True,
    as_json: AsJson = False,
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
    from launchers.local import start_ray
    from launchers.slurm.jobs import describe
    from pipeline.doctor import examine, show

    checks = examine(config, start_ray if ray else None, describe)
    if as_json:
        from pipeline.commands import as_json as shapes

        found = shapes.doctor(list(checks))
        shapes.print_json("doctor", found)
        raise typer.Exit(0 if found["fine"] else 1)
    if not show(out, checks):
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
    steps: Steps = None,
    guidance: Annotated[
        float | None, typer.Option(min=0, help="guidance scale (default: the paper's); 1 turns guidance off")
    ] = None,
    mfu: Annotated[float, typer.Option(min=0.001, max=1, help="share of the peak that a device reaches")] = 0.4,
    peak: Annotated[float, typer.Option(min=0.001, metavar="TFLOPS", help="peak of a device, TFLOP/s")] = 989.4,
    price: Annotated[float | None, typer.Option(min=0, help="price of an hour of a device, in any currency")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="also draw the figure: .svg, .png or .pdf")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Calculate operations, time and price of training an LCM and of writing text with it, compared with two LLMs.

    The counts are theoretical (LCM paper, section 2.5.1 and Figure 13): matrix
    products and attention, with cached keys and values. Every assumption is
    printed. The peak is that of an H100 in bfloat16 unless --peak says otherwise.

    Examples:

      pipeline flops --tokens 2000,200000 --plot flops.svg

      pipeline flops --model lcm-two-tower-7b --model lcm-base-1.6b --price 2.5
    """
    from pipeline.planning.flops import Assumptions, FlopsOptions, show_flops

    chosen = tuple(models or ("lcm-two-tower-1.6b", "lcm-two-tower-7b"))
    assumed = Assumptions(generated, steps, guidance, mfu, peak, price)
    show_flops(out, FlopsOptions(chosen, sonar, tokens, sentence_tokens, sentences, assumed, plot, as_json))
