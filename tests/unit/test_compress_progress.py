"""Numbers and stages, in the dialects of the common frameworks."""

import math

import pytest

from diagnoser.compress import Compressor, digest
from diagnoser.model import LineBlock, Progress, Stage, Stream


def series(*lines: str) -> tuple[Progress, ...]:
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), "".join(line + "\n" for line in lines).encode()))
    return digest(compressor.take()).progress


@pytest.mark.parametrize(
    ("line", "step", "loss", "grad", "seconds", "rate"),
    [
        (
            " iteration      120/  200000 | samples: 61440 | elapsed time per iteration (ms): 2410.7 | "
            "lm loss: 6.1E+00 | grad norm: 0.8 |",
            *(120, 6.1, 0.8, 2.4107, None),
        ),
        (
            "[INFO] [logging.py:128:log_dist] [Rank 0] step=400, skipped=0, lr=[1e-05], mom=[(0.9, 0.95)]",
            400,
            None,
            None,
            None,
            None,
        ),
        ("steps: 40 loss: 7.5 iter time (s): 1.25 samples/sec: 20.1", 40, 7.5, None, 1.25, None),
        ("{'loss': 1.92, 'grad_norm': 0.42, 'learning_rate': 2e-05, 'epoch': 0.31}", None, 1.92, 0.42, None, None),
        (
            "[titan] 2026-03-01 12:00:09,221 - root - INFO - step: 20  loss:  6.91  memory: 41.02GiB  tps: 9,120",
            20,
            6.91,
            None,
            None,
            9120.0,
        ),
        (
            "completed step: 41, seconds: 5.218, TFLOP/s/device: 181.2, Tokens/s/device: 3140.1, "
            "total_weights: 65536, loss: 7.012",
            41,
            7.012,
            None,
            None,
            3140.1,
        ),
        (
            "| INFO | train_inner | epoch 004:    120 / 356 loss=5.12, wps=30112, num_updates=1120, lr=1e-4",
            1120,
            5.12,
            None,
            None,
            30112.0,
        ),
        ("step:340/20344 train_loss:2.6460 train_time:584475ms step_avg:1719.17ms", 340, 2.646, None, None, None),
        ("step:3499/3500 train_time:2612.465s step_avg:746.63ms", 3499, None, None, None, None),
        ("tflops=180.2 step=300 loss=4.81 tgs (tokens/gpu/second)=3900.1", 300, 4.81, None, None, 3900.1),
        ("step     9 | loss: 10.5 | lr 8.3e-06 | norm: 2.4 | dt: 3957.22ms", 9, 10.5, None, None, None),
        ("iter 21: loss 3.25, time 157.18ms, mfu 12.00%", 21, 3.25, None, None, None),
        (
            "Epoch 3:  12%|#2        | 12/100 [00:10<01:20,  1.25it/s, v_num=0, train_loss=2.31, global_step=311.0]",
            *(311, 2.31, None, 0.8, None),
        ),
        (
            "Epoch 0: :   4%|4         | 40/1000 [04:07<1:38, v_num=ab12, reduced_train_loss=7.1, global_step=39.0, "
            "consumed_samples=5120.0, train_step_timing in s=6.2]",
            *(39, 7.1, None, 6.2, None),
        ),
        (
            "Training epoch 0, iteration 39/999 | lr: 1e-05 | global_batch_size: 512 | global_step: 39 | "
            "reduced_train_loss: 7.1 | train_step_timing in s: 6.2",
            *(39, 7.1, None, 6.2, None),
        ),
        (
            "Steps:   1%|1         | 10/1000 [00:12<20:10,  1.2s/it, lr=1e-5, step_loss=0.125]",
            10,
            0.125,
            None,
            1.2,
            None,
        ),
        ("03/01/2026 12:00:09 - INFO - __main__ - step: 10, train_loss: 2.25, lr: 1e-5", 10, 2.25, None, None, None),
        (
            '2026-03-01 12:00:09 | INFO | train_inner | {"epoch": 1, "actv_norm": null, "loss": "7.1", '
            '"wps": "1200.5", "num_updates": "200", "gnorm": "1.2"}',
            *(200, 7.1, 1.2, None, 1200.5),
        ),
        ("Epoch 2:   5%|5         | 3/60 [00:09<02:51,  3.0s/it, loss=1.25]", 123, 1.25, None, 3.0, None),
        (
            "[03/01/26 12:00:09] INFO     colossalai - colossalai - INFO: [Epoch 0 / Train]: Loss = 2.31, LR = 1e-4",
            *(0, 2.31, None, None, None),
        ),
        (
            ':::MLLOG {"namespace": "", "time_ms": 1772366409500, "event_type": "POINT_IN_TIME", "key": "train_loss", '
            '"value": 4.32, "metadata": {"file": "x.py", "lineno": 3, "step_num": 120}}',
            *(120, 4.32, None, None, None),
        ),
    ],
)
def test_each_dialect_is_read(
    line: str, step: int | None, loss: float | None, grad: float | None, seconds: float | None, rate: float | None
) -> None:
    """Step, loss, gradient norm, step time and rate come out as printed."""
    (point,) = series(line)
    assert (point.step, point.loss, point.grad_norm, point.tokens_per_second) == (step, loss, grad, rate)
    assert point.step_seconds == (pytest.approx(seconds) if seconds is not None else None)


