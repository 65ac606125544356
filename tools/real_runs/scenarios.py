"""What goes wrong in a run, and what is then true: the faults and the healthy ends that every trainer goes through.

A fault is made in the settings, the files, the limits or by a signal from outside. Its truth is written down here, by
the rules of the failure types; ``marker`` is the text by which its root line is known again in the output.
"""

import gzip
import itertools
import json
import random
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

Prepare = Callable[[Path, int], None]
"""Changes the files of a run: (its folder, the rank whose files go wrong)."""

RECORDS, FEATURES = 96, 16
SOURCES = {"news": 0, "forum": 1, "code": 2, "books": 3}
BASE: Mapping[str, Any] = MappingProxyType(
    {
        "steps": 12,
        "batch_size": 8,
        "features": FEATURES,
        "hidden": 12,
        "lr": 0.05,
        "eval_every": 4,
        "save_every": 6,
        "data": "data/shard_{rank:05d}.jsonl",
        "checkpoint_dir": "ckpt",
        "sources": SOURCES,
        "seed": 1,
    }
)


@dataclass(frozen=True, slots=True)
class Truth:
    """type: failure type. marker: regular expression of the root line, "" when no line shows it. visible: False when
    the log cannot show the type. where: "one" when one rank is the faulty one, "first" for rank 0, "all" for all.
    also: types that are as right. rank, node: those that the software's own lines show."""

    type: str
    why: str
    marker: str = ""
    outcome: str = "failed"
    recovery: str = ""
    visible: bool = True
    where: str = "all"
    also: tuple[str, ...] = ()
    rank: int | None = None
    node: str | None = None

    @property
    def healthy(self) -> bool:
        return self.type == "completed"


@dataclass(frozen=True, slots=True)
class Stop:
    """A signal a second after ``after`` (a regular expression) was printed: SIGINT to all, another to the launcher."""

    signal: signal.Signals
    after: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run. drop: settings that are missing. prior: settings of a healthy run before it, whose newest checkpoint is
    resumed from; cut: that checkpoint is cut short. memory_gb: limit of the address space. disk: mount options of a
    small disk for the checkpoints. listen: the setting that names a port which is taken. timeout_s: the limit that
    timeout(1) is given. shell: a single process is started by a shell script, which tells how it ended."""

    name: str
    truth: Truth
    settings: Mapping[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    prepare: Prepare | None = None
    stop: Stop | None = None
    prior: Mapping[str, Any] | None = None
    cut: bool = False
    memory_gb: int = 0
    disk: str = ""
    listen: str = ""
    timeout_s: int = 0
    shell: bool = False


def write_inputs(folder: Path, ranks: int, parts: int = 1) -> None:
    """Shards of a small data set, one for each rank and further parts of it; the classes can be learned."""
    (folder / "data").mkdir(parents=True)
    for rank, part in itertools.product(range(ranks), range(parts)):
        chance = random.Random(rank + 1000 * part)
        suffix = f".part{part - 1}" if part else ""
        with (folder / f"data/shard_{rank:05d}{suffix}.jsonl").open("w") as file:
            for index in range(RECORDS):
                name = chance.choice(list(SOURCES))
                center = SOURCES[name]
                values = [round(chance.gauss(center if i % 4 == center else 0.0, 0.6), 3) for i in range(FEATURES)]
                record = {"id": f"{rank:02d}-{index:06d}", "source": name, "length": FEATURES, "x": values}
                file.write(json.dumps(record) + "\n")


def change_record(change: Callable[[dict[str, Any]], None], at: int = 40) -> Prepare:
    def prepare(folder: Path, rank: int) -> None:
        path = folder / f"data/shard_{rank:05d}.jsonl"
        lines = path.read_text().splitlines()
        record = json.loads(lines[at])
        change(record)
        lines[at] = json.dumps(record)
        path.write_text("\n".join(lines) + "\n")

    return prepare


def cut_line(folder: Path, rank: int) -> None:
    path = folder / f"data/shard_{rank:05d}.jsonl"
    lines = path.read_text().splitlines()
    lines[57] = lines[57][:61]
    path.write_text("\n".join(lines) + "\n")


def _zip_and_cut(folder: Path, rank: int) -> None:
    for path in sorted((folder / "data").glob("*.jsonl")):
        packed = gzip.compress(path.read_bytes())
        if path.name == f"shard_{rank:05d}.jsonl":
            packed = packed[: len(packed) // 2]
        path.with_suffix(".jsonl.gz").write_bytes(packed)


def _shard_is_folder(folder: Path, rank: int) -> None:
    path = folder / f"data/shard_{rank:05d}.jsonl"
    path.unlink()
    path.mkdir()


def no_shard(folder: Path, rank: int) -> None:
    (folder / f"data/shard_{rank:05d}.jsonl").unlink()


def _break_config(folder: Path, rank: int) -> None:
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("hidden: 12", "hidden: 12\n  depth: 2"))


def _lr_as_text(folder: Path, rank: int) -> None:
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("lr: 0.05", "lr: 3e-4"))


def write_plugin(source: str) -> Prepare:
    """The site's own hooks, which the trainer imports."""

    def prepare(folder: Path, rank: int) -> None:
        (folder / "site_hooks.py").write_text(source)

    return prepare


