"""Progress series: what training prints about itself, in the dialects of the common frameworks.

A dialect has a sign (RE2, decides once for each skeleton whether lines of it are read at all) and fields that are read
from single lines. Values: step, loss, grad_norm, step_seconds, tokens_per_second, checkpoint, stage. A site's own
dialects come with its Filter Rules.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from diagnoser.model import Stage


class ProgressDialect(NamedTuple):
    name: str
    sign: str
    stage: Stage = Stage.TRAIN


_STEP_FIELD = r"(?:step|iter|iteration|update|epoch|batch|batch_idx)s?(?:_num)?"
DIALECTS: tuple[ProgressDialect, ...] = (
    ProgressDialect(
        "checkpoint",
        r"(?i)(?:saved|saving|successfully saved).{0,40}(?:checkpoint|ckpt|state)|checkpoint.{0,60}\bsaved\b",
        Stage.SAVE,
    ),
    ProgressDialect(
        "load", r"(?i)(?:loading|loaded|resum\w+|restor\w+).{0,40}(?:checkpoint|ckpt|from step|state dict)", Stage.LOAD
    ),
    ProgressDialect("megatron", r"iteration +\d+/ *\d+ \|"),
    ProgressDialect("deepspeed", r"step=\d+, skipped=\d+|steps: \d+ loss: "),
    ProgressDialect("trainer", r"^\{'(?:loss|train_loss|grad_norm)': "),
    ProgressDialect("fairseq", r"\bnum_updates(?:[ =]+|\W: \W)\d"),  # and metaseq, which prints JSON
    ProgressDialect("mllog", r':::MLLOG? .*"key": "(?:train_loss|tracked_stats|epoch_start|block_start)"'),
    ProgressDialect(
        "step", r"(?i)\b(?:step|iter(?:ation)?|global_step|train_step)s?\b[ =:\[#'\"]+\d+.{0,400}(?:\b|_)loss\b"
    ),
    ProgressDialect("loss", r"(?i)\bloss\b[ =:'\"]+[-+]?(?:\d|nan|inf).{0,300}\b(?:step|iter\w*)\b"),
    ProgressDialect("eval", r"(?i)\b(?:valid\w*|eval\w*)\b.{0,60}\b(?:loss|ppl|accuracy)\b[ =:]+\d", Stage.EVAL),
    ProgressDialect("counted", r"(?i)^\W{0,4}(?:step|iter(?:ation)?)s?[ :=\[]{1,4}\d+ ?/ ?\d+\b"),
    ProgressDialect(
        "bar", r"\| *\d+/\d+ \[[^\]\n]{1,400}\w*loss\w*=[-+]?(?:\d|nan|inf)"
    ),  # Lightning, NeMo, ColossalAI, tqdm
    ProgressDialect("epoch", r"(?i)\bepoch\W{1,4}\d+[^|\n]{0,60}\bloss\b['\" =:]+[-+]?(?:\d|nan|inf)"),
    ProgressDialect(
        "fraction",
        r"(?i)\b\d+ ?/ ?\d+.{0,100}(?:\bloss|_loss|\bperte|\bverlust|\bperdita|\bperda|\bpérdida|损失|損失|손실|потери)"
        r"['\" =:]+[-+]?(?:\d|nan|inf)",
    ),
    ProgressDialect(
        "of",
        r"(?i)\b(?:step|iter(?:ation)?|(?:mini-?)?batch|update) +\d+ +of +\d+\b\W.{0,40}?[-+ :=](?:\d+\.\d|nan|inf)",
    ),
    ProgressDialect(
        "fields",  # of a record in JSON or logfmt
        rf'(?i){_STEP_FIELD}"?[=:] ?"?\d.{{0,800}}loss[\w/.]{{0,24}}"?[=:] ?"?[-+]?(?:\d|nan|inf)'
        rf'|loss[\w/.]{{0,24}}"?[=:] ?"?[-+]?(?:\d|nan|inf).{{0,800}}{_STEP_FIELD}"?[=:] ?"?\d',
    ),
)
_SITES_OWN = ProgressDialect("", "")
_BAR_OF = re.compile(
    r"(?:epoch *(\d+)\b.{0,400})?\| *(\d+)/(\d+) \[[^\],]*, *(\d+(?:\.\d+)?)(s/it|it/s)", re.IGNORECASE
)
_MLLOG_LOSS = re.compile(
    r'"key": "(?:train|eval)_loss", "value": ([-+]?[\d.]+(?:e[-+]?\d+)?|nan|-?inf(?:inity)?)', re.IGNORECASE
)

_VALUE = re.compile(r"['\"]?[ =:\[#]{1,8}['\"]?([-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?))\b")
_RATE = re.compile(r"[a-z/ ()]{0,28}['\"]?[ =:]{1,8}['\"]?(\d[\d,]*\.?\d*)")
_WHOLE = re.compile(r"s?['\"]?[ =:\[#]{0,8}['\"]?(\d[\d,]*)")
_KEYS = (
    ("iteration", "global_step", "step_num", "step", "num_updates", "iter"),
    (
        "lm loss",
        "train_loss",
        "loss",
        "perte",
        "verlust",
        "perdita",
        "perda",
        "pérdida",
        "损失",
        "損失",
        "손실",
        "потери",
    ),
    ("grad_norm", "grad norm", "gradient_norm", "gnorm"),
    ("per iteration (ms)", "step_time (ms)", "iter_time (ms)", "time (ms)"),
    ("iter time (s)", "train_step_timing in s", "step_time", "seconds per step", "sec/step"),
    ("tokens/s", "tokens_per_sec", "tokens per sec", "token/s", "tgs", "tps", "wps"),
)
"""Keys of step, loss, gradient norm, step time in ms and in s, tokens a second; the best ones first."""
_STEP_FIELDS = (
    *("global_step", "step", "train_step", "steps", "step_num", "iteration", "iter", "iterations"),
    *("num_updates", "update", "updates", "n_updates", "batch", "batch_idx"),
)
_LOSS_FIELDS = ("loss", "train_loss", "train/loss", "training_loss", "total_loss", "lm_loss", "loss/train")
_GRAD_FIELDS = ("grad_norm", "gradient_norm", "gnorm", "global_grad_norm")
_MILLIS_FIELDS = ("step_time_ms", "iter_time_ms", "time_ms", "elapsed_ms", "duration_ms")
_SECONDS_FIELDS = (
    *("step_time", "step_time_s", "iter_time", "step_seconds", "seconds_per_step", "sec_per_step"),
    *("step_duration", "time_per_step", "seconds_per_iteration"),
)
_RATE_FIELDS = ("tokens_per_sec", "tokens_per_second", "tok_per_sec", "tps", "wps", "tgs")
"""Names of fields, the best first."""
_EVALUATED = re.compile(
    r"(?:^|[^a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?:[^a-z]|$)|loss_(?:scale|weight|coef|type|fn|name)"
    r"|(?:^|[^a-z])scaled_loss"
)
"""Fields with ``loss`` in their name that are no loss of training."""
_BATCH_KEYS = ("global_batch_size", "global batch size", "batch_size", "batch size", "bsz")
_PLAYERS = re.compile(
    r"(?<![a-z])(?:rewards?|advantages?|actor|critic|policy|discriminator|generator|adversarial|(?:loss_?|errors?_?)[dg]"
    r"|[dg]_?(?:loss|err)|gan)(?![a-z])"
)
"""Names beside a loss which say that it measures no progress: of a policy that learns from rewards, or of two players
against each other. It jumps in the best of runs."""
_NAME_LENGTH = 40
_NAME = re.compile(r"(?:[a-z]{1,16} )?[\w/.-]*\Z")
_LOSS_VALUE = re.compile(rb"['\"]?[ =:\[#]{1,8}['\"]?([-+]?(?:\d[\d,]*\.?\d*(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?))\b")
_PATH_FIELD = re.compile(r"[/.]")
_NUMBER_FIELD = re.compile(r"(?i)[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:e[-+]?\d{1,3})?|nan|inf(?:inity)?)")
FIELDS = ("step", "loss", "grad_norm", "step_seconds", "tokens_per_second", "checkpoint")
"""Names of the groups that a site's own pattern may have."""
SIGNS: tuple[tuple[Stage, str], ...] = (
    (
        Stage.LAUNCH,
        r"^srun: job \d+ |\[launch\.py:\d+:main\]|torch/distributed/(?:run|launcher)|STARTING TIMING RUN AT",
    ),
    (
        Stage.LAUNCH,
        r"(?i)starting elastic_operator|\blaunching \d+ process|NEMO_LAUNCHER|using (?:torchrun|mpirun|srun)\b",
    ),
    (
        Stage.INIT,
        r"(?i)initiali[sz](?:ing|ed) (?:torch )?(?:distributed|process group|tensor model parallel|deepspeed)",
    ),
    (Stage.INIT, r"store-based barrier|distributed_backend=|\bNCCL version \d|Init COMPLETE|GLOBAL_RANK: \d+, MEMBER"),
    (
        Stage.DATA,
        r"(?i)\b(?:building|load(?:ing|ed)|preparing|tokenizing|indexing)\b.{0,40}"
        r"\b(?:datasets?|data ?loaders?|shards?|samples)\b",
    ),
    (Stage.DATA, r"> building (?:train|the)|Generating \w+ split"),
    (
        Stage.TRAIN,
        r"(?i)\*+ running training|training starts|starts? training|begin(?:ning)? training"
        r"|\[before the start of training",
    ),
    (
        Stage.EVAL,
        r"(?i)\b(?:runn|start|beginn|perform)ing (?:\w{1,20} )?(?:evaluation|validation)\b"
        r"|\b(?:start|begin) (?:evaluation|validation)\b|\b(?:eval|evaluation|validation)\]? (?:start(?:s|ed)|begins)\b"
        r"|\bvalidation loss at iteration|eval_start|sanity checking|\bevaluating\b",
    ),
    (
        Stage.FINISH,
        r"(?i)\btraining (?:is )?(?:finished|complete[d]?|done|ended)\b|Trainer\.fit. stopped|'train_runtime'|run_stop",
    ),
    (Stage.FINISH, r"(?i)exits? successfully|training runs? .{0,40}finished|\[exiting program"),
)
"""Lines that tell at which stage a run is. The dialects tell their own stage, too."""
COUNT_OF_TOTAL = r"(?<!\d)(?<!\d[/.:-])(\d{1,12})(?: {0,8}/ {0,8}| +of +)(\d{1,12})(?!\d|[/.]\d)"
"""A count beside its total, and no part of a date."""
_COUNTED = ("fraction", "loss", "of")
"""Dialects whose lines may count their steps as ``7/12`` or ``7 of 12``."""
_STATE = re.compile(r"\b\d{1,12} ?/ ?(\d{1,12})\b")
_FRACTION = re.compile(r"^(?:(?!test|val|eval|epoch).){0,160}?\b(\d{1,12})(?: ?/ ?| +of +)\d{1,12}\b")
_EPOCH = re.compile(r"\b(?:current_)?epoch\W{1,4}(\d{1,9})\b(?![.,]\d)", re.IGNORECASE)
_PATH = re.compile(r"((?:[\w.-]*/)[\w./=-]*[\w=-]|(?:checkpoint|global_step|iter|step)[-_]?\d+)", re.IGNORECASE)


