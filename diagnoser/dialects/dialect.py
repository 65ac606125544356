"""What one launcher, runtime or collector writes around what a process says."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

HOST = r"[A-Za-z][\w.-]{1,80}+"
ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_GROUP = re.compile(r"\(\?P<\w+>")


class PrefixStripping(StrEnum):
    """When a prefix is taken off a line."""

    ALWAYS = "always"
    CARRIED = "carried"
    """Only in a stream where it stands in front of frames and code of tracebacks as well. In front of messages alone it
    is a program's own: a logger's head, a word with a colon."""


@dataclass(frozen=True, slots=True)
class Example:
    """line: in the dialect. body: what is left of it. fields: of the prefix."""

    line: str
    body: str
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dialect:
    """prefix: a pattern of Python's ``re``, linear: repetitions are bounded, and nothing repeats around a repetition.

    Its groups say who speaks: ``rank``, ``task`` (number of a launcher's task), ``local`` (rank within the node),
    ``host`` (a node whose lines belong together), ``node`` (one that is only named), ``ip``, ``pid``, ``pod``. A stamp
    has no groups: it tells nobody apart, and costs nothing where it stands alone.
    after: what must stand right in front of the prefix, as a pattern of fixed width. blurred: what the prefix looks
    like in a blurred line, where the pattern made from it would be slow.
    opens: the groups are read where a message begins like this, and the text stays in the message.
    """

    name: str
    prefix: str
    examples: tuple[Example, ...]
    after: str = ""
    blurred: str = ""
    peeled: PrefixStripping = PrefixStripping.ALWAYS
    opens: bool = False

    @property
    def is_stamp(self) -> bool:
        return "(?P<" not in self.prefix

    @property
    def source(self) -> str:
        """The prefix as a part of a larger pattern: without names of groups."""
        return (f"(?<={self.after})" if self.after else "") + _GROUP.sub("(?:", self.prefix)
