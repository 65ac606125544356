"""Healthy trainings as public recipes run them, and trainings that diverge: lines with their times, from a seed."""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tools.metric_runs import curves
from tools.metric_runs.curves import Curve
from tools.metric_runs.forms import FORMS, StepForm, StepValues, jitter

TimedLine = tuple[float, str]
"""Seconds since the run began, and the line."""
Recipe = Callable[[random.Random, int], Iterator[TimedLine]]
"""(random numbers, steps) -> the log of a run."""


@dataclass(frozen=True, slots=True)
class Pace:
    """seconds: of a step. noise: its deviation as a share. pause: every so many steps an evaluation or a checkpoint."""

    seconds: float = 3.0
    noise: float = 0.03
    pause: int = 500
    paused: float = 40.0


def steps_of(
    rng: random.Random,
    form: StepForm,
    curve: Curve,
    steps: int,
    pace: Pace = Pace(),
    *,
    warm_up: int = 200,
    every: int = 1,
) -> Iterator[TimedLine]:
    """The lines of a run's steps. every: how many steps there are to a line."""
    time = 20.0
    yield 1.0, "Initializing torch distributed with backend nccl"
    yield 12.0, "Loading dataset shards, 4096 samples"
    for step in range(1, steps + 1):
        seconds = pace.seconds * jitter(rng, pace.noise) * (8.0 if step <= 2 else 1.0)
        time += seconds
        if step % every == 0:
            yield time, form(values(rng, curve, step, steps, seconds, time, warm_up))
        if step % pace.pause == 0:
            time += pace.paused
            yield time, f"saved checkpoint to /ckpt/step_{step}"


def values(
    rng: random.Random, curve: Curve, step: int, steps: int, seconds: float, time: float, warm_up: int
) -> StepValues:
    rate = 3e-4 * min(1.0, step / warm_up)
    norm = (0.4 + 6.0 / (1 + step / 20)) * rng.lognormvariate(0.0, 0.25)
    return StepValues(step, steps, curve(step), norm, seconds, rate, time)


