"""How runs end: a clean end in any words, the last word of a launcher, and codes and signals of dead processes."""

import io
import re
from dataclasses import replace

import pytest

from diagnoser.diagnosis.baseline import is_clean
from diagnoser.model import Diagnosis, Event, EventKind, Evidence, Facts, Line
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.rules.left_behind import find_processes
from tests.rule_files import ANALYZER

T = FailureType
STEPS = tuple(
    f"2031-01-02 03:04:{step:02},678 INFO trainer: step {step} loss {3 - step / 30:.3f}" for step in range(5, 35, 5)
)
CAUGHT = (
    "2031-01-02 03:04:35,001 ERROR trainer: could not mirror the checkpoint, keeping the local copy",
    "Traceback (most recent call last):",
    '  File "/srv/train/mirror.py", line 31, in mirror',
    "    with open(target, 'wb') as file:",
    "FileNotFoundError: [Errno 2] No such file or directory: '/mnt/mirror/latest.pt'",
)
UNCAUGHT = (
    "Traceback (most recent call last):",
    '  File "/srv/train/main.py", line 12, in <module>',
    "    fit(batches['train'])",
    "KeyError: 'train'",
)


def log_of(*lines: str) -> Evidence:
    return ANALYZER.read(io.BytesIO("".join(line + "\n" for line in lines).encode())).evidence


def diagnose(*lines: str, exit_code: int | None = None) -> Diagnosis:
    events = () if exit_code is None else (Event(EventKind.EXIT, 0.0, code=exit_code),)
    return ANALYZER.diagnose_with_node_logs(log_of(*lines), Facts(events=events))


@pytest.mark.parametrize(
    "last",
    [
        "2031-01-02 03:04:36,001 INFO trainer: training done, 30 steps",
        "2031-01-02 03:04:36,001 INFO trainer: done, 30 iterations",
        "2031-01-02 03:04:36,001 INFO trainer: final loss 2.0312",
        "2031-01-02 03:04:36,001 INFO trainer: no improvement for 3 evaluations, stopping early",
        "2031-01-02 03:04:36,001 INFO trainer: 训练完成",
        "2031-01-02 03:04:36,001 INFO trainer: Training abgeschlossen",
        "2031-01-02 03:04:36,001 INFO trainer: entraînement terminé",
        "Pod trainer-0 completed, exit code 0",
        "Done.",
    ],
)
def test_a_run_that_speaks_after_its_last_step_completed(last: str) -> None:
    """Whatever words close a run that trained, where they are its last ones, they are a clean end."""
    diagnosis = diagnose(*STEPS, last)
    assert (diagnosis.type, diagnosis.outcome) == (T.COMPLETED, Outcome.COMPLETED)


@pytest.mark.parametrize(
    "last",
    [
        "2031-01-02 03:04:36,001 INFO trainer: epoch 3 finished",
        "2031-01-02 03:04:36,001 INFO trainer: done saving ckpt/step_30",
        "2031-01-02 03:04:36,001 INFO trainer: evaluation completed",
        "2031-01-02 03:04:36,001 INFO trainer: training continues until all epochs are done",
        "2031-01-02 03:04:36,001 INFO trainer: saved checkpoint ckpt/step_30",
    ],
)
def test_the_end_of_a_part_is_no_end(last: str) -> None:
    """A log that is cut after an epoch, an evaluation or a checkpoint is not called completed."""
    assert diagnose(*STEPS, last).type is T.UNKNOWN


def test_words_before_the_last_step_end_nothing() -> None:
    """A stage that is over before training goes on says nothing about the run."""
    assert diagnose("2031-01-02 03:04:01,001 INFO trainer: training finished", *STEPS).type is T.UNKNOWN


def test_the_last_step_of_the_stated_total_is_an_end() -> None:
    """A log that stops at the last step that was asked for completed; one that stops before it did not."""
    assert diagnose("max_steps: 30", *STEPS).type is T.COMPLETED
    assert diagnose("max_steps: 300", *STEPS).type is T.UNKNOWN


def test_the_last_step_of_an_epoch_is_no_end() -> None:
    """Steps that are counted within an epoch reach their total again and again."""
    steps = [f"step {step}/40 loss {3 - step / 30:.3f}" for step in range(5, 45, 5)]
    assert diagnose("Epoch 1/3", *steps).type is T.UNKNOWN
    assert diagnose("Epoch 3/3", *steps).type is T.COMPLETED


