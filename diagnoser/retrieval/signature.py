"""What of a failure is looked for again: the words of its root, its chain, and where in the code it was raised."""

import hashlib
import re
from collections.abc import Sequence

from diagnoser.model import Diagnosis, Evidence, Feedback, Line, Mark, RootCause, Signature, Traceback
from diagnoser.retrieval import hashing
from diagnoser.retrieval.hashing import Vector

_WEIGHTS = {"message": 1.0, "frames": 0.5, "chain": 0.3}
_COMPLAINTS = 40
"""Most complaining lines in the signature of an undecided failure: the first and the last ones."""
_LIKE, _ODD = 0.85, 8
"""Likeness from which two lines say the same, and how many lines may be worded slightly differently."""
_FRAMES = 3
_CHARS = 600
_TELLING = 4
"""Words of its own that a message needs to be told apart from others."""
_LETTERS = str.maketrans("0123456789", "ghijklmnop")
"""Digits of a digest become letters: it is then one word, which shares nothing with another digest."""
_FRAME = re.compile(r'File "([^"]*)", line \d+, in (\S+)')

# What launchers and schedulers say about any failure.
_COMMON_WORDS = """
a an and are as at by for from in is it of on or that the this to was were will with not no
error errors failed failure failures exit exited exitcode exit_code code status rank ranks local_rank global_rank
process processes pid signal sig killed sigterm sigkill sigabrt terminated terminating closing sending
torch distributed elastic multiprocessing agent api childfailederror child worker workers group job jobs
launcher launch run running main root cause observed first other time host hostname traceback most recent call
last file line module srun slurmstepd step task tasks cancelled aborted abort node nodes received warning info
fatal critical exception raised runtimeerror subprocess calledprocesserror returned non zero
"""
COMMON = frozenset(_COMMON_WORDS.split())


def signature_of(evidence: Evidence, diagnosis: Diagnosis) -> Signature:
    """The signature of a diagnosed failure; empty where its log complains of nothing.

    A failure that rules decided is known by its root. Any other, a guess too, is known by all its complaining lines, no
    matter who named it later, so that its signature stays the same after a model or a person decided.
    """
    names = node_names(evidence)
    root = None
    if diagnosis.decided_by.startswith(("rule:", "heuristic:")) and not diagnosis.is_undecided:
        root = root_line(evidence, diagnosis.root_cause)
    failing, types = [root] if root else complaints(evidence), dict[str, None]()
    if root:
        types[diagnosis.type] = None
    for symptom in diagnosis.symptoms:
        types[symptom.type] = None
    lines = dict.fromkeys(hashing.normalised(line.body[:_CHARS], names) for line in failing)
    lines.pop("", None)
    return Signature("\n".join(_bounded(list(lines))), " ".join(types), " ".join(_frames(evidence, root)))


def node_names(evidence: Evidence) -> list[str]:
    """Nodes that the log names: what they are called differs from run to run."""
    return sorted({*evidence.rank_nodes.values(), *(line.node for line in evidence.lines if line.node)})


def is_same(signature: Signature, other: Signature) -> bool:
    """Whether every line of each message has a counterpart in the other: one line that differs may be the cause."""
    mine, theirs = set(signature.message.split("\n")), set(other.message.split("\n"))
    if not _covered(mine - theirs, theirs):
        return False
    return _covered(theirs - mine, mine)


def _covered(unmatched: set[str], lines: set[str]) -> bool:
    if len(unmatched) > _ODD:
        return False
    vectors = list(map(_line, lines))
    for text in unmatched:
        vector = _line(text)
        if max((float(vector @ line) for line in vectors), default=0.0) < _LIKE:
            return False
    return True


def _line(text: str) -> Vector:
    return hashing.vector({"": (text, 1.0)})


def vector(signature: Signature) -> Vector:
    """(DIMENSIONS,): the message counts most."""
    return hashing.vector({name: (getattr(signature, name), weight) for name, weight in _WEIGHTS.items()})


def is_telling(signature: Signature, least: int = _TELLING) -> bool:
    """Whether the message says something that not every failure says: in ``least`` words."""
    words = set(filter(str.isalpha, hashing.words(signature.message)))
    return len(words - COMMON) >= least


def root_line(evidence: Evidence, root: RootCause | None) -> Line | None:
    """The kept line of a root cause, which carries no prefixes."""
    if root is None:
        return None
    for line in evidence.lines:
        if (line.number, line.stream.source, line.text) == (root.line, root.source, root.text):
            return line
    return None


def line_named(evidence: Evidence, feedback: Feedback, root: RootCause | None) -> Line | None:
    """The kept line that a person named as the root: of the stream that they chose, else of that of the verdict's
    root."""
    source = root.source if root else "stdout"
    for line in evidence.lines:
        if line.number != feedback.root_line:
            continue
        right = line.stream.source == source
        if feedback.root_stream:
            right = line.stream == feedback.root_stream
        if right:
            return line
    return None


def complaints(evidence: Evidence) -> list[Line]:
    """Lines that complain, the first of each shape; also rare lines that were printed after the training made progress.

    A rare line before that is most often a banner, which every launch of the job prints.
    """
    by_shape: dict[str, Line] = {}
    last_step_line = max((point.line for point in evidence.progress), default=0)
    for line in evidence.lines:
        rare = line.mark is Mark.NOVEL and 0 < last_step_line < line.number
        if line.mark < Mark.SEVERITY and not rare:
            continue
        if not _FRAME.search(line.body):
            by_shape.setdefault(hashing.normalised(line.body[:_CHARS]), line)
    return list(by_shape.values())


def _bounded(lines: list[str]) -> list[str]:
    """The first and the last ones, and a digest of those between: one of them may be the cause."""
    half = _COMPLAINTS // 2
    if len(lines) <= _COMPLAINTS:
        return lines
    digest = hashlib.sha256("\n".join(sorted(lines[half:-half])).encode("utf-8", "replace")).hexdigest()
    return [*lines[:half], digest.translate(_LETTERS), *lines[-half:]]


def _frames(evidence: Evidence, root: Line | None) -> tuple[str, ...]:
    """Those of the root's traceback, or else of the last one."""
    if root is None:
        return frame_names(evidence.tracebacks[-1] if evidence.tracebacks else None)
    return frame_names(trace_of(evidence, root))


def trace_of(evidence: Evidence, root: Line) -> Traceback | None:
    """The traceback that the line ends."""
    for trace in evidence.tracebacks:
        if evidence.lines[trace.raised] is root:
            return trace
    return None


def frame_names(trace: Traceback | None) -> tuple[str, ...]:
    """File and function of the innermost frames, innermost first."""
    if trace is None:
        return ()
    return tuple(f"{path.rpartition('/')[2]}:{function}" for path, function in innermost_frames(trace))


def innermost_frames(trace: Traceback) -> Sequence[tuple[str, str]]:
    """(path, function) of the innermost frames, innermost first."""
    frames = filter(None, map(_FRAME.search, reversed(trace.frames)))
    return [(frame[1], frame[2]) for frame in frames][:_FRAMES]