def _secret(folder: Path, rank: int) -> None:
    path = folder / "hub.token"
    path.write_text("x")
    path.chmod(0o600)


def _rows(record: dict[str, Any]) -> None:
    record["x"] = record["x"][:-2]
    record["length"] = len(record["x"])


def _infinite(record: dict[str, Any]) -> None:
    record["x"][3] = float("inf")


def fill(folder: Path, rank: int) -> None:
    """Leaves no byte on the small disk."""
    with (folder / "ckpt/core.4711").open("wb") as file:
        subprocess.run(["head", "-c", "10000000", "/dev/zero"], stdout=file, stderr=subprocess.DEVNULL, check=False)


_TRAINS = r"(?i)loss|acc(?!elerator)|Verlust|perte|损失|batch|pérdida|損失|потери"
"""A line that says that training has begun."""


def _one(type_: str, marker: str, why: str, **more: Any) -> Truth:
    return Truth(type_, why, marker, where="one", **more)


FAULTS: tuple[Scenario, ...] = (
    Scenario(
        "shape",
        Truth("value_error", "the model is built for 20 features, the records have 16", r"^ValueError: matmul"),
        {"features": 20},
    ),
    Scenario(
        "ragged",
        _one(
            "value_error",
            r"ValueError: all input arrays must have the same shape",
            "one record is two values short: stacking them fails",
        ),
        prepare=change_record(_rows),
    ),
    Scenario(
        "header",
        _one("assertion_error", r"AssertionError: record", "one record's header states another length"),
        prepare=change_record(lambda record: record.update(length=24)),
    ),
    Scenario(
        "source",
        _one("key_error", r"KeyError: 'wiki'", "one record names a source that the settings do not list"),
        prepare=change_record(lambda record: record.update(source="wiki")),
    ),
    Scenario(
        "null",
        _one(
            "attribute_error",
            r"AttributeError: 'NoneType' object has no attribute 'lower'",
            "one record's source is null",
        ),
        prepare=change_record(lambda record: record.update(source=None)),
    ),
    Scenario(
        "jsonl",
        _one("dataset_loading_error", r"json\.decoder\.JSONDecodeError", "one line of the shard is cut short"),
        prepare=cut_line,
    ),
    Scenario(
        "gzip",
        _one(
            "dataset_loading_error",
            r"EOFError: Compressed file ended before the end-of-stream marker",
            "a compressed shard is cut short",
        ),
        {"data": "data/shard_{rank:05d}.jsonl.gz"},
        prepare=_zip_and_cut,
    ),
    Scenario(
        "no-shard",
        _one("file_not_found_error", r"FileNotFoundError: .*shard_", "a shard is missing"),
        prepare=no_shard,
    ),
    Scenario(
        "folder",
        _one("os_error", r"IsADirectoryError: .*shard_", "the shard is a directory"),
        prepare=_shard_is_folder,
    ),
    Scenario(
        "no-resume",
        Truth(
            "file_not_found_error",
            "the checkpoint to resume from does not exist",
            r"FileNotFoundError: .*step_900000",
        ),
        {"resume": "ckpt/step_900000"},
    ),
    Scenario(
        "cut-checkpoint",
        Truth(
            "model_loading_error",
            "the checkpoint to resume from is cut short",
            r"_pickle\.UnpicklingError|EOFError",
            recovery="rollback_and_resubmit",
        ),
        prior={},
        cut=True,
    ),
    Scenario(
        "other-checkpoint",
        Truth(
            "model_loading_error",
            "the checkpoint is of a model of another width",
            r"ValueError: checkpoint does not fit",
            recovery="notify_user",
        ),
        prior={"hidden": 24},
    ),
    Scenario(
        "lr-text",
        Truth("type_error", "YAML reads 3e-4 as text", r"TypeError: '<=' not supported between instances"),
        prepare=_lr_as_text,
    ),
    Scenario(
        "lr-zero",
        Truth("value_error", "a learning rate of 0", r"ValueError: learning rate must be positive"),
        {"lr": 0.0},
    ),
    Scenario(
        "batch",
        Truth(
            "configuration_error",
            "the batch size does not fit the micro batch size and the world size",
            r"ConfigError: batch_size",
        ),
        {"batch_size": 10, "micro_batch_size": 4},
    ),
    Scenario(
        "yaml",
        Truth("configuration_error", "the settings are not YAML", r"^yaml\.scanner\.ScannerError"),
        prepare=_break_config,
    ),
    Scenario("no-key", Truth("key_error", "the settings lack a key", r"^KeyError: 'hidden'"), drop=("hidden",)),
    Scenario(
        "bad-lr",
        Truth("argument_error", "ill-formed value of an option", r"train\.py: error: argument --lr"),
        arguments=("--lr", "1e-4x"),
    ),
    Scenario(
        "bad-option",
        Truth("argument_error", "an option that does not exist", r"train\.py: error: unrecognized arguments"),
        arguments=("--gradient-clip", "1.0"),
    ),
    Scenario(
        "bad-choice",
        Truth("argument_error", "a value that is no choice", r"train\.py: error: argument --precision"),
        arguments=("--precision", "fp8"),
    ),
    Scenario(
        "no-config",
        Truth(
            "file_not_found_error",
            "the settings file does not exist",
            r"FileNotFoundError: .*configs/base\.yaml",
        ),
        arguments=("--config", "configs/base.yaml"),
    ),
    Scenario(
        "import",
        Truth(
            "import_error",
            "the plugin needs a module that is not installed",
            r"ModuleNotFoundError: No module named 'fused_kernels'",
        ),
        {"plugin": "site_hooks"},
        prepare=write_plugin("import fused_kernels\n\n\ndef on_step(step, loss):\n    fused_kernels.flush(step)\n"),
    ),
    Scenario(
        "syntax",
        Truth("syntax_error", "the plugin does not parse", r"^SyntaxError: "),
        {"plugin": "site_hooks"},
        prepare=write_plugin("def on_step(step, loss):\n    print(f'{step} {loss}'\n"),
    ),
    Scenario(
        "name",
        Truth("name_error", "the plugin uses an undefined name", r"^NameError: name 'tracker'"),
        {"plugin": "site_hooks"},
        prepare=write_plugin("def on_step(step, loss):\n    if step == 5:\n        tracker.log(loss)\n"),
    ),
    Scenario(
        "signature",
        Truth("type_error", "the plugin's hook takes other arguments", r"^TypeError: on_step\(\) takes 1"),
        {"plugin": "site_hooks"},
        prepare=write_plugin("def on_step(step):\n    pass\n"),
    ),
    Scenario(
        "zero",
        Truth("zero_division_error", "the throughput over no step at all", r"^ZeroDivisionError: "),
        {"profile_step": 6, "warmup_steps": 6},
    ),
    Scenario(
        "nan",
        Truth(
            "loss_divergence",
            "one record has an infinite value: the loss is no number",
            r"FloatingPointError: loss is (nan|inf) at step",
        ),
        {"log_every": 1},
        prepare=change_record(_infinite),
    ),
    Scenario(
        "nan-exit",
        Truth(
            "loss_divergence",
            "one record has an infinite value: the trainer logs the loss and exits with 1",
            r"non-finite loss \((nan|inf)\), stopping the run",
        ),
        {"non_finite": "exit", "log_every": 1},
        prepare=change_record(_infinite),
        shell=True,
    ),
    Scenario(
        "index",
        Truth("index_error", "a class that does not exist is reported on", r"^IndexError: list index out of range"),
        {"report_classes": [0, 7]},
    ),
    Scenario(
        "export",
        Truth(
            "called_process_error",
            "the export after training fails: tar is given a folder that is missing",
            r"tar: exports: Cannot stat|^subprocess\.CalledProcessError",
        ),
        {"export_command": ["tar", "-cf", "export.tar", "exports"]},
    ),
    Scenario(
        "push",
        Truth(
            "connection_error",
            "the metrics server refuses the connection, and the run needs it",
            r"^urllib\.error\.URLError: .*Connection refused",
        ),
        {"metrics_url": "http://127.0.0.1:9/push", "metrics_needed": True},
    ),
    Scenario(
        "hub",
        Truth(
            "connection_error",
            "the hub of the tokenizer refuses the connection",
            r"^urllib\.error\.URLError: .*Connection refused",
        ),
        {"tokenizer_url": "http://127.0.0.1:9/tokenizer.json"},
    ),
    Scenario(
        "port",
        Truth("connection_error", "the exporter's port is taken", r"^OSError: \[Errno 98\] Address already in use"),
        {"exporter_port": 0},
        listen="exporter_port",
    ),
    Scenario(
        "disk",
        Truth("disk_full", "the disk of the checkpoints is full", r"No space left on device", where="first"),
        {"log_every": 3},
        prepare=fill,
        disk="size=64k",
    ),
    Scenario(
        "read-only",
        Truth("filesystem_error", "the disk of the checkpoints is read-only", r"Read-only file system", where="first"),
        disk="ro",
    ),
    Scenario(
        "write-denied",
        Truth(
            "permission_error",
            "the user may not write the checkpoints",
            r"PermissionError: \[Errno 13\]",
            where="first",
        ),
        {"drop_root": True, "checkpoint_dir": "locked/ckpt"},
    ),
    Scenario(
        "read-denied",
        Truth("permission_error", "the user may not read the token", r"PermissionError: \[Errno 13\].*hub\.token"),
        {"token_file": "hub.token"},
        prepare=_secret,
    ),
    Scenario(
        "memory",
        Truth(
            "host_out_of_memory",
            "64 GB are asked for under an address-space limit",
            r"_ArrayMemoryError: Unable to allocate|^MemoryError",
        ),
        {"hidden_gb": 64},
        memory_gb=40,
    ),
    Scenario(
        "killed",
        _one(
            "host_out_of_memory",
            r"\bKilled\b|^exit code: 137",
            "SIGKILL to the trainer in the middle of a step, as the kernel's OOM killer does",
        ),
        {"kernel": {"step": 7, "call": "kill"}},
        shell=True,
    ),
    Scenario(
        "segv",
        _one(
            "segmentation_fault",
            r"Segmentation fault",
            "a native kernel writes to address 8",
        ),
        {"kernel": {"step": 5, "call": "segv"}},
        shell=True,
    ),
    Scenario(
        "abort",
        _one("segmentation_fault", r"Aborted", "a native kernel aborts"),
        {"kernel": {"step": 5, "call": "abort"}},
        shell=True,
    ),
    Scenario(
        "exit-3",
        _one("runtime_error", r"exit code:? 3\b", "the native kernel ends the process with code 3", visible=False),
        {"kernel": {"step": 8, "call": "3"}},
        shell=True,
    ),
    Scenario(
        "interrupt",
        Truth("cancelled", "the user presses Ctrl-C", r"^KeyboardInterrupt", "cancelled", "none"),
        {"steps": 400, "pause_s": 0.1},
        stop=Stop(signal.SIGINT, _TRAINS),
    ),
    Scenario(
        "terminate",
        Truth("cancelled", "the user ends the run with SIGTERM", r"\bTerminated\b", "cancelled", "none"),
        {"kernel": {"step": 6, "call": "term"}},
        shell=True,
    ),
    Scenario(
        "cancel",
        Truth(
            "cancelled",
            "the user ends the launcher with SIGTERM",
            r"SIGTERM|death signal",
            "cancelled",
            "none",
        ),
        {"steps": 400, "pause_s": 0.1},
        stop=Stop(signal.SIGTERM, _TRAINS),
    ),
    Scenario(
        "deadline",
        Truth(
            "time_limit",
            "the trainer reaches the time limit of its settings and stops",
            r"wall time limit of",
            "time_limit",
            "none",
        ),
        {"steps": 4000, "pause_s": 0.2, "time_limit_s": 2},
    ),
    Scenario(
        "timeout",
        Truth(
            "time_limit",
            "timeout(1) ends the run",
            r"^timeout: sending signal TERM to command",
            "time_limit",
            "none",
        ),
        {"steps": 4000, "pause_s": 0.3, "log_every": 8},
        timeout_s=12,
        shell=True,
    ),
    Scenario(
        "pool",
        _one(
            "dataloader_killed",
            r"BrokenProcessPool: A process in the process pool was terminated abruptly",
            "a worker of the loading pool is killed",
        ),
        {"workers": 2},
        prepare=change_record(lambda record: record.update(codec="kill")),
    ),
    Scenario(
        "late-zero",
        Truth("zero_division_error", "pushing metrics fails and is logged; later a division by 0", r"^ZeroDivision"),
        {"metrics_url": "http://127.0.0.1:9/push", "profile_step": 11, "warmup_steps": 11},
    ),
    Scenario(
        "late-killed",
        _one(
            "host_out_of_memory",
            r"\bKilled\b|^exit code: 137",
            "pushing metrics fails and is logged; later SIGKILL, as the kernel's OOM killer does",
        ),
        {"metrics_url": "http://127.0.0.1:9/push", "kernel": {"step": 10, "call": "kill"}},
        shell=True,
    ),
)