def test_a_traceback_that_quotes_the_words_is_no_end() -> None:
    """Source code that a cut traceback shows is not what the process says."""
    cut = (
        "Traceback (most recent call last):",
        '  File "/srv/a.py", line 9, in <module>',
        '    log.info("training done")',
    )
    assert diagnose(*STEPS, *cut).type is not T.COMPLETED


def test_a_script_that_says_done_after_a_crash_has_not_completed() -> None:
    """A bare word behind an uncaught exception or a dead process comes from the script around it."""
    assert diagnose(*STEPS, *UNCAUGHT, "Done.").type is T.KEY_ERROR
    assert diagnose(*STEPS, "train.sh: line 8:  7121 Killed                  python train.py", "done").type is (
        T.HOST_OUT_OF_MEMORY
    )


def test_a_logged_error_of_a_run_that_completed_is_not_its_failure() -> None:
    """An error that the program caught and logged right before its clean end was survived."""
    end = "2031-01-02 03:04:36,001 INFO trainer: training finished steps=30"
    assert diagnose(*STEPS, *CAUGHT, end).type is T.COMPLETED


def test_a_logged_error_does_not_beat_a_later_death() -> None:
    """What training went on after is not why another failure ended it."""
    more = [f"2031-01-02 03:05:{step},678 INFO trainer: step {step} loss 1.9" for step in (35, 40)]
    diagnosis = diagnose(*STEPS, *CAUGHT, *more, *UNCAUGHT)
    assert diagnosis.type is T.KEY_ERROR


def test_an_uncaught_error_without_more_steps_stays_the_failure() -> None:
    """An error that nothing was done after is the cause, logged or not."""
    assert diagnose(*STEPS, *CAUGHT[1:]).type is T.FILE_NOT_FOUND_ERROR
    assert diagnose(*STEPS, *CAUGHT).type is T.FILE_NOT_FOUND_ERROR


def test_a_requeued_run_that_completes_has_completed() -> None:
    """The end of the run that was launched again counts."""
    requeued = "slurmstepd: error: *** JOB 712 ON gpu-9 CANCELLED AT 2031-01-02T03:04:30 DUE TO JOB REQUEUE ***"
    end = "2031-01-02 03:06:00,001 INFO trainer: training finished steps=30"
    assert diagnose(*STEPS[:3], requeued).type is T.PREEMPTED
    assert diagnose(*STEPS[:3], requeued, *STEPS, end).type is T.COMPLETED


def test_processes_of_an_earlier_launch_owe_the_newest_no_end() -> None:
    """Four ranks trained, one of them less far, before one process trained and said that it is done."""
    ranks = [f"{rank}: step {step} loss {3 - step / 90:.4f}" for step in range(1, 60) for rank in range(4)]
    alone = [f"iter {step} train loss {2 - step / 90:.4f}" for step in range(1, 40)]
    evidence = log_of(*filter(lambda line: not re.match("3: step [2-5]", line), ranks), *alone, "Training completed")
    begin = next(line for line in evidence.lines if line.body.startswith("iter "))
    newest = replace(evidence, progress=tuple(point for point in evidence.progress if point.line >= begin.number))

    def speaks_for_all(launch: Line | None) -> bool:
        read = find_processes(newest, lambda text: "completed" in text, lambda line: False, launch)
        return read.speak_for_all(evidence.lines[-1].stream)

    assert not speaks_for_all(None)
    assert speaks_for_all(begin)


def test_kill_on_bad_exit_is_no_cancellation() -> None:
    """Srun takes the step down because a task failed: its code is the cause, with rank and node."""
    diagnosis = diagnose(
        *STEPS,
        "srun: error: gpu-03: task 1: Exited with exit code 3",
        "srun: launch/slurm: _step_signal: Terminating StepId=21.0",
        "slurmstepd-gpu-02: error: *** STEP 21.0 ON gpu-02 CANCELLED AT 2031-01-02T03:05:49 ***",
        "srun: error: gpu-02: task 0: Terminated",
    )
    assert diagnosis.type is T.RUNTIME_ERROR and diagnosis.root_cause is not None
    assert (diagnosis.root_cause.rank, diagnosis.root_cause.node) == (1, "gpu-03")


def test_others_train_on_for_a_moment() -> None:
    """A traceback whose process is reported dead next is not survived, however long another rank trains on."""
    ranks = [f"2031-01-02 03:04:10,000 INFO [rank {step % 2}] trainer: step {step} loss 2.0" for step in range(1, 11)]
    alone = [f"2031-01-02 03:05:10,000 INFO [rank 1] trainer: step {step} loss 1.9" for step in range(11, 61)]
    died = (*UNCAUGHT, "srun: error: gpu-02: task 0: Exited with exit code 1")
    end = "2031-01-02 03:06:00,001 INFO [rank 1] trainer: training finished steps=60"
    assert diagnose(*ranks, *died, *alone, end).type is T.KEY_ERROR