def test_nan_is_a_finding_and_absence_is_not() -> None:
    """A loss of NaN is NaN; a loss that is not printed is None."""
    first, second = series("iteration 5/ 90 | lm loss: nan | grad norm: 1.0 |", "step=6, skipped=0, lr=[1e-5]")
    assert first.loss is not None and math.isnan(first.loss)
    assert second.loss is None


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        ("step 7 z_loss=25.0 loss=2.1", 2.1),
        ("step 7 train/aux_loss: 0.4 loss_scale: 8 train/loss: 2.1", 2.1),
        ("iteration 7/ 9 | load_balancing_loss: 1.1 | lm_loss: 2.1 |", 2.1),
        ("step 7 loss 2.1 (avg loss 2.4)", 2.1),
        ("step 7 mel_loss: 2.1 dur_loss: 9.0", 2.1),
    ],
)
def test_of_several_losses_that_counts_which_is_called_so_and_no_more(line: str, loss: float) -> None:
    """A router's loss that rises by design was taken for the model's, and led to a rollback."""
    assert [point.loss for point in series(line)] == [loss]


def test_a_saved_checkpoint_is_named_and_a_load_is_a_stage() -> None:
    """Saving and loading are told apart from training."""
    loaded, saved = series(
        "loading checkpoint from /ckpt/iter_0000100",
        "successfully saved checkpoint at iteration 200 to /ckpt/iter_0000200",
    )
    assert (loaded.stage, saved.stage) == (Stage.LOAD, Stage.SAVE)
    assert saved.checkpoint == "/ckpt/iter_0000200"


def test_a_long_series_keeps_its_start_its_end_and_a_spread() -> None:
    """Of a hundred thousand steps a few hundred points stay, among them the first and the last ones in a row."""
    steps = [point.step for point in series(*(f"step: {n} loss: 2.5" for n in range(100_000)))]
    assert steps[0] == 0
    assert steps[-64:] == list(range(99_936, 100_000))
    assert 100 < len(steps) < 400
    assert any(steps.count(n) for n in range(40_000, 60_000))


def test_points_carry_the_time_that_their_line_prints() -> None:
    """The series can be read against the clock, without times from the shipper."""
    (point,) = series("2026-03-01 12:00:09,500 - INFO - step: 20  loss:  6.91")
    assert point.time == 1772366409.5


def test_stages_are_told_in_order() -> None:
    """From launch to finish each stage is found where the log speaks of it."""
    compressor = Compressor()
    lines = [
        "srun: job 77 has been allocated resources",
        "> initializing torch distributed ...",
        "> building train, validation, and test datasets ...",
        "loading checkpoint from /ckpt/iter_0000100",
        "iteration 101/ 200 | lm loss: 2.5E+00 |",
        "saving checkpoint at iteration 150 to /ckpt",
        "validation loss at iteration 150 | lm loss value: 2.4E+00",
        "training is finished",
    ]
    compressor.feed(LineBlock(Stream(), "".join(line + "\n" for line in lines).encode()))
    phases = digest(compressor.take()).phases
    assert [phase.stage for phase in phases] == list(Stage)


@pytest.mark.parametrize("line", ["Starting validation", "Running evaluation on 900 samples", "[eval] started"])
def test_an_evaluation_may_be_announced_in_plain_words(line: str) -> None:
    """It may take half an hour, and no run is called hung for it."""
    compressor = Compressor()
    compressor.feed(LineBlock(Stream(), f"iteration 101/ 200 | lm loss: 2.5E+00 |\n{line}\n".encode()))
    assert [phase.stage for phase in digest(compressor.take()).phases][-1] is Stage.EVAL


def test_the_newest_steps_are_kept_whatever_series_they_are_of() -> None:
    """A log of many runs has more series than are kept: the one that is going on now is among them."""
    old = [f"{task}: step {n} | loss 2.0 | 80 ms/step" for task in range(300) for n in range(1, 4)]
    new = [f"{task}: iteration {n}/ 500 | lm loss: 1.0E+00 |" for n in range(1, 9) for task in (900, 901)]
    found = series(*old, *new)
    assert [point.step for point in found[-16:]] == [n for n in range(1, 9) for _ in range(2)]
    assert len(found) < len(old) + len(new)
