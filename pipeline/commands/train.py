"""Commands that train Large Concept Models on a corpus and examine the results."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.commands.options import (
    ConfigPath,
    CorpusPlace,
    NewFolder,
    Overrides,
    Steps,
    load,
    open_corpus,
    out,
    tell_changes,
    watching,
    with_options,
)

if TYPE_CHECKING:
    from pipeline.config.train import TrainSettings

Guidance = Annotated[
    float | None,
    typer.Option(min=0, help="diffusion models: guidance scale (default: the paper's); 1 turns guidance off"),
]
Rescale = Annotated[
    float | None, typer.Option(min=0, max=1, help="diffusion models: how much a guided prediction is rescaled (0.7)")
]
InitialNoise = Annotated[
    float | None, typer.Option(min=0, help="diffusion models: σ_init, spread of the noise to begin with (0.6)")
]
EpsilonScaling = Annotated[
    float | None, typer.Option(help="diffusion models: λ_eps, what predicted noise is divided by (1.00045)")
]
Eta = Annotated[
    float | None, typer.Option(min=0, max=1, help="diffusion models: noise that each step adds, up to 1 as in DDPM (0)")
]
Clip = Annotated[
    float | None, typer.Option(help="diffusion models: the largest normalised value of a prediction (no limit)")
]
EndCosine = Annotated[
    float | None,
    typer.Option(min=-1, max=1, help='end with a sentence whose cosine with "End of text." exceeds this (0.9)'),
]
PreviousCosine = Annotated[
    float | None,
    typer.Option(min=-1, max=1, help="end with a sentence whose cosine with the one before exceeds this (0.9)"),
]
Reencode = Annotated[
    bool | None,
    typer.Option(
        "--reencode/--no-reencode",
        help="go on from the encoded text of each sentence instead of its prediction (default: for SONAR-LLM)",
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(min=1e-4, help="Quant-LCM: 1/β of eq. 23; token models: divisor of logits (1); both need --top-k"),
]
TopK = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Quant-LCM, token models: draw from the K likeliest; 1 takes the likeliest"),
]
TopP = Annotated[
    float | None,
    typer.Option(
        min=0.01, max=1, help="Quant-LCM, token models: draw from the likeliest that together have this probability"
    ),
]
Ensemble = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="models with n-gram heads: λ of their ensemble (0: the first head alone)"),
]
Seed = Annotated[int, typer.Option(min=0, help="seed of the noise and of every random draw")]


def train(
    config: ConfigPath,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="delete what was trained under this name, and start again")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="value to use instead of train.processes")
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="where to train: local (this machine), slurm (a job), ray (a cluster)"),
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="WHERE", help="for --launcher ray: the cluster, as for pipeline run")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="for --launcher slurm: follow the training to its end")] = False,
    overrides: Overrides = None,
) -> None:
    """Train the Large Concept Model of the section `train` on a corpus; `pipeline run` does it at its end.

    The same command run again resumes from the newest checkpoint, also with
    another number of processes, and gives the same losses as a training that
    never stopped. Metrics are written to train/NAME in the corpus, as
    metrics.jsonl and for TensorBoard (train.trackers).

    Examples:

      pipeline train corpus.yaml

      pipeline train corpus.yaml --set train.model=lcm-base-tiny --set train.lr=1e-3

      pipeline train corpus.yaml --processes 2 --set train.parallel=fsdp

      pipeline train corpus.yaml --launcher slurm --set launcher.train_nodes=4
    """
    from launchers.dispatch import is_ray_job
    from launchers.dispatch import train as train_somewhere
    from pipeline.corpus.runs import NoRunError
    from pipeline.storage.store import Store

    options = {"train.processes": processes, "launcher.address": address, "launcher.kind": launcher}
    resolved = load(config, with_options(overrides, options))
    if is_ray_job(resolved):
        from launchers.ray_job import run_as_job, train_command

        raise typer.Exit(run_as_job(out, resolved, train_command(fresh)))
    with contextlib.suppress(NoRunError):  # which the training tells of
        tell_changes(str(config), Store(resolved.output), resolved)
    submitted = train_somewhere(out, resolved, fresh)
    if submitted and wait:
        from launchers.slurm.training import follow

        with watching("training", resolved.output):
            done = follow(out, resolved.output, submitted)
        raise typer.Exit(0 if done else 1)


def evaluate(
    place: CorpusPlace,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", metavar="MODEL", help="name of a training, or a folder; may be repeated (default: all)"
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(metavar="SPLIT", help="documents to evaluate on: test, validation or train")
    ] = "test",
    sentences: Annotated[
        int, typer.Option(min=1, metavar="N", help="number of sentences to predict, rounded up to whole documents")
    ] = 10_000,
    metrics: Annotated[
        str, typer.Option(metavar="A,B,…", help="metrics to compute, of those explained above")
    ] = "l2,l2_squared,l2_r,par,ca",
    language_model: Annotated[
        str | None, typer.Option(metavar="CARD", help="language model for mi: gpt2, smollm2, or the path of a card")
    ] = None,
    mi_sentences: Annotated[
        int, typer.Option(min=1, metavar="N", help="number of sentences that mi is computed on")
    ] = 500,
    seed: Seed = 0,
    steps: Steps = None,
    guidance: Guidance = None,
    rescale: Rescale = None,
    initial_noise: InitialNoise = None,
    epsilon_scaling: EpsilonScaling = None,
    eta: Eta = None,
    clip: Clip = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    ensemble: Ensemble = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION=A,B,…", help="evaluate with each of these values; may be repeated"),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="also for each lang, source, or value of another column of documents"),
    ] = None,
) -> None:
    """Measure how well models predict the next sentence of held-out documents, as in Table 3 of the LCM paper.

    Every sentence except the first of a document is predicted from the true
    sentences before it. l2 is the distance in SONAR space, and l2_squared its
    square, as in the paper's formula; l2_r is l2 after decoding and encoding
    again; par says how much more the prediction resembles
    the context than the true sentence does; ca is the share of other sentences
    that are further away; mi is the mutual information with the ten sentences
    before, by a language model. ca_cosine is ca by the cosine of normalised
    embeddings, and top1 how often no other sentence is nearer. nll is how
    unlikely the decoder finds the true sentence, given the prediction, in nats
    per token, and bpc in bits per character. rouge_l is ROUGE-L of the decoded
    prediction against the true sentence, by words. Two baselines that learn nothing and
    the true sentences are shown for comparison.

    The table is written to train/NAME/evaluation for every model. With --sweep,
    one option of sampling after the other takes several values (Figure 10 of the
    paper); a long table and a plot are written beside the table. With --by lang, the
    figures are also given for the documents of each language (Figure 16), with
    --by source for those of each input file, and so on.

    Examples:

      pipeline evaluate corpus.yaml

      pipeline evaluate corpus.yaml --metrics l2,ca,ca_cosine,top1,nll,bpc

      pipeline evaluate runs/books --model lcm-base-tiny --model two-tower-2
        --sentences 2000 --language-model smollm2

      pipeline evaluate corpus.yaml --sweep guidance=1,1.5,2,3,5
        --sweep initial_noise=0.4,0.6,0.8,1
    """
    from launchers.devices import devices
    from pipeline.training.data.command import index_of
    from pipeline.training.evaluation.evaluate import EvaluateOptions
    from pipeline.training.evaluation.evaluate import evaluate as evaluate_models
    from pipeline.training.evaluation.sweep import sweeps_of

    sampling = _sampling(
        steps=steps, guidance=guidance, rescale=rescale, initial_noise=initial_noise, epsilon_scaling=epsilon_scaling,
        eta=eta, clip=clip, temperature=temperature, top_k=top_k, top_p=top_p, ensemble=ensemble,
    )  # fmt: skip
    asked, sweeps = tuple(models or ()), sweeps_of(sweep or (), sampling)
    options = EvaluateOptions(
        models=asked,
        split=split,
        sentences=sentences,
        metrics=metrics,
        language_model=language_model,
        mi_sentences=mi_sentences,
        seed=seed,
        sampling=sampling,
        of_file=_of_file(place),
        sweeps=sweeps,
        by=by,
    )
    corpus = open_corpus(place)
    evaluate_models(out, corpus, options, lambda: devices()[0], lambda: index_of(place, corpus))


def generate(
    model: Annotated[
        str, typer.Option(metavar="MODEL", help="name of a training or of a model that ships, or a folder")
    ],
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[CORPUS]",
            help="the folder or URL of a corpus, or its YAML file; not needed for models that ship or were written by "
            "export-model",
            show_default=False,
        ),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="FILE", help="text file to continue; - reads standard input")
    ] = None,
    prompt_lang: Annotated[
        str, typer.Option(metavar="CODE", help="language of the prompt, e.g. eng_Latn")
    ] = "eng_Latn",
    split: Annotated[
        str | None,
        typer.Option(
            metavar="SPLIT",
            help="instead of a prompt, continue documents of this split (test, validation, train) and score them",
        ),
    ] = None,
    documents: Annotated[int, typer.Option(min=1, metavar="N", help="with --split: number of documents")] = 10,
    prompt_sentences: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="with --split: sentences of each document that are given (default: those before the answer, for a "
            "model that was trained on answers; 5 for others)",
            show_default=False,
        ),
    ] = None,
    sentences: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="the most sentences to generate (default: 10, or what --ratio says)",
            show_default=False,
        ),
    ] = None,
    ratio: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=1000,
            metavar="R",
            help="generate at most so many sentences for each of the prompt, and at least one",
        ),
    ] = None,
    scores: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="with --split: also write each document's scores to this CSV file or URL"),
    ] = None,
    judge: Annotated[
        bool,
        typer.Option(
            "--judge",
            help="with --split: train a judge of coherence on the split train, and judge what the model wrote",
        ),
    ] = False,
    classifier: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CARD",
            help="with --split: a classifier that judges what the model wrote: cola, or the path of a card; may be "
            "repeated",
        ),
    ] = None,
    lang: Annotated[
        str | None, typer.Option(metavar="CODE", help="decode into this language (default: that of the prompt)")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="also write the continuations to this file or URL, one per line"),
    ] = None,
    seed: Seed = 0,
    steps: Steps = None,
    guidance: Guidance = None,
    rescale: Rescale = None,
    initial_noise: InitialNoise = None,
    epsilon_scaling: EpsilonScaling = None,
    eta: Eta = None,
    clip: Clip = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    ensemble: Ensemble = None,
    end_cosine: EndCosine = None,
    previous_cosine: PreviousCosine = None,
    reencode: Reencode = None,
) -> None:
    """Continue a text, or held-out documents, with a trained model.

    The prompt is segmented and encoded as the corpus was. The model adds sentences
    until it predicts "End of text." ("End of response." if it was trained on
    answers), repeats itself, or reaches --sentences. With --lang, the same concepts
    are decoded into another language of the decoder.

    With --split, continuations are compared with the real ones: words for each of the
    prompt (WR); ROUGE-L; what they share with the prompt (OVL-3) and how much they
    repeat (REP-4), by n-grams of characters as in the paper's tables; both again by
    words (copied 3-grams; seq-rep-4, in percent); and the mean cosine of each
    sentence with the next but one (coherence). Of a model that was trained on answers
    (train.answers), what precedes the answers of documents is given, and its answers
    are compared with theirs; --ratio 0.2 allows a sentence for each five of the prompt.

    With --judge, a small network first learns from up to 100,000 sentences of the
    split train which sentence follows another one. It says how probably each sentence
    follows the one before it, against another of its document: about one half for
    sentences in any order, next to nothing for repetitions.

    With --classifier cola, a classifier says how probably a sentence is acceptable
    English (1.4 GB, from Hugging Face).

    Without CORPUS, --prompt is continued by a model that ships (see: pipeline models)
    or that export-model has written.

    Examples:

      pipeline generate --model lcm-tiny-books --prompt story.txt

      pipeline generate runs/books --model two-tower --prompt story.txt
        --lang deu_Latn

      pipeline generate runs/books --model two-tower --split test
        --documents 20 --judge

      pipeline generate runs/summaries --model two-tower --split test --ratio 0.2
        --scores scores.csv
    """
    from launchers.devices import devices
    from pipeline.training.evaluation.generate import GenerateOptions, read_prompt
    from pipeline.training.evaluation.generate import generate as generate_texts

    sampling = _sampling(
        steps=steps, guidance=guidance, rescale=rescale, initial_noise=initial_noise, epsilon_scaling=epsilon_scaling,
        eta=eta, clip=clip, temperature=temperature, top_k=top_k, top_p=top_p, ensemble=ensemble, end_cosine=end_cosine,
        previous_cosine=previous_cosine, reencode=reencode,
    )  # fmt: skip
    text = read_prompt(prompt) if prompt is not None else None
    options = GenerateOptions(
        model=model, prompt=text, prompt_lang=prompt_lang, split=split, documents=documents, sentences=sentences,
        prompt_sentences=prompt_sentences, ratio=ratio, scores=scores, judge=judge, lang=lang, to=to, seed=seed,
        classifiers=tuple(classifier or ()), sampling=sampling, of_file=_of_file(place) if place else None,
    )  # fmt: skip
    generate_texts(out, place, open_corpus(place) if place else None, options, lambda: devices()[0])


def export_model(
    place: CorpusPlace,
    model: Annotated[str, typer.Option(metavar="MODEL", help="name of a finished training of the corpus")],
    to: NewFolder,
    licence: Annotated[
        str, typer.Option(metavar="ID", help="licence of the weights, such as cc-by-4.0")
    ] = "not stated",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="what the model is called (default: the name of the training)")
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="round the weights to float16: half the size")] = False,
) -> None:
    """Write a trained model to a folder of its own, which works on any machine without the corpus.

    The folder holds the weights, the scaler, and which models segment, encode and
    decode its texts; these are found by their cards' names. README.md describes it,
    with the figures of `pipeline evaluate` on the test split.

    Examples:

      pipeline export-model runs/books --model two-tower --to models/two-tower
        --licence mit

      pipeline generate --model models/two-tower --prompt story.txt
    """
    from pipeline.training.evaluation.export_model import export_model as export
    from pipeline.training.evaluation.trained import places_of

    corpus = open_corpus(place)
    [where] = places_of(corpus, (model,))
    export(out, corpus, where, to, licence, name, half)


def _sampling(**options: float | None) -> dict[str, float]:
    """Return the options that the command line gives. Raises `ConfigError` for a value that is not allowed."""
    from pydantic import ValidationError

    from pipeline.base.errors import ConfigError
    from pipeline.config.train import SamplingSettings

    given = {name: value for name, value in options.items() if value is not None}
    try:
        SamplingSettings.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        option = f"--{str(wrong['loc'][0]).replace('_', '-')}"
        raise ConfigError(f"{option} {wrong['input']}: {wrong['msg']}") from None
    return given


def _of_file(place: str) -> TrainSettings | None:
    """Return the section train of a YAML file that was named instead of a corpus."""
    return load(Path(place)).train if place.endswith((".yaml", ".yml")) else None
