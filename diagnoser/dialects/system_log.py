"""Takes the head of a record of a node's own log apart: who sent it, and where its message begins.

Formats: what ``dmesg`` prints (uptime, ``-T``, ``-x``, ISO), records of ``/dev/kmsg``, syslog in the forms of RFC 3164
and RFC 5424 with or without its priority, and ``journalctl -o short-iso``.
"""

import re
from typing import NamedTuple

KERNEL = "kernel"
KERNEL_FACILITY = 0
_LONGEST_HEAD = 2048
"""Characters in which a head must end: structured data may be as long as somebody likes."""
_FACILITIES = ("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp")
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)"
_SECOND = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d"
_PRIORITY = re.compile(r"<(?P<priority>\d{1,3})>")
_KMSG = re.compile(r"(?P<priority>\d{1,5}),\d+,\d+,(?P<flags>[^;,]{1,16})(?:,[^;]*)?;")
_DECODED = re.compile(rf"(?P<facility>{'|'.join(_FACILITIES)}|local\d) *:\w+ *: ")
_RFC5424 = re.compile(
    rf"1 (?P<stamp>{_SECOND}(?:\.\d+)?{_ZONE}|-) (?P<host>\S+) (?P<sender>\S+) \S+ \S+ "
    r'(?:-|(?:\[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\])+)(?: \ufeff?|$)'
)
_RING_BUFFER = re.compile(rf"(?P<stamp>{_SECOND},\d+{_ZONE}) ")
"""``dmesg --time-format iso``: nobody else writes the comma, and it names no sender."""
_STAMP = re.compile(
    rf"(?:(?P<stamp>{_SECOND}(?:\.\d+)?{_ZONE})|{_SECOND}(?:\.\d+)?"
    r"|[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?) "
)
_NAMES = re.compile(r"(?P<host>\S+) (?P<sender>[^\s:\[\]]+)(?:\[\d+\])?: |(?P<kernel>kernel): ")
_SURE_NAMES = re.compile(r"(?P<host>\S+) (?:(?P<kernel>kernel)|(?P<sender>[^\s:\[\]]+)\[\d+\]): ")
"""Without a time in front, ``nvme nvme2: `` is how a message begins."""
_UPTIME = re.compile(r"\[ *\d+\.\d{1,9}\](?:\[ *[TC]\d+\])? ")
_CALENDAR = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4}\] ")


class SystemRecord(NamedTuple):
    """What the head of a record says. start: where the message begins; 0 where there is no head.

    facility: None where the head does not tell. stamp: in ISO 8601 with its zone, "" in any other form. host, sender:
    "" where the head names none. is_fragment: the message goes on with that of another record.
    """

    start: int = 0
    facility: int | None = None
    stamp: str = ""
    host: str = ""
    sender: str = ""
    is_fragment: bool = False

    @property
    def is_of_kernel(self) -> bool:
        """Whether nothing in the head speaks against the kernel as sender."""
        if self.is_fragment:
            return False
        if self.sender not in ("", KERNEL):
            return False
        return self.facility in (None, KERNEL_FACILITY)


def read_record(text: str) -> SystemRecord:
    """The head of one line, in the order in which the formats put its parts."""
    text = text[:_LONGEST_HEAD]
    if head := _KMSG.match(text):
        return SystemRecord(head.end(), int(head["priority"]) >> 3, is_fragment=head["flags"] != "-")
    start, facility = _facility(text)
    if head := _RFC5424.match(text, start):
        stamp = head["stamp"].removeprefix("-")
        return _with_uptime(text, SystemRecord(head.end(), facility, stamp, head["host"], head["sender"]))
    if head := _RING_BUFFER.match(text, start):
        return SystemRecord(head.end(), facility, head["stamp"])
    if head := _UPTIME.match(text, start) or _CALENDAR.match(text, start):
        return SystemRecord(head.end(), facility)
    if head := _STAMP.match(text, start):
        record = SystemRecord(head.end(), facility, head["stamp"] or "")
        return _with_uptime(text, _named(text, record, _NAMES))
    if start:
        return _with_uptime(text, _named(text, SystemRecord(start, facility), _SURE_NAMES))
    return SystemRecord()


def _facility(text: str) -> tuple[int, int | None]:
    """(where what follows begins, facility)."""
    if head := _PRIORITY.match(text):
        return head.end(), int(head["priority"]) >> 3
    if head := _DECODED.match(text):
        name = head["facility"]
        return head.end(), _FACILITIES.index(name) if name in _FACILITIES else 16
    return 0, None


def _named(text: str, record: SystemRecord, pattern: re.Pattern[str]) -> SystemRecord:
    """The record with the host and sender that stand next."""
    names = pattern.match(text, record.start)
    if names is None:
        return record
    return record._replace(start=names.end(), host=names["host"] or "", sender=names["sender"] or names["kernel"])


def _with_uptime(text: str, record: SystemRecord) -> SystemRecord:
    """Some daemons pass the kernel's own stamp on, behind its name."""
    if record.sender != KERNEL:
        return record
    uptime = _UPTIME.match(text, record.start)
    return record._replace(start=uptime.end()) if uptime else record