@pytest.mark.parametrize(
    ("line", "type_", "rank"),
    [
        ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.", T.SEGMENTATION_FAULT, 2),
        ("Container rank 1 status failed cmd ['python3', 'train.py'] code -9 log log/w.1", T.HOST_OUT_OF_MEMORY, 1),
        ("Process 3 exit with status code 139.", T.SEGMENTATION_FAULT, 3),
        (
            "mpirun noticed that process rank 3 with PID 5 on node n4 exited on signal 9 (Killed)",
            T.HOST_OUT_OF_MEMORY,
            3,
        ),
    ],
)
def test_a_signal_names_type_and_rank(line: str, type_: FailureType, rank: int) -> None:
    """Every launcher's report of a signal tells how the process died and which rank it was."""
    diagnosis = diagnose(*STEPS, line)
    assert diagnosis.type is type_ and diagnosis.root_cause is not None
    assert diagnosis.root_cause.rank == rank


def test_words_do_not_beat_a_report() -> None:
    """A dead Ray actor is what the report says, whatever its advice mentions."""
    report = (
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker IP address: "
        "10.1.2.3 Worker port: 10002 Worker PID: 771 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
        "unexpectedly exits with a connection error code 2. There may be uncorrectable memory errors."
    )
    assert diagnose(*STEPS, report).type is T.HOST_OUT_OF_MEMORY


def test_the_shipped_tables_hold_their_examples() -> None:
    """Every example of the tables of ends and of exit reports is read as it says."""
    assert not ANALYZER.knowledge.exits.faults("exit_reports.yaml")
    assert not ANALYZER.knowledge.heuristics.ends.faults("run_end.yaml")


@pytest.mark.parametrize("text", ["[   8/12] loss=1.22 lr=0.05", "étape 8/12 perte 1.22", '{"step": 8, "loss": 1.22}'])
def test_steps_are_read_in_other_forms(text: str) -> None:
    """A count of a total before a loss is a step, in words of other languages and in JSON too."""
    (point,) = ANALYZER.read(io.BytesIO(text.encode() + b"\n")).evidence.progress
    assert (point.step, point.loss) == (8, 1.22)


def keras(epoch: int, total: int, style: str, steps: int = 12) -> tuple[str, str]:
    """An epoch as Keras prints it: a painted bar, the same without a terminal, and the bar of version 2."""
    done = f"accuracy: 0.5{epoch} - loss: 1.{9 - epoch}21 - val_accuracy: 0.4{epoch} - val_loss: 1.{9 - epoch}51"
    bar = "\u2501" * 20
    lines = {
        "painted": f" 1/{steps} {bar} 1s 9ms/step - loss: 1.9\r {steps}/{steps} {bar} 1s 9ms/step - {done}",
        "plain": f"{steps}/{steps} - 1s - 80ms/step - {done}",
        "version 2": f"{steps}/{steps} [{'=' * 30}] - 1s 15ms/step - {done}",
    }
    return f"Epoch {epoch}/{total}", lines[style]


@pytest.mark.parametrize("style", ["painted", "plain", "version 2"])
def test_the_last_step_of_the_last_epoch_is_an_end(style: str) -> None:
    """Every epoch counts anew to the same number; only that of the last epoch ends the run."""
    epochs = [keras(number, 3, style) for number in (1, 2, 3)]
    assert diagnose(*(line for epoch in epochs for line in epoch)).type is T.COMPLETED
    assert diagnose(*(line for epoch in epochs[:2] for line in epoch)).type is T.UNKNOWN


def test_of_a_painted_bar_the_last_state_counts() -> None:
    """Without a time behind them the states of a bar are kept side by side."""
    states = [f"train: {n * 25}%|{'#' * n}    | {n}/4 loss={2 - n / 4}" for n in (1, 2, 3, 4)]
    log = ANALYZER.read(io.BytesIO("\r".join(["", *states]).encode() + b"\n"))
    assert [(point.step, point.loss) for point in log.evidence.progress] == [(4, 1.0)]


def test_an_error_that_was_caught_does_not_kill_a_process() -> None:
    """A logged error, one more line, and then the shell says that the process was killed: it was killed."""
    killed = diagnose(*STEPS, *CAUGHT, "run.sh: line 2: 77 Killed   python train.py", "exit code: 137")
    assert killed.type is T.HOST_OUT_OF_MEMORY
    assert diagnose(*STEPS, *UNCAUGHT, "exit code: 1").type is T.KEY_ERROR


