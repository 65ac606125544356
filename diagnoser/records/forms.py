"""How programs write a record as text: the head in front of its message, with the level that the program gives it.

A form is a pattern of RE2, so that no line is slow to read, with a group ``level``. It is matched at the start of a
line's message, behind all that launchers and collectors put in front.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from diagnoser.model import Severity

_S = Severity
LEVELS: Mapping[str, Severity] = {
    "trace": _S.DEBUG,
    "debug": _S.DEBUG,
    "debu": _S.DEBUG,
    "dbg": _S.DEBUG,
    "d": _S.DEBUG,
    "verbose": _S.DEBUG,
    "v": _S.DEBUG,
    "fine": _S.DEBUG,
    "info": _S.INFO,
    "information": _S.INFO,
    "informational": _S.INFO,
    "inf": _S.INFO,
    "i": _S.INFO,
    "notice": _S.INFO,
    "success": _S.INFO,
    "default": _S.INFO,
    "warn": _S.WARNING,
    "warning": _S.WARNING,
    "wrn": _S.WARNING,
    "w": _S.WARNING,
    "error": _S.ERROR,
    "erro": _S.ERROR,
    "err": _S.ERROR,
    "e": _S.ERROR,
    "severe": _S.ERROR,
    "critical": _S.CRITICAL,
    "crit": _S.CRITICAL,
    "c": _S.CRITICAL,
    "fatal": _S.CRITICAL,
    "fata": _S.CRITICAL,
    "ftl": _S.CRITICAL,
    "f": _S.CRITICAL,
    "panic": _S.CRITICAL,
    "dpanic": _S.CRITICAL,
    "alert": _S.CRITICAL,
    "emergency": _S.CRITICAL,
    "emerg": _S.CRITICAL,
}
"""What programs call a level, in lower case."""

_WORD = (
    r"(?P<level>TRACE|DEBUG|VERBOSE|FINE|INFO|NOTICE|SUCCESS|WARN|WARNING|ERROR|ERR|SEVERE|CRITICAL|CRIT|FATAL|PANIC|ALERT"
    r"|EMERG(?:ENCY)?)"
)
_ANY_CASE = (
    r"(?P<level>(?i:trace|debug|verbose|info|notice|success|warn(?:ing)?|error|err|severe|critical|fatal|panic))"
)
_CLOCK = r"\d\d?:\d\d:\d\d(?:[.,:]\d{1,9})?"
_DATE = r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d?[-/.]\d\d(?:[-/.]\d{2,4})?|[A-Z][a-z]{2}[ -]{1,2}\d{1,2}|\d{8}|\d{6}|\d{3,4})"
_ZONE = r"(?: ?(?:Z|[AP]M|UTC|[+-]\d\d:?\d\d))?"
_STAMP = rf"(?:{_DATE}[T _-]{_CLOCK}{_ZONE}|{_CLOCK}(?: [AP]M)?)"
_GAP = r"[\s|:*-]{1,4}"
_BRACKETS = r"[\[(<{][^\]\[)(><}{\n]+[\])>}]"
_NAME = rf"(?:{_BRACKETS}|[a-z_0-9][\w./:@-]*|[A-Z][\w.]+:)"
"""What stands between a time and a level: a process, a thread, a logger, a file."""
_END = r"(?:[\])>:|,\s]|$)"
_FILE = r"[\w./+-]{1,120}:\d{1,6}"


@dataclass(frozen=True, slots=True)
class HeadForm:
    """examples: (line, level as printed). has_pairs: ``key=value`` pairs stand behind the message."""

    name: str
    pattern: str
    examples: tuple[tuple[str, str], ...]
    has_pairs: bool = False


HEADS: tuple[HeadForm, ...] = (
    HeadForm(
        "time, names, level",  # logging, loguru, log4j, logback, spdlog, Boost.Log, env_logger, tracing, Nextflow
        rf"^[\[(<]?{_STAMP}[\])>]?[:,]?(?:{_GAP}{_NAME}|{_BRACKETS}){{0,4}}?"
        rf"(?:{_GAP}[\[(<]?|[\[(<]) {{0,5}}{_WORD} {{0,5}}{_END}",
        (
            ("2026-01-02 03:04:05,123 - train - ERROR - boom", "ERROR"),
            ("2026-01-02 03:04:05,123 WARNING train.loop: slow", "WARNING"),
            ("2026-01-02 03:04:05.123 | ERROR    | __main__:fit:41 - boom", "ERROR"),
            ("[2026-01-02 03:04:05,123] [ERROR] [runner.py:571:main] boom", "ERROR"),
            ("[2026-01-02 03:04:05,123] [    INFO] trainer.py:12 - step", "INFO"),
            ("[2026-01-02 03:04:05,123][train.loop][CRITICAL] - boom", "CRITICAL"),
            ("[2026-01-02T03:04:05Z ERROR trainer::step] boom", "ERROR"),
            ("2026-01-02T03:04:05.123456Z  WARN trainer::step: slow", "WARN"),
            ("01/02/2026 03:04:05 - INFO - __main__ - step", "INFO"),
            ("26/01/02 03:04:05 ERROR SparkContext: boom", "ERROR"),
            ("03:04:05.123 [main] ERROR org.apache.spark.Main - boom", "ERROR"),
            ("[03:04:05] ERROR    boom                        train.py:12", "ERROR"),
            ("Jan-02 03:04:05.123 [main] WARN  nextflow.Session - slow", "WARN"),
            ("2026-01-02 03:04:05 gpu-7 [rank 3] ERROR boom", "ERROR"),
        ),
    ),
    HeadForm(
        "time, level in brackets of any case",  # structlog's console, spdlog, Boost.Log
        rf"^[\[(]?{_STAMP}[\])]?(?:{_GAP}|(?:{_GAP}?{_NAME}{_GAP}?){{1,3}})\[{_ANY_CASE} {{0,6}}\]",
        (
            ("2026-01-02 03:04:05 [error    ] boom        rank=3", "error"),
            ("[2026-01-02 03:04:05.123] [trainer] [warning] slow", "warning"),
            ("[2026-01-02 03:04:05.123456] [0x00007f12] [info]    step", "info"),
        ),
        has_pairs=True,
    ),
    HeadForm(
        "time, tab, level",  # zap's console
        rf"^{_STAMP}\t{_ANY_CASE}\t",
        (("2026-01-02T03:04:05.123Z\terror\ttrainer/step.go:41\tboom", "error"),),
    ),
    HeadForm(
        "level, time",  # vLLM, Detectron, tornado, Optuna, MindSpore
        rf"^[\[(<]?{_WORD}[\])>]?[ :|\t-]{{1,6}}[\[(]?{_STAMP}",
        (
            ("ERROR 01-02 03:04:05 [core.py:12] boom", "ERROR"),
            ("[WARNING] 2026-01-02 03:04:05,123 slow", "WARNING"),
            ("WARNING [01/02 03:04:05 d2.utils.env]: slow", "WARNING"),
        ),
    ),
    HeadForm(
        "letter, time",  # glog, absl, torch, tornado, Optuna
        rf"^\[?(?P<level>[IWEFDVC]) ?{_DATE}[ T]{_CLOCK}",
        (
            ("E0102 03:04:05.678901 1234 step.cc:12] boom", "E"),
            ("W20260102 03:04:05.678901 1234 step.cc:12] slow", "W"),
            ("[E102 03:04:05.678901 ProcessGroupNCCL.cpp:607] boom", "E"),
            ("[I 2026-01-02 03:04:05,123] Trial 0 finished", "I"),
            ("[E 260102 03:04:05 web:12] boom", "E"),
        ),
    ),
    HeadForm(
        "time, letter",  # XLA, TSL, TensorFlow
        rf"^{_STAMP}:? (?P<level>[IWEF]) {_FILE}\]",
        (("2026-01-02 03:04:05.678901: E external/local_xla/xla/stream_executor/cuda.cc:12] boom", "E"),),
    ),
    HeadForm(
        "framework, letter, time",  # NeMo
        rf"^\[[A-Za-z]{{2,20}} (?P<level>[IWEDC]) {_STAMP}",
        (("[NeMo W 2026-01-02 03:04:05 nemo_logging:349] slow", "W"),),
    ),
    HeadForm(
        "level and file in brackets",  # transformers
        rf"^\[{_WORD}\|[^\]\n]{{1,80}}\]",
        (("[WARNING|trainer.py:641] 2026-01-02 03:04:05,123 >> slow", "WARNING"),),
    ),
    HeadForm(
        "level, colon, logger",  # logging.basicConfig
        rf"^{_WORD}:[A-Za-z_][\w.]{{0,80}}:",
        (("WARNING:root:slow", "WARNING"), ("ERROR:torch.distributed.elastic:boom", "ERROR")),
    ),
    HeadForm(
        "level in front",  # with names in brackets before it
        rf"^(?:\[[^\]\n]+\] ?){{0,3}}(?:\[ ?{_WORD} {{0,4}}\]|\({_WORD.replace('level', 'round')}\)"
        rf"|{_WORD.replace('level', 'bare')} {{0,5}}[:|])",
        (("[rank 3] [ERROR] boom", "ERROR"), ("ERROR: boom", "ERROR"), ("[trainer] WARNING: slow", "WARNING")),
    ),
    HeadForm(
        "level and seconds",  # logrus on a terminal
        r"^(?P<level>TRAC|DEBU|INFO|WARN|ERRO|FATA|PANI)\[\d{1,9}\]",
        (("ERRO[0012] boom     rank=3", "ERRO"),),
    ),
    HeadForm(
        "level in a column",  # rich, within the second of the line before
        r"^ {6,42}(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) {1,5}\S",
        (("           ERROR    boom                          train.py:12", "ERROR"),),
    ),
    HeadForm(
        "warning of Python",
        rf"^{_FILE}: (?:[A-Z]\w{{0,60}})?(?P<level>Warning): ",
        (("/opt/train.py:12: UserWarning: slow", "Warning"),),
    ),
    HeadForm(
        "Julia",
        r"^(?:┌|\[) (?P<level>Debug|Info|Warning|Error): ",
        (("┌ Warning: slow", "Warning"), ("[ Info: step", "Info")),
    ),
    HeadForm(
        "key and value",  # logfmt
        r"^(?:[\w.]+=(?:\"[^\"\n]*\"|[^\s\"]*) )*(?:level|lvl|severity|loglevel)=\"?" + _ANY_CASE + r"\b",
        (('time="2026-01-02T03:04:05Z" level=error msg="boom" rank=3', "error"),),
    ),
)
