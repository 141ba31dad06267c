"""The process that the reference runs in: `python -m benchmarks.reference_worker official|rebuilt FOLDER THREADS`.

A process of its own, because the official package has its own Python, and because our stages set up the matmul library
for reproducible results, which the reference shall not pay for. Speaks JSON lines: a request on stdin, an answer on
stdout. `{"encode": {"order": …, "batch": …, "format": …}}` gives seconds and leaves the embeddings in the folder;
`{"rates": {"rows": …, "shapes": …, "format": …}}` gives the FLOP/s of matmuls. Imports only torch, numpy and the
reference.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.flops import matmul_rates

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EMBEDDINGS = "reference.npy"


def official_pipeline(folder: Path, job: dict[str, Any], dtype: torch.dtype) -> Any:
    """Return `TextToEmbeddingModelPipeline` with the weights of the folder."""
    text = importlib.import_module("sonar.inference_pipelines.text")
    # fp32 is what one gets without saying anything
    chosen = {} if dtype == torch.float32 else {"dtype": dtype}
    return text.TextToEmbeddingModelPipeline(encoder=job["name"], tokenizer=job["name"], **chosen)


def rebuilt_pipeline(folder: Path, job: dict[str, Any], dtype: torch.dtype) -> Any:
    """Return the same from `benchmarks/official_way.py`."""
    from benchmarks.official_way import RebuiltPipeline

    weights = torch.load(folder / "fairseq2-encoder.pt", weights_only=True)["model"]
    return RebuiltPipeline(
        weights,
        folder / "tokenizer.model",
        languages=job["languages"],
        heads=job["heads"],
        max_tokens=job["max_tokens"],
        dtype=dtype,
    )


def register(folder: Path, job: dict[str, Any]) -> None:
    """Register an asset card, found through the environment."""
    end_of_text = {"unk_idx": 1, "bos_idx": 2, "eos_idx": 3, "pad_idx": 1}
    numbers = {
        "model_dim": job["dim"],
        "num_encoder_layers": job["layers"],
        "num_decoder_layers": job["layers"],
        "num_encoder_attn_heads": job["heads"],
        "num_decoder_attn_heads": job["heads"],
        "ffn_inner_dim": job["ffn_dim"],
        "vocab_info": {"size": job["vocab_size"], **end_of_text},
    }
    card = {
        "name": job["name"],
        "model_family": "transformer_encoder",
        "model_arch": "basic",
        "model_config": {"_set_": numbers},
        "checkpoint": (folder / "fairseq2-encoder.pt").absolute().as_uri(),
        "tokenizer": (folder / "tokenizer.model").absolute().as_uri(),
        "tokenizer_family": "nllb",
        "tokenizer_config": {"_set_": {"default_lang": job["languages"][0], "langs": job["languages"]}},
    }
    assets = folder / "assets"
    assets.mkdir(exist_ok=True)
    (assets / "benchmark.yaml").write_text(json.dumps(card), encoding="utf-8")  # JSON is YAML
    os.environ["FAIRSEQ2_USER_ASSET_DIR"] = str(assets)


def versions(kind: str) -> dict[str, str]:
    """Return what answers the requests."""
    found = {"torch": str(torch.__version__)}
    if kind == "official":
        found |= {name: importlib.metadata.version(name) for name in ("sonar-space", "fairseq2")}
        native = importlib.import_module("fairseq2n").__file__ or ""
        found["fairseq2n"] = "native" if list(Path(native).parent.glob("**/*.so")) else "pure-Python stand-in"
    return found


def encode(pipeline: Any, folder: Path, languages: list[str], order: str, batch: int) -> float:
    """Time one `predict` a language; in arrival order it reads a file, else it gets a list, which it sorts."""
    seconds = 0.0
    found = []
    for lang in languages:
        file = folder / f"{lang}.txt"
        source = file if order == "arrival" else file.read_text(encoding="utf-8").split("\n")[:-1]
        start = time.perf_counter()
        embeddings = pipeline.predict(source, source_lang=lang, batch_size=batch)
        seconds += time.perf_counter() - start
        found.append(embeddings.float().numpy())
    np.save(folder / EMBEDDINGS, np.concatenate(found))
    return seconds


def main(kind: str, folder: Path, threads: int) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints goes to stderr
    torch.set_num_threads(threads)
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    make: Callable[[Path, dict[str, Any], torch.dtype], Any] = rebuilt_pipeline
    if kind == "official":
        register(folder, job)
        importlib.import_module("sonar.inference_pipelines.text")
        make = official_pipeline
    pipelines: dict[str, Any] = {}
    print(json.dumps(versions(kind)), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "rates" in request:
            asked = request["rates"]
            answer: Any = matmul_rates(asked["rows"], asked["shapes"], FORMATS[asked["format"]])
        else:
            asked = request["encode"]
            if asked["format"] not in pipelines:
                pipelines[asked["format"]] = make(folder, job, FORMATS[asked["format"]])
            answer = encode(pipelines[asked["format"]], folder, job["with_sentences"], asked["order"], asked["batch"])
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