TOTAL = tuple(
    f"2031-01-02 03:04:{step:02},678 INFO trainer: update {step} / 12 loss {3 - step / 30:.3f}" for step in (4, 8, 12)
)
PUSH = (
    "2031-01-02 03:04:35,001 WARNING trainer: could not push the summary",
    "Traceback (most recent call last):",
    '  File "/srv/train/push.py", line 31, in push',
    "    urlopen(target)",
    "ConnectionRefusedError: [Errno 111] Connection refused",
)


def test_an_error_caught_after_the_last_step_of_the_total_is_no_failure() -> None:
    """The program logged it and spoke on; where the error is its last word, nobody knows."""
    spoke_on = diagnose(*TOTAL, *PUSH, "2031-01-02 03:04:36,001 INFO trainer: best accuracy 0.61")
    assert (spoke_on.type, spoke_on.outcome) == (T.COMPLETED, Outcome.COMPLETED)
    assert diagnose(*TOTAL, *PUSH).type is T.CONNECTION_ERROR


def test_what_ray_held_back_came_before_the_end() -> None:
    """Copies of an error and of steps that are printed after a clean exit do not deny it."""
    head = "(RayTrainWorker pid=771, ip=10.1.2.3) "
    steps = [f"{head}update {step} / 12 loss {3 - step / 30:.3f}" for step in (2, 4, 6)]
    copies = [
        f"{line} [repeated 5x across cluster]"
        for line in (f"{head}update 12 / 12 loss 2.600", *(head + line for line in PUSH))
    ]
    run = diagnose(*steps, *(head + line for line in PUSH), "exit code: 0", *copies)
    assert (run.type, run.outcome) == (T.COMPLETED, Outcome.COMPLETED)


def test_an_error_that_its_program_calls_harmless_is_none() -> None:
    """Ray prints such a traceback without a level."""
    harmless = "Failed to send a request. If this only happens transiently, it's safe to ignore this error."
    assert diagnose(*STEPS, harmless, *UNCAUGHT).type is T.UNKNOWN
    assert diagnose(*STEPS, "Failed to send a request.", *UNCAUGHT).type is T.KEY_ERROR


RESET = (
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "/srv/train/main.py", line 40, in step',
    "[rank0]:     work.wait()",
    "[rank0]: RuntimeError: [/x/gloo/transport/tcp/pair.cc:537] Read error [10.1.2.4]:3241: Connection reset by peer.",
)


@pytest.mark.parametrize(
    "reset", ["Read error [10.1.2.4]:3241: Connection reset by peer.", "Connection closed by peer [10.1.2.4]:3241."]
)
@pytest.mark.parametrize(
    ("code", "kind"), [("3", T.RUNTIME_ERROR), ("-9", T.HOST_OUT_OF_MEMORY), ("-11", T.SEGMENTATION_FAULT)]
)
def test_the_end_of_a_peer_is_the_cause_of_its_broken_connections(reset: str, code: str, kind: FailureType) -> None:
    """A code that no uncaught exception gives, or a signal, is that of the peer: the one rank of two that is silent."""
    raised = [line.replace("Read error [10.1.2.4]:3241: Connection reset by peer.", reset) for line in RESET]
    end = f"[ERROR] [launch.py:259:sigkill_handler] ['python', '--local_rank=0'] exits with return code = {code}"
    run = diagnose("[INFO] [launch.py:164:main] dist_world_size=2", *STEPS, *raised, "Killing subprocess 771", end)
    assert (run.type, run.root_cause and run.root_cause.rank) == (kind, 1)


def test_a_code_that_an_exception_gives_is_no_peers() -> None:
    """Exit code 1 may be that of the process which lost its connection."""
    run = diagnose(*STEPS, *RESET, "[ERROR] [launch.py:259:sigkill_handler] ['python'] exits with return code = 1")
    assert run.type is T.NETWORK_ERROR


def test_the_words_of_a_failed_program_say_more_than_its_code() -> None:
    """A code of its own does not tell why it ended."""
    assert diagnose(*STEPS, "mlx5_2: link down", "the job exited with code 18").type is T.NETWORK_ERROR


def test_a_fault_that_its_line_calls_temporary_does_not_stop_the_job() -> None:
    """A rule may ask for a person where a name cannot be resolved; one that cannot be resolved now is tried again."""
    line = "socket.gaierror: [Errno {}] {}"
    later = diagnose(*STEPS, line.format(-3, "Temporary failure in name resolution"))
    assert (later.category, later.recovery.action) == (Category.INFRASTRUCTURE, Action.RESUBMIT)


