"""Reports failures of an object store in plain words: every message names the URL and says what to do.

The clients that fsspec uses (botocore, gcsfs, adlfs, aiohttp) raise errors of their own that do neither.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.base.errors import ConfigError, PipelineError, StorageError
from pipeline.storage.retry import filesystem, is_redirected, is_transient

_CLIENTS = {
    "adlfs", "aiobotocore", "aiohttp", "azure", "boto3", "botocore", "gcsfs", "google", "httpx", "httpx2",
    "huggingface_hub", "requests", "s3fs",
}  # fmt: skip
_EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "hf": "hub",
}
_NO_OUTPUT = dict.fromkeys(("http", "https"), "nothing can be written to a web server") | {
    "memory": "what is written there is lost when the command ends",
    "hf": "the Hub makes a commit of every file, and none only if it is absent; pipeline export --format hub --push "
    "OWNER/NAME puts a finished corpus there",
}
_CREDENTIALS = (
    "give credentials: environment variables (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY on S3), a profile, "
)
_ADVICE = {
    "NoCredentialsError": _CREDENTIALS + "or a role of this machine",
    "PartialCredentialsError": _CREDENTIALS + "or a role of this machine",
    "DefaultCredentialsError": "log in: gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
    "ClientAuthenticationError": "check the account's name and key (AZURE_STORAGE_ACCOUNT_NAME and …_KEY)",
    "RepositoryNotFoundError": "correct the name, or set HF_TOKEN to a token that may read it",
    "ProfileNotFound": "set AWS_PROFILE to a profile of ~/.aws/config, or unset it",
    "EndpointConnectionError": "check the network, and AWS_ENDPOINT_URL if it is not an Amazon store",
    "ParamValidationError": "correct the name of the bucket",
    "PermissionError": "let these credentials list, read, write and delete there, or give others (these may have "
    "expired)",
    "FileNotFoundError": "make the bucket, or correct its name",
    "ValueError": "correct the address of the store",
}
_BAD_REQUEST = "the credentials may have expired: give others; or correct the region"  # S3 says no more to a HEAD
_NOT_CONDITIONAL = (
    "this store does not do what was asked of it; where a corpus is, it must create files only where there are none "
    "(If-None-Match)"
)
_REDIRECTS = "correct its address"
_REDIRECTS_OF_S3 = _REDIRECTS + " (https://?) and the region: AWS_ENDPOINT_URL, AWS_REGION"
_FULL = "make space there, or have the quota raised, then run the same command again: finished work is kept"
_INSUFFICIENT_STORAGE = 507
_NO_ROOM = re.compile("InsufficientStorage|StorageFull|Quota")  # in codes of Swift, MinIO and Ceph
_AGAIN = "check the network and try again: finished work is kept"
_SECRETS = (
    re.compile(r"://[^\s/@]*:[^\s/@]+@"),
    re.compile(r"://\S+[?&][^\s=&]*(?:sig|token|secret|password|credential|key)[^\s=&]*=", re.IGNORECASE),
    re.compile(r"\b[A-Z_]*(?:SECRET|PASSWORD|TOKEN|ACCESS_KEY)[A-Z_]*=[\"']?[^\s\"'$]"),
)


class RemoteError(PipelineError):
    """An object store refused a request, did not answer, or has no such bucket."""


class CorpusStoreError(RemoteError, StorageError):
    """The corpus's own store refused a request (expired credentials, say), or did not answer within the retry limit.

    The next request would fail too, so a run stops.
    """


class AwayError(CorpusStoreError):
    """A store, of the corpus or of its inputs, did not answer for as long as this process waits for it.

    It may answer later, so a SLURM job queues itself again with a delay.
    """


def is_remote(url: str) -> bool:
    """Return whether the files of a URL are on another machine."""
    return "://" in url and not url.startswith(("file://", "local://", "memory://"))


def missing_bucket(url: str) -> str:
    """Return the bucket of a URL of S3 if there is none of that name; empty if there is, or the store does not say."""
    if not url.startswith(("s3://", "s3a://")):
        return ""
    try:
        fs, path = filesystem(url)
        bucket = str(fs.split_path(path)[0])
        fs.info(bucket)
    except FileNotFoundError:
        return bucket
    except Exception:  # whatever else is wrong is told by who reads or writes there
        return ""
    return ""


def no_output(url: str) -> str:
    """Return why nothing can be kept at a URL, by its protocol; empty if something can."""
    return _NO_OUTPUT.get(url.partition("://")[0], "") if "://" in url else ""


@contextmanager
def translate_errors(url: str, kind: type[RemoteError] = RemoteError) -> Iterator[None]:
    """Turn errors that a store's client raises while it works on `url` into a `RemoteError`.

    A missing client, or an unknown protocol, becomes a `ConfigError`. Errors of local files and of this program itself
    pass unchanged.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        protocol = url.partition("://")[0]
        what = f"{without_credentials(url)}: {without_credentials(_first_line(error))}"
        if isinstance(error, ImportError) and is_remote(url):
            extra = _EXTRAS.get(protocol)
            todo = f"pip install 'sonar-pipeline[{extra}]'" if extra else "install the package that it names"
            raise ConfigError(f"{what}; {todo}") from error
        if isinstance(error, ValueError) and str(error).startswith("Protocol not known"):
            raise ConfigError(f"{what}; give a folder, or a URL: s3://… gs://… az://… https://…") from error
        if is_remote(url) and is_redirected(error):
            advice = _REDIRECTS_OF_S3 if protocol in ("s3", "s3a") else _REDIRECTS
            raise kind(f"{without_credentials(url)}: the store redirects every request; {advice}") from error
        if is_remote(url) and (isinstance(error, OSError) or _of_a_client(error)):
            name = type(error).__name__
            raise (AwayError if is_transient(error) else kind)(f"{what} ({name}); {_advice(error)}") from error
        raise


