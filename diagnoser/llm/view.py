"""What the model sees of a log: numbered lines, with names and secrets masked, that no line can break out of."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diagnoser.llm.hosts import HostMap
from diagnoser.model import Line
from diagnoser.redaction.redact import Redactor

_BREAKS = dict.fromkeys(map(ord, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")
_HIDDEN = dict.fromkeys((*range(8203, 8208), *range(8234, 8239), *range(8294, 8298), 65279))
_CONTROLS = dict.fromkeys((*range(9), *range(14, 32), 127), " ") | _BREAKS | _HIDDEN | {9: " "}


@dataclass(frozen=True, slots=True)
class LogView:
    """text: as rendered. lines: what each number in it stands for."""

    text: str
    lines: Mapping[int, Line]


class Pseudonymizer:
    """How text of a site is shown to a model, and the model's text to the site."""

    def __init__(self, redact: Redactor, nodes: Iterable[str], text: str = "") -> None:
        """nodes: known nodes of the job. text: what will be shown, so that no alias clashes with a word in it."""
        self.redact = redact
        self.hosts = HostMap(nodes, text)

    def hide(self, text: str) -> str:
        return self.hosts.hide(self.redact(plain(text)))

    def reveal(self, text: str) -> str:
        """``text`` of the model with the true names."""
        return self.hosts.show(text)


def plain(text: str) -> str:
    """One line: without characters that a reader takes for a line break, and without invisible ones."""
    return text.translate(_CONTROLS)


def delimited(text: str, marker: str) -> str:
    """``text`` without the marker that stands around it."""
    return text.replace(marker, "")
