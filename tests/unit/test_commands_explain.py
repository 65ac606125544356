"""A diagnosis told to a person."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from diagnoser.commands import explain, render
from diagnoser.commands.terminal import PIPE_WIDTH
from diagnoser.diagnosis import pipeline
from diagnoser.model import Diagnosis, Facts, Line, RootCause, Stream
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from tests import accuracy_bars
from tests.command_line import invoke

LOG = "".join(f"loading shard {number} of the corpus\n" for number in range(30)) + (
    "tip: an IndexError: out of range may be printed here\n"
    "Traceback (most recent call last):\n"
    '  File "/srv/job/train.py", line 80, in <module>\n    main()\n'
    '  File "/srv/job/mix.py", line 7, in pick\n    return weights["code"]\n'
    "KeyError: 'code'\n"
    "srun: error: n7: task 0: Exited with exit code 1\n"
)


def told(diagnosis: Diagnosis, lines: tuple[Line, ...] = (), *, colours: bool = False) -> str:
    page = io.StringIO()
    console = Console(file=page, width=60, force_terminal=colours, color_system="standard" if colours else None)
    explain.explain(console, "job.log", diagnosis, lines)
    return page.getvalue()


@pytest.fixture(scope="module")
def real() -> tuple[Diagnosis, tuple[Line, ...]]:
    analyzer = accuracy_bars.load()
    evidence = analyzer.evidence_of(LOG.encode())
    return pipeline.diagnose(evidence, Facts(), analyzer.knowledge), evidence.lines


def test_the_whole_story_is_told(real: tuple[Diagnosis, tuple[Line, ...]]) -> None:
    """Verdict, chain, root line with the lines around it and their numbers, action, and what was read."""
    text = told(*real)
    assert "key error" in text and "notify_user" in text
    assert ">> 37 KeyError: 'code'" in text
    assert '   33   File "/srv/job/train.py", line 80, in <module>' in text
    assert text.index("Chain") < text.index("Evidence") < text.index("Notes")
    assert "read 38 lines" in text


def test_every_rejected_candidate_has_its_reason(real: tuple[Diagnosis, tuple[Line, ...]]) -> None:
    """What the diagnosis rejected is named with the words of its reason."""
    diagnosis, lines = real
    text = told(diagnosis, lines)
    chained = {one.line for one in diagnosis.symptoms}
    others = [one for one in diagnosis.rejected if one.line not in chained]
    assert others
    assert all(one.why in text for one in others)


def test_a_line_is_one_line_however_narrow_the_terminal(real: tuple[Diagnosis, tuple[Line, ...]]) -> None:
    """Log lines are never folded: what comes out of a pipe can be searched."""
    diagnosis, lines = real
    assert diagnosis.mitigation in told(diagnosis, lines)


def test_a_terminal_folds_sentences_between_words_and_a_pipe_gets_no_box(
    real: tuple[Diagnosis, tuple[Line, ...]],
) -> None:
    """At 80 columns the advice stands in the terminal's width; a CI log gets a short line for each row, without blanks
    at its end."""
    diagnosis, lines = real
    pages: dict[bool, str] = {}
    for is_terminal in (True, False):
        page = io.StringIO()
        console = Console(
            file=page, width=80 if is_terminal else PIPE_WIDTH, force_terminal=is_terminal, color_system=None
        )
        render.diagnosis(console, "job.log", diagnosis)
        explain.explain(console, "job.log", diagnosis, lines)
        pages[is_terminal] = page.getvalue()
    words = diagnosis.mitigation.split()
    sentences = pages[True].partition("Chain")[0].splitlines()
    assert max(map(len, sentences)) <= 80
    assert [word for word in words if word not in " ".join(sentences)] == []
    assert not set("│╭╰") & set(pages[False])
    assert f"  what to do  {diagnosis.mitigation}\n" in pages[False]
    rows = pages[False].partition("Chain")[0].splitlines()
    assert [row for row in rows if row != row.rstrip()] == []


def test_a_terminal_gets_colours_and_a_pipe_none(real: tuple[Diagnosis, tuple[Line, ...]]) -> None:
    """Colours only where they are seen."""
    assert "\x1b[" in told(*real, colours=True)
    assert "\x1b" not in told(*real)


def test_log_text_cannot_steer_the_terminal() -> None:
    """Escape codes, bells and direction marks of a log are shown as what they are: nothing to be obeyed."""
    text = "\x1b]0;owned\x07 [bold]not markup[/bold] \u202egnp.exe"
    found = Diagnosis(
        Outcome.FAILED, Category.SCRIPT, FailureType.KEY_ERROR, 0.9, "rule:x", root_cause=RootCause(1, text)
    )
    page = told(found, (Line(Stream(), 1, text, text),))
    assert not {"\x1b", "\x07", "\u202e"} & set(page)
    assert "[bold]not markup[/bold]" in page


def test_nothing_found_is_said_so() -> None:
    """Without a cause the chain says that no line shows one."""
    found = Diagnosis(Outcome.UNKNOWN, Category.UNKNOWN, FailureType.UNKNOWN, 0.2, "heuristic:no_evidence")
    assert "no line shows a cause" in told(found)


def test_the_command_prints_text_and_json(tmp_path: Path) -> None:
    """`diagnoser explain` works in a pipe; --json is the contract of diagnose with the context behind it."""
    log = tmp_path / "job.log"
    log.write_text(LOG)
    text, data = invoke("explain", log).stdout, json.loads(invoke("explain", log, "--json").stdout)
    assert ">> 37 KeyError: 'code'" in text and "\x1b" not in text
    assert data["root_cause"]["line"] == 37
    rows = data["context"][0]["rows"]
    assert {"number": 37, "role": "root"}.items() <= next(row for row in rows if row["role"] == "root").items()
