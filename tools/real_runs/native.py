"""Trainers that are no Python: what goes wrong in them, and what their language says of it.

They share a command line (--data, --lr, --steps, --resume, --metrics, --hook) and a table of numbers for each rank.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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


def _hook(name: str, truth: Truth, **more: Any) -> Scenario:
    return Scenario(name, truth, arguments=("--hook", name), prepare=tables(), **more)


def _one(type_: str, why: str, marker: str = "", **more: Any) -> Truth:
    return Truth(type_, why, marker, **{"where": "one", **more})


def _rank_hook(name: str, truth: Truth, **more: Any) -> Scenario:
    return Scenario(name, truth, arguments=("--hook", name), prepare=tables(), **more)


_DONE = "clean run"


def _healthy() -> tuple[Scenario, ...]:
    done = Truth("completed", _DONE, outcome="completed")
    return (
        Scenario("ok", done, prepare=tables()),
        Scenario("ok-long", done, arguments=("--steps", "320"), prepare=tables()),
        Scenario("ok-silent", done, arguments=("--quiet-end", "1"), prepare=tables()),
        Scenario(
            "ok-caught-resume",
            done,
            arguments=("--hook", "optional", "--resume", "ckpt/last.bin"),
            prepare=_broken_checkpoint,
        ),
        Scenario("ok-caught-push", done, arguments=("--hook", "optional", "--metrics", "9"), prepare=tables()),
        Scenario("ok-exit-0", done, arguments=("--quiet-end", "1"), prepare=tables(), shell=True),
    )


def faults_in(words: Mapping[str, tuple[str, str] | tuple[str, str, Mapping[str, Any]]]) -> tuple[Scenario, ...]:
    """words: fault -> (type, marker[, more of the truth]) in this language."""
    made = []
    for name, (type_, marker, *more) in words.items():
        arguments, prepare, extra, where = _HOW.get(
            name, (("--hook", name), tables(), {"shell": name in _SHELLS}, "one")
        )
        truth = Truth(type_, _WHY.get(name, name), marker, **{"where": where, **(more[0] if more else {})})
        made.append(Scenario(name, truth, arguments=arguments, prepare=prepare, **extra))
    return (*made, *_COMMON, *_healthy())


_WHY = {
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
_HOW: Mapping[str, tuple[tuple[str, ...], Prepare, dict[str, Any], str]] = {
    "no-data": ((), tables(remove=True), {}, "one"),
    "bad-cell": ((), tables(_text_cell), {}, "one"),
    "nan": ((), tables(_infinite_cell), {}, "one"),
    "nan-goes-on": (("--hook", "go-on"), tables(_infinite_cell), {}, "one"),
    "bad-option": (("--gradient-clip", "1.0"), tables(), {}, "all"),
    "lr-zero": (("--lr", "0"), tables(), {}, "all"),
    "refused": (("--metrics", "9"), tables(), {}, "all"),
    "cut-checkpoint": (("--resume", "ckpt/last.bin"), _broken_checkpoint, {}, "all"),
    "no-checkpoint": (("--resume", "ckpt/step_900000"), tables(), {}, "all"),
    "full": ((), tables(), {"disk": "size=64k"}, "first"),
    "read-only": ((), tables(), {"disk": "ro"}, "first"),
}
_COMMON = (
    Scenario(
        "killed",
        Truth(
            "host_out_of_memory",
            "SIGKILL in the middle of a step, as the kernel's OOM killer does",
            r"\bKilled\b",
            where="one",
        ),
        arguments=("--hook", "kill"),
        prepare=tables(),
        shell=True,
    ),
    Scenario(
        "exit-3",
        Truth("runtime_error", "the process ends with code 3", "exit code: 3", visible=False, where="one"),
        arguments=("--hook", "exit-3"),
        prepare=tables(),
        shell=True,
    ),
    Scenario(
        "timeout",
        Truth(
            "time_limit", "timeout(1) ends the run", r"^timeout: sending signal TERM to command", "time_limit", "none"
        ),
        arguments=("--hook", "slow"),
        prepare=tables(),
        timeout_s=9,
        shell=True,
    ),
)
_SHELLS = ("segv", "abort", "assert", "fpe", "memory", "stack")
"""Ends that only a shell tells, in some languages."""

CPP = faults_in(
    {
        "no-data": ("file_not_found_error", r"failed to open dataset .*No such file"),
        "bad-cell": ("dataset_loading_error", r"invalid_argument|what\(\): +stod", {"also": ("value_error",)}),
        "nan": ("loss_divergence", r"objective is not finite"),
        "nan-goes-on": ("loss_divergence", r"mse -?(nan|inf)", {"outcome": "failed"}),
        "bad-option": ("argument_error", r"unrecognized option"),
        "lr-zero": ("configuration_error", r"invalid configuration: learning rate", {"also": ("value_error",)}),
        "refused": ("connection_error", r"Connection refused"),
        "cut-checkpoint": ("model_loading_error", r"bad magic in model file"),
        "no-checkpoint": (
            "file_not_found_error",
            r"cannot open model .*No such file",
            {"also": ("model_loading_error",)},
        ),
        "full": ("disk_full", r"No space left on device"),
        "read-only": ("filesystem_error", r"Read-only file system"),
        "segv": ("segmentation_fault", r"Segmentation fault"),
        "abort": ("segmentation_fault", r"free\(\): invalid pointer|munmap_chunk|Aborted"),
        "assert": ("segmentation_fault", r"Assertion .* failed", {"also": ("assertion_error",)}),
        "memory": (
            "host_out_of_memory",
            r"bad_alloc|vector::_M_default_append|length_error",
            {"also": ("value_error",)},
        ),
        "fpe": (
            "zero_division_error",
            r"Floating point exception|signal 8\b|SIGFPE",
            {"also": ("segmentation_fault",)},
        ),
        "index": ("index_error", r"out_of_range|range_check"),
        "library": ("import_error", r"cannot load plugin"),
    }
)
RUST = faults_in(
    {
        "no-data": ("file_not_found_error", r"open data/train_\d\.csv: No such file"),
        "bad-cell": ("dataset_loading_error", r"invalid float literal", {"also": ("value_error",)}),
        "nan": ("loss_divergence", r"training diverged at step"),
        "nan-goes-on": ("loss_divergence", r"loss=(NaN|inf)"),
        "bad-option": ("argument_error", r"unexpected argument"),
        "lr-zero": ("configuration_error", r"invalid configuration: lr", {"also": ("value_error",)}),
        "refused": ("connection_error", r"Connection refused"),
        "cut-checkpoint": ("model_loading_error", r"restore checkpoint .*failed to fill whole buffer"),
        "no-checkpoint": (
            "file_not_found_error",
            r"restore checkpoint .*No such file",
            {"also": ("model_loading_error",)},
        ),
        "full": ("disk_full", r"No space left on device"),
        "read-only": ("filesystem_error", r"Read-only file system"),
        "segv": ("segmentation_fault", r"Segmentation fault"),
        "abort": ("segmentation_fault", r"\bAborted\b"),
        "memory": ("host_out_of_memory", r"memory allocation of \d+ bytes failed|capacity overflow"),
        "zero": ("zero_division_error", r"attempt to divide by zero"),
        "index": ("index_error", r"index out of bounds"),
        "unwrap": (
            "runtime_error",
            r"called `Option::unwrap\(\)` on a `None` value",
            {"also": ("key_error", "attribute_error", "value_error")},
        ),
        "assert": ("assertion_error", r"assertion `left == right` failed"),
    }
)
R = faults_in(
    {
        "no-data": ("file_not_found_error", r"cannot open (the connection|file)|No such file"),
        "bad-cell": ("dataset_loading_error", r"expected numeric features", {"also": ("value_error", "type_error")}),
        "nan": ("loss_divergence", r"objective function is not finite"),
        "nan-goes-on": ("loss_divergence", r"RSS/n = (NaN|Inf)"),
        "bad-option": ("argument_error", r"unknown argument: --gradient-clip"),
        "lr-zero": ("configuration_error", r"invalid setting: lr", {"also": ("value_error",)}),
        "refused": ("connection_error", r"cannot open the connection|cannot be opened"),
        "cut-checkpoint": ("model_loading_error", r"unknown input format|error reading from connection|ReadItem"),
        "no-checkpoint": (
            "file_not_found_error",
            r"cannot open the connection|No such file",
            {"also": ("model_loading_error",)},
        ),
        "read-only": ("filesystem_error", r"Read-only file system|cannot open the connection"),
        "memory": ("host_out_of_memory", r"cannot allocate vector of size"),
        "name": ("name_error", r"object 'tracker' not found"),
        "type": ("type_error", r"non-numeric argument to binary operator"),
        "shape": ("value_error", r"non-conformable arguments"),
        "import": ("import_error", r"there is no package called"),
        "index": ("index_error", r"subscript out of bounds"),
        "subscript": ("index_error", r"subscript out of bounds"),
        "assert": ("assertion_error", r"rows must match the header", {"also": ("value_error",)}),
        "call": (
            "called_process_error",
            r"tar: exports: Cannot stat|tar exited with status 2",
            {"also": ("file_not_found_error",)},
        ),
        "argument": (
            "value_error",
            r"'arg' should be one of|'arg' must be",
            {"also": ("argument_error", "configuration_error")},
        ),
        "missing": ("value_error", r"missing value where TRUE/FALSE needed"),
    }
)
OCTAVE = faults_in(
    {
        "no-data": ("file_not_found_error", r"unable to open file|unable to find file"),
        "nan": ("loss_divergence", r"trainer: cost is (NaN|Inf)"),
        "nan-goes-on": ("loss_divergence", r"cost = (NaN|Inf)"),
        "bad-option": ("argument_error", r"unknown option"),
        "lr-zero": ("configuration_error", r"lr must be positive", {"also": ("value_error",)}),
        "cut-checkpoint": ("model_loading_error", r"^error: load: |^error: "),
        "no-checkpoint": ("file_not_found_error", r"unable to find file", {"also": ("model_loading_error",)}),
        "memory": ("host_out_of_memory", r"out of memory or dimension too large"),
        "name": ("name_error", r"'tracker_log' undefined"),
        "type": ("type_error", r"binary operator '\+' not implemented"),
        "shape": ("value_error", r"nonconformant arguments"),
        "index": ("index_error", r"out of bound"),
        "import": ("import_error", r"package.* neuralnet|package_name"),
        "assert": ("assertion_error", r"ASSERT errors for|assert \("),
        "field": (
            "attribute_error",
            r"structure has no member|invalid use of undefined value|access of undefined",
            {"also": ("key_error", "name_error", "value_error")},
        ),
        "cell": ("type_error", r"str2func: FCN_NAME must be a string", {"also": ("value_error",)}),
    }
)
NODE = faults_in(
    {
        "no-data": ("file_not_found_error", r"ENOENT: no such file or directory, open 'data/train"),
        "bad-cell": (
            "dataset_loading_error",
            r"SyntaxError: .*not a number",
            {"also": ("value_error", "syntax_error")},
        ),
        "nan": ("loss_divergence", r"loss became (NaN|Infinity|-Infinity)"),
        "nan-goes-on": ("loss_divergence", r'"loss":"(NaN|Infinity)'),
        "bad-option": ("argument_error", r"error: unknown option"),
        "lr-zero": ("configuration_error", r"RangeError: config\.lr", {"also": ("value_error",)}),
        "refused": ("connection_error", r"ECONNREFUSED"),
        "cut-checkpoint": ("model_loading_error", r"SyntaxError: .*JSON", {"also": ("syntax_error", "value_error")}),
        "no-checkpoint": (
            "file_not_found_error",
            r"ENOENT: no such file or directory, open 'ckpt",
            {"also": ("model_loading_error",)},
        ),
        "full": ("disk_full", r"ENOSPC"),
        "read-only": ("filesystem_error", r"EROFS"),
        "memory": ("host_out_of_memory", r"heap out of memory"),
        "name": ("name_error", r"ReferenceError: tracker is not defined"),
        "type": ("type_error", r"TypeError: Cannot read properties of undefined", {"also": ("attribute_error",)}),
        "call": ("type_error", r"TypeError: options\.callback is not a function"),
        "assert": ("assertion_error", r"AssertionError"),
        "import": ("import_error", r"Cannot find module '@tensorflow/tfjs-node'"),
        "range": ("value_error", r"RangeError: Invalid typed array length"),
        "json": (
            "value_error",
            r"SyntaxError: .*JSON",
            {"also": ("syntax_error", "dataset_loading_error", "configuration_error")},
        ),
        "reject": ("connection_error", r"feature store returned 503", {"also": ("runtime_error",)}),
    }
)
JAVA = faults_in(
    {
        "no-data": ("file_not_found_error", r"NoSuchFileException: data/train"),
        "bad-cell": ("dataset_loading_error", r"NumberFormatException", {"also": ("value_error",)}),
        "nan": ("loss_divergence", r"ArithmeticException: objective is"),
        "nan-goes-on": ("loss_divergence", r"objective (NaN|Infinity)"),
        "bad-option": ("argument_error", r"Unrecognized option"),
        "lr-zero": ("configuration_error", r"IllegalArgumentException: lr must", {"also": ("value_error",)}),
        "refused": ("connection_error", r"ConnectException: Connection refused"),
        "cut-checkpoint": ("model_loading_error", r"Could not restore ckpt/last|EOFException"),
        "no-checkpoint": (
            "file_not_found_error",
            r"Could not restore|FileNotFoundException",
            {"also": ("model_loading_error",)},
        ),
        "full": ("disk_full", r"No space left on device"),
        "read-only": ("filesystem_error", r"Read-only file system"),
        "memory": ("host_out_of_memory", r"OutOfMemoryError: Java heap space"),
        "null": (
            "attribute_error",
            r"NullPointerException",
            {"also": ("type_error", "key_error", "runtime_error", "value_error")},
        ),
        "cast": ("type_error", r"ClassCastException"),
        "zero": ("zero_division_error", r"ArithmeticException: / by zero"),
        "index": ("index_error", r"ArrayIndexOutOfBoundsException"),
        "import": ("import_error", r"ClassNotFoundException"),
        "state": ("runtime_error", r"IllegalStateException"),
        "stack": ("runtime_error", r"StackOverflowError", {"also": ("host_out_of_memory", "segmentation_fault")}),
    }
)


def native(name: str, file: str, program: tuple[str, ...], faults: tuple[Scenario, ...], **more: Any) -> Framework:
    return Framework(name, "", f"native/{file}", program=program, faults=faults, settings={"logger": ""}, **more)


_NO_TOTAL = {"ok-silent": {"visible": False}}
"""They never say how many steps there are: a log that just stops shows no end."""
NATIVE: tuple[Framework, ...] = (
    native("c++", "cpp_trainer.cpp", ("{built}",), CPP),
    native("rust", "rust_trainer.rs", ("{built}",), RUST),
    native("r", "trainer.R", ("Rscript", "--vanilla"), R, truths=_NO_TOTAL),
    native("octave", "trainer.m", ("octave-cli", "--no-history", "--quiet"), OCTAVE, truths=_NO_TOTAL),
    native("node", "node_trainer.js", ("node", "--max-old-space-size=96"), NODE),
    native("java", "Trainer.java", ("java", "-Xmx48m"), JAVA),
)
