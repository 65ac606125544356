"""Contract of archives: a folder always, and a server that speaks S3 where one is installed."""

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diagnoser.config.settings import Settings
from diagnoser.config.storage import open_archive
from diagnoser.model.errors import BadInput, Unavailable
from diagnoser.ports import Archive
from tests.contract import s3_server
from tests.environments import MOTO

KEYS = ["job-1/1/20260101-b.zst", "job-1/1/20260102-a.zst", "job-1/2/x", "job-10/1/x", "job=@:+._-/1/x", "job/1/x"]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if MOTO.missing:
        pytest.skip(MOTO.missing)
    with s3_server.server(tmp_path_factory.mktemp("s3")) as address:
        yield address


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.xdist_group("s3"))])
def settings(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    if request.param == "file":
        return Settings(archive=f"file://{tmp_path}/an%20archive")
    for name, value in s3_server.KEYS.items():
        monkeypatch.setenv(name, value)
    prefix = tmp_path.as_posix().strip("/")
    address: str = request.getfixturevalue("s3")
    return Settings(archive=f"s3://{s3_server.BUCKET}/{prefix}", archive_endpoint=address)


@pytest.fixture
def archive(settings: Settings) -> Archive:
    opened = open_archive(settings)
    assert opened is not None
    return opened


async def test_what_was_put_is_there_in_parts(archive: Archive) -> None:
    """Any part of an object, also one that reaches beyond its end; of an object that is not there, None."""
    await archive.put(KEYS[0], b"0123456789")
    assert await archive.get(KEYS[0], 0, 10) == b"0123456789"
    assert await archive.get(KEYS[0], 3, 4) == b"3456"
    assert await archive.get(KEYS[0], 8, 10) == b"89"
    assert await archive.get(KEYS[1], 0, 1) is None


async def test_the_same_object_may_be_put_again(archive: Archive) -> None:
    """By two replicas at once, too: it is there once, and whole."""
    await asyncio.gather(*(archive.put(KEYS[0], b"x" * 100_000) for _ in range(4)))
    assert await archive.get(KEYS[0], 0, 200_000) == b"x" * 100_000
    assert [found.key for found in await archive.objects("", 10)] == [KEYS[0]]


async def test_all_objects_are_listed_page_by_page(archive: Archive) -> None:
    """Each once, with the time when it was put, whatever the size of a page."""
    begun = time.time()
    for key in KEYS:
        await archive.put(key, b"x")
    for limit in (1, 2, 4, 100):
        keys: list[str] = []
        while page := await archive.objects(keys[-1] if keys else "", limit):
            assert len(page) <= limit
            assert all(begun - 60 < found.changed < time.time() + 60 for found in page)
            keys += [found.key for found in page]
        assert sorted(keys) == sorted(KEYS)


async def test_what_was_deleted_is_gone(archive: Archive) -> None:
    """Alone; to delete it again is no error."""
    for key in KEYS:
        await archive.put(key, b"x")
    for _ in range(2):
        await archive.delete(KEYS[:3])
    assert sorted(found.key for found in await archive.objects("", 100)) == sorted(KEYS[3:])
    await archive.delete([])


async def test_a_put_that_was_cut_off_can_be_swept(tmp_path: Path) -> None:
    """A crash in the middle of writing leaves a file of no object's name; who sweeps finds it in the list."""
    archive = open_archive(Settings(archive=f"file://{tmp_path}"))
    assert archive is not None
    await archive.put(KEYS[0], b"x")
    (tmp_path / "job-1/1/.partial-77-20260101-c.zst").write_bytes(b"half")
    listed = [found.key for found in await archive.objects("", 10)]
    assert listed == ["job-1/1/.partial-77-20260101-c.zst", KEYS[0]]
    await archive.delete(listed)
    assert await archive.objects("", 10) == []


async def test_an_archive_that_does_not_answer_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that became a file, and a server that is not there: to be tried again, no crash."""
    for name, value in s3_server.KEYS.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "archive"
    in_folder = open_archive(Settings(archive=f"file://{folder}"))
    folder.rmdir()
    folder.write_bytes(b"")
    in_s3 = open_archive(Settings(archive="s3://logs", archive_endpoint="http://127.0.0.1:9"))
    for archive in (in_folder, in_s3):
        assert archive is not None
        with pytest.raises(Unavailable, match="archive"):
            await archive.put(KEYS[0], b"x")


@pytest.mark.xdist_group("s3")
async def test_without_its_bucket_an_archive_is_unavailable(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its objects are not taken for gone."""
    for name, value in s3_server.KEYS.items():
        monkeypatch.setenv(name, value)
    archive = open_archive(Settings(archive="s3://no-such-bucket/x", archive_endpoint=s3))
    assert archive is not None
    for answer in archive.put(KEYS[0], b"x"), archive.get(KEYS[0], 0, 1), archive.objects("", 1):
        with pytest.raises(Unavailable, match=r"archive: NoSuchBucket: The specified bucket does not exist$"):
            await answer


def test_keys_in_files_need_boto3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the environment go first; where there are none, the start tells what to install."""
    files = tmp_path / "credentials"
    files.write_text("[default]\naws_access_key_id = AKIA\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(files))
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "obstore.auth.boto3", raising=False)
    for name in s3_server.KEYS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput, match="boto3 to read keys from Amazon's files"):
        open_archive(Settings(archive="s3://logs"))
    for name, value in s3_server.KEYS.items():
        monkeypatch.setenv(name, value)
    assert open_archive(Settings(archive="s3://logs"))


@pytest.mark.parametrize("url", ["gs://logs/prefix", "az://logs/prefix"])
def test_other_clouds_are_opened_alike(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the names that their own programs read from the environment."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "site")
    assert open_archive(Settings(archive=url))


@pytest.mark.parametrize(
    "url", ["logs", "file:///", "file://host/folder", "s3:///prefix", "ftp://bucket", "file:///proc/x"]
)
def test_what_names_no_archive_stops_the_start(url: str) -> None:
    """With the setting's name."""
    with pytest.raises(BadInput, match="DIAGNOSER_ARCHIVE"):
        open_archive(Settings(archive=url))


def test_without_a_setting_nothing_is_archived() -> None:
    """The default."""
    assert open_archive(Settings()) is None