_DONE = Truth("completed", "", outcome="completed")


def _done(why: str) -> Truth:
    return replace(_DONE, why=why)


HEALTHY: tuple[Scenario, ...] = (
    Scenario("ok", _done("clean run"), {"log_style": "iso"}),
    Scenario("ok-done", _done("clean run, 'done' in its last line"), {"language": "plain-end", "log_style": "print"}),
    Scenario("ok-last-step", _done("clean run, its last word is the last step"), {"language": "no-end"}),
    Scenario("ok-final", _done("clean run that ends with its final figures"), {"language": "final"}),
    Scenario("ok-exit-0", _done("clean run, exit code 0 told"), {"language": "no-end"}, shell=True),
    Scenario("ok-german", _done("clean run that logs in German"), {"language": "de"}),
    Scenario("ok-french", _done("clean run that logs in French"), {"language": "fr", "log_style": "brackets"}),
    Scenario("ok-chinese", _done("clean run that logs in Chinese"), {"language": "zh"}),
    Scenario("ok-json", _done("clean run that logs JSON"), {"log_style": "json"}),
    Scenario("ok-bar", _done("clean run with a progress bar"), {"log_style": "bar", "language": "final"}),
    Scenario("ok-early", _done("early stopping"), {"steps": 80, "patience": 2, "lr": 1e-7, "language": "final"}),
    Scenario(
        "ok-caught-push",
        _done("pushing metrics is refused, caught and logged with its traceback"),
        {"metrics_url": "http://127.0.0.1:9/push"},
    ),
    Scenario(
        "ok-caught-json",
        _done("pushing metrics is refused, caught and logged as JSON"),
        {"metrics_url": "http://127.0.0.1:9/push", "log_style": "json", "language": "final"},
    ),
    Scenario(
        "ok-caught-checkpoint",
        _done("a cut checkpoint is caught and logged; training from scratch ends well"),
        {"resume_optional": True},
        prior={},
        cut=True,
    ),
    Scenario("ok-resumed", _done("resumed from a checkpoint"), {"language": "plain-end"}, prior={}),
)

SCENARIOS: tuple[Scenario, ...] = FAULTS + HEALTHY
