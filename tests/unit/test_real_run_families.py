"""The product of families: halves that share nothing, draws that a seed repeats, labels of what the log shows."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.accuracy.scoring import label_of as read_label
from diagnoser.model.taxonomy import Category, FailureType, Outcome, category_of
from tools.real_runs import environments, family_cases, runner
from tools.real_runs.carriers import Line
from tools.real_runs.cases import NoRootLine
from tools.real_runs.draw import Combination, combinations
from tools.real_runs.families import GENERATIONS, LOGGER_FAMILIES, LOGGERS, TRAINERS, Half, halves
from tools.real_runs.frameworks import NODES, Framework
from tools.real_runs.launchers import LAUNCHERS, End, Launcher
from tools.real_runs.scenarios import Scenario, Truth

LAUNCHER = {launcher.name: launcher for launcher in LAUNCHERS}
KEY = Truth("key_error", "a key is missing", r"^KeyError: 'wiki'", where="one")
KILL = Truth("host_out_of_memory", "SIGKILL", r"\bKilled\b", where="one")
LINES = [
    Line("step 1/12 loss 1.2", 10.0, 0),
    Line("KeyError: 'wiki'", 11.0, 1, "stderr"),
    Line("KeyError: 'wiki'", 12.0, 0, "stderr"),
]


def combination(
    launcher: str, truth: Truth = KEY, scenario: str = "source", logger: str = "stdlib_logger:basic"
) -> Combination:
    trainer = Framework("plain", "mpi", "plain_trainer.py", ranks=2, faulty=1)
    return Combination(trainer, LAUNCHER[launcher], logger, "uncaught", Scenario(scenario, truth), truth, 7, False)


def label(of: Combination, lines: list[Line], ends: list[End]) -> dict[str, object]:
    shown = family_cases.shown_log(of, lines, ends)
    return family_cases.label_of(of, shown, family_cases.exit_code(ends))


def names(half: Half) -> Iterator[str]:
    yield from (trainer.name for trainer in half.trainers)
    yield from (launcher.name for launcher in half.launchers)
    yield from half.loggers


def test_halves_share_nothing_but_the_bare_process() -> None:
    """No trainer, launcher or logger is in two halves of all generations, and none is left out."""
    every = [set(names(half)) - {"plain"} for generation in GENERATIONS for half in halves(generation=generation)]
    trainers, loggers = {trainer.name for trainer in TRAINERS}, {logger.name for logger in LOGGERS}
    known = (trainers | loggers | set(LAUNCHER)) - {"plain"}
    assert sum(map(len, every)) == len(known)
    assert set().union(*every) == known


@pytest.mark.parametrize(("generation", "digest"), [(1, "2de1693eda4d"), (2, "772a8fca782b"), (3, "1180a21c5bd5")])
def test_a_draw_stays_what_it_was(generation: int, digest: str) -> None:
    """A row that is added or moved does not change the cases that a seed has drawn: figures name their draw."""
    drawn = [case.slug for held_out in (False, True) for case in combinations(11, 150, held_out, (), generation)]
    assert hashlib.sha256("\n".join(drawn).encode()).hexdigest()[:12] == digest


@pytest.mark.parametrize("number", range(2))
def test_a_half_has_families_of_each_kind(number: int) -> None:
    """Both halves have trainers in Python and in other languages, imitations, and about half of all families."""
    half = halves()[number]
    trainers = [trainer for trainer in TRAINERS if trainer.generation == 1]
    assert {trainer.imitation for trainer in half.trainers} == {True, False}
    assert any(trainer.environment == "" for trainer in half.trainers)
    assert any(trainer.environment != "" and not trainer.imitation for trainer in half.trainers)
    assert abs(2 * len(half.trainers) - len(trainers)) <= 2
    assert len({logger.split(":")[0] for logger in half.loggers}) >= len(LOGGER_FAMILIES) // 4


@pytest.mark.parametrize("generation", GENERATIONS)
def test_there_are_more_families_than_the_rules_have_met(generation: int) -> None:
    """Each generation has at least twelve trainers, eight launchers of several processes and eight loggers."""
    both = halves(generation=generation)
    assert sum(len(half.trainers) for half in both) >= 12
    assert sum(launcher.several for half in both for launcher in half.launchers) >= 8
    assert sum(len(half.loggers) for half in both) >= 8


@pytest.mark.parametrize("held_out", [False, True])
def test_the_same_seed_draws_the_same_cases(held_out: bool) -> None:
    """A draw is repeated by its seed, differs with another, and no two of its cases share an id."""
    first, again, other = (list(combinations(seed, 60, held_out)) for seed in (1, 1, 2))
    assert first == again
    assert [case.slug for case in first] != [case.slug for case in other]
    assert len({case.slug for case in first}) == 60


def test_a_draw_stays_in_its_half() -> None:
    """Every case is made of families of its own half."""
    for number, half in enumerate(halves()):
        known = set(names(half))
        for case in combinations(4, 80, bool(number)):
            drawn = {case.trainer.name, case.launcher.name, *([case.logger] if case.logger else [])}
            assert drawn <= known


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_every_trainer_has_faults_and_clean_ends_with_truths(trainer: Framework) -> None:
    """A trainer goes through at least seven faults and a clean end, each with a type, a reason and a marker."""
    truths = [truth for _, truth in trainer.scenarios()]
    assert sum(not truth.healthy for truth in truths) >= 7
    assert any(truth.healthy for truth in truths)
    for truth in truths:
        assert truth.why
        assert bool(truth.marker) != truth.healthy
        assert truth.outcome in {str(outcome) for outcome in Outcome}
        assert category_of(FailureType(truth.type)) is not Category.UNKNOWN
        assert {str(FailureType(other)) for other in truth.also} == set(truth.also)
        re.compile(truth.marker)
    names = [scenario.name for scenario, _ in trainer.scenarios()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_every_trainer_has_its_file_and_its_environment(trainer: Framework) -> None:
    """The program of a trainer lies in the folder of trainers, and its environment has pins."""
    assert (runner.TRAINERS / trainer.trainer).is_file()
    assert trainer.environment in ("", *environments.environments())


@pytest.mark.parametrize(
    ("launcher", "rank", "node"),
    [
        ("stern", 1, None),
        ("pdsh", None, NODES[1]),
        ("node brackets", 1, NODES[1]),
        ("srun --label", 1, None),
        ("docker compose", None, None),
        ("journald json", None, NODES[1]),
    ],
)
def test_a_label_states_what_the_launcher_shows(launcher: str, rank: int | None, node: str | None) -> None:
    """The root is the line of the faulty rank, and rank and node are labelled where its head names them."""
    made = label(combination(launcher), LINES, [End(1, 1, 11.0), End(0, 1, 12.0)])
    assert (made["root_lines"], made["rank"], made["node"]) == ([2], rank, node)
    assert made["exit_code"] == 1
    read_label(made)


@pytest.mark.parametrize(
    ("launcher", "shown", "rank"),
    [
        ("srun --label", "srun: error: gpu-027: task 1: Killed", 1),
        ("node brackets", "[launch] worker 1 on gpu-027 finished with status 137", 1),
        ("docker compose", "trainer-2 exited with code 137", None),
        ("sagemaker", "ExitCode 137", None),
    ],
)
def test_a_process_that_was_killed_is_found_in_the_words_of_its_launcher(
    launcher: str, shown: str, rank: int | None
) -> None:
    """The line that tells the end is the root, and the rank is labelled where that line names it."""
    made = label(combination(launcher, KILL, "killed"), LINES[:1], [End(1, -9, 11.0), End(0, 0, 12.0)])
    assert made["root_text"] == shown
    assert (made["type"], made["rank"], made["exit_code"]) == ("host_out_of_memory", rank, 137)


def test_an_end_that_nobody_tells_cannot_be_seen() -> None:
    """Where neither launcher nor peers say a word, no line is the root and abstaining is right."""
    made = label(combination("stern", KILL, "killed"), LINES[:1], [End(1, -9, 11.0), End(0, 0, 12.0)])
    assert (made["root_lines"], made["type_visible"], made["silent"]) == ([], False, True)


def test_an_end_that_only_peers_tell_is_a_connection_error() -> None:
    """The peer's word is all there is to see; the true type stays as right."""
    peer = Line("ConnectionError: rank 1 closed the connection", 11.5, 0)
    made = label(combination("stern", KILL, "killed"), [LINES[0], peer], [End(1, -9, 11.0), End(0, 1, 12.0)])
    assert (made["type"], made["root_lines"], made["rank"]) == ("connection_error", [2], None)
    assert "host_out_of_memory" in made["also"]  # type: ignore[operator]


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'wiki'",
        "                    KeyError: 'wiki'                      ",
        "\x1b[31mKeyError: 'wiki'\x1b[0m",
        json.dumps(
            {"level": "error", "exc_info": "Traceback (most recent call last):\n  File \"t.py\"\nKeyError: 'wiki'"}
        ),
        '{"exception": [{"exc_type": "KeyError", "exc_value": "\'wiki\'", "frames": []}]}',
        "E1126 20:32:06.591192 140 support.py:8] run aborted: KeyError: 'wiki'",
    ],
)
def test_a_marker_is_found_in_every_form_of_record(text: str) -> None:
    """Indented, coloured, in a field of JSON or behind the words of a log: it is the same exception."""
    assert family_cases.shows(KEY.marker, text)
    assert not family_cases.shows(KEY.marker, text.replace("wiki", "docs"))


