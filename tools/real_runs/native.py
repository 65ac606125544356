"""Trainers that are no Python: what goes wrong in them, and what their language says of it (``faults/native.yaml``).

They share a command line (--data, --lr, --steps, --resume, --metrics, --hook) and a table of numbers for each rank.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tools.real_runs import faults
from tools.real_runs.frameworks import Framework
from tools.real_runs.scenarios import Prepare, Scenario, Truth

_COLUMNS, _ROWS = 16, 120
_Change = Callable[[list[list[str]]], None]


def tables(change: _Change | None = None, remove: bool = False) -> Prepare:
    """The table of each rank; that of the faulty one is changed or removed."""

    def prepare(folder: Path, rank: int) -> None:
        for shard in sorted((folder / "data").glob("shard_?????.jsonl")):
            number = int(shard.stem[-5:])
            chance = random.Random(number)
            rows = [[f"{chance.gauss(0, 1):.4f}" for _ in range(_COLUMNS + 1)] for _ in range(_ROWS)]
            if number == rank and remove:
                continue
            if number == rank and change is not None:
                change(rows)
            head = ",".join([*(f"x{column}" for column in range(_COLUMNS)), "y"])
            text = "\n".join([head, *(",".join(row) for row in rows)]) + "\n"
            (folder / f"data/train_{number}.csv").write_text(text)
        (folder / "ckpt").mkdir(exist_ok=True)

    return prepare


def _text_cell(rows: list[list[str]]) -> None:
    rows[57][4] = "n/a;"


def _infinite_cell(rows: list[list[str]]) -> None:
    rows[57][4] = "1e200"


def _broken_checkpoint(folder: Path, rank: int) -> None:
    tables()(folder, rank)
    (folder / "ckpt/last.bin").write_bytes(b'{"weights": [0.1, 0.25' + b"\x00" * 40)


_REASONS = {
    "no-data": "the table of one rank is missing",
    "bad-cell": "a cell of the table is no number",
    "nan": "a cell of the table is huge: the objective overflows",
    "nan-goes-on": "the objective is no number to the end, and the run ends with 0",
    "bad-option": "an option that does not exist",
    "lr-zero": "a learning rate of 0",
    "refused": "the metrics server refuses the connection, and the run needs it",
    "cut-checkpoint": "the checkpoint to resume from is cut short",
    "no-checkpoint": "the checkpoint to resume from does not exist",
    "full": "the disk of the checkpoints is full",
    "read-only": "the disk of the checkpoints is read-only",
    "memory": "more memory is asked for than there is",
    "import": "a library is not installed",
    "name": "an undefined name",
}
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "no-data": (),
    "bad-cell": (),
    "nan": (),
    "nan-goes-on": ("--hook", "go-on"),
    "bad-option": ("--gradient-clip", "1.0"),
    "lr-zero": ("--lr", "0"),
    "refused": ("--metrics", "9"),
    "cut-checkpoint": ("--resume", "ckpt/last.bin"),
    "no-checkpoint": ("--resume", "ckpt/step_900000"),
    "full": (),
    "read-only": (),
}
"""Of the faults that are not the trainer's hook of that name."""
_PREPARE: Mapping[str, Prepare] = {
    "no-data": tables(remove=True),
    "bad-cell": tables(_text_cell),
    "nan": tables(_infinite_cell),
    "nan-goes-on": tables(_infinite_cell),
    "cut-checkpoint": _broken_checkpoint,
}
_DISKS = {"full": "size=64k", "read-only": "ro"}
_ALL_RANKS = ("bad-option", "lr-zero", "refused", "cut-checkpoint", "no-checkpoint")
_SHELLS = ("segv", "abort", "assert", "fpe", "memory", "stack")
"""Ends that only a shell tells, in some languages."""


def _where(fault: str) -> str:
    if fault in _DISKS:
        return "first"
    return "all" if fault in _ALL_RANKS else "one"


def _fault(name: str, row: faults.Row) -> Scenario:
    why = _REASONS.get(name, name)
    truth = Truth(**{"where": _where(name), **row, "why": why})
    return Scenario(
        name,
        truth,
        arguments=_ARGUMENTS.get(name, ("--hook", name)),
        prepare=_PREPARE.get(name, tables()),
        disk=_DISKS.get(name, ""),
        shell=name in _SHELLS and name not in _ARGUMENTS,
    )


def _end(name: str, truth: Truth, *arguments: str, prepare: Prepare | None = None, **more: Any) -> Scenario:
    return Scenario(name, truth, arguments=arguments, prepare=prepare or tables(), **more)


