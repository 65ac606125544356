"""What a protocol for log lines consists of. Adding one takes a file with a ``Protocol``, and a line in ``PROTOCOLS``.

Nothing here knows the web framework: a protocol reads the head and the body of a request as values, and answers with a
value (``web.api.protocols`` does the rest).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from diagnoser.ingest.batch import Batch, IngestReceipt, Labels, RecordDefaults
from diagnoser.ingest.encodings import Decoder, decoder
from diagnoser.ingest.mapping import FieldMapping
from diagnoser.model.errors import DiagnoserError, Unsupported

JSON, PROTOBUF, PLAIN_TEXT = "application/json", "application/x-protobuf", "text/plain"

Parser = Callable[[bytes, RecordDefaults, float, FieldMapping], Batch]
"""(body, defaults of the request, time of arrival, mapping of labels) -> its lines. Raises BadInput."""


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """A form that the body of a request may have.

    name: as streams of lines that belong to no job have it.

    hint: what to set at the shipper, so that its lines name their job; "" for the general advice.

    is_cheap: to parse it costs next to nothing, whatever its size.
    """

    name: str
    parse: Parser
    hint: str = ""
    is_cheap: bool = False


class RequestHead(NamedTuple):
    """A request without its body.

    encoding: None where the request names none.

    path_parts: values of the parameters in its path.
    """

    content_type: str = ""
    encoding: str | None = None
    path_parts: Mapping[str, str] = MappingProxyType({})


class BodyReading(NamedTuple):
    """How to read a body. decode: None where it came as it is."""

    format: BodyFormat
    decode: Decoder | None


class Answer(NamedTuple):
    status: int = 204
    body: bytes = b""
    media_type: str = ""
    headers: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Description:
    """How the OpenAPI document shows a protocol, in the document's own words.

    answers: by status, for what is no error.

    errors: content of the answers to what is refused; problem+json by default.
    """

    summary: str
    text: str
    body: str
    content: Mapping[str, Any]
    answers: Mapping[int, Mapping[str, Any]]
    errors: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """A way to send lines.

    paths: the first is described; ``path_parts`` of the head holds what stands for ``{name}`` in one.

    formats: by media type.

    answer: gives the answer once the lines are committed. Raises BadInput.

    choose: how to read a body, where its Content-Type does not say it all. Raises Unsupported, BadInput.

    refuse: an error as the protocol has it, from status and text; problem+json by default.

    refuse_batch: the answer to lines that were read and then not committed; None leaves it to ``refuse``.

    takes_passwords: a token may come as a password, which a browser adds by itself. Only for a protocol whose requests
    no page of another site can make, such as those with a body of JSON.

    numbers_lines: a request may say how many lines of its stream came before.

    ignores_parameters: a query may hold parameters of the protocol's own.

    greetings: JSON for a GET of these paths, by which clients find out who answers.

    labels_of: reads labels as the protocol's own tools show them; None for a text that is none. Raises ValueError.

    samples: bodies, from which tests make hostile ones.
    """

    name: str
    paths: tuple[str, ...]
    formats: Mapping[str, BodyFormat]
    answer: Callable[[Batch, IngestReceipt, RequestHead], Answer]
    description: Description
    methods: tuple[str, ...] = ("POST",)
    choose: Callable[[RequestHead], BodyReading] | None = None
    refuse: Callable[[RequestHead, int, str], Answer] | None = None
    refuse_batch: Callable[[Batch, DiagnoserError], Answer | None] | None = None
    takes_passwords: bool = True
    numbers_lines: bool = False
    ignores_parameters: bool = False
    greetings: Mapping[str, Answer] = field(default_factory=dict)
    labels_of: Callable[[str], Labels | None] | None = None
    samples: tuple[bytes, ...] = ()

    def reading(self, head: RequestHead) -> BodyReading:
        """How to read the body of a request with this head. Raises Unsupported, BadInput."""
        if self.choose:
            return self.choose(head)
        return BodyReading(format_of(self.formats, head.content_type), decoder(head.encoding))

    @property
    def path_ends(self) -> tuple[str, ...]:
        """Ends of its paths that no other path has."""
        return tuple({path.rpartition("}")[2] for path in self.paths})


def format_of(formats: Mapping[str, BodyFormat], content_type: str) -> BodyFormat:
    """Raises Unsupported."""
    chosen = formats.get(media_type(content_type)[0])
    if chosen is None:
        raise Unsupported(f"Content-Type {content_type[:60]!r} is not one of {', '.join(formats)}")
    return chosen


@lru_cache(maxsize=256)
def media_type(content_type: str) -> tuple[str, str]:
    """(media type, charset) of a header, in lower case; "" for what it does not say."""
    if not content_type:
        return "", ""
    header = Message()
    header["content-type"] = content_type
    return header.get_content_type(), str(header.get_param("charset", "")).lower()