SWEEPS = tuple(f"sweep {number} energy -{number / 7:.4f}" for number in range(1, 13))


@pytest.mark.parametrize(
    "last",
    [
        ("ground state energy: -1.7143",),
        ("spectrum:", "  0.12 0.44 0.91", "wrote out/spectrum.h5"),
        ("real\t0m4.21s", "user\t0m3.90s"),
        ("  3.412391 seconds (1.21 M allocations: 88.210 MiB)",),
        ("rank 0 destroying process group",),
    ],
)
def test_what_follows_a_loop_that_nobody_knows_is_an_end(last: tuple[str, ...]) -> None:
    """A program of any language that leaves its loop and tells what came of it has completed."""
    assert diagnose("reading grid.in", *SWEEPS, *last).type is T.COMPLETED


@pytest.mark.parametrize(
    "last",
    [
        (),
        ("saving grid.out ...",),
        ("Writing spectrum to out/spectrum.h5",),
        ("fatal: cannot open lattice 4", "energy: -1.2"),
        ("validation energy: -1.71",),
        ("sweep 13/400 energy -1.8571", "acceptance: 0.31"),
    ],
)
def test_a_log_that_was_cut_is_unknown_and_says_what_would_decide(last: tuple[str, ...]) -> None:
    """Behind the last turn nothing, a beginning, a complaint, or what is told on the way: nobody knows how it ended."""
    cut = diagnose("reading grid.in", *SWEEPS, *last)
    assert (cut.outcome, any("--exit-code" in note for note in cut.notes)) == (Outcome.UNKNOWN, True)


@pytest.mark.parametrize(
    ("lines", "exit_code", "outcome", "kind"),
    [
        (SWEEPS, 0, Outcome.COMPLETED, T.COMPLETED),
        ((*SWEEPS, *UNCAUGHT), 0, Outcome.COMPLETED, T.COMPLETED),
        ((*SWEEPS, "training finished"), 3, Outcome.FAILED, T.UNKNOWN),
        ((*SWEEPS, *UNCAUGHT, "training finished"), 1, Outcome.FAILED, T.KEY_ERROR),
        ((*STEPS, *(f"step {step} loss nan" for step in range(35, 50, 5))), 0, Outcome.FAILED, T.LOSS_DIVERGENCE),
        (SWEEPS, 137, Outcome.FAILED, T.HOST_OUT_OF_MEMORY),
        (SWEEPS, 124, Outcome.TIME_LIMIT, T.TIME_LIMIT),
        (SWEEPS, -2, Outcome.CANCELLED, T.CANCELLED),
    ],
)
def test_an_exit_status_outweighs_words(
    lines: tuple[str, ...], exit_code: int, outcome: Outcome, kind: FailureType
) -> None:
    """A run that exited with 0 completed unless its loss diverged; one that did not has failed, whatever it printed."""
    diagnosis = diagnose(*lines, exit_code=exit_code)
    assert (diagnosis.outcome, diagnosis.type) == (outcome, kind)


def test_a_status_of_success_that_the_log_belies_is_looked_at() -> None:
    """It may be that of a pipe or an ``echo`` behind the training: a person looks, and no baseline learns the crash. A
    run that ends well all the same, or without a word, is as good as its status."""
    crashed = diagnose(*STEPS, *UNCAUGHT, "job ended on gpu-07", exit_code=0)
    assert (crashed.outcome, "exit status is 0" in crashed.needs_review) == (Outcome.COMPLETED, True)
    assert not is_clean(crashed, (Event(EventKind.EXIT, 0.0, code=0),))
    for lines in (STEPS, (*STEPS, *UNCAUGHT, "Training completed"), (*CAUGHT, *STEPS)):
        assert diagnose(*lines, exit_code=0).needs_review == ""


def test_a_process_that_turns_its_loop_on_has_survived_an_exception() -> None:
    """Turns of a loop in words that no trainer uses show it as steps do; a loop of another rank shows nothing."""
    more = [f"sweep {number} energy -{number / 7:.4f}" for number in range(13, 30)]
    assert diagnose(*SWEEPS, *UNCAUGHT, *more, "ground state energy: -1.7143").type is T.COMPLETED
    alone = [f"[rank1]: {line}" for line in (*SWEEPS, *more)]
    died = [f"[rank0]: {line}" for line in (*SWEEPS, *UNCAUGHT)]
    assert diagnose(*died, *alone).type is T.KEY_ERROR