def _ends() -> tuple[Scenario, ...]:
    """Ends that need no word of the language, bad and good ones."""
    killed = "SIGKILL in the middle of a step, as the kernel's OOM killer does"
    left = Truth("runtime_error", "the process ends with code 3", "exit code: 3", visible=False, where="one")
    late = r"^timeout: sending signal TERM to command"
    done = Truth("completed", "clean run", outcome="completed")
    optional, resume = ("--hook", "optional"), ("--resume", "ckpt/last.bin")
    return (
        _end("killed", Truth("host_out_of_memory", killed, r"\bKilled\b", where="one"), "--hook", "kill", shell=True),
        _end("exit-3", left, "--hook", "exit-3", shell=True),
        _end(
            "timeout",
            Truth("time_limit", "timeout(1) ends the run", late, "time_limit", "none"),
            *("--hook", "slow"),
            timeout_s=9,
            shell=True,
        ),
        _end("ok", done),
        _end("ok-long", done, "--steps", "320"),
        _end("ok-silent", done, "--quiet-end", "1"),
        _end("ok-caught-resume", done, *optional, *resume, prepare=_broken_checkpoint),
        _end("ok-caught-push", done, *optional, "--metrics", "9"),
        _end("ok-exit-0", done, "--quiet-end", "1", shell=True),
    )


def _native(name: str, file: str, *program: str, left_out: tuple[str, ...] = (), **more: Any) -> Framework:
    """left_out: ends that the trainer does not have."""
    scenarios = tuple(_fault(fault, row) for fault, row in faults.read("native")[name].items())
    truths = {**dict.fromkeys(left_out), **more.pop("truths", {})}
    return Framework(
        name,
        "",
        f"native/{file}",
        program=program,
        faults=(*scenarios, *_ends()),
        settings={"logger": ""},
        truths=truths,
        kind="native",
        **more,
    )


_NO_TOTAL = {"ok-silent": {"visible": False}}
"""They never say how many steps there are: a log that just stops shows no end."""
_BARE = ("timeout", "ok-exit-0")
"""Only a shell script tells these."""
_CAUGHT = ("ok-caught-resume", "ok-caught-push")
_TOOL = (*_CAUGHT, "ok-long", "ok-silent", "timeout")
"""Programs of others have no such options."""
NATIVE: tuple[Framework, ...] = (
    _native("c++", "cpp_trainer.cpp", "{built}"),
    _native("rust", "rust_trainer.rs", "{built}"),
    _native("r", "trainer.R", "Rscript", "--vanilla", truths=_NO_TOTAL),
    _native("octave", "trainer.m", "octave-cli", "--no-history", "--quiet", truths=_NO_TOTAL),
    _native("node", "node_trainer.js", "node", "--max-old-space-size=96"),
    _native("java", "Trainer.java", "java", "-Xmx48m"),
    _native("go", "go_trainer.go", "{built}", generation=2),
    _native("fortran", "fortran_trainer.f90", "{built}", generation=2, left_out=_CAUGHT),
    _native("fasttext", "fasttext.sh", "bash", generation=2, left_out=_TOOL),
    _native("ruby", "ruby_trainer.rb", "ruby", generation=2, half=1, left_out=_BARE),
    _native("luajit", "trainer.lua", "luajit", generation=2, half=1, left_out=(*_BARE, *_CAUGHT)),
    _native("svm", "svm.sh", "bash", generation=2, half=1, left_out=(*_BARE, *_TOOL, "killed")),
    _native("awk", "awk_trainer.sh", "bash", generation=3, left_out=("ok-exit-0",)),
    _native("php", "trainer.php", "php", "-d", "memory_limit=96M", generation=3),
    _native("ada", "ada_trainer.adb", "{built}", generation=3, left_out=("ok-caught-push",)),
    _native("ocaml", "ml_trainer.ml", "{built}", generation=3),
    _native("haskell", "hs_trainer.hs", "{built}", generation=3, left_out=("ok-caught-push",)),
    _native("eigen", "eigen_trainer.cxx", "{built}", generation=3, half=1),
    _native("erlang", "trainer.escript", "escript", generation=3, half=1),
    _native("perl", "trainer.pl", "perl", generation=3, half=1),
    _native("common lisp", "trainer.lisp", "sbcl", "--script", generation=3, half=1),
    _native("c#", "SharpTrainer.cs", "mono", "--debug", "{built}", generation=3, half=1),
)
