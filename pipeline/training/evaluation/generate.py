"""What `pipeline generate` does: continue a text, or held-out documents, sentence by sentence, and decode it into text.

Text → sentences → embeddings → the model's next ones → text of any language that the decoder speaks. Cost: a pass of
the model over the window for every sentence (40 with diffusion), and decoding it once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.formats import counted, csv_text, plain
from pipeline.base.messages import print_plain
from pipeline.config.train import TrainSettings
from pipeline.console.activity import announced
from pipeline.corpus.reader import Corpus
from pipeline.corpus.standalone import standalone
from pipeline.inputs.splits import SPLITS
from pipeline.storage.replacing import replacing_file
from pipeline.training.data.checks import check_or_say
from pipeline.training.data.command import index_of
from pipeline.training.data.end_of_text import END_OF_PARAGRAPH, END_OF_RESPONSE, END_OF_TEXT, LANG
from pipeline.training.data.index import Index
from pipeline.training.evaluation.evaluate import index_of_training
from pipeline.training.evaluation.export_model import codec_of, place_of, say_segmenter_is_unknown, segmenter_of
from pipeline.training.evaluation.held_out import (
    HELD_OUT_READS,
    LONGEST,
    HeldOut,
    beginnings,
    held_out,
    prompts_and_answers,
)
from pipeline.training.evaluation.seen import without_seen
from pipeline.training.evaluation.text_codec import TextCodec
from pipeline.training.evaluation.trained import Trained, check_options, load_trained, places_of
from stages.cards import CardError
from stages.lcm.classifier import Classifier, load_classifier_card
from stages.lcm.coherence_judge import CoherenceJudge, fit_judge
from stages.lcm.generate import Continuation, continue_documents
from stages.lcm.metrics import coherence
from stages.lcm.plans import planned
from stages.lcm.text_metrics import copied_3_grams, ovl_3, rep_4, rouge_l, seq_rep_4, word_count
from stages.lcm.token_lm import TokenLm
from stages.lcm.token_writing import continue_texts
from stages.sonar.tokenizer import SonarTokenizer

LINE = 2000  # characters of a sentence that are shown
PROMPT = 5  # sentences of a document that are continued, if nothing else is said
SENTENCES = 10  # that are generated at most, if nothing else is said
JUDGE_SENTENCES = 100_000  # of the split train, from which a judge of coherence learns


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The options of the command, as `pipeline/commands/train.py` explains them."""

    model: str
    prompt: str | None = None  # the text
    prompt_lang: str = LANG
    split: str | None = None
    documents: int = 10
    prompt_sentences: int | None = None  # None: what precedes the answer, or 5 for models that know no answers
    sentences: int | None = None  # None: 10, or what `ratio` says
    ratio: float | None = None  # the most sentences for each of the prompt
    scores: str | None = None  # a CSV file of each document's scores
    judge: bool = False  # whether a judge of coherence learns from the split train, and judges
    classifiers: tuple[str, ...] = ()  # cards of classifiers that judge as well
    lang: str | None = None
    to: str | None = None
    seed: int = 0
    sampling: dict[str, Any] | None = None  # replaces the paper's, and thresholds
    of_file: TrainSettings | None = None  # the section train of the YAML file that was named


