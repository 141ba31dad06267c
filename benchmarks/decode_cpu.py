"""Greedy decoding on a CPU against Hugging Face's `generate`: the same weights, embeddings and limits, in one run.

    python -m benchmarks.decode_cpu                     2000 sentences of the sample, sonar-tiny, one thread
    python -m benchmarks.decode_cpu --profile           and which operations take the time of ours

Ours is what AutoBLEU calls (`BatchedDecoder`). The baseline is `M2M100ForConditionalGeneration.generate` with its
cache, sentences sorted by their limits, the best of several batch sizes. Both decode every sentence up to `</s>` or its
own limit, which the baseline has for whole batches only. Rounds alternate and the fastest of each counts, in seconds of
CPU, so that other programs matter little. Ends with status 1 where more than 1 % of the sentences come out otherwise.
Needs transformers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

from benchmarks import command_line
from benchmarks.machine import describe_cpu
from benchmarks.random_model import m2m100_names
from benchmarks.sample import sample_sentences
from stages.autobleu.settings import AutobleuSettings
from stages.batching import Indices
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings
from stages.sonar.decode import BatchedDecoder
from stages.sonar.ids import END, PAD
from stages.sonar.networks import SonarTextDecoder

OTHERWISE = 0.01  # of the sentences; near ties of logits fall to the other side by the order of a sum


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if the two give different sentences."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    sentences = sample_sentences(options.sentences, options.model)
    encoder = Encode(EncodeSettings(model=options.model))
    encoder.setup("cpu")
    encoded = encoder.finish(encoder.compute(encoder.prepare(sentences.part()))).families["embeddings"]
    matrix = torch.from_numpy(np.stack(encoded["embedding"].to_numpy(zero_copy_only=False)))
    settings = AutobleuSettings(model=options.model, precision=options.precision, batch_rows=options.batch_rows)
    decoder = BatchedDecoder(settings)
    decoder.setup("cpu")
    prefixes, limits = decoder.prefixes(sentences.langs), decoder.limits(sentences.texts)
    baseline = BaselineDecoder(decoder.network)
    ways: dict[str, Callable[[], list[list[int]]]] = {
        f"generate, batches of {size}": partial(baseline.all, matrix, prefixes, limits, size)
        for size in options.baseline_batches
    }
    ours = f"ours, batches of {options.batch_rows or 'the default'}"
    ways[ours] = lambda: decoder.decode(lambda rows: matrix[rows], prefixes, limits)[0]
    print(f"{describe_cpu()}; torch {torch.__version__}, {torch.get_num_threads()} threads, {decoder.dtype}")
    seconds, found = measure(ways, options.rounds)
    tokens = sum(len(ids) for ids in found[ours])
    print(f"{len(limits)} sentences, {tokens / len(limits):.1f} tokens each")
    for name, least in seconds.items():
        print(f"{name}: {len(limits) / least:.0f} sentences, {tokens / least:.0f} tokens per CPU second")
    best = min((name for name in seconds if name != ours), key=seconds.__getitem__)
    pairs = zip(found[ours], found[best], strict=True)
    others = sum(one != other for one, other in pairs) / len(limits)
    print(f"{seconds[best] / seconds[ours]:.2f} times as fast as {best}; {others:.2%} of the sentences differ")
    if options.profile:
        _profile(ways[ours])
    return 1 if others > OTHERWISE else 0


def measure(ways: dict[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the least CPU seconds of each way over rounds in turns, and what it gave."""
    seconds: dict[str, float] = {}
    found = {}
    for _ in range(rounds):
        for name, work in ways.items():
            start = time.process_time()
            found[name] = work()
            took = time.process_time() - start
            seconds[name] = min(took, seconds.get(name, took))
    return seconds, found


class BaselineDecoder:
    """Hugging Face's decoder with the weights of ours, which attends to one vector instead of an encoder's output."""

    def __init__(self, decoder: SonarTextDecoder) -> None:
        transformers = import_module("transformers")
        self._output = import_module("transformers.modeling_outputs").BaseModelOutput
        weight = decoder.embedding.weight
        config = transformers.M2M100Config(
            vocab_size=weight.shape[0],
            d_model=weight.shape[1],
            encoder_layers=1,  # is not called
            decoder_layers=len(decoder.layers),
            decoder_attention_heads=decoder.heads,
            decoder_ffn_dim=decoder.get_parameter("layers.0.ffn.inner_proj.weight").shape[0],
            max_position_embeddings=decoder.embedding.positions.shape[0],
            activation_function="relu",
            scale_embedding=True,
            pad_token_id=1,  # its positions begin behind it; our PAD is 0
            eos_token_id=END,
            decoder_start_token_id=END,
            attn_implementation="sdpa",
        )
        self.network: Any = transformers.M2M100ForConditionalGeneration(config).to(weight.dtype).eval()
        wanted = {f"model.decoder.{name}": value for name, value in m2m100_names(decoder.state_dict()).items()}
        wanted["lm_head.weight"] = weight if decoder.output is None else decoder.output.weight
        missing, unknown = self.network.load_state_dict(wanted, strict=False)
        lacking = [name for name in missing if "decoder" in name and "encoder_attn" not in name]
        if unknown or lacking:
            raise SystemExit(f"Hugging Face's decoder names weights otherwise: {unknown or lacking}")

    @torch.inference_mode()
    def all(self, embeddings: torch.Tensor, prefixes: Indices, limits: Indices, size: int) -> list[list[int]]:
        """embeddings: (rows, dim); prefixes: (rows, 2); limits: (rows,) → the new ids of each row."""
        found: list[list[int]] = [[] for _ in limits]
        order = np.argsort(-limits, kind="stable")
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            given = embeddings[torch.from_numpy(batch)].to(self.network.dtype)[:, None]
            ids = self.network.generate(
                encoder_outputs=self._output(last_hidden_state=given),
                decoder_input_ids=torch.from_numpy(prefixes[batch]),
                max_new_tokens=int(limits[batch].max()),
                suppress_tokens=[PAD],
                do_sample=False,
                num_beams=1,
            )
            for row, new in zip(batch, ids[:, prefixes.shape[1] :].tolist(), strict=True):
                end = new.index(END) + 1 if END in new else len(new)
                found[row] = new[: min(end, int(limits[row]))]
        return found


def _profile(work: Callable[[], object]) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as taken:
        work()
    print(taken.key_averages().table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=60))


def _parser() -> argparse.ArgumentParser:
    parser = command_line("decode_cpu", "Greedy decoding on a CPU against Hugging Face's generate.")
    parser.add_argument("--model", default="sonar-tiny", help="a card")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--batch-rows", type=int, help="sentences per batch of ours; the stage's if not given")
    parser.add_argument(
        "--baseline-batches", type=int, nargs="+", default=[64, 256], help="sentences per batch of generate"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="print the operations that take the time of ours")
    return parser


if __name__ == "__main__":
    sys.exit(main())
