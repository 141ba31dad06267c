"""`pipeline models`: what a person sees of the cards, in 80 columns, and what --fetch brings."""

from __future__ import annotations

import functools
import hashlib
import http.server
import re
import subprocess
import threading
from pathlib import Path

import pytest
import yaml

from pipeline.config.frozen import Frozen
from pipeline.config.load import load_config
from pipeline.corpus.recipes import stage_recipe
from pipeline.doctor.models import files_of
from stages.encode.settings import EncodeSettings
from stages.sonar.card import load_card
from tests.conftest import TINY_CARD, write_config
from tests.support.cli import pipeline


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # where a proxy is set, it cannot reach the servers of tests
    return tmp_path / "cache"


def models(*arguments: str) -> subprocess.CompletedProcess[str]:
    return pipeline("models", *arguments)


def test_the_list_fits_a_terminal(cache: Path) -> None:
    shown = models()
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    assert max(len(line) for line in lines if str(cache) not in line) <= 80
    assert re.search(r"^sonar +1024 +24\+24 +1 583 M +202 +CC-BY-NC-4.0 +to fetch, ~6.3 GB *$", shown.stdout, re.M)
    assert re.search(r"^sonar-tiny +\d+ +\d\+\d +[\d.]+ M +5 +MIT +here, [\d.]+ MB *$", shown.stdout, re.M)
    assert re.search(r"^lcm-two-tower-7b +two-tower +5\+14 +4096 +6 4\d\d M +2048 *$", shown.stdout, re.M)
    assert "…" not in shown.stdout
    assert str(cache) in shown.stdout


def test_a_large_concept_model_is_an_architecture() -> None:
    shown = models("lcm-two-tower-1.6b").stdout
    for words in ("5+13, 16 heads", "1 522 M for embeddings of 1024 dimensions", "cosine schedule, 100 timesteps"):
        assert words in shown
    assert "objective  contrastive, keys frozen" in models("lcm-contrastive-tiny").stdout
    words = models("lcm-token-lm-1.4b").stdout
    assert "1 758 M for a vocabulary of 256206" in words and "4096 tokens at once" in words
    fetched, misspelt = models("lcm-base-tiny", "--fetch"), models("lcm-base-teeny")
    assert fetched.returncode == 2 and "leave out --fetch" in fetched.stderr
    assert misspelt.returncode != 0 and "lcm-base-tiny" in misspelt.stderr and "sonar-hf" not in misspelt.stderr


def test_one_card_in_full(cache: Path) -> None:
    shown = models("sonar").stdout
    for words in (
        "CC-BY-NC-4.0",
        "1024 dimensions",
        "766 M parameters",
        "202: ace_Arab",
        "zul_Latn",
        "layout fairseq2",
    ):
        assert words in shown
    assert "encoder    to fetch, 3.1 GB" in shown
    assert str(load_card("sonar").path("encoder")) in shown  # whole, to be copied
    assert "sha256 not published" in shown
    assert "pipeline models sonar --fetch" in shown
    tiny = models("sonar-tiny").stdout
    assert re.search(r"^score +eng_Latn +deu_Latn", tiny, re.M)  # more scores than languages: a line each
    assert re.search(r"^bleu novels +– +\d+\.\d +\d+\.\d +\d+\.\d +–", tiny, re.M)
    assert re.search(r"^language|^text +sentences, clean", models("sat-tiny").stdout, re.M)
    assert "--fetch" not in tiny


def test_fetch_brings_every_file(tmp_path: Path, cache: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(TINY_CARD.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        files = {
            "encoder": {"url": f"{url}/enc.pt"},
            "decoder": {
                "url": f"{url}/dec.pt",
                "sha256": hashlib.sha256((TINY_CARD.parent / "dec.pt").read_bytes()).hexdigest(),
            },
            "tokenizer": {"url": f"{url}/tiny.model"},
        }
        path = tmp_path / "remote.yaml"
        path.write_text(yaml.safe_dump({"base": str(TINY_CARD), "name": "remote", "files": files}))
        card = load_card(str(path))
        assert [state.here for state in files_of(card)] == [False] * 3
        done = models(str(path), "--fetch")
        server.shutdown()
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^encoder +305.2 kB, checked: {re.escape(str(cache))}/.*/enc.pt$", done.stdout, re.M)
    assert "enc.pt: sha256 7623187a" in done.stderr  # the card states none
    states = files_of(card)
    assert [(state.here, state.bytes, state.exact) for state in states] == [
        (True, 305238, True),
        (True, 472643, True),
        (True, 241360, True),
    ]
    assert "here, 305.2 kB" in models(str(path)).stdout
    assert models(str(path), "--fetch").returncode == 0  # without the server: nothing to fetch


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sonra"], "no model is called 'sonra'; use one of sonar, sonar-finetuned, sonar-hf, sonar-tiny"),
        (["--fetch"], "--fetch needs the name of a model"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str) -> None:
    done = models(*arguments)
    assert done.returncode == 2 and words in done.stderr


def test_a_fetch_without_network_ends_with_what_to_do(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "remote.yaml"
    url = "http://127.0.0.1:9/weights.pt"  # the discard port: nothing listens
    path.write_text(yaml.safe_dump({"base": str(TINY_CARD), "name": "remote", "files": {"encoder": {"url": url}}}))
    done = models(str(path), "--fetch")
    assert done.returncode == 2
    assert f"Put the file (weights.pt) at {cache}/127.0.0.1_9/weights.pt" in done.stderr


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("facebook/SONAR", "sonar"),
        ("text_sonar_basic_encoder", "sonar"),
        ("text_sonar_finetuned_decoder", "sonar-finetuned"),
        ("cointegrated/SONAR_200_text_encoder", "sonar-hf"),
    ],
)
def test_names_of_published_models_mean_the_card_of_the_same_weights(alias: str, name: str) -> None:
    assert load_card(alias).name == name and load_card(alias).files == load_card(name).files
    shown = models(alias).stdout
    assert f"{alias} is {name} here." in shown and "is sonar here" not in models("sonar").stdout


def test_a_plan_says_what_an_alias_means_and_nothing_depends_on_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"id": "a", "lang": "eng_Latn", "text": "One. Two."}\n')
    source = [{"path": "in/*.jsonl", "lang": "eng_Latn"}]
    path = write_config(tmp_path, encode={"model": "facebook/SONAR"}, autobleu=None, input=source)
    asked = load_config(path).encode
    assert asked and stage_recipe(asked, Frozen()) == stage_recipe(EncodeSettings(model="sonar"), Frozen())
    done = pipeline("plan", path)
    assert done.returncode == 0 and "facebook/SONAR is the model sonar" in done.stdout, done