class Point(NamedTuple):
    """Values of one line; None is "not printed", NaN is a finding. metric, is_objective, batch_size: as of a
    ``Progress``."""

    step: int | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    checkpoint: str = ""
    dialect: int = 0
    metric: str = ""
    is_objective: bool = True
    batch_size: float | None = None


def read(dialect: int, body: str) -> Point:
    """Read the values of a line of this dialect; all None when it has none."""
    text, name = body.lower(), DIALECTS[dialect].name
    if name in _COUNTED:
        text = text[_last_state(text) :]
    steps, losses, grads, millis, seconds, rates = _KEYS
    step = _first(_WHOLE, text, steps)
    if not step and name in _COUNTED and (counted := _FRACTION.search(text)):
        step = counted[1]
    number = int(step.replace(",", "")[:15]) if step else None
    if DIALECTS[dialect].stage is Stage.SAVE:
        return Point(number, checkpoint=_saved_path(body), dialect=dialect)
    duration = _duration(_number(_VALUE, text, millis), _number(_VALUE, text, seconds))
    grad, batch = _number(_VALUE, text, grads), _number(_VALUE, text, _BATCH_KEYS)
    point = Point(number, None, grad, duration, _number(_RATE, text, rates), dialect=dialect, batch_size=batch)
    place, loss = _find_loss(text, losses)
    if loss:
        point = point._replace(loss=_float(loss), metric=_name_at(text, place), is_objective=not _PLAYERS.search(text))
    if match := _MLLOG_LOSS.search(text):
        point = point._replace(loss=_float(match[1]))
    return _of_bar(point, text) if name == "bar" else point