def generate(
    console: Console, place: str | None, corpus: Corpus | None, options: GenerateOptions, find_device: Callable[[], str]
) -> list[str]:
    """Print continuations, write them to a file if the options name one, and return their texts.

    Args:
        console: where continuations are shown.
        place: what the user named: a corpus, or its YAML file; None for a standalone model.
        corpus: the corpus, if there is one.
        options: the options of the command.
        find_device: says where networks compute; it is called once the options are checked.

    Returns:
        One text for each prompt or document.

    Raises:
        ConfigError: for options that are not possible.
        CorpusError: if files of the model or the corpus are missing or damaged.
    """
    if (options.prompt is None) == (options.split is None):
        raise ConfigError("give either --prompt FILE, a text to continue, or --split test, to continue its documents")
    if options.split is not None and options.split not in SPLITS:
        raise ConfigError(f"--split {options.split}: there is no such split; splits are {', '.join(SPLITS)}")
    for value, option in (
        (options.prompt_sentences, "--prompt-sentences"),
        (options.scores, "--scores"),
        (options.judge or None, "--judge"),
        (options.classifiers or None, "--classifier"),
    ):
        if value is not None and options.split is None:
            raise ConfigError(f"{option} is for --split, which continues documents of the corpus; leave it out")
    if options.prompt is not None and not options.prompt.strip():
        raise ConfigError("the prompt is empty: give at least one sentence to continue")
    if corpus is None and options.split is not None:
        raise ConfigError("--split continues documents of a corpus: give CORPUS as well, or --prompt FILE instead")
    [where] = places_of(corpus, (options.model,)) if corpus else [place_of(options.model)]
    device = find_device()
    words = TextCodec.of(corpus, device) if corpus else codec_of(standalone(where), where, device)
    for lang, option in ((options.lang, "--lang"), (options.prompt_lang, "--prompt-lang")):
        if lang is not None:
            words.check_language(lang, option)
    index = index_of(place, corpus) if corpus and place else None
    trained = load_trained(where, index, device, True, options.sampling, options.of_file)
    check_options([trained], options.sampling)
    if options.prompt is not None:
        if corpus:
            if (segment := segmenter_of(corpus, trained.about.pinned)) is None:
                say_segmenter_is_unknown(console, "The prompt is cut by")
            words.segmenting = segment or words.segmenting
        sentences, paragraphs = words.segment(options.prompt, options.prompt_lang)
        given = _Prompt(sentences, options.prompt_lang, paragraphs)
        found, said = _continue(trained, words, [given], [options.lang or options.prompt_lang], options)
        _show(console, sentences, said[0], found[0], *_plans(words, found, [options.lang or options.prompt_lang]))
    else:
        assert options.split is not None and index is not None and corpus is not None
        said = _of_documents(console, corpus, index, options.split, trained, words, options)
    texts = [" ".join(one) for one in said]
    if options.to is not None:
        with replacing_file(options.to) as file:
            file.write("".join(f"{text}\n" for text in texts).encode())
        print_plain(console, f"{options.to} written")
    return texts


def read_prompt(place: str) -> str:
    """Return the text of a file, or what comes through a pipe for `-`. Raises `ConfigError` if it is not text."""
    try:
        return (sys.stdin.buffer.read() if place == "-" else Path(place).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--prompt {place}: {error.strerror}; give the name of a text file, or -") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompt {place} is not UTF-8 ({error.reason} at byte {error.start})") from error


