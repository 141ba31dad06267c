"""Uploads a dataset folder to the Hugging Face Hub, with huggingface_hub.

What can fail is checked before anything is written: whether there is a token, whether the Hub answers, whether the name
is free. The files of a finished export are compared with what its `export.json` says of them: sizes first, then
digests; an `export.json` of an earlier version names no files, and the row counts of its Parquet files must then add
up. The same command resumes an interrupted upload: files that arrived are not sent again. At the end every file of the
repository is compared with the folder. HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and HF_HOME work as usual.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError, PipelineError, visible
from pipeline.base.formats import counted
from pipeline.base.messages import print_plain
from pipeline.corpus.exports import FINISHED
from pipeline.storage.export_target import CLAIM, first_of, is_hidden
from pipeline.storage.remote import is_remote
from stages.fetch import sha256_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_AGAIN = "delete the folder, and run the same command again, which exports it again"


class HubError(PipelineError):
    """The Hub refused a request, or did not answer."""


class Push:
    """An upload to one dataset repository.

    Args:
        repo: USER/NAME or ORGANISATION/NAME.
        to: the folder of the export, which must be on this machine.
        private: whether a new repository is private.
        replace: whether the folder takes the place of whatever the repository holds.
    """

    def __init__(self, repo: str, to: str, *, private: bool = False, replace: bool = False) -> None:
        """Check what can be checked before anything is written.

        Raises:
            ConfigError: for a name, a folder or a token that cannot work, or if the Hub is switched off.
        """
        self.repo, self.folder, self._private, self._replace = repo, to, private, replace
        if is_remote(to):
            raise ConfigError(
                f"--push uploads a folder of this machine, and --to {to} is elsewhere; give a local folder"
            )
        from huggingface_hub import HfApi, constants, get_token
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils._validators import validate_repo_id

        try:
            validate_repo_id(repo)
        except HFValidationError as error:
            raise ConfigError(
                f"--push {visible(repo)} is not the name of a repository ({error}); give USER/NAME"
            ) from error
        if repo.count("/") != 1:
            raise ConfigError(f"--push {repo} does not say whose it is; give USER/NAME or ORGANISATION/NAME")
        if constants.HF_HUB_OFFLINE:
            raise ConfigError(
                "--push needs the Hub, and HF_HUB_OFFLINE is set; unset it, or leave out --push and upload the folder "
                f"later: hf upload {repo} {to} --repo-type dataset"
            )
        token = get_token()
        if not token:
            raise ConfigError(
                "--push needs a token of Hugging Face with the right to write, and there is none: run `hf auth login`, "
                "or set HF_TOKEN (tokens are made at https://huggingface.co/settings/tokens)"
            )
        self._api: HfApi = HfApi(token=token)

    def check(self) -> None:
        """Ask the Hub for the owner of the token and for the repository, before anything is written.

        Raises `HubError` if it does not answer or refuses, `ConfigError` if the repository holds files of others.
        """
        with self._errors("nothing was written"):
            self._api.whoami()
        self._refuse_foreign(self._files())

    def upload(self, console: Console) -> None:
        """Upload the folder, and compare what the Hub has then. Raises `HubError`, after which the same command resumes
        the upload.
        """
        with self._errors(f"{self.folder} is complete; the same command goes on with the upload"):
            if self._files() is None:
                self._api.create_repo(self.repo, repo_type="dataset", private=self._private)
            self._refuse_foreign(self._files())
            self._api.upload_folder(
                repo_id=self.repo,
                folder_path=self.folder,
                repo_type="dataset",
                commit_message="Upload by sonar-pipeline",
                delete_patterns="*" if self._replace else None,
                ignore_patterns=[CLAIM, ".*", "*/.*"],
            )
            there = self._files() or {}
        lacking = [name for name in self._local() if name not in there or not self._same(name, there[name])]
        if lacking:
            raise HubError(
                f"{self.repo} does not have {counted(len(lacking), 'file')} as in {self.folder} ({lacking[0]}); run "
                "the same command again"
            )
        print_plain(
            console, f"{counted(len(self._local()), 'file')} uploaded to {self._api.endpoint}/datasets/{self.repo}"
        )

    def _local(self) -> list[str]:
        root = Path(self.folder)
        found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
        return sorted(name for name in found - {CLAIM} if not is_hidden(name))

    def _files(self) -> dict[str, Any] | None:
        """Return path → the Hub's record of each file; None if there is no such repository for this token."""
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        with self._errors("nothing was changed"):
            try:
                found = list(self._api.list_repo_tree(self.repo, repo_type="dataset", recursive=True))
            except RepositoryNotFoundError:
                return None
            except RevisionNotFoundError:  # without any commit
                return {}
        return {one.path: one for one in found if hasattr(one, "blob_id")}

    def _same(self, name: str, there: Any) -> bool:
        """Return whether a file of the Hub is that of the folder: by its SHA-256, or by git's digest if it is small."""
        path = Path(self.folder) / name
        if not path.is_file() or path.stat().st_size != there.size:
            return False
        if there.lfs:
            return bool(there.lfs.sha256 == sha256_of(path))
        data = path.read_bytes()
        return bool(there.blob_id == hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest())

    def _refuse_foreign(self, there: dict[str, Any] | None) -> None:
        if self._replace or not there:
            return
        foreign = [name for name, one in there.items() if name != ".gitattributes" and not self._same(name, one)]
        if foreign:
            raise ConfigError(
                f"--push {self.repo} exists and holds other files ({first_of(foreign)}); "
                "give a name that is free, or --replace to put this export in their place (the Hub keeps the history)"
            )

    @contextlib.contextmanager
    def _errors(self, state: str) -> Iterator[None]:
        """Turn errors of the Hub and of its client into a `HubError` that says what to do; `state`: what is done."""
        from huggingface_hub.errors import HfHubHTTPError

        try:
            yield
        except PipelineError:
            raise
        except Exception as error:
            causes = list(_causes(error))
            said = visible((str(causes[-1]) or type(error).__name__).splitlines()[0])
            refused = next((one for one in causes if isinstance(one, HfHubHTTPError)), None)
            if refused is not None:
                code = refused.response.status_code if refused.response is not None else 0
                said = visible(str(refused.server_message or said).splitlines()[0])
                raise HubError(
                    f"the Hub refused --push {self.repo} ({code}: {said}): {self._advice(code)}; {state}"
                ) from error
            if not any(
                type(one).__module__.partition(".")[0] in _CLIENTS or isinstance(one, OSError) for one in causes
            ):
                raise
            raise HubError(
                f"the Hub at {self._api.endpoint} does not answer ({said}): check the network, and HF_ENDPOINT if it "
                f"is set; {state}"
            ) from error

    def _advice(self, code: int) -> str:
        owner = self.repo.partition("/")[0]
        if code == 401:
            return "the token is not valid; log in again (`hf auth login`), or set HF_TOKEN"
        if code == 403:
            return f"the token has no right to write there; make one that may write for {owner}, or give another name"
        if code == 404:
            return "there is no such repository that this token may see; it may be private, and of others"
        if code == 409:
            return "the name is taken by a repository that this token does not see; give another name"
        return "try again later"