def _duration(millis: float | None, seconds: float | None) -> float | None:
    """Seconds of a step that prints either."""
    return seconds if millis is None else millis / 1000


def read_fields(dialect: int, fields: Mapping[str, str | int | float | bool]) -> Point:
    """The values of a record of this dialect, by the names of its fields; all None when it has none."""
    numbers = {name: number for name, value in fields.items() if (number := _field_number(value)) is not None}
    if DIALECTS[dialect].stage is not Stage.TRAIN:
        return Point(dialect=dialect)
    step = _field(numbers, _STEP_FIELDS)
    seconds = _duration(_field(numbers, _MILLIS_FIELDS), _field(numbers, _SECONDS_FIELDS))
    whole = int(step) if step is not None and math.isfinite(step) and step >= 0 else None
    grad, rate = _field(numbers, _GRAD_FIELDS), _field(numbers, _RATE_FIELDS)
    metric, is_objective = _loss_field(numbers), not _PLAYERS.search(" ".join(fields).lower())
    batch = _field(numbers, _BATCH_KEYS)
    return Point(whole, numbers.get(metric), grad, seconds, rate, "", dialect, metric, is_objective, batch)


def _field_number(value: str | int | float | bool) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    return float(value) if _NUMBER_FIELD.fullmatch(value) else None


