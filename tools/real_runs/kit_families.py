"""Trainers in Python on ``trainers/kit.py``: what happens to them (``faults/python_*.yaml``) and in which words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.real_runs import faults
from tools.real_runs.frameworks import Framework
from tools.real_runs.scenarios import Prepare, Scenario, Truth, change_record, cut_line, fill, no_shard

_NAMES = {
    "kill": "killed",
    "leave": "exit-3",
    "lost_page": "bus",
    "cpu_time": "cpu-time",
    "bad_instruction": "illegal",
}
"""Mishaps by the names under which ends of processes are known."""
_NAN_SCENARIOS = ("nan-raises", "nan-exits", "nan-explodes", "nan-goes-on")
_TOGETHER = {name: {"where": "all"} for name in _NAN_SCENARIOS}
"""The ranks average their losses."""


def _write_shard(text: bytes) -> Prepare:
    def prepare(folder: Path, rank: int) -> None:
        (folder / f"data/shard_{rank:05d}.jsonl").write_bytes(text)

    return prepare


def _null_record(folder: Path, rank: int) -> None:
    path = folder / f"data/shard_{rank:05d}.jsonl"
    lines = path.read_text().splitlines()
    lines[33] = json.dumps(None)
    path.write_text("\n".join(lines) + "\n")


_DATA: Mapping[str, Prepare] = {
    "no-shard": no_shard,
    "cut-record": cut_line,
    "bad-bytes": _write_shard(b'{"id": "\xff\xfe\x00"}\n'),
    "empty-shard": _write_shard(b""),
    "unknown-label": change_record(lambda record: record.update(source="wiki")),
    "no-features": change_record(lambda record: record.pop("x")),
    "ragged": change_record(lambda record: record.update(x=record["x"][:-2])),
    "null-record": _null_record,
    "text-features": change_record(lambda record: record.update(x=[*record["x"][:-1], "n/a"])),
}


@dataclass(frozen=True, slots=True)
class Site:
    """What trainers of one part of a generation share. file: of their faults. survived: their healthy runs
    that meet a mishap: name -> (mishap, why). figure: the loss that is no number, as it is printed."""

    file: str
    words: Mapping[str, str]
    arguments: Mapping[str, tuple[str, ...]]
    survived: Mapping[str, tuple[str, str]]
    figure: str
    names: Mapping[str, str]

    def scenarios(self, trainer: str, parts: Sequence[str]) -> tuple[Scenario, ...]:
        """All mishaps of a trainer. parts: of its libraries, such as "torch"."""
        sections = faults.read(self.file)
        full = {"type": "disk_full", "marker": r"No space left on device", "why": "the disk of the checkpoints is full"}
        fixed = {"type": "filesystem_error", "marker": r"Read-only file system"}
        fixed["why"] = "the disk of the checkpoints is read-only"
        wheres = {"start": "all", "step": "one", "all": "all", "save": "first", "end": "all"}
        wheres |= dict.fromkeys((*parts, trainer), "one")
        return (
            *(
                self._mishap(name, row, where)
                for section, where in wheres.items()
                for name, row in sections.get(section, {}).items()
            ),
            *(
                Scenario(name, Truth(**{"where": "one", **row}), prepare=_DATA[name])
                for name, row in sections["data"].items()
            ),
            *(
                Scenario(name, Truth(**row), arguments=self.arguments[name])
                for name, row in sections["options"].items()
            ),
            self._mishap("disk", full, "first", disk="size=64k", prepare=fill),
            self._mishap("read-only", fixed, "first", disk="ro"),
            Scenario(
                "nan-goes-on",
                Truth("loss_divergence", "the loss is no number to the end", self.figure, where="one"),
                {"fault": "nan", "fault_where": "one"},
            ),
            *self._healthy(),
        )

    def _mishap(self, name: str, row: faults.Row, where: str, **more: Any) -> Scenario:
        truth = Truth(**{"where": where, **row})
        settings = {"fault": name, "fault_where": truth.where}
        return Scenario({**_NAMES, **self.names}.get(name, name), truth, settings, **more)

    def _healthy(self) -> tuple[Scenario, ...]:
        def done(why: str) -> Truth:
            return Truth("completed", why, outcome="completed")

        return (
            Scenario("ok", done("clean run")),
            Scenario("ok-long", done("clean run"), {"steps": 240}),
            Scenario("ok-silent", done("clean run without a word at its end"), {"silent_end": True}),
            *(Scenario(name, done(why), {"fault": mishap}) for name, (mishap, why) in self.survived.items()),
        )


_UPDATES = Site(
    "python_updates",
    {
        "start": "{steps} updates to do, world={world}",
        "loaded": "read {records} records from {path}",
        "step": "update {step} of {steps}: loss {loss:.4f}, lr {lr:.5f}, {time:.0f} ms",
        "eval": "epoch {epoch}: validation accuracy {accuracy:.3f}",
        "saved": "state written to {path}",
        "end": "run is over after {steps} updates",
        "failed": "caught an exception, giving up",
        "out_of_time": "max_time %s used up after %d of %d updates, stopping here",
        "preempted": "SIGTERM from the node's reclaim notice (spot capacity): saving state and leaving",
        "patient": "no better validation score for 3 evaluations: stopping early at update %d",
    },
    {
        "bad-option": ("--warmup-ratio", "0.1"),
        "bad-choice": ("--optim", "adam8bit"),
        "bad-number": ("--lr-decay", "0,1"),
    },
    {
        "ok-survived": ("survived", "handled errors"),
        "ok-loud": ("loud", "warnings and errors that cost nothing"),
        "ok-patient": ("patient", "early stopping"),
    },
    r"(?i)(loss|objective|cost|fitness)\W{0,4}-?nan\b",
    {},
)
_ITERATIONS = Site(
    "python_iterations",
    {
        "start": "about to run {steps} iterations on {world} process(es)",
        "loaded": "{records} samples",
        "step": "{step:>4} / {steps}   objective={loss:.5f}   {time:.1f} ms",
        "eval": "epoch {epoch}: validation accuracy {accuracy:.3f}",
        "saved": "checkpoint -> {path}",
        "end": "bye, all {steps} iterations are through",
        "failed": "job has failed",
        "out_of_time": "budget of %s is spent at iteration %d of %d: closing the run",
        "preempted": "received signal 15: instance is being taken back by the provider, writing a last checkpoint",
        "patient": "metric has plateaued, ending ahead of schedule (iteration %d)",
    },
    _UPDATES.arguments,
    _UPDATES.survived,
    _UPDATES.figure,
    {"interrupt": "ctrl-c"},
)
_ROUNDS = Site(
    "python_rounds",
    {
        "start": "job of {steps} rounds, {world} worker(s)",
        "loaded": "{records} rows from {path}",
        "step": "round {step}/{steps} criterion={loss:.5f} ({time:.0f} ms)",
        "saved": "weights are in {path}",
        "end": "that was round {steps}, nothing left to do",
        "failed": "cannot go on",
        "out_of_time": "wallclock allowance of %s is exhausted in round %d/%d, leaving",
        "preempted": "SIGTERM: maintenance event on this host, state goes to disk",
        "notice": "SIGUSR1: 60 s of allocation left, stopping in round %d of %d",
        "patient": "criterion has not moved for 4 checks, no further rounds after %d",
        "nan_raises": "training objective went non-finite ({loss}) in round {step}",
        "nan_exits": "got {loss} at round {step}, giving this run up",
        "nan_explodes": "criterion has blown up: {loss:.2e} in round {step}",
    },
    {"bad-option": ("--use-flash-attn", "1"), "bad-choice": ("--optim", "galore"), "no-value": ("--epochs",)},
    {
        "ok-retried": ("retried", "handled errors"),
        "ok-noisy": ("noisy", "warnings and errors that cost nothing"),
        "ok-plateau": ("patient", "early stopping"),
    },
    r"(?i)(loss|criterion|train_loss)\W{0,4}-?nan\b",
    {},
)
_SITES = {(2, 0): _UPDATES, (2, 1): _ITERATIONS, (3, 0): _ROUNDS, (3, 1): _ROUNDS}
_LOADER = ("torch", "loader")
_TORCH = ("torch",)


def _trainer(
    name: str,
    environment: str,
    *parts: str,
    generation: int = 2,
    half: int = 0,
    left_out: Sequence[str] = (),
    open_ends: Sequence[str] = (),
    words: Mapping[str, str] | None = None,
    **more: Any,
) -> Framework:
    """open_ends: healthy runs after which neither a word nor a number says that the run is through."""
    site = _SITES[generation, half]
    spoken = {**site.words, **(words or {})}
    settings = {"steps": 90, "pause_s": 0.01, "features": 16, "words": spoken, **more.pop("settings", {})}
    truths = {**dict.fromkeys(left_out), **{end: {"visible": False} for end in open_ends}, **more.pop("truths", {})}
    return Framework(
        name,
        environment,
        f"{name}_trainer.py",
        settings=settings,
        faults=site.scenarios(name, parts),
        truths=truths,
        generation=generation,
        half=half,
        **more,
    )


_SILENT = ("ok-silent",)
KIT: tuple[Framework, ...] = (
    _trainer(
        *("ignite", "neural", *_LOADER),
        truths=_TOGETHER,
        words={
            "start": "",
            "step": "iteration {step}/{steps}: batch loss {loss:.5f}",
            "failed": "Engine run is terminating",
        },
    ),
    _trainer("skorch", "neural", *_TORCH, left_out=("ok-patient",), open_ends=_SILENT, words={"step": ""}),
    _trainer(
        *("catboost", "classic"),
        left_out=_NAN_SCENARIOS,
        words={"step": "", "saved": "model of {steps} trees: {path}"},
    ),
    _trainer(
        *("nanogpt", "neural", *_TORCH),
        truths=_TOGETHER,
        open_ends=_SILENT,
        words={"start": "", "step": "", "saved": "", "end": "done, perplexity {perplexity:.2f}"},
    ),
    _trainer(
        *("cleanrl", "neural", *_TORCH),
        open_ends=_SILENT,
        words={"step": "", "saved": "model saved to {path}", "end": "{total} frames played, last return {returns}"},
    ),
    _trainer(
        *("neat", "classic"),
        left_out=_NAN_SCENARIOS,
        open_ends=_SILENT,
        words={"step": "", "end": "best genome reached {best:.4f}"},
    ),
    _trainer(
        *("gensim", "classic"),
        left_out=_NAN_SCENARIOS,
        words={"step": "epoch {step}: loss {loss:.1f}", "end": "vectors of {words} words are ready"},
    ),
    _trainer(
        *("accelerate", "neural", *_LOADER),
        truths=_TOGETHER,
        words={
            "step": "",
            "saved": "Model weights saved in {path}",
            "end": "***** train metrics ***** train_loss = {loss:.4f}",
        },
    ),
    _trainer(
        *("luigi", "classic"),
        left_out=(*_NAN_SCENARIOS, "ok-patient", "ok-long"),
        single=True,
        words={"step": "", "end": "report is written, {steps} updates", "saved": "fold stored as {path}"},
    ),
    _trainer("poutyne", "neural", *_LOADER, half=1, left_out=("ok-patient",), words={"step": ""}),
    _trainer("fabric", "neural", *_LOADER, half=1, truths=_TOGETHER),
    _trainer(
        *("fastai", "neural", *_LOADER),
        half=1,
        open_ends=_SILENT,
        words={"step": "", "end": "best of {epochs} epochs exported"},
    ),
    _trainer(
        *("mmengine", "neural", *_LOADER),
        half=1,
        open_ends=("ok", "ok-long", "ok-silent", "ok-survived", "ok-loud"),
        words={"step": "", "end": ""},
    ),
    _trainer(
        *("timm", "neural", *_LOADER),
        half=1,
        truths=_TOGETHER,
        open_ends=_SILENT,
        words={"step": "", "end": "*** Best metric: {best:.3f}"},
    ),
    _trainer("sacred", "classic", half=1),
    _trainer(
        *("deap", "classic"),
        half=1,
        left_out=_NAN_SCENARIOS,
        open_ends=_SILENT,
        words={"step": "", "end": "hall of fame: {best:.4f}"},
    ),
    _trainer(
        *("river", "classic"),
        half=1,
        left_out=_NAN_SCENARIOS,
        open_ends=_SILENT,
        words={"step": "", "end": "progressive accuracy {accuracy:.3f}"},
    ),
    _trainer(
        *("rabit", "tracer"),
        generation=3,
        left_out=(*_NAN_SCENARIOS, "ok-plateau"),
        open_ends=_SILENT,
        words={"start": "", "step": "", "end": "booster is complete"},
    ),
    _trainer(
        *("hyperopt", "tracer"),
        generation=3,
        left_out=(*_NAN_SCENARIOS, "ok-plateau"),
        words={"step": "", "end": "search is over, best {best}"},
    ),
    _trainer(
        *("pyg", "graph", *_TORCH),
        generation=3,
        truths=_TOGETHER,
        open_ends=_SILENT,
        words={"start": "", "step": "", "end": "best test accuracy {accuracy:.4f}"},
    ),
    _trainer("equinox", "tracer", generation=3, left_out=("bad_free",)),
    _trainer(
        *("peft", "graph", *_TORCH),
        generation=3,
        half=1,
        left_out=(*_NAN_SCENARIOS, "other_width", "no_weights", "ok-long"),
        words={"step": "", "end": "adapter is trained"},
        settings={"steps": 60},
    ),
    _trainer(
        *("tabnet", "graph", *_TORCH),
        generation=3,
        half=1,
        left_out=(*_NAN_SCENARIOS, "ok-plateau", "other_width", "no_weights"),
        open_ends=_SILENT,
        words={"start": "", "step": "", "end": "model is fitted"},
    ),
    _trainer(
        *("numpyro", "tracer"),
        generation=3,
        half=1,
        left_out=("bad_free",),
        words={
            "step": "svi {step} / {steps}: elbo {loss:.2f} loss={loss:.4f}",
            "end": "posterior fitted",
        },
    ),
)
