"""One line as a terminal would show it, and what launchers put in front of it.

Blocks are cleaned as a whole where C can do it, line by line only where a line carries ``\\r`` or is very long.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from diagnoser.compress.line_masking import bare

LONGEST = 8192
"""Most bytes read and kept of a line; the middle of longer ones is cut, and the cut is counted."""

_FEW = 8
"""Up to this many states of a line, looking for equal ones is not worth it."""

_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_METER = (
    rb"[ \d]{0,4}\d%\|[^|\n]{0,300}\|[^\[\n]{0,60}\[[^\]\n]{0,160}\]"
    rb"|(?<!\d)\d+(?:it|ba|files?|examples) ?\[[\d:]+, [^\]\n]{0,60}\]"
)
"""A tqdm bar of known or unknown length."""
_BARS = re.compile(_METER)
_RETURNS = re.compile(rb"\r{2,}")
_TITLE = re.compile(rb"\s*(?:[^\n:|%]{0,80}:)?\s*")
"""What stands in front of a bar."""


class Cleaned(NamedTuple):
    """lines: without ANSI codes, NULs, overwritten bar states and over-long middles, text: the same as one.

    cut_lines, cut_bytes: long lines and what was taken from their middles. painted: bytes of states that others
    painted over.
    """

    lines: list[bytes]
    cut_lines: int
    cut_bytes: int
    painted: int
    text: bytes


def clean(data: bytes) -> Cleaned:
    """The lines of a block, one for each ``\\n``-separated line of ``data``, in order."""
    if data.endswith(b"\n"):
        data = data[:-1]
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    if b"\0" in data:
        data = data.replace(b"\0", b"")
    first_return = data.find(b"\r")
    if data[first_return + 1 : first_return + 2] == b"\n":
        data = data.replace(b"\r\n", b"\n")
        first_return = data.find(b"\r")
    lines = data.split(b"\n")
    painted = _paint(data, first_return, lines) if first_return >= 0 else 0
    cut_lines = cut_bytes = 0
    if len(data) > LONGEST and max(map(len, lines)) > LONGEST:
        for index, line in enumerate(lines):
            if len(line) > LONGEST:
                lines[index], missing = cut(line)
                cut_lines, cut_bytes = cut_lines + 1, cut_bytes + missing
    return Cleaned(lines, cut_lines, cut_bytes, painted, b"\n".join(lines) if cut_lines or first_return >= 0 else data)


def _paint(data: bytes, position: int, lines: list[bytes]) -> int:
    """Overwrite those of ``lines`` that carry a carriage return, the first of which is at ``at``; bytes lost."""
    index = counted = painted = 0
    while position >= 0:
        index += data.count(b"\n", counted, position)
        before = lines[index]
        lines[index] = after = overwrite(before)
        painted += len(before) - len(after)
        counted = position
        end = data.find(b"\n", position)
        position = data.find(b"\r", end) if end >= 0 else -1
    return painted


def overwrite(line: bytes) -> bytes:
    """What is kept of a line with carriage returns: its last state and, before it, overwritten states that are no bar,
    for one may be the error. Of many states of one shape only the last is kept.
    """
    if b"\r\r" in line:
        line = _RETURNS.sub(b"\r", line)
    states = [state for state in line.split(b"\r") if state and not state.isspace()]
    if len(states) < 2:
        return states[0] if states else b""
    if len(states) > _FEW:
        states = list(dict(zip(bare(b"\r".join(states)).split(b"\r"), states, strict=True)).values())
    last = states.pop()
    return b" ".join([*(state for state in states if not _is_bar(state)), last])


def _is_bar(state: bytes) -> bool:
    """Whether a state is a bar and nothing else: no words but what stands before a bar and a colon."""
    if b"%|" not in state and b"it/s" not in state and b"s/it" not in state and b"?it" not in state:
        return False
    if state.count(b"%|") == 1 and state.find(b"%|", 0, 100) > 0 and len(state) < 500 and state.rstrip().endswith(b"]"):
        return True
    end = 0
    for bar in _BARS.finditer(state):
        if not _TITLE.fullmatch(state, end, bar.start()):
            return False
        end = bar.end()
    return end > 0 and not state[end:].strip()


def cut(line: bytes) -> tuple[bytes, int]:
    """Head and tail of an over-long line with the number of bytes between them written out; and that number."""
    if line.count(b"it/s]") + line.count(b"s/it]") > 2:
        line = _one_bar(line)
    if len(line) <= LONGEST:
        return line, 0
    half = LONGEST // 2 - 32
    missing = len(line) - 2 * half
    return line[:half] + b" ...<%d bytes cut>... " % missing + line[-half:], missing


def _one_bar(line: bytes) -> bytes:
    """A line of many bar states glued without a carriage return, cut down to the last state."""
    bars = list(_BARS.finditer(line))
    parts, end = [], 0
    for bar in bars[:-1]:
        parts.append(line[end : bar.start()])
        end = bar.end()
    parts.append(line[end:])
    words = [part for part in parts[:-1] if not _TITLE.fullmatch(part)]
    return b" ".join(part for part in (part.strip() for part in [*words, parts[-1]]) if part)


# --- what launchers put in front ----------------------------------------------------------------------------------

_PART = (
    rb" {0,4}\d{1,5}: "  # srun --label
    rb"|\[default\d{1,4}\]: ?"  # torchrun --tee, local rank
    rb"|\[rank ?\d{1,5}\]:? ?"  # torch's excepthook and c10d's logger
    rb"|\[\d{1,3},\d{1,5}\]<std(?:out|err|diag)>: ?"  # mpirun --tag-output
    rb"|\[\d{1,5}\]:(?=\[)"  # pdsh-like numbered prefix in front of a c10d line
    rb"|\((?:[^()\n=, ]{1,60}+,? ){0,3}pid=\d++(?:, ip=[\d.]++)?\) "  # Ray, SkyPilot
    rb"|\[pod/[^\]\n]{1,160}\] "  # kubectl logs --prefix
    rb"|\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:?\d\d) std(?:out|err) [FP] "  # CRI
    rb"|\d{4}-\d\d-\d\dT[\d:.]{8,18}Z: (?=\[)"
    rb"|[A-Za-z][\w.-]{1,80}+(?: \[std(?:out|err)\] |:\d{1,8}+:\d{1,8}+ \[\d{1,2}\] )"  # a launcher of its own; NCCL
)
_PREFIX = re.compile(rb"(?:" + _PART + rb")*")
HEADS = re.compile(rb"(?m)^((?:" + _PART + rb")*).*\n?")
"""Applied to a block, finds the prefix of every line (empty where there is none), in order."""

_FIELDS = re.compile(
    rb"(?P<task>(?<![\w\]])\d{1,5}(?=: ))|\[default(?P<local>\d+)\]|\[rank ?(?P<rank>\d+)\]|\[\d+,(?P<mpi>\d+)\]<"
    rb"|pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.]+))?|\[pod/(?P<pod>[^\]/]+)"
    rb"|(?P<stream>[A-Za-z][\w.-]{1,80}) \[std|(?P<node>[A-Za-z][\w.-]{1,80}):\d+:\d+ \["
)


class Prefix(NamedTuple):
    """What stands in front of a line; -1 and "" where it does not say.

    task: number given by ``srun --label``: the rank only where each task is one rank. local: rank within the node.
    voice: names who speaks, for joining what one process printed: the outermost labels, without ``[rankN]`` unless
        there is nothing else (one process prints some lines with it and some without).
    """

    rank: int = -1
    task: int = -1
    local: int = -1
    node: str = ""
    voice: str = ""


def split_prefix(line: bytes) -> tuple[bytes, bytes]:
    """(prefix, body)."""
    match = _PREFIX.match(line)
    end = match.end() if match else 0
    return line[:end], line[end:]


@lru_cache(maxsize=65536)
def read_prefix(head: bytes) -> Prefix:
    """The fields of a prefix as found by ``split_prefix``. The innermost ``[rankN]`` wins."""
    fields: dict[str, str] = {}
    for match in _FIELDS.finditer(head):
        fields.update({name: value.decode("latin-1") for name, value in match.groupdict().items() if value is not None})
    rank = int(fields.get("rank", fields.get("mpi", -1)))
    task, local = int(fields.get("task", -1)), int(fields.get("local", -1))
    node = fields.get("node", fields.get("pod", fields.get("stream", fields.get("ip", ""))))
    labels = [f"t{task}"] if task >= 0 else []
    labels += [f"d{local}"] if local >= 0 else []
    labels += [f"p{fields['pid']}@{fields.get('ip', '')}"] if "pid" in fields else []
    labels += [fields[name] for name in ("pod", "stream") if name in fields]
    if "mpi" in fields:
        labels.append(f"m{fields['mpi']}")
    if not labels and rank >= 0:
        labels.append(f"r{rank}")
    return Prefix(rank, task, local, node, "/".join(labels))


_LEADING_BARS = re.compile(rb"^(?: *(?:(?:[^\n:|%]{0,80}: *)?" + _METER + rb"))+ *(?=\S)")


def body_of(line: bytes) -> tuple[Prefix, bytes]:
    """The prefix's fields and the message."""
    head, body = _split_body(line)
    return read_prefix(head), body


