"""The labelled logs: the bars hold, and the command says what the outside scorer says."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from diagnoser.accuracy.scoring import Label
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.localize.stragglers import stragglers
from diagnoser.model import AttemptKey, ConfirmedFailure, Evidence, Facts, FeedbackVerdict, Lesson, Signature
from diagnoser.model.taxonomy import FailureType
from diagnoser.retrieval import precedents, signature
from diagnoser.retrieval.precedents import Precedents
from tests import accuracy_bars
from tests.command_line import program
from tests.corpus import CORPUS, needs_corpus
from tests.thorough import THOROUGH

pytestmark = [needs_corpus, pytest.mark.corpus, pytest.mark.xdist_group("corpus")]
SCORER = CORPUS.parent / "tools" / "score.py"
SIZE = 4 << 20 if THOROUGH else 1 << 18
MEGABYTES = 100 if THOROUGH else 4
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """This checkout's command line, as a program that the scorer can start."""
    with program(tmp_path_factory.mktemp("bin")) as path:
        yield [str(path)]


def told(*arguments: str | Path) -> dict[str, Any]:
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sampled(folders: Sequence[str], count: int, to: Path) -> Path:
    """So many cases of each folder, as one folder."""
    with (to / "labels.jsonl").open("w") as labels:
        for folder in folders:
            cases = [json.loads(line) for line in (CORPUS / folder / "labels.jsonl").read_text("utf-8").splitlines()]
            for case in random.Random(7).sample(cases, count):
                labels.write(json.dumps(case) + "\n")
                (to / f"{case['id']}.log").symlink_to(CORPUS / folder / f"{case['id']}.log")
    return to


@pytest.fixture(scope="module")
def scored(command: list[str]) -> Callable[[str], dict[str, Any]]:
    """What `diagnoser score --json` prints for a folder, which is scored once."""
    return cache(lambda folder: told(*command, "score", "--json", CORPUS / folder))


def agree(mine: dict[str, Any], outside: dict[str, Any]) -> None:
    common = set(mine) & set(outside)
    assert {"category", "type", "macro_f1", "root_line", "action", "false_cordon", "ece"} <= common
    assert {name: None if mine[name] is None else round(mine[name], 4) for name in common} == {
        name: outside[name] for name in common
    }


@pytest.mark.parametrize("folder", accuracy_bars.FOLDERS if THOROUGH else ["ten of each"])
def test_eval_agrees_with_the_outside_scorer(folder: str, command: list[str], tmp_path: Path) -> None:
    """`diagnoser score --json` and the scorer, which runs `diagnose --json`, print the same figures."""
    cases = CORPUS / folder if THOROUGH else sampled(accuracy_bars.FOLDERS, 10, tmp_path)
    agree(told(*command, "score", "--json", cases), told(sys.executable, SCORER, cases, "--diagnoser", *command))


def test_eval_spliced_agrees_with_the_outside_scorer(command: list[str], tmp_path: Path) -> None:
    """Behind a real healthy log, compressed once here and read whole there, the figures are the same again."""
    logs = sorted((CORPUS / "normal").glob("*.log"), key=lambda path: abs(path.stat().st_size - SIZE))
    chosen = sampled(["dev"], 5, tmp_path)
    agree(
        told(*command, "score", "--json", "--spliced", logs[0], chosen),
        told(sys.executable, SCORER, chosen, "--splice", logs[0], "--diagnoser", *command),
    )


FAILED_INSIDE = {"milabench_nvidia_output.log"}
"""A suite of benchmarks that goes on after one of them has raised: the log does hold a failure."""


def test_healthy_logs_are_called_neither_failed_nor_slow(analyzer: LogAnalyzer) -> None:
    """Of all published logs of sound runs none is given a failure, and none of their ranks is called a straggler; where
    no end is shown, nothing is claimed. Of those above 1 MB one in six is read, and all in thorough tests."""
    wrong, slow = {}, {}
    paths = sorted((CORPUS / "normal").glob("*.log"))
    for number, path in enumerate(paths):
        if number % 6 and path.stat().st_size > MEGABYTE and not THOROUGH:
            continue
        with path.open("rb") as log:
            evidence = analyzer.read(log).evidence
        found = analyzer.diagnose_with_node_logs(evidence, Facts())
        if found.category not in ("none", "unknown") and path.name not in FAILED_INSIDE:
            wrong[path.name] = (found.type, found.decided_by)
        if named := stragglers(evidence, evidence.rank_nodes):
            slow[path.name] = named
    assert (wrong, slow) == ({}, {})


@pytest.fixture(scope="module")
def healthy(analyzer: LogAnalyzer, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, int]:
    """Healthy logs, read once."""
    made = accuracy_bars.healthy_log(tmp_path_factory.mktemp("healthy"), MEGABYTES)
    with made.open("rb") as log:
        before = analyzer.delta(log)
    made.unlink()
    return before


@pytest.mark.parametrize(
    ("folder", "one_in"), [("dev", 14), ("injected-dev", 8)] if THOROUGH else [("injected-dev", 14)]
)
def test_a_long_healthy_log_before_the_failure_changes_little(
    folder: str, one_in: int, analyzer: LogAnalyzer, healthy: tuple[bytes, int]
) -> None:
    """A fixed share of the cases behind 4 MB of healthy logs (100 in thorough tests): no figure falls by more than two
    points or one case, and no machine is taken out for it. `make score` does the same with all of them."""
    ids = accuracy_bars.share(folder, one_in)
    alone = accuracy_bars.score(list(accuracy_bars.verdicts(analyzer, folder, ids)))
    behind = accuracy_bars.score(list(accuracy_bars.spliced(analyzer, folder, healthy, ids)))
    assert alone.counts["cases"] >= 8
    assert accuracy_bars.lost(alone, behind) == []
    assert (behind.counts["false_cordon"], behind.counts["wrong_node_cordon"]) == (0, 0)


@pytest.mark.parametrize("folder", accuracy_bars.FOLDERS)
def test_the_bars_hold(folder: str, scored: Callable[[str], dict[str, Any]]) -> None:
    """No figure of the labelled logs is below its bar."""
    assert accuracy_bars.below({folder: scored(folder)}) == []


def test_wrong_words_about_every_failure_change_no_other_failure(analyzer: LogAnalyzer) -> None:
    """One person of the same tenant and family names a wrong cause, or none, for each case: no case of another cause is
    taken for one of these."""
    judged, failures = Precedents(), dict[str, tuple[Label, Lesson, Evidence]]()
    for label in accuracy_bars.labels("real-dev"):
        with (CORPUS / "real-dev" / f"{label.id}.log").open("rb") as file:
            log = analyzer.read(file)
        root = signature.root_line(log.evidence, analyzer.analyze(log, Facts()).root_cause)
        if lesson := precedents.lesson_of(log.evidence, root, "family"):
            failures[label.id] = label, lesson, log.evidence
            for kind in (FailureType.GPU_LOST, FailureType.COMPLETED):
                said = FeedbackVerdict.CORRECTED
                key, name = AttemptKey(label.id), f"{label.id}-{kind}"
                judged.put(ConfirmedFailure(name, key, 0.0, 1.0, kind, said, "mallory", Signature(), lesson=lesson))
    assert len(failures) >= 60
    harmed = []
    for name, (label, lesson, evidence) in failures.items():
        for entry in precedents.about(judged.of_family("", "family"), lesson.root):
            found = precedents.newest([entry], lesson, AttemptKey(name), evidence)
            if found and failures[entry.attempt.job][0].type != label.type:
                harmed.append((entry.diagnosis, name))
    assert harmed == []
