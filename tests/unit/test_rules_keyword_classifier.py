"""What a line's own words say where no rule knows it."""

import pytest

from diagnoser.model.taxonomy import FailureType
from diagnoser.rules import candidates, keyword_classifier
from tests.rule_files import log, trace


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("gpu0 reported a double-bit ECC error in bank 3", "ecc_error"),
        ("accelerator 3 is lost, reset the host", "gpu_lost"),
        ("fatal: nvswitch port 7 failed training", "nvlink_error"),
        ("allocator: TPU core 2 alloc failed, 3 GiB wanted", "out_of_memory_error"),
        ("kernel: oom-kill:constraint=CONSTRAINT_MEMCG task=python", "host_out_of_memory"),
        ("write failed: no space left in the bucket's cache", "disk_full"),
        ("mlx5_2: link down", "network_error"),
        ("grad norm is nan at update 77", "loss_divergence"),
        ("shard_12.parquet is truncated", "dataset_loading_error"),
        ("host worker-9 is unresponsive", "node_failure"),
    ],
)
def test_words_name_the_type(text: str, kind: str) -> None:
    """Messages that no rule was written for are named by what they speak of."""
    assert keyword_classifier.complains(text) is FailureType(kind)


@pytest.mark.parametrize(
    "text",
    [
        "INFO ECC error counters reset, 0 uncorrectable",
        "connection refused, retrying in 3 s",
        "step 9 loss 2.31 lr 1e-4",
        "DeprecationWarning: checkpoint format will fail in v9, ignored",
    ],
)
def test_calm_lines_do_not_complain(text: str) -> None:
    """Information, retries and plain progress are no failures."""
    assert keyword_classifier.complains(text) is None


def test_words_are_asked_only_when_nothing_else_was_found() -> None:
    """A log with an exception is not read for words; one with nothing else is."""
    assert [one.by for one in candidates.collect(log("mlx5_2: link down"), ())] == ["heuristic:words"]
    both = log("mlx5_2: link down", "Traceback", "KeyError: 'a'", tracebacks=(trace(2, "KeyError", "'a'"),))
    assert [one.by for one in candidates.collect(both, ())] == ["heuristic:exception_class"]


def test_the_message_of_a_generic_exception_tells() -> None:
    """RuntimeError says nothing, its message may; a telling class is not overruled by words."""
    bodies = ("Traceback", "x", "RuntimeError: NPU out of memory: 3 GiB wanted")
    generic = log(*bodies, tracebacks=(trace(2, "RuntimeError", "NPU out of memory: 3 GiB wanted"),))
    assert [one.type for one in candidates.collect(generic, ())] == [FailureType.OUT_OF_MEMORY_ERROR]
    telling = log("Traceback", "x", "KeyError: 'nan loss'", tracebacks=(trace(2, "KeyError", "'nan loss'"),))
    assert [one.type for one in candidates.collect(telling, ())] == [FailureType.KEY_ERROR]