_CLIENTS = {"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "hf_xet"}


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it: uploads in threads wrap what the Hub said."""
    while error is not None:
        yield error
        error = error.__cause__


def compare_files(console: Console, folder: str, record: Mapping[str, Any]) -> None:
    """Compare the files of a finished export with its record.

    Args:
        console: where it is said that not everything could be compared.
        folder: the folder of the export, on this machine.
        record: its `export.json`.

    Raises:
        CorpusError: if files are missing or changed, or there are others.
    """
    root = Path(folder)
    there = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    there.pop(FINISHED, None)
    files = record.get("files")
    if not isinstance(files, dict):
        print_plain(
            console,
            f"{folder}/{FINISHED} is of an earlier version and does not say what the files hold: only the numbers of "
            "their rows are compared",
            style="dim",
        )
        _compare_rows(folder, there, record["written"]["sentences"])
        return
    wrong = {
        "missing": sorted(files.keys() - there.keys()),
        "changed": sorted(name for name in files.keys() & there.keys() if not _same(there[name], files[name])),
        "not of this export": sorted(name for name in there.keys() - files.keys() if not is_hidden(name)),
    }
    said = [f"{counted(len(names), 'file')} {what} ({first_of(names)})" for what, names in wrong.items() if names]
    if said:
        only_more = not wrong["missing"] and not wrong["changed"]
        todo = "delete or move what is not of this export, and run the same command again" if only_more else _AGAIN
        raise CorpusError(
            f"{folder} is not as it was written: {'; '.join(said)}; nothing is uploaded. To go on, {todo}"
        )


def _compare_rows(folder: str, there: Mapping[str, Path], sentences: int) -> None:
    rows = 0
    for name, path in there.items():
        if not name.endswith(".parquet"):
            continue
        try:
            rows += pq.read_metadata(path).num_rows
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(
                f"{folder}: {visible(name)} is damaged ({str(error).splitlines()[0]}); nothing is uploaded. To go on, "
                + _AGAIN
            ) from error
    if rows != sentences:
        raise CorpusError(
            f"{folder} is not as it was written: {FINISHED} says {counted(sentences, 'sentence')}, and its Parquet "
            f"files hold {rows}; nothing is uploaded. To go on, {_AGAIN}"
        )


def _same(path: Path, about: Any) -> bool:
    size, digest = (about.get("bytes"), about.get("sha256")) if isinstance(about, dict) else (None, None)
    return path.stat().st_size == size and sha256_of(path) == digest
