"""Templates: Drain3's grouping of shapes. The only importer of drain3; its persistence is never used.

Drain runs when a digest is made, over one representative of each shape in order of first appearance: the same merged
delta gives the same templates. Protected tokens never become wildcards, lines of different severity never share one.
"""

import re
from operator import eq
from typing import Any, NamedTuple

from drain3.drain import Drain

from diagnoser.compress.limits import DEFAULT_LIMITS

MASKS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<UUID>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"), "<TIME>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<IP>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<HEX>"),
    (re.compile(r"\b(?=[a-fA-F]*\d)(?=\d*[a-fA-F])[0-9a-fA-F]{8,}\b"), "<HEX>"),
    (re.compile(r"(?<![A-Za-z\d])[-+]?\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?"), "<NUM>"),
)
_PROTECTED = re.compile(
    r"(Xid(?: \([^)\n]{0,40}\))?[^:\n]{0,20}: |[Ee]rrno\W{0,3}|[Ss]ignal\W{0,3}|exit ?code\W{0,4}|status\W{0,3}"
    r"|failure )(-?\d+)"
    r"|\b(\d{3}) (?=Server|Client|[A-Z][a-z]+ )"
)
_HIDDEN = "".join(chr(0xE000 + digit) for digit in range(10))
_DIGITS, _BACK = str.maketrans("0123456789", _HIDDEN), str.maketrans(_HIDDEN, "0123456789")
"""Private-use characters stand for protected digits while the others are masked."""
_SIGNS = ("-", ":", ".", "0", "")
"""What a text must hold for each of the masks, but for that of numbers."""
_NUMBER = re.compile(r"\d")
_JSON_KEY = re.compile(r'"([\w.-]{1,64})" ?:')


class TemplateGroup(NamedTuple):
    """A template and the indices of its members in the order given."""

    text: str
    members: tuple[int, ...]


def mask(body: str) -> str:
    """A body with its changing parts masked, in fixed order; protected codes keep their digits."""
    if not _NUMBER.search(body):  # nothing but a UUID can do without a digit
        return MASKS[0][0].sub(MASKS[0][1], body)
    for (pattern, name), sign in zip(MASKS, _SIGNS, strict=False):
        if sign in body:
            body = pattern.sub(name, body)
    body = _PROTECTED.sub(_protect, body)
    return MASKS[5][0].sub(MASKS[5][1], body).translate(_BACK)


def _protect(match: re.Match[str]) -> str:
    """Hide the digits of the code from the mask of numbers, not those of what stands around it."""
    group = match.lastindex or 0
    start, code = match.start(group) - match.start(), match.group(group)
    return match.group()[:start] + code.translate(_DIGITS) + match.group()[start + len(code) :]


def partition(body: str, severity: int) -> str:
    """What keeps lines apart before Drain sees them: severity, and the sorted keys of a JSON line."""
    if body.rstrip().endswith("}") and '":' in body:
        return f"{severity}{{{','.join(sorted(set(_JSON_KEY.findall(body))))}}}"
    return str(severity)


def group(bodies: list[tuple[str, int]], most: int = DEFAULT_LIMITS.templates) -> list[TemplateGroup]:
    """Group (body, severity class) pairs. At most ``most`` clusters; what comes later joins none and stands alone."""
    drains: dict[str, Any] = {}
    members: dict[tuple[str, int], list[int]] = {}
    texts: dict[tuple[str, int], Any] = {}
    for index, (body, severity) in enumerate(bodies):
        part = partition(body, severity)
        drain = drains.get(part)
        if drain is None:
            drain = drains[part] = _Drain(sim_th=0.4, depth=4, max_children=100)
        if len(members) >= most:
            cluster = drain.match(mask(body)) or _Alone(index, mask(body))
        else:
            cluster, _ = drain.add_log_message(mask(body))
        members.setdefault((part, cluster.cluster_id), []).append(index)
        texts[part, cluster.cluster_id] = cluster
    return [TemplateGroup(texts[key].get_template(), tuple(indices)) for key, indices in members.items()]


class _Drain(Drain):  # type: ignore[misc]
    """The same choice of clusters, counted in C."""

    def fast_match(self, cluster_ids: Any, tokens: Any, sim_th: float, include_params: bool) -> Any:
        """The cluster with most tokens of a line in their place; of equals the first with most wildcards."""
        chosen, most, most_wild = None, -1, -1
        hides = self.param_str in tokens
        for cluster in filter(None, map(self.id_to_cluster.get, cluster_ids)):
            template = cluster.log_template_tokens  # as long as the line: that is the first level of the tree
            common = sum(map(eq, template, tokens))
            if not include_params and common < most:
                continue
            wild = template.count(self.param_str)
            if hides:
                common -= sum(left == right == self.param_str for left, right in zip(template, tokens, strict=True))
            common += wild * include_params
            if (common, wild) > (most, most_wild):
                chosen, most, most_wild = cluster, common, wild
        return chosen if most / len(tokens) >= sim_th else None


class _Alone(NamedTuple):
    """A line that came after learning stopped and fits no cluster."""

    cluster_id: int
    text: str

    def get_template(self) -> str:
        return self.text
