"""Names of machines that a model may see: each node and address keeps its identity, and none its name.

The map lives as long as one consultation, so that nothing can be learned by collecting questions.
"""

import re
from collections.abc import Iterable
from itertools import chain, count, filterfalse, islice
from typing import Any

import re2

from diagnoser.dialects import node_lists
from diagnoser.dialects.host_places import hosts_in
from diagnoser.dialects.node_lists import has_digit
from diagnoser.model.number_runs import spans
from diagnoser.redaction.redact import ADDRESS, NO_HOST

_WORD = re.compile(r"[\w.-]+")
_RUN = re.compile(r"[^\W_]+")

_BRACKETS = re2.compile(r"([A-Za-z][A-Za-z0-9_.-]{0,98})\[[0-9,-]{1,500}\](?:[A-Za-z0-9_.-]*\[[0-9,-]+\])*")
_LISTS_MAX = 64
"""Different bracketed lists that are told apart; what follows is masked without its numbers."""


class HostMap:
    """nodes: every known node of the job. text: what will be shown, so that no alias clashes with a word in it, and
    that a host which one line gives away is masked in all of them.

    prefix: what every alias begins with.
    """

    def __init__(self, nodes: Iterable[str], text: str = "") -> None:
        names = sorted(filterfalse(str.isdecimal, set(filter(None, nodes))))
        named = list(filterfalse(names.__contains__, hosts_in(text)))
        taken = "\n".join((text, *names, *named))
        prefixes = chain(("host-", "machine-"), map("host{}-".format, count()))
        self.prefix = next(word for word in prefixes if word not in taken)
        self._aliases: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._lengths: list[int] = []
        self._heads: set[str] = set()
        self._lists: dict[str, str] = {}
        for name in (*names, *named):
            self._alias(name)
        self._shown = re.compile(rf"{re.escape(self.prefix)}\d+(?!\d)")

    def hide(self, text: str) -> str:
        """``text`` with aliases for nodes, addresses, and what stands where only a host can."""
        for name in hosts_in(text):
            self._alias(name)
        if self._aliases:
            text = str(_BRACKETS.sub(self._listed, text))
            text = _WORD.sub(lambda match: self._hidden(match.group()), text)
        return str(ADDRESS.sub(self._address, text))

    def show(self, text: str) -> str:
        """``text`` of the model with the true names; an alias that was never handed out stays as it is."""
        return self._shown.sub(lambda match: self._names.get(match.group(), match.group()), text)

    def _alias(self, name: str) -> str:
        """The alias of a name, a new one where it has none. A host's short name has the alias of its full one."""
        if alias := self._aliases.get(name):
            return alias
        short = name.partition(".")[0]
        known = self._aliases.get(short, "")
        if self._names.get(known) == short:
            return known
        alias = f"{self.prefix}{len(self._names) + 1}"
        self._names[alias] = name
        forms = [name]
        if has_digit(short) and not short.isdecimal():
            forms.append(short)
        for form in forms:
            self._aliases.setdefault(form, alias)
            self._heads.add(form.rstrip("0123456789"))
            if len(form) not in self._lengths:
                self._lengths = sorted((*self._lengths, len(form)), reverse=True)
        return alias

    def _hidden(self, word: str) -> str:
        """A word with the names in it replaced, also between other parts, as in ``slurmstepd-gpu-1``: one bare
        occurrence would tell which host an alias stands for."""
        parts: list[str] = []
        done = 0
        for run in _RUN.finditer(word):
            start = run.start()
            if start < done:
                continue
            if name := self._name_at(word, start):
                parts += word[done:start], self._aliases[name]
                done = start + len(name)
        return "".join((*parts, word[done:]))

    def _name_at(self, word: str, start: int) -> str | None:
        """The longest name that begins there and ends with a part of the word. One without a digit is a common word,
        so it must be the whole word, or its first labels before the site's domain."""
        for length in self._lengths:
            name, follows = word[start : start + length], word[start + length : start + length + 1]
            if name not in self._aliases:
                continue
            if follows.isalnum():
                continue
            if has_digit(name):
                return name
            if word[:start] == "slurmstepd-":
                return name
            if start == 0 and follows in ("", "."):
                return name
        return None

    def _listed(self, match: Any) -> str:
        """``gpu-[1-3]``, where it holds a known name, as numbers of aliases."""
        listed = str(match[0])
        if match[1] not in self._heads and next(node_lists.names(listed), "") not in self._aliases:
            return listed
        if listed not in self._lists:
            if len(self._lists) == _LISTS_MAX:
                return f"{self.prefix}[]"
            self._lists[listed] = self._numbered(listed)
        return self._lists[listed]

    def _numbered(self, listed: str) -> str:
        names = list(islice(node_lists.names(listed), node_lists.NAMES_MAX))
        if self._aliases.keys().isdisjoint(names):
            return listed
        numbers = [int(self._alias(name)[len(self.prefix) :]) for name in names]
        return f"{self.prefix}[{spans(numbers)}]"

    def _address(self, match: Any) -> str:
        address = str(match.group())
        if address in NO_HOST:
            return address
        return self._alias(address)
