"""Commands that train Large Concept Models on a corpus, and look at what came out."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.commands.options import ConfigPath, CorpusPlace, Overrides, err, load, open_corpus, out

Steps = Annotated[int | None, typer.Option(min=1, metavar="N", help="diffusion: steps of a sentence, instead of 40")]
Guidance = Annotated[float | None, typer.Option(min=0, help="its scale, instead of the paper's; 1: none")]
Temperature = Annotated[
    float | None, typer.Option(min=1e-4, help="Quant-LCM: 1/β of eq. 23, instead of the paper's; needs --top-k above 1")
]
TopK = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Quant-LCM: units that are drawn from; 1: likeliest")
]
TopP = Annotated[
    float | None, typer.Option(min=0.01, max=1, help="Quant-LCM: draw from the likeliest units that together reach it")
]
Seed = Annotated[int, typer.Option(min=0, help="of noise and of what is drawn")]


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
    from pipeline.select.command import SelectOptions
    from pipeline.training.data.command import index_corpus

    index_corpus(out, place, open_corpus(place), SelectOptions(where, broken, min_sentences), answers)


def train(
    config: ConfigPath,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="forget what was trained under this name, and begin anew")
    ] = False,
    processes: Annotated[int | None, typer.Option(min=1, metavar="N", help="instead of train.processes")] = None,
    launcher: Annotated[
        str | None, typer.Option(metavar="KIND", help="local (this machine), slurm (a job), ray (a cluster)")
    ] = None,
    address: Annotated[str | None, typer.Option(metavar="WHERE", help="ray: as for run")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="slurm: follow the training to its end")] = False,
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

      pipeline train corpus.yaml --launcher slurm --set launcher.train_nodes=4
    """
    from launchers.dispatch import is_ray_job
    from launchers.dispatch import train as train_somewhere

    chosen = [*(overrides or []), *([f"train.processes={processes}"] if processes else [])]
    resolved = load(config, [*chosen, *([f"launcher.address={address}"] if address else [])], launcher)
    if is_ray_job(resolved):
        from launchers.ray_job import run_as_job, train_command

        raise typer.Exit(run_as_job(out, resolved, train_command(fresh)))
    try:
        submitted = train_somewhere(out, resolved, fresh)
    except KeyboardInterrupt:
        err.print("Interrupted: run the same command again to go on.")
        raise typer.Exit(130) from None
    if submitted and wait:
        from launchers.slurm.training import follow

        raise typer.Exit(0 if follow(out, resolved.output, submitted) else 1)


def evaluate(
    place: CorpusPlace,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="MODEL", help="name in train/ or a folder; may be repeated (default: all)"),
    ] = None,
    split: Annotated[str, typer.Option(metavar="SPLIT", help="test, validation or train")] = "test",
    sentences: Annotated[int, typer.Option(min=1, metavar="N", help="that are predicted, or a few more")] = 10_000,
    metrics: Annotated[
        str, typer.Option(metavar="A,B,…", help="of l2, l2_squared, l2_r, par, ca and mi")
    ] = "l2,l2_squared,l2_r,par,ca",
    language_model: Annotated[
        str | None, typer.Option(metavar="CARD", help="for mi: gpt2, smollm2, or the file of a card")
    ] = None,
    mi_sentences: Annotated[int, typer.Option(min=1, metavar="N", help="the first so many for mi")] = 500,
    seed: Seed = 0,
    steps: Steps = None,
    guidance: Guidance = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
) -> None:
    """Say how well models predict the next sentence of held-out documents, as Table 3 of the LCM paper does.

    Every sentence but a document's first is predicted from the true ones before
    it. l2 is the distance in SONAR space, l2_r that after decoding and encoding
    again, par how much more the prediction resembles the context than the true
    sentence does, ca the share of other sentences that are further away, mi the
    mutual information with the ten sentences before, by a language model. Below
    the models stand two predictors that learn nothing, and the truth.

    The table is written to train/NAME/evaluation of every model.

    Examples:

      pipeline evaluate corpus.yaml

      pipeline evaluate runs/books --model lcm-base-tiny --model two-tower-2
        --sentences 2000 --language-model smollm2
    """
    from launchers.devices import devices
    from pipeline.training.data.command import index_of
    from pipeline.training.evaluation.evaluate import EvaluateOptions
    from pipeline.training.evaluation.evaluate import evaluate as evaluate_models

    sampling = _given(steps=steps, guidance=guidance, temperature=temperature, top_k=top_k, top_p=top_p)
    asked = tuple(models or ())
    options = EvaluateOptions(asked, split, sentences, metrics, language_model, mi_sentences, seed, sampling)
    corpus = open_corpus(place)
    evaluate_models(out, corpus, options, lambda: devices()[0], lambda: index_of(place, corpus))


def generate(
    place: CorpusPlace,
    model: Annotated[str, typer.Option(metavar="MODEL", help="name in train/, or a folder")],
    prompt: Annotated[
        str | None, typer.Option(metavar="FILE", help="a text to continue; - for what comes through a pipe")
    ] = None,
    prompt_lang: Annotated[str, typer.Option(metavar="CODE", help="language of the prompt")] = "eng_Latn",
    split: Annotated[
        str | None,
        typer.Option(metavar="SPLIT", help="continue documents of it (test, validation, train), score that"),
    ] = None,
    documents: Annotated[int, typer.Option(min=1, metavar="N", help="how many of them")] = 10,
    prompt_sentences: Annotated[int, typer.Option(min=1, metavar="N", help="of each that are given")] = 5,
    sentences: Annotated[int, typer.Option(min=1, metavar="N", help="to generate, at most")] = 10,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="decode into this language (default: that of the prompt)")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="FILE", help="write the continuations to it too, a line each (any URL)")
    ] = None,
    seed: Seed = 0,
    steps: Steps = None,
    guidance: Guidance = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
) -> None:
    """Continue a text, or held-out documents, with a trained model.

    The prompt is cut into sentences and encoded as the corpus was; the model adds
    sentences until it says "End of text.", repeats itself or has given enough.
    The same concepts can be decoded into any language of the decoder: --lang.

    With --split, continuations are held against how documents really go on:
    ROUGE-L, 3-grams taken from the prompt (OVL-3), repeated 4-grams in percent
    (REP-4), and the cosine of each sentence with the next but one (coherence).

    Examples:

      pipeline generate runs/books --model two-tower --prompt story.txt --lang deu_Latn

      pipeline generate runs/books --model two-tower --split test --documents 20
    """
    from launchers.devices import devices
    from pipeline.training.evaluation.generate import GenerateOptions, read_prompt
    from pipeline.training.evaluation.generate import generate as generate_texts

    sampling = _given(steps=steps, guidance=guidance, temperature=temperature, top_k=top_k, top_p=top_p)
    text = read_prompt(prompt) if prompt is not None else None
    options = GenerateOptions(
        model, text, prompt_lang, split, documents, prompt_sentences, sentences, lang, to, seed, sampling
    )
    generate_texts(out, place, open_corpus(place), options, lambda: devices()[0])


def _given(**options: float | None) -> dict[str, float]:
    """Those that the command line names."""
    return {name: value for name, value in options.items() if value is not None}