def _of_documents(
    console: Console, corpus: Corpus, index: Index, split: str, trained: Trained, words: TextCodec,
    options: GenerateOptions,
) -> list[list[str]]:  # fmt: skip
    """Continue the first documents of a split, and compare with their real continuations.

    Of a model that was trained on answers, prompts are what precedes the answers; of others, a few sentences.
    """
    check_or_say(console, corpus, index, HELD_OUT_READS)
    pinned, given = trained.about.pinned, options.prompt_sentences
    if given is None and pinned.settings.get("answers"):
        try:
            held, sizes, passed = prompts_and_answers(
                index_of_training(corpus, pinned), split, documents=options.documents
            )
        except ConfigError as error:
            way = "with --prompt-sentences N, documents are continued after N sentences instead"
            raise ConfigError(f"{error}; {way}") from error
        if passed:
            print_plain(
                console,
                f"passed over: {counted(passed, 'document')} without a prompt and an answer, or of "
                f"{counted(LONGEST, 'sentence')} or more",
                style="yellow",
            )
    else:
        given = given or PROMPT
        most = given + max(_limits([given], options))
        held = beginnings(index, split, documents=options.documents, least=given + 1, most=most)
        sizes = [given] * len(held.ids)
    held, left_out = without_seen(console, index, split, held, [trained])
    sizes = [size for size, out in zip(sizes, left_out, strict=True) if not out]
    starts = held.starts.tolist()
    prompts = [
        _Prompt(
            held.texts[start : start + size],
            lang,
            held.paragraphs[start : start + size],
            held.embeddings[start : start + size],
        )
        for start, size, lang in zip(starts, sizes, held.langs, strict=True)
    ]
    langs = [options.lang or lang for lang in held.langs]
    judge = _judge(console, index, words.device) if options.judge else None
    classifiers = _classifiers(options.classifiers, words.device)
    found, said = _continue(trained, words, prompts, langs, options)
    plans = _plans(words, found, langs)
    scores: list[dict[str, float | None]] = []
    for at, (ours, continuation) in enumerate(zip(said, found, strict=True)):
        split_at, end = starts[at] + sizes[at], starts[at] + int(held.lengths[at])
        prompt, real = held.texts[starts[at] : split_at], held.texts[split_at:end]
        print_plain(console, f"\n{plain(held.ids[at], 200)}", style="bold")
        _show(console, prompt, ours, continuation, plans[at])
        scores.append(_scores(prompt, ours, real, continuation.embeddings))
        scores.append(_scores(prompt, real, real, held.embeddings[split_at:end]))
        for whose, texts in zip(scores[-2:], (ours, real), strict=True):
            whose |= {one.card.name: one.score(prompt, texts) for one in classifiers}
        if judge is not None:
            last = held.embeddings[split_at - 1 : split_at].float()
            again = words.encode(ours, [langs[at]] * len(ours)).float().cpu() if ours else last[:0]
            for whose, embeddings in zip(scores[-2:], (again, held.embeddings[split_at:end].float()), strict=True):
                probable = judge.scores(torch.cat([last, embeddings]))
                whose["judged coherence"] = float(probable.mean()) if len(probable) else None
    _show_scores(console, scores[::2], scores[1::2])
    if options.scores is not None:
        _write_scores(console, options.scores, held, [one.stopped for one in found], scores)
    return said


def _classifiers(names: Sequence[str], device: str) -> list[Classifier]:
    """Load classifiers by their cards. Raises `ConfigError` if one cannot be loaded, or two have the same name."""
    try:
        found = [Classifier(load_classifier_card(name), device=device) for name in names]
    except CardError as error:
        raise ConfigError(f"--classifier: {error}") from error
    if len({one.card.name for one in found}) < len(found):
        raise ConfigError(f"--classifier: {', '.join(one.card.name for one in found)}: name each once")
    return found


def _judge(console: Console, index: Index, device: str) -> CoherenceJudge:
    """Train a judge of coherence, and say how good it is. Raises `ConfigError` if there is too little to learn from."""
    documents = held_out(index, "train", max_sentences=LONGEST, sentences=JUDGE_SENTENCES)
    try:
        with announced(console, "training a judge of coherence on documents of the split train"):
            judge = fit_judge(documents.embeddings, documents.lengths, device, origins=documents.hashes)
    except ValueError as error:
        raise ConfigError(f"--judge: the split train has {error}") from error
    print_plain(
        console,
        f"judge: learned from {counted(judge.pairs, 'pair')} of sentences; in other documents, it finds the real next "
        f"sentence more probable than another of the document in {100 * judge.accuracy:.1f} % of cases (chance: 50)",
    )
    return judge


@dataclass(frozen=True)
class _Prompt:
    """Sentences that are continued. paragraphs: (sentences,), the number of each one's; embeddings: if known."""

    texts: Sequence[str]
    lang: str
    paragraphs: torch.Tensor
    embeddings: torch.Tensor | None = None

    def encoded(self, words: TextCodec) -> torch.Tensor:
        """Return the embeddings (sentences, dim) float32 on the device."""
        found = words.encode(self.texts, [self.lang] * len(self.texts)) if self.embeddings is None else self.embeddings
        return found.float().to(words.device)


