"""Syslog messages (`application/syslog`): RFC 5424 and RFC 3164, one a line or with their length in front (RFC 6587).

The host is the node. A message of the kernel's facility belongs to that node, whatever else the request is for: to its
kernel log where the query names the source ``kernel``, for only the shipper knows whether it read the kernel's own
records (any process may claim that facility on ``/dev/log``); else to its syslog, as does all that belongs to no job.
Any other belongs to the job that the mapping finds in its structured data, its program or the query. Lines are kept as
a syslogd writes them to a file, with the priority in front: that tells processes of a node apart, dates the line, and
says how severe it is.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from diagnoser.dialects.system_log import KERNEL, KERNEL_FACILITY
from diagnoser.ingest.batch import ERRORS_TOLD, LINES_LIMIT, Batch, Place, RecordDefaults, Unattributed, check_count
from diagnoser.ingest.mapping import OWN, FieldMapping
from diagnoser.model import KERNEL_SOURCES, SYSLOG, LineBlock
from diagnoser.model.errors import BadInput

SOURCE = OWN[0] + "source"
_ISO = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)"
_DATE = rb"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
_STRUCTURED_DATA = rb'(?>(?:\[(?>(?:[^\]"]|"(?>(?:[^"\\]|\\.)*)")*)\])+)'
_MESSAGE = re.compile(
    # RFC 5424: version, stamp, host, program, process, kind of message, structured data
    rb"<(?P<priority>\d{1,3})>(?:"
    rb"1 (?P<stamp>\S{1,64}) (?P<host>\S{1,255}) (?P<program>\S{1,48}) (?P<process>\S{1,128}) \S{1,32} "
    rb"(?:-|(?P<data>" + _STRUCTURED_DATA + rb"))(?: (?:\xef\xbb\xbf)?|$)"
    # RFC 3164: stamp, host (glibc leaves it out), program and process (not everybody sends them)
    rb"|(?P<old_stamp>" + _DATE + rb"|" + _ISO + rb") (?:(?P<old_host>[^\s\[]{0,254}[^\s:\[\]]) )?"
    rb"(?:(?P<old_program>[^\s:\[]{1,48})(?:\[(?P<old_process>\d{1,8})\])?: ?)?)"
)
_COUNT = re.compile(rb"([1-9]\d{0,7}) (?=<\d)")
_ELEMENT = re.compile(rb'\[([^ \]"]{1,64})((?>(?:[^\]"]|"(?>(?:[^"\\]|\\.)*)")*))\]')
_PARAMETER = re.compile(rb' ([^ =\]"]{1,64})="((?>(?:[^"\\]|\\.)*))"')
_ESCAPED = re.compile(rb'\\(["\\\]])')
_NO_TAG = re.compile(rb"[^\w./-]")
NIL = b"-"
_NEWLINE = ord("\n")


def parse_syslog(body: bytes, defaults: RecordDefaults, received: float, mapping: FieldMapping) -> Batch:
    """A line without a head goes on with the message before it. Raises BadInput for an offset: the lines are of many
    streams; TooLarge for too many lines.
    """
    if defaults.first is not None:
        raise BadInput("an offset numbers the lines of one stream: syslog messages are of many")
    check_count(body.count(b"\n") + body.count(b" <"), LINES_LIMIT, "lines")
    streams = _Streams(defaults, mapping)
    lines = streams.headless()
    for message in _messages(body):
        head = _MESSAGE.match(message)
        if head is None:
            lines.append(message)
            continue
        kernel = int(head["priority"]) >> 3 == KERNEL_FACILITY
        host, program = head["host"] or head["old_host"] or NIL, head["program"] or head["old_program"] or NIL
        lines = streams.of(kernel, host, program, head["data"] or b"")
        lines.append(_as_in_a_file(message, head))
    return streams.batch(received)


class _Streams:
    """The lines of each place. Messages that name theirs in the same words are placed once for all."""

    def __init__(self, defaults: RecordDefaults, mapping: FieldMapping) -> None:
        self._defaults = defaults
        self._mapping = mapping
        self._lines: dict[Place | Unattributed, list[bytes]] = {}
        self._known: dict[tuple[bool, bytes, bytes, bytes], list[bytes]] = {}

    def headless(self) -> list[bytes]:
        """The lines of messages without a head."""
        return self._at(self._mapping.attribute((), self._defaults))

    def of(self, kernel: bool, host: bytes, program: bytes, data: bytes) -> list[bytes]:
        key = (kernel, host, program, data)
        lines = self._known.get(key)
        if lines is None:
            lines = self._known[key] = self._at(self._place(*key))
        return lines

    def batch(self, received: float) -> Batch:
        batch = Batch()
        for place, lines in self._lines.items():
            if not lines:
                continue
            if isinstance(place, Place):
                batch.add(place.target, LineBlock(place.stream, b"\n".join(lines) + b"\n", 0, received=received))
            else:
                batch.leave_out(place, len(lines), _text(lines[0]))
                if len(batch.errors) < ERRORS_TOLD:
                    batch.errors.append(f"{len(lines)} messages: {place.detail}")
        return batch

    def _at(self, place: Place | Unattributed) -> list[bytes]:
        return self._lines.setdefault(place, [])

    def _place(self, kernel: bool, host: bytes, program: bytes, data: bytes) -> Place | Unattributed:
        """Facility and query alone say whose word a line is: its text and structured data are any program's."""
        labels: list[tuple[str, str]] = []
        if host != NIL:
            labels.append(("host.name", _text(host)))
        if kernel:
            return self._of_kernel(program, labels)
        if program != NIL:
            labels.append(("appname", _text(program)))
        labels += _parameters(data)
        source = self._defaults.stream.source
        if source in KERNEL_SOURCES:
            source = SYSLOG
        place = self._mapping.attribute((*labels, (SOURCE, source)), self._defaults)
        if isinstance(place, Place):
            return place
        in_node_log = self._mapping.attribute((*labels, (SOURCE, SYSLOG)), self._defaults)
        if isinstance(in_node_log, Place):
            return in_node_log
        return place

    def _of_kernel(self, program: bytes, labels: Sequence[tuple[str, str]]) -> Place | Unattributed:
        """No message of a kernel is a job's: a query that names one is meant for the programs of the node."""
        stream, source = self._defaults.stream, SYSLOG
        if stream.source in KERNEL_SOURCES and program.decode("latin-1") == KERNEL:
            source = stream.source
        of_node = replace(self._defaults, job="", attempt=None, stream=replace(stream, rank=-1))
        return self._mapping.attribute((*labels, (SOURCE, source)), of_node)


