"""An archive in an object store, through obstore: S3 and what speaks like it, Google's and Azure's."""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.ports import ArchivedObject

TRY = timedelta(seconds=40)
"""One request with its body of at most 8 MB; none is tried again when so much has passed since the first."""
RETRIES = {"max_retries": 3, "retry_timeout": TRY}
_ANSWER = re.compile(r"<Code>([^<]{1,100})</Code>\s{0,9}<Message>([^<\n]{0,300})")
"""How S3, Google and Azure say why not."""
_CAUSE = re.compile(r'(?:message|error): "([^"\n]{1,200})"|(InvalidCertificate)')
"""Why there was no answer at all, in what obstore adds of its inside."""
_ABSENT = re.compile("<Code>(NoSuchKey|BlobNotFound)<")


class ObjectArchive:
    """``ports.Archive``. store: of obstore, which puts the prefix before every key."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def put(self, key: str, data: bytes) -> None:
        with _faults():
            await self._store.put_async(key, data, use_multipart=False)  # a crash would leave parts, unseen and paid

    async def get(self, key: str, start: int, size: int) -> bytes | None:
        with _faults():
            try:
                return bytes(await self._store.get_range_async(key, start=start, length=size))
            except FileNotFoundError as error:
                if not _ABSENT.search(str(error)):
                    raise  # the bucket is not there
                return None

    async def delete(self, keys: Collection[str]) -> None:
        with _faults(), suppress(FileNotFoundError):  # Google and Azure may stop there: the next sweep takes the rest
            await self._store.delete_async(list(keys))

    async def objects(self, after: str, limit: int) -> list[ArchivedObject]:
        """List objects in order of their keys."""
        with _faults():
            async for page in self._store.list(offset=after or None, chunk_size=limit):
                return [ArchivedObject(row["path"], row["last_modified"].timestamp()) for row in page]
        return []


def object_archive(url: str, endpoint: str) -> ObjectArchive:
    """endpoint: "" for the cloud's. Raises BadInput when a library is missing or a setting is wrong."""
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise BadInput(f"DIAGNOSER_ARCHIVE_ENDPOINT is no URL: {endpoint}")
    client: dict[str, Any] = {"timeout": TRY, "allow_http": True}
    config: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    try:
        from obstore.store import from_url

        if bundle := os.environ.get("AWS_CA_BUNDLE"):
            client["root_certificate"] = Path(bundle).read_bytes()
        if url.startswith("s3:"):
            config |= _amazon()
        return ObjectArchive(from_url(url, client_options=client, retry_config=RETRIES, **config))
    except ImportError as error:
        advice = "install diagnoser[s3], and boto3 to read keys from Amazon's files (or set AWS_ACCESS_KEY_ID)"
        raise BadInput(f"DIAGNOSER_ARCHIVE: {error}: {advice}") from error
    except Exception as error:
        raise BadInput(f"DIAGNOSER_ARCHIVE: {_reason(error)}") from error


def _amazon() -> dict[str, Any]:
    """Where keys are in Amazon's files alone, boto3 reads them, and knows all the ways from there."""
    config: dict[str, Any] = {"checksum_algorithm": "SHA256"}  # buckets with Object Lock ask for one
    if any(map(os.environ.get, ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"))):
        return config
    file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    if os.environ.get("AWS_PROFILE") or os.access(os.path.expanduser(file), os.R_OK):  # noqa: PTH111 there may be no home
        from obstore.auth.boto3 import Boto3CredentialProvider

        config["credential_provider"] = Boto3CredentialProvider()
    return config


@contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a panic inside obstore is none of its errors
        raise Unavailable(f"archive: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Say it in one line."""
    if answer := _ANSWER.search(str(error)):
        return ": ".join(answer.groups())
    reason, _, inside = str(error).partition("\n\n")
    if "169.254.169.254" in reason:
        reason = f"no keys were found: {reason}"
    if cause := _CAUSE.search(inside):
        reason = f"{cause[1] or cause[2]}: {reason}"
    return reason[:300]
