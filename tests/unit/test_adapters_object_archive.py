"""What object stores answer, as obstore hands it on."""

import pytest

from diagnoser.adapters.object_archive import ObjectArchive
from diagnoser.model.errors import Unavailable

HEAD = "Object at location a/k not found: Error performing GET http://h/a/k in 3ms - Server returned 404 Not Found: "
INSIDE = '{\n ConnectError(\n "tcp connect error",\n Os {\n code: 111,\n message: "Connection refused",\n },\n )}'
TAIL = '\n\nDebug source:\nNotFound {\n    path: "a/k",\n}'
GONE = (
    '<?xml version="1.0"?>\n<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>',
    "<Error>\n  <Code>BlobNotFound</Code>\n  <Message>There is none.\nRequestId:96</Message></Error>",
)
REFUSED = (
    (
        FileNotFoundError,
        "<Error><Code>NoSuchBucket</Code><Message>No NoSuchKey.</Message></Error>",
        "NoSuchBucket: No NoSuchKey.",
    ),
    (
        FileNotFoundError,
        "<Error>\n  <Code>ContainerNotFound</Code>\n  <Message>There is none.\nRequestId:96</Message></Error>",
        "ContainerNotFound: There is none.",
    ),
    (FileNotFoundError, "<html>nginx</html>", HEAD + "<html>nginx</html>"),
    (
        OSError,
        "<Error><Code>InvalidAccessKeyId</Code><Message>Unknown key.</Message><AWSAccessKeyId>AKIA</AWSAccessKeyId>",
        "InvalidAccessKeyId: Unknown key.",
    ),
)


async def test_a_server_that_does_not_answer_is_named_with_the_cause() -> None:
    """obstore has it in what it adds behind its own line."""
    error = OSError(f"Error performing GET http://h/a/k - HTTP error: error sending request\n\nDebug source:{INSIDE}")
    with pytest.raises(
        Unavailable, match=r"^archive: Connection refused: Error performing GET http://h/a/k .* request$"
    ):
        await ObjectArchive(FailingStore(error)).get("k", 0, 1)


class FailingStore:
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def get_range_async(self, key: str, *, start: int, length: int) -> bytes:
        raise self.error


@pytest.mark.parametrize("answer", GONE)
async def test_an_object_that_is_gone_is_none(answer: str) -> None:
    """Where the store names the object as what it lacks."""
    assert await ObjectArchive(FailingStore(FileNotFoundError(HEAD + answer + TAIL))).get("k", 0, 1) is None


@pytest.mark.parametrize(("kind", "answer", "reason"), REFUSED)
async def test_every_other_answer_is_unavailable(kind: type[Exception], answer: str, reason: str) -> None:
    """Another 404 may be a bucket or a proxy; the reason is a line, in the store's words where it has some."""
    with pytest.raises(Unavailable) as caught:
        await ObjectArchive(FailingStore(kind(HEAD + answer + TAIL))).get("k", 0, 1)
    assert str(caught.value) == f"archive: {reason}"