def _field(numbers: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    """The first of these fields, whatever stands in front of its name: ``trainer/global_step``, ``metrics.step``."""
    for name in names:
        for field, number in numbers.items():
            if _PATH_FIELD.split(field)[-1] == name:
                return number
    return None


def _loss_field(numbers: Mapping[str, float]) -> str:
    """The name of the loss of training, not of an evaluation; of several parts that which is called so and no more."""
    losses = [name for name in numbers if "loss" in name and not is_evaluated(name)]
    for wanted in _LOSS_FIELDS:
        if wanted in losses:
            return wanted
    return next(iter(losses), "")


def _saved_path(body: str) -> str:
    if path := _PATH.search(body):
        return path.group(1)
    return "yes"


def _last_state(text: str) -> int:
    """Find the last state of a bar whose states were painted over each other: all of them count to one total."""
    begins, totals = list[int](), set[str]()
    for match in _STATE.finditer(text):
        if text.find("loss", match.end()) >= 0:
            begins.append(match.start())
            totals.add(match[1])
    return begins[-1] if len(begins) > len(totals) == 1 else 0


def is_of_fields(dialect: int) -> bool:
    """Whether its lines are read by the names of their fields and in no other way."""
    return _dialect(dialect).name == "fields"


def epoch_of(dialect: int, body: str) -> int | None:
    """The epoch that a line counts; None where it counts none."""
    if _dialect(dialect).name not in ("epoch", "fields"):
        return None
    if match := _EPOCH.search(body):
        return int(match[1])
    return None


def _of_bar(point: Point, text: str) -> Point:
    """Add what the bar tells where its postfix does not: steps done, of all epochs, and the time of one."""
    match = _BAR_OF.search(text)
    if not match:
        return point
    epoch, done, total, speed, unit = match.groups("0")
    step: int | None = int(epoch) * int(total) + int(done)
    if "global_step" in text:
        step = point.step
    seconds = point.step_seconds
    if seconds is None:
        seconds = _seconds(float(speed), unit)
    return point._replace(step=step, step_seconds=seconds)


def _seconds(speed: float, unit: str) -> float | None:
    if unit == "s/it":
        return speed
    return 1 / speed if speed else None


def read_own(captured: Mapping[str, str], dialect: int) -> Point:
    """The values that a site's own pattern captured."""
    loss, grad, seconds, rate = (_captured(captured, name) for name in FIELDS[1:5])
    step = re.sub(r"\D", "", captured.get("step") or "")[:15]
    return Point(int(step) if step else None, loss, grad, seconds, rate, captured.get("checkpoint") or "", dialect)


def _captured(captured: Mapping[str, str], name: str) -> float | None:
    if value := captured.get(name):
        return _float(value)
    return None


def stage_of(dialect: int) -> Stage:
    """A site's own dialects (numbered after ours) speak of training."""
    return _dialect(dialect).stage


def _dialect(number: int) -> ProgressDialect:
    return DIALECTS[number] if number < len(DIALECTS) else _SITES_OWN


def tells(point: Point) -> bool:
    """Whether a point says anything."""
    values = (point.step, point.loss, point.grad_norm, point.step_seconds, point.tokens_per_second)
    if point.checkpoint:
        return True
    if values.count(None) < len(values):
        return True
    return stage_of(point.dialect) is Stage.LOAD


def loss_in(line: bytes) -> float | None:
    """The loss of a line of any dialect, for much less than ``read`` costs; None where only ``read`` finds it."""
    text = line.lower()
    position = text.find(b"loss")
    while position >= 0:
        if match := _LOSS_VALUE.match(text, position + 4):
            return _float(match[1].decode())
        position = text.find(b"loss", position + 4)
    return None


def is_evaluated(metric: str) -> bool:
    """Whether a loss of this name is no loss of training."""
    return bool(_EVALUATED.search(metric))


def _name_at(text: str, end: int) -> str:
    """The name of the loss whose key begins at a place, with what it is joined to or the word before it."""
    name = _NAME.search(text, max(0, end - _NAME_LENGTH), end)
    return f"{name[0] if name else ''}loss"


def _first(pattern: re.Pattern[str], text: str, keys: tuple[str, ...]) -> str:
    """The value right behind the first key that has one."""
    return _find(pattern, text, keys)[1]


def _find(pattern: re.Pattern[str], text: str, keys: tuple[str, ...]) -> tuple[int, str]:
    """The place of the first key that has a value right behind it, and that value; "" where none has one."""
    for key in keys:
        position = text.find(key)
        while position >= 0:
            match = pattern.match(text, position + len(key))
            if match:
                return position, match.group(1)
            position = text.find(key, position + 1)
    return -1, ""


def _find_loss(text: str, keys: tuple[str, ...]) -> tuple[int, str]:
    """The place and value of the loss; of several parts that which is called so and no more."""
    place, value = found = _find(_VALUE, text, keys)
    while place >= 0:
        if value and _name_at(text, place).replace(" ", "_") in _LOSS_FIELDS:
            return place, value
        place = text.find("loss", place + 1)
        match = _VALUE.match(text, place + len("loss"))
        value = match[1] if match else ""
    return found


def _number(pattern: re.Pattern[str], text: str, keys: tuple[str, ...]) -> float | None:
    if value := _first(pattern, text, keys):
        return _float(value)
    return None


def _float(value: str) -> float:
    try:
        return float(value.replace(",", ""))
    except ValueError:
        return math.nan
