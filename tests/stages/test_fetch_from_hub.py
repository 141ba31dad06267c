"""Weights of repositories on Hugging Face: from a server that speaks its API, and from its cache on this machine."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.fetch import FetchError, UnavailableError, cache_path, fetch, place_of
from tests.support.hub import Hub, Repository, hub_server

CONTENT = bytes(range(256)) * 4_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
COMMIT = f"{3:040x}"
URL = f"https://huggingface.co/me/sonar/resolve/{COMMIT}/models/weights.pt"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A server in the place of Hugging Face, and empty caches."""
    from huggingface_hub import constants

    with hub_server() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "cache"))
        server.repositories["me/sonar"] = Repository(
            "me", private=False, files={"models/weights.pt": CONTENT}, commits=3
        )
        yield server


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_file_is_fetched_from_the_mirror_and_kept(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int | None]] = []
    path = fetch(URL, sha256=SHA256, size=len(CONTENT), report=lambda *now: told.append(now))
    assert path == cache_path(URL) == place_of(URL) and path.read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert {one.name for one in path.parent.iterdir()} == {"weights.pt", ".weights.pt.lock"}
    go_offline(monkeypatch)
    assert fetch(URL, sha256=SHA256, size=None) == path


def test_a_private_repository_needs_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["me/sonar"].private = True
    with pytest.raises(UnavailableError, match=r"Put the file .* at ") as error:
        fetch(URL, sha256=SHA256, size=None)
    assert str(cache_path(URL)) in str(error.value) and "\n" not in str(error.value)
    assert "set HF_TOKEN or run hf auth login" in str(error.value)
    monkeypatch.setenv("HF_TOKEN", "hf_me")
    assert fetch(URL, sha256=SHA256, size=None).read_bytes() == CONTENT


def test_what_lies_in_its_cache_is_used_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import hf_hub_download

    there = Path(hf_hub_download("me/sonar", "models/weights.pt", revision=COMMIT))
    go_offline(monkeypatch)
    assert place_of(URL) == there == fetch(URL, sha256=SHA256, size=None)
    assert not cache_path(URL).exists()
    with pytest.raises(FetchError, match=f"delete {there}"):
        fetch(URL, sha256="0" * 64, size=None)
    cache_path(URL).parent.mkdir(parents=True)
    shutil.copyfile(there, cache_path(URL))  # by hand: it comes first
    assert place_of(URL) == cache_path(URL)


def test_offline_and_missing_files_are_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match=r"cannot be fetched: 404"):
        fetch(URL.replace("weights", "other"), sha256=SHA256, size=None)
    go_offline(monkeypatch)
    with pytest.raises(UnavailableError, match=r"HF_HUB_OFFLINE is set. Put the file"):
        fetch(URL, sha256=SHA256, size=None)


def test_another_file_is_not_kept(hub: Hub) -> None:
    with pytest.raises(FetchError, match="has sha256"):
        fetch(URL, sha256="0" * 64, size=None)
    assert not cache_path(URL).exists()


@pytest.mark.slow  # the library tries again for 23 seconds
def test_a_server_that_does_not_answer_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    with pytest.raises(UnavailableError, match=r"http://127.0.0.1:9 does not answer \(.*refused\)\. Put the file"):
        fetch(URL, sha256=SHA256, size=None)
