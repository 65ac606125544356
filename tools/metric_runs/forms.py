"""How frameworks print a step: one function a form, from the values of the step to a line."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

_BEGIN = 1_790_000_000.0


@dataclass(frozen=True, slots=True)
class StepValues:
    """Values of a step. time: seconds since the run began. more: further metrics by name."""

    step: int
    steps: int
    loss: float
    grad_norm: float
    seconds: float
    learning_rate: float
    time: float
    batch: int = 256
    epoch: int = 0

    @property
    def clock(self) -> str:
        return datetime.fromtimestamp(_BEGIN + self.time, UTC).strftime("%Y-%m-%d %H:%M:%S")

    @property
    def tokens_per_second(self) -> float:
        return self.batch * 2048 / self.seconds


StepForm = Callable[[StepValues], str]


def megatron(v: StepValues) -> str:
    return (
        f" [{v.clock}] iteration {v.step:8d}/{v.steps:8d} | consumed samples: {v.step * v.batch:12d} | elapsed time per"
        f" iteration (ms): {1000 * v.seconds:.1f} | learning rate: {v.learning_rate:.6E} | global batch size: {v.batch:5d} |"
        f" lm loss: {v.loss:.6E} | loss scale: 1.0 | grad norm: {v.grad_norm:.3f} | number of skipped iterations:   0 |"
        f" number of nan iterations:   0 |"
    )


def trainer(v: StepValues) -> str:
    return str(
        {
            "loss": _rounded(v.loss),
            "grad_norm": _rounded(v.grad_norm),
            "learning_rate": v.learning_rate,
            "epoch": round(v.step / v.steps * 3, 2),
        }
    )


def bar(v: StepValues) -> str:
    return (
        f"Epoch {v.epoch}:  {100 * v.step // v.steps:3d}%|{'#' * (10 * v.step // v.steps):10s}| {v.step}/{v.steps} "
        f"[{_lasting(v.time)}<{_lasting(max(0.0, (v.steps - v.step) * v.seconds))}, {v.seconds:5.2f}s/it, v_num=3, "
        f"train_loss={v.loss:.3f}]"
    )


def nano(v: StepValues) -> str:
    return f"iter {v.step}: loss {v.loss:.4f}, time {1000 * v.seconds:.2f}ms, mfu {41.2:.2f}%"


def record(v: StepValues) -> str:
    return json.dumps(
        {
            "time": v.clock,
            "level": "info",
            "event": "train_step",
            "step": v.step,
            "train/loss": _rounded(v.loss),
            "train/grad_norm": _rounded(v.grad_norm),
            "step_time": round(v.seconds, 3),
            "tokens_per_sec": round(v.tokens_per_second, 1),
        }
    )


def maxtext(v: StepValues) -> str:
    return (
        f"completed step: {v.step}, seconds: {v.seconds:.3f}, TFLOP/s/device: {180 / v.seconds:.3f}, Tokens/s/device: "
        f"{v.tokens_per_second / 8:.3f}, total_weights: {v.batch * 2048}, loss: {v.loss:.3f}"
    )


def keras(v: StepValues) -> str:
    return (
        f"{v.step}/{v.steps} [==============================] - {v.time:.0f}s {1000 * v.seconds:.0f}ms/step - loss:"
        f" {v.loss:.4f} - accuracy: {0.5:.4f}"
    )


def logfmt(v: StepValues) -> str:
    return (
        f"{v.clock} INFO train.loop step={v.step} loss={v.loss:.5f} grad_norm={v.grad_norm:.4f} lr={v.learning_rate:.2e}"
        f" step_time={v.seconds:.3f}"
    )


def titan(v: StepValues) -> str:
    return (
        f"[rank0]:[titan] {v.clock},101 - root - INFO - step: {v.step:2d}  loss: {v.loss:7.4f}  grad_norm:"
        f" {v.grad_norm:7.4f}  memory: 38.31GiB(48.42%)  tps: {v.tokens_per_second / 64:,.0f}  tflops: 312.11  mfu: 31.56%"
    )


def imagenet(v: StepValues) -> str:
    return (
        f"Epoch: [{v.epoch}][{v.step:4d}/{v.steps}]\tTime {v.seconds:6.3f} ({v.seconds:6.3f})\tData  0.012 ( 0.015)\t"
        f"Loss {v.loss:.4e} ({v.loss * 1.01:.4e})\tAcc@1  45.31 ( 44.98)"
    )


FORMS: Mapping[str, StepForm] = {
    form.__name__: form for form in (megatron, trainer, bar, nano, record, maxtext, keras, logfmt, titan, imagenet)
}


def _rounded(value: float) -> float:
    return round(value, 4)


def _lasting(seconds: float) -> str:
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"


def jitter(rng: random.Random, share: float) -> float:
    """A factor around 1."""
    return max(0.05, rng.gauss(1.0, share))