def _split_body(line: bytes) -> tuple[bytes, bytes]:
    head, body = split_prefix(line)
    if b"%|" in body or b"it/s" in body or b"?it" in body:
        glued = _LEADING_BARS.match(body)
        if glued:
            inner, body = split_prefix(body[glued.end() :])
            head += inner
    return head, body


_BLURRED_PART = (
    rb" ?0: "
    rb"|\[default0\]: ?"
    rb"|\[rank ?0\]:? ?"
    rb"|\[0,0\]<std(?:out|err|diag)>: ?"
    rb"|\[0\]:(?=\[)"
    rb"|\([^()\n=]{1,250}pid=0(?:, ip=[0.]{1,15})?\) "
    rb"|\[pod/[^\]\n]{1,160}\] "
    rb"|0 0 0T[0:.]{1,18}(?:Z|[ +]0:?0) std(?:out|err) [FP] "
    rb"|0 0 0T[0:.]{1,18}Z: (?=\[)"
    rb"|[A-Za-z][\w. ]{1,80}(?:(?<= )\[std(?:out|err)\] |:0:0 \[0\] )"
)
_BLURRED_BAR = (
    rb"(?:[^\n:|%]{0,80}: ?)? ?0%\|[^|\n]{0,300}\|[^\[\n]{0,60}\[[^\]\n]{0,160}\]"
    rb"|0(?:it|ba|files?|examples) ?\[[0:]+, [^\]\n]{0,60}\]"
)
_BLURRED_PREFIX = re.compile(rb"(?:" + _BLURRED_PART + rb")*")
_BLURRED_BARS = re.compile(rb"(?: ?(?:" + _BLURRED_BAR + rb"))+ ?(?=\S)")


def strip_blurred(line: bytes) -> tuple[bool, bytes]:
    """(whether lines of this blur can have a prefix, the blur of their message): no launcher prefix, no progress bar
    that was glued in front.
    """
    body = line[_end(_BLURRED_PREFIX.match(line)) :]
    prefixed = len(body) < len(line)
    if b"%|" in body or b"it/s" in body or b"?it" in body:
        glued = _BLURRED_BARS.match(body)
        if glued:
            body = body[glued.end() :]
            body = body[_end(_BLURRED_PREFIX.match(body)) :]
    return prefixed, body


def _end(match: re.Match[bytes] | None) -> int:
    return match.end() if match else 0
