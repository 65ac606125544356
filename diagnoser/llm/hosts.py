"""Names of machines that a model may see: each node and address keeps its identity, and none its name.

The map lives as long as one consultation, so that nothing can be learned by collecting questions.
"""

import re
from collections.abc import Iterable
from itertools import chain, count

import re2

_ADDRESS = re2.compile(
    r"\b(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)\b"
    r"|\b(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}\b"
    r"|\b(?:fe80|f[cd][0-9a-f]{2}|2[0-9a-f]{3})(?::[0-9a-f]{1,4}){0,6}::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){0,6})?"
)
_WORD = re.compile(r"[\w-]+(?:\.[\w-]+)*")
_NO_HOST = frozenset({"0.0.0.0", "127.0.0.1", "255.255.255.255"})  # noqa: S104 - compared, not bound


class HostMap:
    """nodes: every known node of the job. text: what will be shown, so that no alias clashes with a word in it.

    prefix: what every alias begins with.
    """

    def __init__(self, nodes: Iterable[str], text: str = "") -> None:
        names = sorted({node for node in nodes if node and not node.isdecimal()})
        prefixes = chain(("host-", "machine-"), (f"host{number}-" for number in count()))
        self.prefix = next(word for word in prefixes if word not in text and not any(word in name for name in names))
        self._aliases = {name: f"{self.prefix}{number}" for number, name in enumerate(names, 1)}
        self._shown = re.compile(rf"{re.escape(self.prefix)}\d+(?!\d)")

    def hide(self, text: str) -> str:
        """``text`` with aliases for nodes and addresses."""
        if self._aliases:
            text = _WORD.sub(lambda match: self._name(match.group()), text)
        return str(_ADDRESS.sub(lambda match: self._address(match.group()), text))

    def show(self, text: str) -> str:
        """``text`` of the model with the true names; an alias that was never handed out stays as it is."""
        names = {alias: name for name, alias in self._aliases.items()}
        return self._shown.sub(lambda match: names.get(match.group(), match.group()), text)

    def _name(self, word: str) -> str:
        """A word whose first labels are a node's name: what follows is the site's domain."""
        end = len(word)
        while end > 0:
            if alias := self._aliases.get(word[:end]):
                return alias + word[end:]
            end = word.rfind(".", 0, end)
        return word

    def _address(self, address: str) -> str:
        if address in _NO_HOST:
            return address
        return self._aliases.setdefault(address, f"{self.prefix}{len(self._aliases) + 1}")


def without_addresses(text: str) -> str:
    """``text`` as it may leave the site: a chat or a receiver of webhooks has no use for addresses in log lines."""
    return str(_ADDRESS.sub(lambda match: match.group() if match.group() in _NO_HOST else "<address>", text))
