"""What only quotes an earlier diagnosis is no evidence, and hides none."""

import io
import json
from collections.abc import Callable

import pytest
from rich.console import Console

from diagnoser.client import report
from diagnoser.commands import explain, render
from diagnoser.model import Diagnosis, Job
from diagnoser.notifications import text
from diagnoser.notifications.alert import failure_alert
from diagnoser.rules import quotations
from diagnoser.rules.quotations import FORMS, QuotedForm, without_quotations
from tests.rule_files import ANALYZER, log, verdict

XID = "NVRM: Xid (PCI:0000:1b:00): 48, pid=77, Double Bit ECC Error"
EARLIER = ("step 1 loss 2.1", XID, "RuntimeError: CUDA error: uncorrectable ECC error encountered")
TRAINING = [f"step {step} loss {9 - step / 10}" for step in range(1, 9)]
ASSERTION = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    check()",
    "AssertionError",
]


def panel(diagnosis: Diagnosis) -> str:
    """`diagnose`."""
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    render.diagnosis(console, "train.log", diagnosis)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def piped(diagnosis: Diagnosis) -> str:
    """`diagnose` in a pipe or a CI log."""
    console = Console(file=io.StringIO(), width=120)
    render.diagnosis(console, "train.log", diagnosis)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def explained(diagnosis: Diagnosis) -> str:
    """`explain`."""
    console = Console(file=io.StringIO(), width=120)
    explain.explain(console, "train.log", diagnosis, ANALYZER.evidence_of("\n".join(EARLIER).encode()).lines)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def printed_json(diagnosis: Diagnosis) -> str:
    """`diagnose --json`."""
    return json.dumps({"file": "train.log", **render.contract(diagnosis)}, separators=(",", ":"))


def indented_json(diagnosis: Diagnosis) -> str:
    """The same behind `jq`."""
    return json.dumps({"file": "train.log", **render.contract(diagnosis)}, indent=2)


def client(diagnosis: Diagnosis) -> str:
    """`diagnoser run`, below the output of a run that failed."""
    own = "diagnoser: 3 lines were not sent: connection reset by peer"
    return own + report.rendered(render.contract(diagnosis), "https://diagnoser.example/d1", 110, colour=True)


def alert(diagnosis: Diagnosis) -> str:
    """The text of a chat or mail, up to the action."""
    return text.body(failure_alert(diagnosis, Job("j"), 1, incident="i")).partition("\n\nDrain")[0]


@pytest.mark.parametrize("printed", [panel, piped, explained, printed_json, indented_json, client])
def test_a_printed_diagnosis_is_no_evidence(printed: Callable[[Diagnosis], str]) -> None:
    """A log that quotes a diagnosis is judged by what else it says: training that goes on, or its own failure."""
    earlier = verdict(*EARLIER)
    assert earlier.type == "ecc_error"
    quoted = printed(earlier).splitlines()
    assert verdict(*quoted, *TRAINING).type == "unknown"
    assert verdict(*TRAINING, *quoted, *TRAINING, *ASSERTION).type == "assertion_error"
    assert verdict(*TRAINING, *ASSERTION, *quoted).type == "assertion_error"


@pytest.mark.parametrize("printed", [panel, piped, explained, printed_json, indented_json, client, alert])
def test_a_quotation_leaves_what_others_say_within_it(printed: Callable[[Diagnosis], str]) -> None:
    """A traceback, a launcher and the kernel between the lines of a quotation are heard."""
    quoted = printed(verdict(*EARLIER)).splitlines()
    half = len(quoted) // 2
    others = [*ASSERTION, "srun: error: gpu-3: task 4: Killed", XID]
    kept = without_quotations(ANALYZER.evidence_of("\n".join([*quoted[:half], *others, *quoted[half:]]).encode()))
    bodies = [line.body for line in kept.lines]
    assert [body for body in others if body not in bodies] == []
    assert len(bodies) < len(others) + len(quoted)


@pytest.mark.parametrize("form", [form for form in FORMS if form.last], ids=lambda form: form.hint)
def test_a_quotation_that_does_not_end_hides_nothing(form: QuotedForm) -> None:
    """The first line alone quotes nothing: not without the last one, and not when that one is far away."""
    *begun, end = form.example
    assert without_quotations(log(*begun, *ASSERTION)) == log(*begun, *ASSERTION)
    far = log(*begun, *["step"] * quotations._LINES_MAX, end)
    assert without_quotations(far) == far
    assert without_quotations(log(*begun, end, *ASSERTION)).lines[0].body == ASSERTION[0]


def test_only_the_speaker_of_a_quotation_is_left_out() -> None:
    """Lines of another rank that look like rows of the block are its own words."""
    form = FORMS[0]
    evidence = log(*form.example[:2], "│ CUDA error: out of memory │", form.example[2], ranks={2: 5})
    assert [line.rank for line in without_quotations(evidence).lines] == [5]


def test_each_form_reads_its_example() -> None:
    """Nothing is left of what is printed in a known form."""
    for form in FORMS:
        assert without_quotations(log(*form.example)).lines == ()