def _advice(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.EINVAL and error.strerror == "Bad Request":
        return _BAD_REQUEST
    if isinstance(error, OSError) and error.errno == errno.ENOSYS:
        return _NOT_CONDITIONAL
    return _FULL if _is_full(error) else _ADVICE.get(type(error).__name__, _AGAIN)


def _is_full(error: Exception) -> bool:
    """Return whether a store says that there is no room: by its status, or by its code (QuotaExceeded, say)."""
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        said = response if isinstance(response, dict) else {}  # botocore
        status = said.get("ResponseMetadata", {}).get("HTTPStatusCode", getattr(one, "status_code", None))
        code = said.get("Error", {}).get("Code", getattr(one, "error_code", None))  # azure
        if status == _INSUFFICIENT_STORAGE or _NO_ROOM.search(str(code)):
            return True
    return False


def _of_a_client(error: Exception) -> bool:
    """Return whether the error is of a client's own class, or was raised by its code (a ValueError for a wrong
    endpoint).
    """
    last = error.__traceback__
    while last and last.tb_next:
        last = last.tb_next
    raised_in = str(last.tb_frame.f_globals.get("__name__", "")) if last else ""
    return any(module.partition(".")[0] in _CLIENTS for module in (type(error).__module__, raised_in))


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or ["no answer"]
    text = " ".join(lines[:2])
    return text if len(text) <= 200 else text[:199] + "…"


def without_credentials(text: str) -> str:
    """Remove `user:password@` and queries, which can hold a signature, from the URLs in a text."""
    return re.sub(r"(//[^\s'\"?]+)\?[^\s'\"]+", r"\1?…", re.sub(r"//[^\s/@:]*:[^\s/@]+@", "//", text))


def holds_credentials(text: str) -> bool:
    """Return whether a URL holds `user:password@`, a signature, a token or a key, or a shell assignment holds one of
    these.
    """
    return any(pattern.search(text) for pattern in _SECRETS)