@pytest.mark.parametrize("level", ["INFO", "WARNING"])
def test_what_its_program_calls_no_error_is_no_cause(level: str) -> None:
    """Unless the run is known to have failed, and nothing else says why."""
    line = f'{{"level": "{level}", "msg": "retries exhausted: connection refused by the metrics host"}}'
    assert diagnose(*STEPS, line).type is T.UNKNOWN
    assert diagnose(*STEPS, line, *UNCAUGHT, exit_code=1).type is T.KEY_ERROR


def test_processes_without_names_leave_the_cause_to_the_exception_of_the_one_that_failed() -> None:
    """Three processes share a stream: two train to their end, and `make` says that one of them failed."""
    lines = (*STEPS, *UNCAUGHT, *STEPS, "2031-01-02 03:05:36,001 INFO trainer: training done, 30 steps")
    diagnosis = diagnose(
        *lines, "make: *** [Makefile:5: worker-1] Error 1", "make: *** Waiting for unfinished jobs...."
    )
    assert (diagnosis.type, diagnosis.outcome) == (T.KEY_ERROR, Outcome.FAILED)


def test_inf_as_the_name_of_a_level_is_no_measure() -> None:
    """Some loggers shorten INFO to INF, and a loop of such lines does not diverge."""
    lines = (f"12:4{n}AM INF trainer.py:58 > batch {n} of 9 took {n}.25 s" for n in range(1, 9))
    assert diagnose(*lines, "12:49AM INF trainer.py:60 > training done").type is T.COMPLETED


@pytest.mark.parametrize(("ended", "outcome"), [((0, 1, 2), Outcome.COMPLETED), ((0, 2), Outcome.UNKNOWN)])
def test_most_ranks_do_not_speak_for_one_that_fell_silent(ended: tuple[int, ...], outcome: Outcome) -> None:
    """Where most ranks state their end, one that states none and made no steps is not known to have ended well."""
    begin = [f"[rank{rank}]: 64 rows read" for rank in range(3)]
    end = [f"[rank{rank}]: search finished, best loss 3.21" for rank in ended]
    assert diagnose(*begin, *end).outcome is outcome


def _two_ranks(turns: int, *, rank: int = 0) -> list[str]:
    """Rank 0 and rank 1 in turns, as ``flux run --label-io`` prints them; the given one makes only so many of 60."""
    rows = []
    for turn in range(1, 61):
        for number in (0, 1):
            if number != rank or turn <= turns:
                rows.append(f"{number}: round={turn} rounds=60 mse={2 - turn / 100:.3f}")
    return rows


def test_a_clean_end_holds_only_if_the_peers_counted_as_far() -> None:
    """The words of the rank that completed say nothing of one that stopped on its way, in whatever words it counts."""
    assert diagnose(*_two_ranks(60), "0: job is complete").outcome is Outcome.COMPLETED
    assert diagnose(*_two_ranks(31, rank=1), "0: job is complete").outcome is Outcome.UNKNOWN


def test_a_loop_that_never_measures_a_number_did_not_complete() -> None:
    """A measure that is NaN in every turn outranks the launcher's word that the task completed."""
    turns = [f"round={turn} of=60 sqerr=-nan" for turn in range(1, 61)]
    assert diagnose(*turns, "Finished in state Completed()").type is T.LOSS_DIVERGENCE
    finite = [f"round={turn} of=60 sqerr={2 - turn / 100:.3f}" for turn in range(1, 61)]
    assert diagnose(*finite, "Finished in state Completed()").outcome is Outcome.COMPLETED


def test_every_process_says_once_that_it_is_done() -> None:
    """Where only rank 0 prints the loop, what each rank says but once behind it is a clean end."""
    turns = [f"0: round {turn}  mse {2 - turn / 100:.3f}" for turn in range(1, 41)]
    begun = [f"{rank}: cohort {rank} has 12 rows" for rank in range(3)]
    assert diagnose(*begun, *turns, *(f"{rank}: leaving the arena" for rank in range(3))).outcome is Outcome.COMPLETED
    assert diagnose(*begun, *turns, *(f"{rank}: leaving the arena" for rank in (0, 2))).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("before", "order", "ended"),
    [
        ("INFO trainer: training finished steps=30", "received SIGTERM", T.COMPLETED),
        ("INFO trainer: step 35 loss 2.001", "received SIGTERM", T.CANCELLED),
        ("INFO trainer: step 35 loss 2.001", "received SIGTERM: preempted by a job of higher priority", T.PREEMPTED),
    ],
)
def test_a_part_that_is_told_to_end_takes_leave_whether_the_work_is_done_or_not(
    before: str, order: str, ended: T
) -> None:
    """Only what was said before the order shows that the run had ended well."""
    leave = (before, f"INFO serve: {order}", "INFO serve: shutting down")
    assert diagnose(*STEPS, *(f"2031-01-02 03:04:36,001 {line}" for line in leave)).type is ended