def _continue(
    trained: Trained, words: TextCodec, prompts: list[_Prompt], langs: Sequence[str], options: GenerateOptions
) -> tuple[list[Continuation], list[list[str]]]:
    """Return continuations of prompts, and their sentences in a language each."""
    last = END_OF_RESPONSE if trained.about.pinned.settings.get("answers") else END_OF_TEXT
    torch.manual_seed(options.seed)
    limits = _limits([len(prompt.texts) for prompt in prompts], options)
    if isinstance(trained.model, TokenLm):
        return _write(trained, trained.model, words, prompts, langs, last, limits)
    end = words.encode([last], [LANG])[0].float().to(words.device)
    documents = [prompt.encoded(words) for prompt in prompts]
    end_of_paragraph = None
    if trained.plans:
        end_of_paragraph = words.encode([END_OF_PARAGRAPH], [LANG])[0].float().to(words.device)
        documents = [
            planned(one, torch.tensor([len(one)]), prompt.paragraphs, end_of_paragraph).embeddings
            for one, prompt in zip(documents, prompts, strict=True)
        ]
    said: list[list[str]] = [[] for _ in prompts]

    def again(predicted: torch.Tensor, numbers: list[int]) -> torch.Tensor:
        of = [langs[number] for number in numbers]
        texts = words.decode(predicted, of)
        for number, text in zip(numbers, texts, strict=True):
            said[number].append(text)
        return words.encode(texts, of)

    generation = dict(trained.generation)
    reencode = again if generation.pop("reencode") else None
    try:
        found = continue_documents(
            trained.model, documents, trained.sampling, end=end, max_sentences=limits, reencode=reencode,
            end_of_paragraph=end_of_paragraph, **generation,
        )  # fmt: skip
    except ValueError as error:
        raise CorpusError(f"{trained.place}: {error}") from error
    if reencode is None:
        return found, _say(words, [one.embeddings for one in found], langs)
    return found, [[texts[at] for at in one.encoded] for texts, one in zip(said, found, strict=True)]


def _limits(prompts: Sequence[int], options: GenerateOptions) -> list[int]:
    """Return the most sentences that are generated for prompts of so many sentences: at least one each."""
    if options.ratio is None:
        return [options.sentences or SENTENCES] * len(prompts)
    most = options.sentences or sys.maxsize
    return [min(most, max(1, int(options.ratio * size + 1e-9))) for size in prompts]


def _write(
    trained: Trained, model: TokenLm, words: TextCodec, prompts: list[_Prompt], langs: Sequence[str], last: str,
    limits: Sequence[int],
) -> tuple[list[Continuation], list[list[str]]]:  # fmt: skip
    """Continue prompts by a token language model; embeddings of what it wrote are by the encoder."""
    tokenizer = SonarTokenizer(trained.tokenizer)
    try:
        found = continue_texts(
            model,
            [tokenizer.encode(one.texts, one.lang) for one in prompts],
            [tokenizer.language_id(lang) for lang in langs],
            trained.sampling,
            end=tokenizer.encode([last], LANG)[0][1:],
            allowed=torch.from_numpy(tokenizer.pieces()).to(words.device),
            max_sentences=limits,
            max_tokens=words.longest,
        )
    except ValueError as error:
        raise CorpusError(f"{trained.place}: {error}") from error
    said = [tokenizer.decode(one.sentences) for one in found]
    dim = trained.about.pinned.dim
    embeddings = [
        words.encode(texts, [lang] * len(texts)).float() if texts else torch.zeros(0, dim)
        for texts, lang in zip(said, langs, strict=True)
    ]
    written = [Continuation(x, one.stopped, one.forgotten) for x, one in zip(embeddings, found, strict=True)]
    return written, said