def _parameters(data: bytes) -> Iterator[tuple[str, str]]:
    """Names and values of structured data. Those of an element whose id begins with ``diagnoser`` were made for us."""
    for identity, parameters in _ELEMENT.findall(data):
        ours = OWN[0] if identity.startswith(b"diagnoser") else ""
        for name, value in _PARAMETER.findall(parameters):
            yield ours + _text(name), _text(_ESCAPED.sub(rb"\1", value))


def _messages(body: bytes) -> Iterator[bytes]:
    """Frames of either kind. A length that does not end where another message can begin is not believed."""
    if not _COUNT.match(body):
        yield from body.removesuffix(b"\n").split(b"\n")
        return
    position = 0
    while position < len(body):
        begin, end = _frame(body, position)
        if _is_frame_end(body, end):
            yield from body[begin:end].removesuffix(b"\n").split(b"\n")
            position = end + (body[end : end + 1] == b"\n")
            continue
        end = body.find(b"\n", position)
        if end < 0:
            end = len(body)
        yield body[begin:end]
        position = end + 1


def _frame(body: bytes, position: int) -> tuple[int, int]:
    """(where the message behind the length begins, where it ends by it); an end of -1 where no length is there."""
    count = _COUNT.match(body, position)
    if count is None:
        return position, -1
    return count.end(), count.end() + int(count[1])


def _is_frame_end(body: bytes, end: int) -> bool:
    """Whether the body ends there, or another message can begin. end: -1 for none, or any number that was sent."""
    if not 0 <= end < len(body):
        return end == len(body)
    return body[end] == _NEWLINE or _COUNT.match(body, end) is not None


def _as_in_a_file(message: bytes, head: re.Match[bytes]) -> bytes:
    """``<priority>stamp host program[process]: text``, or without host and program where no process is named: nothing
    would tell such a head from what the program says."""
    if head["old_stamp"]:
        return _old_as_in_a_file(message, head)
    text, front = message[head.end() :], b"<" + head["priority"] + b">"
    host, program, process = head["host"], head["program"], head["process"]
    if head["stamp"] == NIL:
        return front + text
    front += head["stamp"] + b" "
    if host == NIL:
        return front + text
    if program == b"kernel":
        return front + host + b" kernel: " + text
    if not process.isdigit():
        return front + text
    return front + host + b" " + _NO_TAG.sub(b"-", program)[:40] + b"[" + process[:8] + b"]: " + text


def _old_as_in_a_file(message: bytes, head: re.Match[bytes]) -> bytes:
    """The same of a message in the older form, which is the form of a file where it names host and process."""
    if _names_process(head):
        return message
    front, stamp = b"<" + head["priority"] + b">", head["old_stamp"]
    if stamp[:1].isdigit():
        front += stamp + b" "
    return front + message[head.end() :]


def _names_process(head: re.Match[bytes]) -> bool:
    """Whether a head in the older form names a process and its host; the kernel has no number."""
    if not head["old_host"]:
        return False
    if head["old_process"]:
        return True
    return head["old_program"] == b"kernel"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