def test_an_exception_that_ends_a_driver_is_not_survived_by_its_workers() -> None:
    """What workers print on after it, until they are told, are no steps of the driver."""
    steps = [f"(Fit pid=7{rank}) step {step} loss 2.{step}" for step in range(1, 20) for rank in (1, 2)]
    assert diagnose(*steps[:20], *UNCAUGHT, *steps[20:]).type is T.KEY_ERROR


def test_a_rank_that_died_of_an_exception_is_not_saved_by_one_that_completed() -> None:
    """In one log of several ranks, too."""
    steps = [f"[rank{rank}]: step {step} loss 2.{step}" for step in range(1, 10) for rank in (0, 1)]
    died = [f"[rank1]: {line}" for line in UNCAUGHT]
    end = "[rank0]: {'train_runtime': 3.2, 'train_samples_per_second': 74.2, 'train_loss': 3.8, 'epoch': 3.0}"
    diagnosis = diagnose(*steps, *died, *(f"[rank0]: step {step} loss 2.1" for step in range(10, 14)), end)
    assert diagnosis.type is T.KEY_ERROR


def _three_ranks(*, crash: tuple[str, ...], name: str, goes_on: bool) -> list[str]:
    """Three ranks in turns, one of which prints a traceback on its way; ``goes_on`` or not, its peers end."""
    rows, ranks = list[str](), [0, 1, 2]
    for turn in range(1, 31):
        if turn == 20 and not goes_on:
            ranks.remove(1)
        rows += [f"{rank}: sweep {turn} energy -{turn / 7:.4f}" for rank in ranks]
        if turn == 19:
            rows += [f"{name}{line}" for line in crash]
    return [*rows, *(f"{rank}: the work is over" for rank in ranks)]


@pytest.mark.parametrize("name", ["1: ", ""])
@pytest.mark.parametrize(("goes_on", "outcome"), [(True, Outcome.COMPLETED), (False, Outcome.FAILED)])
def test_an_exception_that_its_process_outlived_does_not_belie_the_end(
    name: str, goes_on: bool, outcome: Outcome
) -> None:
    """Whether the traceback names its process or not, and a process that stopped at it failed the run."""
    caught = tuple(line.replace("<module>", "attempt") for line in UNCAUGHT)
    assert diagnose(*_three_ranks(crash=caught, name=name, goes_on=goes_on)).outcome is outcome


def test_a_driver_that_fails_is_not_outlived_by_workers_that_end() -> None:
    """An exception that reaches the module of a program without a name is its end, whatever others print."""
    assert diagnose(*_three_ranks(crash=UNCAUGHT, name="", goes_on=True)).type is T.KEY_ERROR


def test_a_line_behind_the_loop_that_counts_the_last_step_ends_the_run() -> None:
    """In whatever words; a complaint that counts it does not."""
    last = "2031-01-02 03:04:36,001 {} trainer: we got to 30, exit"
    assert diagnose(*STEPS, last.format("INFO")).decided_by == "heuristic:clean_end"
    assert diagnose(*STEPS, last.format("ERROR").replace("exit", "cannot go on")).outcome is not Outcome.COMPLETED


@pytest.mark.parametrize(("code", "ended"), [(0, T.COMPLETED), (1, T.KEY_ERROR)])
def test_an_exit_code_beside_the_word_of_an_order_says_how_the_run_ended(code: int, ended: T) -> None:
    """The event of a scheduler that a task terminated is no signal where its exit code says otherwise."""
    words = SWEEPS if code == 0 else (*SWEEPS, *UNCAUGHT)
    assert diagnose(*words, f"2031-01-02T03:04:36Z  Terminated       Exit Code: {code}").type is ended


def test_a_rank_that_prints_rarely_is_not_behind_its_peers() -> None:
    """Rank 1 prints each tenth step, so that its last line does not show that it stopped there."""
    steps = [
        f"[rank{rank}]: step {step}/98 loss 2.{step}"
        for step in range(1, 99)
        for rank in (0, 1)
        if not rank or step % 10 == 0
    ]
    assert diagnose(*steps).outcome is Outcome.COMPLETED
    stopped = [line for line in steps if "[rank1]" not in line or int(line.split()[2].split("/")[0]) < 80]
    assert diagnose(*stopped).outcome is not Outcome.COMPLETED


