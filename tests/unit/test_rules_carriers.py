"""Errors that arrive in another error, or before the message of a death, are named by what they say themselves."""

import pytest

from diagnoser.model.taxonomy import Action
from tests.rule_files import verdict

TRACE = ["Traceback (most recent call last):", '  File "/code/run.py", line 9, in main', "    fit()"]
FLAX = '  File "/v/lib/python3.11/site-packages/flax/serialization.py", line 428, in msgpack_restore'


def test_an_error_whose_message_is_a_traceback_is_shown_where_that_ends() -> None:
    """Old loaders raise the worker's class anew with its whole traceback as the message."""
    found = verdict("IndexError: " + TRACE[0], *TRACE[1:], "IndexError: list index out of range")
    assert found.type == "index_error" and found.root_cause is not None and found.root_cause.line == 4


def test_an_error_of_a_spawned_process_is_the_one_below_the_empty_exception() -> None:
    """Before ProcessRaisedException torch raised a bare Exception whose message begins in the next lines."""
    quoted = ["", "-- Process 3 terminated with the following error:", *TRACE, "KeyError: 'lr'"]
    found = verdict(*TRACE, "Exception: ", *quoted)
    assert found.type == "key_error" and found.root_cause is not None and found.root_cause.rank == 3


def test_an_error_of_a_ray_task_is_named_by_the_class_that_ray_quotes() -> None:
    """Of an error that was printed nowhere else only its class is known; a class that quotes again says nothing."""
    quoted = "ray.exceptions.RayTaskError({}): ray::Trainer.fit() (pid=71, ip=10.9.8.7)"
    assert verdict(*TRACE, quoted.format("OutOfMemoryError"), *TRACE[1:]).type == "out_of_memory_error"
    assert verdict(*TRACE, quoted.format("OutOfMemoryError"), *TRACE[1:], "KeyError: 'x'").type == "key_error"
    assert verdict(*TRACE, quoted.format("WorkerGroupError"), *TRACE[1:]).type == "called_process_error"


def test_an_error_of_a_ray_worker_group_is_that_of_the_worker() -> None:
    """Ray Train quotes the worker's exception; its own names nothing."""
    inner = ["Traceback (most recent call last):", '  File "/code/run.py", line 4, in loop', "ValueError: label 99"]
    found = verdict(
        "Training failed due to worker errors:",
        "[Rank 1]",
        *inner,
        *TRACE,
        "ray.train.v2.api.exceptions.WorkerGroupError: Training failed due to worker errors:",
        "[Rank 1]",
        *inner,
    )
    assert found.type == "value_error"


@pytest.mark.parametrize(
    ("frame", "raised", "type"),
    [
        (FLAX, "ValueError: Unpack failed: incomplete input", "model_loading_error"),
        ('  File "/code/run.py", line 71, in load_checkpoint', "KeyError: 'ema'", "model_loading_error"),
        ('  File "/code/run.py", line 71, in restore', "EOFError: Ran out of input", "model_loading_error"),
        ('  File "/code/run.py", line 71, in save_checkpoint', "KeyError: 'ema'", "key_error"),
        ('  File "/code/data.py", line 71, in load_vocabulary', "KeyError: 'ema'", "key_error"),
        (FLAX, "OSError: [Errno 28] No space left on device", "disk_full"),
        (FLAX, "PermissionError: [Errno 13] Permission denied: '/ckpt/3'", "permission_error"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_one_whatever_class_carries_it(frame: str, raised: str, type: str) -> None:
    """The place says what was read; what the machine refused is told by the errno, wherever it happens."""
    assert verdict(*TRACE, frame, raised).type == type


def test_a_cut_checkpoint_asks_for_the_one_before_and_another_model_for_a_person() -> None:
    """Going back helps only where the file is damaged. Below even odds the policy has a person look first."""
    cut = verdict(*TRACE, FLAX, "ValueError: Unpack failed: incomplete input")
    other = verdict(*TRACE, FLAX, "ValueError: The target dict keys and state dict keys do not match")
    assert (cut.grounds.hint, other.grounds.hint) == (Action.ROLLBACK_AND_RESUBMIT, None)
    assert {cut.recovery.action, other.recovery.action} == {Action.NOTIFY_USER}


@pytest.mark.parametrize(
    ("what", "type"),
    [
        ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "out_of_memory_error"),
        ("the merge table of the tokenizer is empty", "runtime_error"),
        ("open /data/v.bin: No such file or directory", "file_not_found_error"),
    ],
)
def test_what_an_uncaught_exception_says_outranks_the_abort(what: str, type: str) -> None:
    """The abort and the core dump follow from it."""
    thrown = "terminate called after throwing an instance of 'std::runtime_error'"
    found = verdict(thrown, f"  what():  {what}", "Aborted (core dumped)")
    assert found.type == type and found.root_cause is not None and found.root_cause.line == 2


def test_the_class_of_an_uncaught_exception_outranks_the_abort() -> None:
    """A message that names no cause leaves the type of the nearest standard class."""
    thrown = "terminate called after throwing an instance of 'std::out_of_range'"
    assert verdict(thrown, "  what():  vector::_M_range_check", "Aborted (core dumped)").type == "index_error"


def test_exceptions_thrown_at_once_keep_their_messages() -> None:
    """The abort of each is its own consequence, not the end of the peer that a message speaks of."""
    thrown = "terminate called after throwing an instance of 'std::runtime_error'"
    whats = ("  what():  push to 10.0.0.9:80: Connection refused", "  what():  push to 10.0.0.8:80: Connection refused")
    found = verdict(thrown, thrown, *whats, "Aborted (core dumped)", "Aborted (core dumped)")
    assert found.type == "connection_error" and found.root_cause is not None and found.root_cause.line == 3


LAST_WORDS = [
    (
        ('Exception in thread "main" java.io.IOException: No space left on device', "\tat Fit.save(Fit.java:9)"),
        "disk_full",
    ),
    (("Error in fit(x) : object 'rate' not found", "Calls: run -> fit", "Execution halted"), "name_error"),
    (("thread 'main' panicked at src/fit.rs:9:3:", "index out of bounds: the len is 3"), "index_error"),
]


@pytest.mark.parametrize(("words", "type"), LAST_WORDS)
def test_last_words_are_not_survived_by_other_processes(words: tuple[str, ...], type: str) -> None:
    """Others train on to their end; the process whose runtime printed its last words does not."""
    steps = [f"[rank{step % 2}]: step {step} loss {3 - step / 99:.3f}" for step in range(20, 120)]
    found = verdict(*steps[:40], *(f"[rank0]: {line}" for line in words), *steps[41::2], "[rank1]: Training finished.")
    assert found.type == type and found.root_cause is not None and found.root_cause.rank == 0


def test_words_before_a_death_outrank_it() -> None:
    """A line that no rule knows and that complains of a device comes before the abort that follows from it."""
    line = "E0101 10:00:00.000 runtime.cc:88] libfabric: provider unreachable on domain 3"
    assert verdict(line, "Aborted (core dumped)").type == "network_error"
    assert verdict("Aborted (core dumped)", line).type == "segmentation_fault"


def test_a_name_by_words_never_takes_a_node_out() -> None:
    """A rule that knows only the class is proven for that class, not for what the words of the message say."""
    found = verdict("gpu-07: " + TRACE[0], *TRACE[1:], "RuntimeError: double-bit ecc fault in bank 3 of gpu-07")
    assert found.type == "ecc_error" and found.recovery is not None
    assert found.recovery.action == "check_and_resubmit"
