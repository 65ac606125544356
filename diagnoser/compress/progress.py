"""Progress series: what training prints about itself, in the dialects of the common frameworks.

A dialect has a sign (RE2, decides once for each skeleton whether lines of it are read at all) and fields that are read
from single lines. Values: step, loss, grad_norm, step_seconds, tokens_per_second, checkpoint, stage.
"""

import math
import re
from typing import NamedTuple

from diagnoser.model import Stage

_N = r"([-+]?(?:\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+|nan|inf))"
_FLAGS = re.IGNORECASE


class Dialect(NamedTuple):
    name: str
    sign: str
    stage: Stage = Stage.TRAIN


DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        "checkpoint",
        r"(?i)(?:saved|saving|successfully saved).{0,40}(?:checkpoint|ckpt|state)|checkpoint.{0,60}\bsaved\b",
        Stage.SAVE,
    ),
    Dialect(
        "load", r"(?i)(?:loading|loaded|resum\w+|restor\w+).{0,40}(?:checkpoint|ckpt|from step|state dict)", Stage.LOAD
    ),
    Dialect("megatron", r"iteration +\d+/ *\d+ \|"),
    Dialect("deepspeed", r"step=\d+, skipped=\d+|steps: \d+ loss: "),
    Dialect("trainer", r"^\{'(?:loss|train_loss|grad_norm)': "),
    Dialect("mllog", r':::MLLOG? .*"key": "(?:train_loss|tracked_stats|epoch_start|block_start)"'),
    Dialect("step", r"(?i)\b(?:step|iter(?:ation)?|global_step|train_step)s?\b[ =:\[#]+\d+.{0,400}\bloss\b"),
    Dialect("loss", r"(?i)\bloss\b[ =:'\"]+[-+]?(?:\d|nan|inf).{0,300}\b(?:step|iter\w*)\b"),
    Dialect("eval", r"(?i)\b(?:valid\w*|eval\w*)\b.{0,60}\b(?:loss|ppl|accuracy)\b[ =:]+\d", Stage.EVAL),
)

_STEP = re.compile(
    r"(?:\b(?:global_step|train_step|step|steps|iteration|iter|num_updates|update)\b['\"]?[ =:\[#]+|step=)(\d[\d,]*)",
    _FLAGS,
)
_LOSS = re.compile(r"(?:\blm loss|\btrain[_/ ]loss|\breduced_train_loss|\bloss)\b['\"]?[ =:]+['\"]?" + _N, _FLAGS)
_GRAD = re.compile(r"\b(?:grad|gradient)[_ ]?norm\b['\"]?[ =:]+['\"]?" + _N, _FLAGS)
_MILLIS = re.compile(
    r"(?:elapsed time per iteration|time per iteration|iter(?:ation)?[_ ]time|step[_ ]time) ?\(ms\):? *"
    + _N
    + r"|\btime "
    + _N
    + "ms",
    _FLAGS,
)
_SECONDS = re.compile(
    r"\b(?:iter time \(s\)|train_step_timing in s|step_time|seconds per step|sec/step|time/step)['\"]?[ =:]+" + _N,
    _FLAGS,
)
_TOKENS = re.compile(r"\b(?:tokens?[_ /]?per[_ ]?sec\w*|tokens/s(?:ec)?|tps|wps|tgs)\b[^:=\d]{0,24}[ =:]+" + _N, _FLAGS)
_PATH = re.compile(r"((?:[\w.-]*/)[\w./=-]*[\w=-]|(?:checkpoint|global_step|iter|step)[-_]?\d+)", _FLAGS)


class Point(NamedTuple):
    """Values of one line; None is "not printed", NaN is a finding."""

    step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    checkpoint: str = ""
    dialect: int = 0


def read(dialect: int, body: str) -> Point:
    """The values of a line of this dialect; all None when it has none."""
    if DIALECTS[dialect].stage is Stage.SAVE:
        path = _PATH.search(body)
        return Point(_whole(_STEP, body), checkpoint=path.group(1) if path else "yes", dialect=dialect)
    millis = _number(_MILLIS, body)
    return Point(
        _whole(_STEP, body),
        _number(_LOSS, body),
        _number(_GRAD, body),
        millis / 1000 if millis is not None else _number(_SECONDS, body),
        _number(_TOKENS, body),
        dialect=dialect,
    )


def tells(point: Point) -> bool:
    """Whether a point says anything."""
    values = (point.step, point.loss, point.grad_norm, point.step_seconds, point.tokens_per_second)
    return (
        bool(point.checkpoint)
        or any(value is not None for value in values)
        or DIALECTS[point.dialect].stage is Stage.LOAD
    )


def _whole(pattern: re.Pattern[str], body: str) -> int | None:
    found = pattern.search(body)
    return int(found.group(1).replace(",", "")[:15]) if found else None


def _number(pattern: re.Pattern[str], body: str) -> float | None:
    found = pattern.search(body)
    if not found:
        return None
    try:
        return float(next(group for group in found.groups() if group is not None).replace(",", ""))
    except ValueError:
        return math.nan
