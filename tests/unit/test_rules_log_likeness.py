"""A file that is not the log of a run is told so."""

from pathlib import Path

import pytest

from diagnoser.rules.log_likeness import FORMS
from tests.rule_files import verdict

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "rules/policy.yaml", ROOT / "diagnoser/app.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_document_is_no_log(path: Path) -> None:
    """The project's own pages, settings and code quote failures; none of them is diagnosed as one."""
    answer = verdict(*path.read_text("utf-8").splitlines())
    assert (answer.outcome, answer.type, answer.recovery.action) == ("unknown", "unknown", "none")
    assert answer.notes[0].startswith("This does not look like the log of a run") and answer.doubts == ()


def test_a_failure_at_the_end_makes_any_text_a_log() -> None:
    """A document that a job printed before it failed does not hide the failure."""
    page = (ROOT / "README.md").read_text("utf-8").splitlines()
    end = ("Traceback (most recent call last):", '  File "t.py", line 3, in <module>', "    f()", "KeyError: 'x'")
    assert verdict(*page, *end).type == "key_error"


def test_records_of_a_library_in_cpp_make_a_log_of_a_table_of_figures() -> None:
    """What a library prints about its memory reads like settings, but not with its records around it."""
    figures = [f"Arena{number}: {number}073741824" for number in range(12)]
    record = "W core/framework/op_kernel.cc:88] Resource exhausted: OOM when allocating tensor with shape[64,512]"
    assert verdict(*figures).decided_by == "heuristic:not_a_run"
    assert verdict(*figures, record).type == "out_of_memory_error"


def test_forms_match_their_examples() -> None:
    """Each form of lines holds for what it names."""
    for form in FORMS:
        assert all(map(form.pattern.match, form.examples)), form
