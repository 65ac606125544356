"""Exceptions whose class says little are named by what they say, and with less weight where they say less."""

import pytest

from diagnoser.model.taxonomy import FailureType as T
from diagnoser.rules.exception_words import ExceptionClassifier, RaisedException
from tests.accuracy_bars import load

HEURISTICS = load().knowledge.heuristics


def _named(exception: str, message: str, function: str = "main") -> T | None:
    raised = HEURISTICS.exceptions.raised(exception, message, [f'File "run.py", line 8, in {function}'])
    named = HEURISTICS.name(raised)
    return named[0] if named else raised.class_type


def test_every_example_of_the_subjects_holds() -> None:
    """The subjects of a text are those of the example."""
    assert HEURISTICS.classifier.faults("exception_subjects.yaml") == []


@pytest.mark.parametrize(
    ("exception", "message", "function", "kind"),
    [
        (
            "acme.errors.CheckpointDamaged",
            "layer_7.bin: checksum differs from the manifest",
            "restore",
            T.MODEL_LOADING_ERROR,
        ),
        ("acme.BadSampleError", "record 77 of shard 4 is truncated", "next_batch", T.DATASET_LOADING_ERROR),
        ("PlanError", "batch_size 30 is not divisible by world size 4", "validate_config", T.CONFIGURATION_ERROR),
        ("ValueError", "unknown optimizer 'adamq' in config, choose from adam, sgd", "build", T.CONFIGURATION_ERROR),
        ("AssertionError", "shard 9 holds 12 records, its header announces 16", "read_shard", T.DATASET_LOADING_ERROR),
        ("TrainerStopped", "loss is nan at step 31", "train", T.LOSS_DIVERGENCE),
        ("ClusterError", "connection refused by the coordinator at 10.1.2.3:9000", "join", T.CONNECTION_ERROR),
    ],
)
def test_an_exception_is_what_its_words_say(exception: str, message: str, function: str, kind: T) -> None:
    """Words that name a deeper cause stand before the class that carries it."""
    assert _named(exception, message, function) is kind


@pytest.mark.parametrize(
    ("exception", "message", "kind"),
    [
        ("KeyError", "'optimizer'", T.KEY_ERROR),
        ("TypeError", "TrainConfig.__init__() got an unexpected keyword argument 'epohcs'", T.TYPE_ERROR),
        ("SyntaxError", "'(' was never closed", T.SYNTAX_ERROR),
        ("OSError", "[Errno 28] No space left on device: 'checkpoint.pt'", T.DISK_FULL),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", T.RUNTIME_ERROR),
        ("ValueError", "operands could not be broadcast together with shapes (2,) (3,)", T.VALUE_ERROR),
    ],
)
def test_a_class_of_its_own_type_stands(exception: str, message: str, kind: T) -> None:
    """A standard class keeps its type where the words only tell of another class, and an errno always."""
    assert _named(exception, message) is kind


def test_without_tables_no_exception_is_named() -> None:
    """A site's folder without the two tables diagnoses by classes and keywords as before."""
    assert ExceptionClassifier.empty().classify(RaisedException("FooError", "checkpoint is corrupt")) is None


def test_a_long_hostile_message_is_read_in_no_time() -> None:
    """Only the start of a message is read, whatever a job prints."""
    assert _named("FooError", "a" * 5_000_000 + " checkpoint corrupt") is not None