@pytest.mark.parametrize(("error", "ended"), [(CAUGHT[1:], T.COMPLETED), (UNCAUGHT, T.KEY_ERROR)])
def test_a_bar_that_fills_after_a_caught_exception_leads_to_a_clean_end(error: tuple[str, ...], ended: T) -> None:
    """The bar is no part of the exception's message; an exception that left its program is none that was caught."""
    bar = " Map (num_proc=4): 100%|##########| 4000/4000 [00:02<00:00, 1373.63 examples/s]"
    done = "2031-01-02 03:04:36,001 - INFO - fit - done {'rows': 4000}"
    told = [f"rows of part {letter} are read" for letter in "abcdefgh"]
    assert diagnose(*(f"cn017: {line}" for line in (*told, *error, bar, done))).type is ended


def test_an_exception_after_which_its_own_process_took_a_turn_is_no_root() -> None:
    """The program caught it, however few turns it took before and whatever ended the run later."""
    turns = [
        f"[{name}] INFO bout {turn} | cost {2 - turn / 90:.3f}" for turn in range(1, 6) for name in ("xq31", "xq45")
    ]
    raised = [f"[xq45] {line}" for line in (*UNCAUGHT[:1], *CAUGHT[2:])]
    last = "the lease of 12 h has ended"
    assert diagnose(*turns[:8], *raised, *turns[8:], last).root_cause is None
    assert diagnose(*turns[:8], *raised, turns[8], last).type is T.FILE_NOT_FOUND_ERROR


@pytest.mark.parametrize("end", [(), ("[rank0] all bouts are done",)])
def test_who_breaks_off_short_of_the_total_of_a_peer_says_why_the_run_failed(end: tuple[str, ...]) -> None:
    """What it printed last is the likeliest cause, and the end of the peer is none of the run."""
    bouts = [f"[rank{rank}] [{bout}/12] cost 2.{bout}1" for bout in range(1, 13) for rank in (0, 1)]
    short = [bout for bout in bouts if "[rank1] [11" not in bout and "[rank1] [12" not in bout]
    root = diagnose(*short[:20], "[rank1] the table has no lr", *short[20:], *end).root_cause
    assert root is not None and root.text == "[rank1] the table has no lr"


def test_a_reported_code_of_0_outweighs_what_was_survived() -> None:
    """Also where a helper was told to end, if the program says that its work is done, but not where one left it."""
    survived = ["Traceback (most recent call last):", '  File "/srv/data.py", line 7, in read', "KeyError: 'mask'"]
    ended = ["INFO helper: received SIGTERM", "2031-01-02 03:04:32,678 INFO trainer: done", "cn17.0: exit 0"]
    assert diagnose(*STEPS[:2], *survived, *STEPS[2:], *ended).type is T.COMPLETED
    assert diagnose(*STEPS, *ended[:1], ended[2]).type is not T.COMPLETED
    left = [line.replace("in read", "in <module>") for line in survived]
    assert diagnose(*STEPS, *left, ended[2]).type is T.KEY_ERROR


def test_an_exception_that_left_a_rank_is_not_made_good_by_the_end_of_its_peer() -> None:
    """Though both made all steps."""
    steps = [f"[rank{rank}]: step {step} loss 2.{9 - step}" for step in range(1, 9) for rank in (0, 1)]
    raised = ["Traceback (most recent call last):", '  File "/srv/train.py", line 7, in <module>', "KeyError: 'mask'"]
    run = diagnose(*steps, *(f"[rank0]: {line}" for line in raised), "[rank1]: done")
    assert (run.type, run.root_cause and run.root_cause.rank) == (T.KEY_ERROR, 0)


def test_a_library_that_tries_again_fails_for_the_last_reason() -> None:
    """The call that handled the first error is the one that raised the last."""
    call = '  File "/usr/lib/python3.11/pathlib.py", line 1116, in mkdir'
    first = ["Traceback (most recent call last):", call, "FileNotFoundError: [Errno 2] No such file or directory: 'a'"]
    link = ["", "During handling of the above exception, another exception occurred:", ""]
    last = ["Traceback (most recent call last):", '  File "/srv/train.py", line 7, in <module>', call]
    run = diagnose(*first, *link, *last, "PermissionError: [Errno 13] Permission denied: 'a'")
    assert run.type is T.PERMISSION_ERROR