@pytest.mark.parametrize(
    ("launcher", "open_end", "visible"),
    [("stern", False, True), ("stern", True, False), ("docker compose", True, True)],
)
def test_a_clean_end_is_visible_where_the_trainer_or_its_launcher_states_it(
    launcher: str, open_end: bool, visible: bool
) -> None:
    """A run that just stops shows no end, unless its launcher says that all ended with 0."""
    done = Truth("completed", "clean run", outcome="completed", visible=not open_end)
    made = label(combination(launcher, done, "ok-silent"), LINES[:1], [End(0, 0, 11.0), End(1, 0, 12.0)])
    assert made["type_visible"] is visible


@pytest.mark.parametrize(
    ("launcher", "heads", "rank", "node"),
    [
        ("tail -f", ("==> logs/rank_0.log <==", "==> logs/rank_1.log <=="), 1, None),
        ("ansible", ("gpu-014 | FAILED | rc=1 >>", "gpu-027 | FAILED | rc=1 >>"), None, NODES[1]),
    ],
)
def test_a_section_names_the_process_of_its_lines(
    launcher: str, heads: tuple[str, str], rank: int | None, node: str | None
) -> None:
    """Rank or node stand once, before a block of lines."""
    lines = [Line(heads[0], 11.5), LINES[2], Line(heads[1], 12.5), LINES[1]]
    made = label(combination(launcher), lines, [End(0, 1, 13.0)])
    assert (made["root_lines"], made["rank"], made["node"]) == ([4], rank, node)