def _say(words: TextCodec, found: list[torch.Tensor], langs: Sequence[str]) -> list[list[str]]:
    """Decode (sentences, dim) of each document in its language."""
    sizes = [len(one) for one in found]
    all_langs = [lang for lang, size in zip(langs, sizes, strict=True) for _ in range(size)]
    texts = iter(words.decode(torch.cat(found), all_langs) if all_langs else [])
    return [[next(texts) for _ in range(size)] for size in sizes]


def _plans(words: TextCodec, found: list[Continuation], langs: Sequence[str]) -> list[list[str]]:
    """Return the text of each plan of each continuation."""
    return _say(words, [one.embeddings[:0] if one.plans is None else one.plans for one in found], langs)


def _show(
    console: Console, prompt: Sequence[str], said: Sequence[str], how: Continuation, plans: Sequence[str]
) -> None:
    for sentence in prompt:
        console.print(Text(plain(sentence, LINE), style="dim"), soft_wrap=True)
    console.print("[it goes on]", style="dim", markup=False, highlight=False)
    paragraphs = list(zip(how.paragraphs, plans, strict=True))
    for number, text in enumerate([*said, None]):
        for _, plan in (one for one in paragraphs if one[0] == number):
            console.print(Text(f"\n[plan: {plain(plan, LINE)}]", style="dim"), soft_wrap=True)
        if text is not None:
            console.print(Text(plain(text, LINE)), soft_wrap=True)
    note = f"[{counted(len(said), 'sentence')}; stopped: {how.stopped}"
    what = "position" if how.plans is not None else "sentence"
    note += f"; the first {counted(how.forgotten, what)} left the model's window]" if how.forgotten else "]"
    console.print(note, style="dim", markup=False, highlight=False)


def _scores(
    prompt: Sequence[str], output: Sequence[str], real: Sequence[str], embeddings: torch.Tensor
) -> dict[str, float | None]:
    text, lengths = " ".join(output), torch.tensor([len(embeddings)])
    source = word_count(" ".join(prompt))
    return {
        "WR": word_count(text) / source if source else None,
        "ROUGE-L": 100 * rouge_l(text, " ".join(real)),
        "OVL-3": ovl_3(text, " ".join(prompt)),
        "REP-4": rep_4(text),
        "copied 3-grams": copied_3_grams(text, " ".join(prompt)),
        "seq-rep-4": seq_rep_4(text),
        "coherence": float(coherence(embeddings, lengths)[0]) if len(embeddings) > 2 else None,
        "sentences": float(len(output)),
    }


def _show_scores(console: Console, ours: list[dict[str, float | None]], real: list[dict[str, float | None]]) -> None:
    """Show means over the documents where a score is defined."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(f"mean of {counted(len(ours), 'document')}")
    columns = {"continued by the model": ours, "as they really go on": real}
    for title in columns:
        table.add_column(title, justify="right")
    for name in ours[0]:
        table.add_row(name, *(_mean([one[name] for one in scores]) for scores in columns.values()))
    console.print()
    console.print(table)


def _mean(column: Sequence[float | None]) -> str:
    """Return the mean of the values that are there, ± two standard errors."""
    known = torch.tensor([value for value in column if value is not None], dtype=torch.float64)
    if len(known) < 2:
        return f"{float(known):.3f}" if len(known) else "–"
    return f"{known.mean():.3f} ± {2 * known.std() / len(known) ** 0.5:.2g}"


def _write_scores(
    console: Console, place: str, held: HeldOut, stopped: Sequence[str], scores: Sequence[dict[str, float | None]]
) -> None:
    """Write two lines for each document, the model's continuation and the real one, as CSV."""
    table = [["doc_id", "lang", "continuation", "stopped", *scores[0]]]
    for number, (doc_id, lang) in enumerate(zip(held.ids, held.langs, strict=True)):
        for whose, why, of in zip(("model", "real"), (stopped[number], ""), scores[2 * number :], strict=False):
            values = ["" if value is None else f"{value:.6g}" for value in of.values()]
            table.append([doc_id, lang, whose, why, *values])
    with replacing_file(place) as file:
        file.write(csv_text(table).encode())
    print_plain(console, f"{place} written")
