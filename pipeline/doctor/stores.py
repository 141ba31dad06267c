"""Credentials of object stores: found or not, and where; never what they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.doctor.checks import Check, installed

_WHERE = {
    "env": "environment variables",
    "shared-credentials-file": "~/.aws/credentials",
    "config-file": "~/.aws/config",
    "iam-role": "the role of this machine",
    "container-role": "the role of this container",
}


def credentials(urls: Sequence[str]) -> Iterator[Check]:
    """S3 credentials, if the client is there. `urls`: what a configuration reads and writes."""
    wanted = any(url.startswith(("s3://", "s3a://")) for url in urls)
    if not installed("s3fs"):
        return
    import botocore.exceptions
    import botocore.session

    session = botocore.session.Session()
    session.set_config_variable("metadata_service_timeout", 1)
    session.set_config_variable("metadata_service_num_attempts", 1)
    try:
        found = session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        yield Check("bad" if wanted else "warn", "S3", f"credentials: {error}", "set AWS_PROFILE, or unset it")
        return
    if found is not None:
        yield Check("good", "S3", f"credentials found in {_WHERE.get(found.method, found.method)}")
        return
    todo = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role of this machine"
    yield Check("bad" if wanted else "note", "S3", "no credentials found (for s3:// URLs)", todo if wanted else "")
