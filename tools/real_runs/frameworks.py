"""The frameworks that are run, how each is started, and where its words differ from those of plain Python."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tools.real_runs.scenarios import SCENARIOS, Scenario, Truth

NODES = tuple(f"gpu-{number:03d}" for number in (14, 27, 33, 41))
"""Nodes that the carriers name, one for each process."""


@dataclass(frozen=True, slots=True)
class Framework:
    """environment: the virtual environment it lives in. launcher: how its processes are started ("python",
    "processes" for one after the other, or a launcher's name). held_out: not developed on, only measured.
    truths: scenario -> what differs in its truth; None where the scenario does not apply."""

    name: str
    environment: str
    trainer: str
    launcher: str = "python"
    ranks: int = 1
    held_out: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    truths: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    names_rank: bool = True
    """Whether a launcher's output tells which rank a line is of."""
    faulty: int | None = None
    """The rank that goes wrong; the last one when not given."""
    program: tuple[str, ...] = ("{python}",)
    """What runs the trainer: words before its path."""
    faults: tuple[Scenario, ...] = SCENARIOS
    single: bool = False
    """Whether it starts its processes itself, and a launcher starts only one."""
    kind: str = "python"
    """Also "native" for other languages, "workflow", "cluster", and "imitation": its messages are printed in its forms,
    and the software itself is not run."""
    generation: int = 1
    half: int = 0
    """Where its generation is not halved by a seed."""

    @property
    def slug(self) -> str:
        return self.name.replace(".", "-").replace(" ", "-")

    @property
    def imitation(self) -> bool:
        return self.kind == "imitation"

    @property
    def fault_rank(self) -> int:
        return self.ranks - 1 if self.faulty is None else self.faulty

    def scenarios(self) -> list[tuple[Scenario, Truth]]:
        """All that apply, each with the truth for this framework."""
        applying = []
        for scenario in self.faults:
            change = self.truths.get(scenario.name, {})
            if change is not None:
                applying.append((scenario, replace(scenario.truth, **change)))
        return applying


_Truths = Mapping[str, Mapping[str, Any] | None]
_ONE_PROCESS: _Truths = MappingProxyType({"cancel": None})
"""Nothing but the trainer itself could be ended."""
_JAX: _Truths = MappingProxyType(
    {
        "shape": {"marker": r"^ValueError: Incompatible shapes for broadcasting"},
        "cut-checkpoint": {"marker": r"^ValueError: Unpack failed|msgpack\.exceptions|^ValueError"},
        "other-checkpoint": {"marker": r"ScopeParamShapeError"},
        "pool": None,
    }
)
_SHELL = ("timeout", "terminate", "ok-exit-0")
"""Only a shell script tells these."""
_SEVERAL: _Truths = MappingProxyType(
    dict.fromkeys((*_SHELL, "cancel", "deadline", "killed", "late-killed", "exit-3"))
    | {"segv": {"marker": "Fatal Python error: Segmentation fault"}, "abort": {"marker": "Fatal Python error: Aborted"}}
)
_TORCH: _Truths = MappingProxyType(
    {
        "shape": {"type": "runtime_error", "marker": r"^RuntimeError: mat1 and mat2 shapes cannot be multiplied"},
        "ragged": {"type": "runtime_error", "marker": r"RuntimeError: stack expects each tensor to be equal size"},
        "pool": {"marker": r"DataLoader worker \(pid.*\) is killed by signal"},
        "cut-checkpoint": {"marker": r"SafetensorError|PytorchStreamReader failed"},
        "other-checkpoint": {"marker": r"Error\(s\) in loading state_dict|size mismatch for"},
    }
)
_LIGHTNING: _Truths = MappingProxyType(
    {
        "interrupt": {"marker": r"Detected KeyboardInterrupt|^KeyboardInterrupt"},
        "terminate": {"marker": r"Received SIGTERM: 15"},
        "deadline": {"marker": r"Time limit reached\. Elapsed time is"},
    }
)
_TORCHRUN: _Truths = MappingProxyType(
    dict.fromkeys(_SHELL)
    | {
        "killed": {"marker": r"failed \(exitcode: -9\)|Signal 9 \(SIGKILL\)"},
        "late-killed": {"marker": r"failed \(exitcode: -9\)|Signal 9 \(SIGKILL\)"},
        "segv": {"marker": r"failed \(exitcode: -11\)|Signal 11 \(SIGSEGV\)|Fatal Python error: Segmentation fault"},
        "abort": {"marker": r"failed \(exitcode: -6\)|Signal 6 \(SIGABRT\)|Fatal Python error: Aborted"},
        "exit-3": {"marker": r"failed \(exitcode: 3\)|exitcode *: 3\b"},
    }
)
_DEEPSPEED: _Truths = MappingProxyType(
    {name: truth for name, truth in _TORCH.items() if name not in ("ragged", "pool")}
    | dict.fromkeys(_SHELL)
    | {
        # torch does not say why it could not write.
        "disk": {"marker": r"No space left|PytorchStreamWriter failed|iostream error", "visible": False},
        "killed": {"marker": r"exits with return code = -9"},
        "late-killed": {"marker": r"exits with return code = -9"},
        "segv": {"marker": r"exits with return code = -11|Fatal Python error: Segmentation fault"},
        "abort": {"marker": r"exits with return code = -6|Fatal Python error: Aborted"},
        "exit-3": {"marker": r"exits with return code = 3"},
    }
)
_MPIRUN: _Truths = MappingProxyType(
    {
        "killed": {"marker": r"exited on signal 9"},
        "late-killed": {"marker": r"exited on signal 9"},
        "segv": {"marker": r"Segmentation fault|exited on signal 11"},
        "abort": {"marker": r"Aborted|exited on signal 6"},
        "exit-3": {"marker": r"Exit code: +3"},
        "terminate": None,
        "timeout": {"marker": r"time limit for job execution has been reached"},
        "ok-exit-0": None,
        # Signals to mpirun end the job without a word, and ranks that stop by their own clocks wait for each other.
        "interrupt": None,
        "cancel": None,
        "deadline": None,
    }
)

_KERAS: _Truths = MappingProxyType(
    {
        "shape": {"marker": r"is incompatible with the layer|^ValueError: Exception encountered"},
        "ragged": {"type": "type_error", "marker": r"TypeError: `generator` yielded an element of shape"},
        "cut-checkpoint": {"marker": r"^OSError: Unable to|^ValueError: |^KeyError: "},
        "other-checkpoint": {"marker": r"^ValueError: "},
        "name": {"marker": r"NameError: name 'tracker'"},
        "signature": {"marker": r"TypeError: on_step\(\) takes 1"},
        "pool": None,
    }
)
_PADDLE: _Truths = MappingProxyType(
    {
        "shape": {"marker": r"ValueError: \(InvalidArgument\)"},
        "cut-checkpoint": {"marker": r"UnpicklingError|`paddle\.load` can not parse the file"},
        "other-checkpoint": None,  # Paddle warns and trains on
    }
)

_TENSORFLOW: _Truths = MappingProxyType(
    {
        "shape": {"marker": r"^ValueError: (in user code|Dimensions must be equal)|Dimensions must be equal"},
        "no-resume": {"marker": r"NotFoundError.*step_900000|Failed to find any matching files for .*step_900000"},
        "cut-checkpoint": {"marker": r"errors_impl\.|^ValueError|^IndexError"},
        "other-checkpoint": {"marker": r"^ValueError: "},
    }
)
_RAY_DEATH = {"marker": r"worker process has died|died unexpectedly|Worker unexpectedly exits", "visible": False}
"""Ray lists what may have ended a worker, and cannot say which it was."""
_RAY: _Truths = MappingProxyType(
    dict.fromkeys((*_SHELL, "cancel"))
    | {
        "killed": _RAY_DEATH,
        "late-killed": _RAY_DEATH,
        "exit-3": _RAY_DEATH,
        "segv": {"marker": r"Segmentation fault|SIGSEGV|Worker unexpectedly exits"},
        "abort": {"marker": r"SIGABRT|Aborted|Worker unexpectedly exits"},
    }
)

_TF_TRAINER, _RAY_TRAINER = "tensorflow_trainer.py", "ray_trainer.py"
FRAMEWORKS: tuple[Framework, ...] = (
    Framework("jax", "jax", "jax_trainer.py", truths={**_JAX, **_ONE_PROCESS}),
    Framework("jax.distributed", "jax", "jax_trainer.py", "processes", ranks=2, truths={**_JAX, **_SEVERAL}),
    Framework("python", "mpi", "plain_trainer.py", truths=_ONE_PROCESS),
    Framework("mpi", "mpi", "mpi_trainer.py", "mpirun", ranks=2, truths=_MPIRUN),
    Framework("hf trainer", "torch", "hf_trainer.py", "torchrun", ranks=2, truths={**_TORCH, **_TORCHRUN}),
    Framework("keras", "tensorflow", "keras_trainer.py", held_out=True, truths={**_KERAS, **_ONE_PROCESS}),
    Framework("paddle", "paddle", "paddle_trainer.py", held_out=True, truths={**_PADDLE, **_ONE_PROCESS}),
    Framework("paddle.distributed", "paddle", "paddle_trainer.py", "paddle", 2, True, truths={**_PADDLE, **_TORCHRUN}),
    Framework("deepspeed", "deepspeed", "deepspeed_trainer.py", "deepspeed", 2, truths=_DEEPSPEED),
    Framework("tensorflow", "tensorflow", _TF_TRAINER, truths={**_TENSORFLOW, **_ONE_PROCESS}),
    Framework("tf.distribute", "tensorflow", _TF_TRAINER, "processes", 2, truths={**_TENSORFLOW, **_SEVERAL}),
    Framework("ray train", "ray", _RAY_TRAINER, "ray", 2, truths=_RAY),
    Framework("ray actors", "ray", _RAY_TRAINER, "ray", 2, truths=_RAY, settings={"actors": True}, names_rank=False),
    Framework("lightning", "torch", "lightning_trainer.py", truths={**_TORCH, **_ONE_PROCESS, **_LIGHTNING}),
)
