"""Exceptions whose class says little are named by what they say, and with less weight where they say less."""

import pytest

from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import FailureType as T
from diagnoser.rules import exception_lines
from diagnoser.rules.exception_words import ExceptionClassifier, RaisedException
from tests.accuracy_bars import load
from tests.rule_files import verdict

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
        ("AssertionError", "shard 9 holds 12 records, its header announces 16", "read_shard", T.ASSERTION_ERROR),
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


def _verdict(*lines: str) -> tuple[str, str]:
    """The type and the text of the root line of a log."""
    diagnosis = verdict("epoch 1 loss 2.1", "epoch 2 loss 1.9", *lines)
    return str(diagnosis.type), diagnosis.root_cause.text.strip() if diagnosis.root_cause else ""


def test_every_example_of_the_lines_holds() -> None:
    """Each form of a printed exception reads its examples."""
    assert HEURISTICS.printed.faults("exception_lines.yaml") == []


@pytest.mark.parametrize(
    ("anchors", "is_read"), [("", True), ("anchors: [halt, gave up], ", True), ("anchors: [halt], ", False)]
)
def test_a_form_is_looked_for_in_lines_with_its_anchor(anchors: str, is_read: bool) -> None:
    """A form reads a line with one of its anchors, and every line where it has none, as files of sites were written."""
    fields = "pattern: '^acme gave up: (?P<message>.*)', examples: [{lines: [x]}]"
    table = exception_lines.load("exception_lines.yaml", f"version: 1\nforms: [{{id: acme, {anchors}{fields}}}]")
    assert bool(table.read("acme gave up: no lease", [])) is is_read


def test_a_broken_form_of_a_site_is_refused_when_it_is_loaded() -> None:
    """An expression that RE2 cannot compile is reported with its line although it is compiled at first need."""
    text = "version: 1\nforms:\n  - {id: acme, anchors: [acme], pattern: '(', examples: [{lines: [x]}]}"
    with pytest.raises(RuleFaults, match=r"exception_lines.yaml:3: .*not an RE2 expression"):
        exception_lines.load("exception_lines.yaml", text)


@pytest.mark.parametrize(
    ("lines", "kind", "root"),
    [
        (("Error in predict(m, w) : object 'w' not found", "Calls: predict", "Execution halted"), "name_error", 0),
        (("Error in `fit()`:", "! there is no package called 'quiltr'", "Execution halted"), "import_error", 1),
        (("error: 'wheights' undefined", "error: called from", "    fit at line 3"), "name_error", 0),
        (
            ("thread 'main' panicked at src/t.rs:4:9:", "index out of bounds: the len is 3 but the index is 3"),
            "index_error",
            1,
        ),
        (("panic: runtime error: integer divide by zero", "", "goroutine 1 [running]:"), "zero_division_error", 0),
        (("ERROR: LoadError: BoundsError: attempt to access 3-element Vector{Int64} at index [4]",), "index_error", 0),
        (
            (
                'Exception in thread "main" org.acme.JobException: stage 3 failed',
                "\tat org.acme.Job.run(Job.java:81)",
                "Caused by: java.lang.ClassCastException: String is no Double",
                "\t... 3 more",
            ),
            "type_error",
            2,
        ),
    ],
)
def test_an_exception_of_any_language_is_read(lines: tuple[str, ...], kind: str, root: int) -> None:
    """Its first line, or the deepest cause of its stack, is the root, and its words name the type."""
    assert _verdict(*lines) == (kind, lines[root].strip())


@pytest.mark.parametrize("line", ["Error: 0.231", "error: 0.4 after 3 folds", "Error in training loop: see above"])
def test_a_figure_and_a_heading_are_no_exceptions(line: str) -> None:
    """What only begins like an error line of a language is not read as one."""
    assert HEURISTICS.printed.read(line, ()) is None