def megatron_pretraining(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """With a batch that grows, so that steps take longer, and evaluations between."""
    curve, time = curves.spiky(curves.language_model(rng), rng), 30.0
    for step in range(1, steps + 1):
        batch = min(512, 64 * (1 + step // 300))
        seconds = 4.0 * batch / 256 * jitter(rng, 0.02)
        time += seconds
        yield time, FORMS["megatron"](replace(values(rng, curve, step, steps, seconds, time, 500), batch=batch))
        if step % 400 == 0:
            time += 60
            yield (
                time,
                f" validation loss at iteration {step} | lm loss value: {curve(step) + 0.1:.6E} |",
            )


def nano_gpt(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    curve, time = curves.language_model(rng, begin=10.95), 10.0
    for step in range(steps):
        time += 0.6 * jitter(rng, 0.05)
        if step % 250 == 0:
            yield time, f"step {step}: train loss {curve(step):.4f}, val loss {curve(step) + 0.15:.4f}"
            time += 30
        yield time, FORMS["nano"](values(rng, curve, step, steps, 0.6, time, 100))


def lora_fine_tuning(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    curve = curves.fine_tuning(rng)
    for time, line in steps_of(rng, FORMS["trainer"], curve, steps, Pace(4.0), every=5):
        yield time, line
        if line.startswith("{'loss'") and rng.random() < 0.02:
            yield time + 1, str({"eval_loss": round(curve(400) * 2.4, 4), "eval_runtime": 31.2, "epoch": 1.0})


def lightning_epochs(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """The counter begins anew with each epoch."""
    curve, time = curves.language_model(rng, begin=4.6, floor=0.9, noise=0.15), 5.0
    of_epoch = 400
    for step in range(steps):
        time += 0.9 * jitter(rng, 0.1)
        v = values(rng, curve, step % of_epoch + 1, of_epoch, 0.9, time, 100)
        yield time, FORMS["bar"](replace(v, loss=abs(curve(step)), epoch=step // of_epoch))
        if step % of_epoch == of_epoch - 1:
            time += 60
            yield time, f"Epoch {step // of_epoch}: val_loss={curve(step) * 1.7:.3f} val_acc=0.71"


def keras_epochs(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    curve, time = curves.language_model(rng, begin=2.3, floor=0.3, noise=0.02), 5.0
    for step in range(steps):
        time += 0.5
        if step % 200 == 0:
            yield time, f"Epoch {step // 200 + 1}/{steps // 200 + 1}"
        yield (
            time,
            FORMS["keras"](replace(values(rng, curve, step % 200 + 1, 200, 0.5, time, 1), loss=abs(curve(step)))),
        )


def maxtext_pretraining(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    return steps_of(rng, FORMS["maxtext"], curves.language_model(rng, begin=12.0), steps, Pace(5.0, 0.005))


def titan_pretraining(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    curve = curves.data_mix(curves.language_model(rng, begin=12.2), {steps // 2: 1.5, steps * 3 // 4: 1.3})
    return steps_of(rng, FORMS["titan"], curve, steps, Pace(6.0, 0.02))


def changed_data(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """Early, and half as hard again: the loss steps up, and the model learns on."""
    curve = curves.data_mix(curves.language_model(rng, begin=9.0), {600: 1.5})
    return steps_of(rng, FORMS["logfmt"], curve, steps, Pace(3.0, 0.02))


def policy_optimization(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """Losses of a policy jump as rewards do."""
    curve, time = curves.policy(rng), 5.0
    for step in range(1, steps + 1):
        time += 20 * jitter(rng, 0.3)
        yield (
            time,
            str(
                {
                    "loss": round(curve(step), 4),
                    "grad_norm": round(rng.lognormvariate(0.0, 1.2), 3),
                    "reward": round(step / steps * 3 + rng.gauss(0, 0.5), 3),
                    "kl": round(step / steps * 0.3, 4),
                    "epoch": round(step / steps, 3),
                }
            ),
        )


def actor_critic(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    curve, time = curves.policy(rng), 5.0
    for step in range(1, steps + 1):
        time += 2 * jitter(rng, 0.2)
        value = 0.3 * (1 + 40 * (step > steps // 2)) * rng.lognormvariate(0, 0.4)
        yield (
            time,
            f"step {step}: policy_loss={curve(step):.4f} value_loss={value:.4f} ep_reward={step * 0.1:.1f}",
        )


def adversarial_images(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    d, g, time = curves.player(rng, 0.6, 0.9), curves.player(rng, 3.0, 0.9), 5.0
    for step in range(steps):
        time += 0.4
        yield time, f"[{step // 400}/25][{step % 400}/400]\tLoss_D: {d(step):.4f}\tLoss_G: {g(step):.4f}\tD(x): 0.71"


def adversarial_speech(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    d, g, time = curves.player(rng, 1.4, 0.7), curves.player(rng, 28.0, 0.8), 5.0
    for step in range(steps):
        time += 0.8
        yield (
            time,
            f"INFO:train:step {step} gen_loss: {g(step):.3f} d_loss: {d(step):.3f} mel_loss: {g(step) / 2:.3f}",
        )


def translation(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    curve, time = curves.restarts(curves.language_model(rng, begin=13.5, floor=3.9), 3000), 5.0
    for step in range(100, steps * 20, 100):
        time += 40 * jitter(rng, 0.03)
        entry = {
            "epoch": 1 + step // 5000,
            "update": step / 5000,
            "loss": f"{curve(step // 4):.3f}",
            "num_updates": str(step),
        }
        yield (
            time,
            f"2026-11-02 10:00:00 | INFO | train_inner | {json.dumps(entry | {'wps': '91212.1', 'gnorm': '0.71'})}",
        )


def diffusion(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """The loss is noise about a low level."""
    return steps_of(
        rng,
        FORMS["bar"],
        lambda step: 0.09 * rng.lognormvariate(0.0, 0.6) * (1 + 4 / (1 + step / 30)),
        steps,
        Pace(1.1),
    )


def image_classes(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    curve, time = curves.drops(curves.language_model(rng, begin=7.0, floor=1.8, noise=0.12), steps // 3), 5.0
    for step in range(steps):
        time += 0.5 * jitter(rng, 0.1)
        v = values(rng, curve, step % 500, 500, 0.5, time, 100)
        yield time, FORMS["imagenet"](replace(v, loss=curve(step), epoch=step // 500))


def many_ranks(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """Each rank prints its own loss, with its own level of noise and speed."""
    curve, time = curves.language_model(rng, begin=11.0), 5.0
    for step in range(1, steps // 8 + 1):
        time += 4 * jitter(rng, 0.05)
        for rank in range(8):
            yield (
                time,
                f"[rank{rank}]: step {step} loss {curve(step) * rng.uniform(0.85, 1.2):.4f} time {4 + rank / 10:.2f}",
            )


def two_phases(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """A model is trained, then tuned on another task: the counter begins anew, the loss is another one."""
    yield from steps_of(
        rng, FORMS["logfmt"], curves.language_model(rng, begin=2.3, floor=0.02, noise=0.004), steps // 2
    )
    offset = 1.6 * steps
    for time, line in steps_of(rng, FORMS["logfmt"], curves.language_model(rng, begin=9.0), steps // 2):
        yield offset + time, line


def records_of_two_splits(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    curve = curves.language_model(rng, begin=10.0)
    for time, line in steps_of(rng, FORMS["record"], curve, steps):
        yield time, line
        if rng.random() < 0.01:
            entry = {"event": "evaluation", "step": 1, "valid/loss": round(curve(0) * 1.1, 4), "valid/ppl": 22.1}
            yield time + 0.5, json.dumps(entry)


def speech_recognition(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    curve = curves.language_model(rng, begin=900.0, floor=20.0, noise=8.0)
    return steps_of(rng, FORMS["logfmt"], curve, steps, Pace(1.4, 0.25))


def one_task_after_another(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    return steps_of(rng, FORMS["logfmt"], curves.tasks(rng, 400), steps, Pace(0.8))


def resumed(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """Launched again from its checkpoint, with the counter some way back."""
    curve, time = curves.language_model(rng), 5.0
    for step in (*range(1, steps // 2), *range(steps // 2 - 150, steps)):
        time += 3 * jitter(rng, 0.03)
        if step == steps // 2 - 150:
            yield time, "Loading checkpoint from /ckpt/step_1000"
        yield time, FORMS["titan"](values(rng, curve, step, steps, 3.0, time, 100))


def skipped_steps(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """Mixed precision skips a step now and then: its loss or norm is no number."""
    curve = curves.language_model(rng, floor=2.6)

    def skipping(step: int) -> float:
        return float("nan") if rng.random() < 0.01 else curve(step)

    return steps_of(rng, FORMS["logfmt"], skipping, steps, Pace(2.0, 0.08))


def long_warm_up(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """The rate rises for a thousand steps: the loss falls slowly at first."""
    curve = curves.language_model(rng, begin=10.8)
    return steps_of(
        rng, FORMS["megatron"], lambda step: curve(int((step / 30) ** 1.6) if step < 1000 else step), steps, Pace(2.5)
    )


def slow_hiccups(rng: random.Random, steps: int) -> Iterator[TimedLine]:
    """Steps are slow for a while, as a file system is, and quick again."""
    curve, time = curves.language_model(rng), 5.0
    for step in range(1, steps + 1):
        is_slow = step % 700 > 688
        seconds = 2.0 * jitter(rng, 0.04) * (2.5 if is_slow else 1.0)
        time += seconds
        yield time, FORMS["record"](values(rng, curve, step, steps, seconds, time, 100))


HEALTHY: Mapping[str, Recipe] = {
    recipe.__name__: recipe
    for recipe in (
        megatron_pretraining,
        nano_gpt,
        lora_fine_tuning,
        lightning_epochs,
        keras_epochs,
        maxtext_pretraining,
        titan_pretraining,
        changed_data,
        policy_optimization,
        actor_critic,
        adversarial_images,
        adversarial_speech,
        translation,
        diffusion,
        image_classes,
        many_ranks,
        two_phases,
        records_of_two_splits,
        speech_recognition,
        one_task_after_another,
        resumed,
        skipped_steps,
        long_warm_up,
        slow_hiccups,
    )
}

DIVERGENT_FORMS = ("megatron", "trainer", "bar", "nano", "record", "maxtext")
KINDS = ("thousandfold", "to_chance", "nan", "infinite", "tenfold_tuning")


@dataclass(frozen=True, slots=True)
class Divergence:
    """A run that diverges for good. at: the step of the first broken loss. lines: with their times and steps."""

    form: str
    kind: str
    at: int
    lines: tuple[tuple[float, int, str], ...]


def divergence(seed: int, form: str, behind: int = 600) -> Divergence:
    """behind: steps that the run goes on."""
    rng = random.Random(f"{form}-{seed}")
    kind, at = KINDS[seed % len(KINDS)], rng.randrange(150, 900)
    lines = []
    curve = _broken(rng, kind, at)
    for step in range(1, at + behind):
        v = values(rng, curve, step, at + behind, 3.0 * jitter(rng, 0.03), 20.0 + 3.0 * step, 100)
        lines.append((v.time, step, FORMS[form](v)))
    return Divergence(form, kind, at, tuple(lines))


def slowdown(seed: int, form: str, share: float, at: int = 250, behind: int = 60) -> list[str]:
    """A run whose speed falls to a share of what it was, and stays there. at: the first slow step."""
    rng, lines = random.Random(f"{form}-{seed}-{share}"), []
    curve, noise, time = curves.language_model(rng), rng.choice((0.01, 0.03, 0.06)), 20.0
    for step in range(1, at + behind):
        seconds = 3.0 * jitter(rng, noise)
        if step >= at:
            seconds /= share
        time += seconds
        lines.append(FORMS[form](values(rng, curve, step, at + behind, seconds, time, 100)))
    return lines


def plateau(seed: int, form: str, vocabulary: int, steps: int = 300) -> list[str]:
    """A run that guesses from its first step to its last."""
    rng = random.Random(f"{form}-{seed}-{vocabulary}")
    curve = curves.language_model(rng, begin=math.log(vocabulary) + 0.05, floor=math.log(vocabulary) + 0.05)
    return [FORMS[form](values(rng, curve, step, steps, 3.0, 3.0 * step, 100)) for step in range(1, steps)]


def _broken(rng: random.Random, kind: str, at: int) -> Curve:
    curve = curves.language_model(rng)
    match kind:
        case "thousandfold":
            return curves.explodes(curve, at, 1000.0)
        case "to_chance":
            return curves.climbs(curve, at, rng.uniform(7.5, 10.8), rng.choice((1, 3, 8)))
        case "nan":
            return curves.breaks(curve, at, float("nan"))
        case "infinite":
            return curves.breaks(curve, at, float("inf"))
        case _:
            return curves.explodes(curves.fine_tuning(rng, noise=0.1), at, 10.0)
