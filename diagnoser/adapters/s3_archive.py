"""An archive in an S3-compatible object store, through boto3."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.ports import ArchivedObject

T = TypeVar("T")
TIMEOUT_SECONDS = 20
TRIES = 4
DELETED_AT_ONCE = 1_000
"""What S3 takes in one request."""


class S3Archive:
    """``ports.Archive``. prefix: before every key, "" or with a slash at its end. client: of boto3, which threads may
    share."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    async def put(self, key: str, data: bytes) -> None:
        await _in_thread(lambda: self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data))

    async def get(self, key: str, start: int, size: int) -> bytes | None:
        def work() -> bytes | None:
            part = f"bytes={start}-{start + size - 1}"
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, Range=part)
            except self._client.exceptions.NoSuchKey:
                return None
            data: bytes = answer["Body"].read()
            return data

        return await _in_thread(work)

    async def delete(self, keys: Collection[str]) -> None:
        names = [{"Key": self._prefix + key} for key in keys]

        def work() -> None:
            for start in range(0, len(names), DELETED_AT_ONCE):
                batch = {"Objects": names[start : start + DELETED_AT_ONCE], "Quiet": True}
                answer = self._client.delete_objects(Bucket=self._bucket, Delete=batch)
                for fault in answer.get("Errors", ())[:1]:
                    raise Unavailable(f"archive: {fault.get('Key')} was not deleted: {fault.get('Message')}")

        await _in_thread(work)

    async def objects(self, after: str, limit: int) -> list[ArchivedObject]:
        """List objects in order of their keys; S3 gives a thousand at most."""
        place = {"Bucket": self._bucket, "Prefix": self._prefix, "MaxKeys": limit}
        place |= {"StartAfter": self._prefix + after} if after else {}
        answer = await _in_thread(lambda: self._client.list_objects_v2(**place))
        return [
            ArchivedObject(row["Key"].removeprefix(self._prefix), row["LastModified"].timestamp())
            for row in answer.get("Contents", ())
        ]

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)


def s3_archive(bucket: str, prefix: str, endpoint: str) -> S3Archive:
    """endpoint: "" for Amazon's own. Who may do it is found as boto3 does: environment, files, the machine's role.

    Raises BadInput when boto3 is not installed or the endpoint is no URL.
    """
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise BadInput("DIAGNOSER_ARCHIVE: an archive in S3 needs boto3: install diagnoser[s3]") from None
    config = Config(
        connect_timeout=TIMEOUT_SECONDS, read_timeout=TIMEOUT_SECONDS, retries={"total_max_attempts": TRIES}
    )
    try:
        client = boto3.client("s3", endpoint_url=endpoint or None, config=config)
    except Exception as error:
        raise BadInput(f"DIAGNOSER_ARCHIVE: {error}") from error
    return S3Archive(client, bucket, f"{prefix.strip('/')}/".lstrip("/"))


async def _in_thread(work: Callable[[], T]) -> T:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return await asyncio.to_thread(work)
    except (BotoCoreError, ClientError) as error:
        raise Unavailable(f"archive: {error}") from error