def test_a_fault_that_did_not_happen_gives_no_case() -> None:
    """A run without the marker, or one that ends with 0 for all its fault, is not labelled."""
    with pytest.raises(NoRootLine, match="no line matches"):
        label(combination("stern", replace(KEY, marker="IndexError")), LINES, [End(1, 1, 11.0)])


def test_the_first_failure_gives_the_exit_code() -> None:
    """Signals become the code that a shell gives, and later failures of peers do not count."""
    assert family_cases.exit_code([End(0, 0, 9.0), End(1, -9, 11.0), End(2, 1, 12.0)]) == 137
    assert family_cases.exit_code([End(0, 0, 9.0)]) == 0


@pytest.mark.parametrize("launcher", [one for one in LAUNCHERS if not one.command], ids=lambda launcher: launcher.name)
def test_a_launcher_keeps_lines_and_words(launcher: Launcher) -> None:
    """A line stays one line, with its words in it, and an end that failed is told in lines of their own."""
    for line in LINES:
        written = launcher.write(line, NODES[line.process])
        assert line.text in written
        assert "\n" not in written
    for code in (0, 1, 3, -6, -9, -11, -15):
        around = launcher.around([End(1, code, 11.0)], NODES)
        assert all("\n" not in text for texts in around for text in texts)
        assert all("\n" not in text for text in launcher.ended(End(1, code, 11.0), NODES[1]))


@pytest.mark.skipif(shutil.which("node") is None, reason="no node, whose runs need nothing installed")
def test_what_was_started_is_ended_with_the_generator(tmp_path: Path) -> None:
    """SIGTERM to the generator leaves no process and no folder of a run behind."""
    command = [sys.executable, "-m", "tools.real_runs", str(tmp_path / "a"), str(tmp_path / "b")]
    command += ["--count", "30", "--jobs", "2", "--families", "node"]
    variables = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as process:
        _end_while_running(process)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _homes(tmp_path):
        time.sleep(0.1)
    assert not _homes(tmp_path)
    assert not list(tmp_path.glob("real-run-*"))


def _end_while_running(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    process.stdout.readline()  # the first case is made, others run
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=180) == 128 + signal.SIGTERM


def _homes(folder: Path) -> list[str]:
    """The processes whose home is in the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"HOME={folder}".encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found
