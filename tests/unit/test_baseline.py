"""The baseline of a job family: what clean runs leave in it, which lines are new against it, and what that changes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from diagnoser import compress
from diagnoser.commands import explain
from diagnoser.compress import AttemptLog, Delta, baseline
from diagnoser.compress.render import tokens
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.baseline import apply_baseline, is_clean
from diagnoser.diagnosis.llm_stage import consultation_input
from diagnoser.model import (
    Baseline,
    CleanRun,
    Diagnosis,
    Event,
    EventKind,
    Evidence,
    Facts,
    LineBlock,
    RootCause,
    Stream,
)
from diagnoser.model.taxonomy import Category, FailureType, Outcome
from diagnoser.rules.schema import Match, Role
from tests import accuracy_bars
from tests.rule_files import ANALYZER

ROUTINE = "loading the tokenizer of the mix\nmounted the shards of the mix\nwarming up the kernels\n"
TROUBLE = "rank 3 lost its link\nKeyError: 'mask'\nloss: nan\n"
NEW = "falling back to the slow path of the sampler\n"
TRACE = 'Traceback (most recent call last):\n  File "/srv/a.py", line 3, in f\n    g()\nQuiltError: seam 4 is open\n'


@pytest.fixture(scope="module")
def analyzer() -> LogAnalyzer:
    return accuracy_bars.load()


def delta(analyzer: LogAnalyzer, log: str, stream: Stream | None = None) -> Delta:
    compressor = analyzer.compressor()
    compressor.feed(LineBlock(stream or Stream(), log.encode(), received=1000.0))
    return compressor.take()


def run(analyzer: LogAnalyzer, log: str, name: str = "j/1") -> CleanRun:
    found = baseline.clean_run(delta(analyzer, log), name)
    assert found is not None
    return found


def clean(analyzer: LogAnalyzer, count: int, log: str = ROUTINE) -> Baseline:
    return Baseline(tuple(run(analyzer, log, f"j/{number}") for number in range(count)))


def new(analyzer: LogAnalyzer, log: str, known: Baseline) -> list[str]:
    return [one.line.text for one in baseline.diff(compress.digest(delta(analyzer, log)), known).new]


def verdict_on(analyzer: LogAnalyzer, log: str, known: Baseline) -> Diagnosis:
    return analyzer.analyze(AttemptLog(delta(analyzer, log)), Facts(baseline=known))


def test_what_can_be_a_failure_is_never_known(analyzer: LogAnalyzer) -> None:
    """Exceptions and diverged values are new however many clean runs print them: nobody can hide a cause that way."""
    assert new(analyzer, ROUTINE + TROUBLE, clean(analyzer, 5, ROUTINE + TROUBLE)) == ["KeyError: 'mask'", "loss: nan"]
    assert baseline.clean_run(delta(analyzer, "KeyError: 'mask'\n"), "j/1") is None


def test_a_line_that_complains_is_known_where_every_clean_run_prints_it(analyzer: LogAnalyzer) -> None:
    """One run that does without it makes it new again."""
    noise = "mix: no such cache, reading the shards again\n"
    always, once = (
        clean(analyzer, 3, ROUTINE + noise),
        clean(analyzer, 2, ROUTINE + noise).runs + clean(analyzer, 1).runs,
    )
    assert new(analyzer, ROUTINE + noise, always) == []
    assert new(analyzer, ROUTINE + noise, Baseline(once)) == [noise.strip()]


def test_a_known_line_that_comes_far_too_often_is_new(analyzer: LogAnalyzer) -> None:
    """Ten times as often as in any clean run, for the length of the log; a longer log alone is no surge."""
    flush, steps = "flushing the buffer of the mix\n", "".join(f"stitched patch {n} of the mix\n" for n in range(1000))
    known = clean(analyzer, 3, steps + 6 * flush)
    (one,) = baseline.diff(compress.digest(delta(analyzer, steps + 100 * flush)), known).new
    assert (one.line.text, one.count, one.usual) == (flush.strip(), 100, 7)
    assert new(analyzer, 20 * steps + 100 * flush, known) == []


def test_the_last_runs_count_and_each_once(analyzer: LogAnalyzer) -> None:
    """Of many runs the last five; of a run that was stored twice the last word."""
    runs = [run(analyzer, ROUTINE, f"j/{number}") for number in (1, 2, 3, 4, 5, 6)]
    last = replace(runs[-1], pauses={"train": 9.0})
    known = baseline.load([baseline.to_bytes(one) for one in (*runs, last)])
    assert known == Baseline((*runs[1:5], last))
    assert baseline.load([]) == Baseline()


def test_a_traceback_is_one_new_line_and_comes_first(analyzer: LogAnalyzer) -> None:
    """Its last line; then complaints, then the rest, each in order of the log."""
    log = ROUTINE + NEW + "mix: cache not found\n" + TRACE
    assert new(analyzer, log, clean(analyzer, 1)) == ["QuiltError: seam 4 is open", "mix: cache not found", NEW.strip()]


def test_without_clean_runs_nothing_is_new(analyzer: LogAnalyzer) -> None:
    """No baseline, no word about it."""
    assert baseline.diff(compress.digest(delta(analyzer, ROUTINE + NEW)), Baseline()).new == ()
    assert verdict_on(analyzer, ROUTINE + NEW, Baseline()).new_lines == ()


def test_a_verdict_names_the_new_lines_in_order_of_the_log(analyzer: LogAnalyzer) -> None:
    """With their numbers, how often they came, and in how many clean runs they were looked for."""
    found = verdict_on(analyzer, ROUTINE + NEW + ROUTINE + TRACE + NEW, clean(analyzer, 2)).new_lines
    assert [(one.line, one.text) for one in found] == [(4, NEW.strip()), (11, "QuiltError: seam 4 is open")]
    assert [one.why for one in found] == ["2 lines, in none of 2 clean runs", "in none of 2 clean runs"]


def test_a_guess_at_a_known_line_is_taken_back(analyzer: LogAnalyzer) -> None:
    """A line whose words complain, that clean runs print as well, is no candidate; two clean runs are too few."""
    quiet = "the run waits for a slow worker node\n"
    digest = compress.digest(delta(analyzer, ROUTINE + quiet))
    evidence = digest.evidence
    root = next(line for line in evidence.lines if line.text == quiet.strip())
    plain = analyzer.diagnose_with_node_logs(evidence, Facts())
    cause = RootCause(root.number, root.text)
    guess = Diagnosis(
        Outcome.FAILED, Category.INFRASTRUCTURE, FailureType.NODE_FAILURE, 0.5, "heuristic:words", root_cause=cause
    )
    seen: list[int] = []

    def again(part: Evidence) -> Diagnosis:
        seen.append(len(part.lines))
        return plain

    for runs, expected in ((3, plain.root_cause), (2, cause)):
        known = clean(analyzer, runs, ROUTINE + quiet)
        assert apply_baseline(guess, digest, known, again).root_cause == expected
    assert seen == [len(evidence.lines) - 1]
    assert apply_baseline(guess, digest, clean(analyzer, 3), again).type is FailureType.NODE_FAILURE


@pytest.mark.parametrize(
    ("outcome", "kind", "code", "clean_run"),
    [
        (Outcome.COMPLETED, FailureType.COMPLETED, 0, True),
        (Outcome.COMPLETED, FailureType.COMPLETED, 1, False),
        (Outcome.FAILED, FailureType.LOSS_DIVERGENCE, 0, False),
        (Outcome.UNKNOWN, FailureType.UNKNOWN, 0, False),
    ],
)
def test_only_a_clean_run_is_learned_from(outcome: Outcome, kind: FailureType, code: int, clean_run: bool) -> None:
    """It ended with 0 and nothing in it was diagnosed; anything else teaches nothing."""
    found = Diagnosis(outcome, Category.NONE, kind, 0.9, "heuristic:exit_event")
    assert is_clean(found, (Event(EventKind.EXIT, 1.0, code=code),)) is clean_run
    assert not is_clean(found, ())


# --- what a model and a person see of it


def shown(log: AttemptLog, facts: Facts, size: int) -> tuple[list[str], dict[int, str]]:
    """The lines of a model's view, and what its numbers stand for."""
    plain = Diagnosis(Outcome.FAILED, Category.UNKNOWN, FailureType.UNKNOWN, 0.2, "heuristic:no_evidence")
    view = consultation_input(plain, log, facts, ANALYZER.knowledge).view(size)
    return view.text.split("\n"), {number: line.text for number, line in view.lines.items()}


def steps(analyzer: LogAnalyzer, count: int = 3000) -> str:
    return "".join(f"stitched patch {number} of the mix in 12 ms\n" for number in range(count))


def test_new_lines_come_first_in_the_view_of_a_model(analyzer: LogAnalyzer) -> None:
    """Also one that the compressor did not keep, by its number; what clean runs print is no template any more."""
    log = steps(analyzer) + NEW + steps(analyzer) + TRACE
    known = clean(analyzer, 3, steps(analyzer))
    read = AttemptLog(delta(analyzer, log))
    assert NEW.strip() not in [line.text for line in read.digest.lines]
    lines, numbers = shown(read, Facts(baseline=known), 2000)
    at = lines.index("## In none of 3 clean runs of this job family")
    assert lines[at + 1 : at + 4] == [f"3001| {NEW.strip()}", "6005| QuiltError: seam 4 is open", ""]
    found = analyzer.analyze(read, Facts(baseline=known))
    assert [one.line for one in found.new_lines] == [3001, 6005]
    assert (numbers[3001], numbers[6005]) == (NEW.strip(), "QuiltError: seam 4 is open")
    assert not any("stitched patch" in line for line in lines[at + 4 : lines.index("## Lines")])


def test_lines_of_several_streams_have_one_number_each(analyzer: LogAnalyzer) -> None:
    """The number in the view leads to the line, whatever its number in its own stream."""
    parts = [delta(analyzer, steps(analyzer) + NEW + steps(analyzer), Stream("stdout", rank=rank)) for rank in (0, 1)]
    parts.append(delta(analyzer, TRACE, Stream("stderr", rank=1)))
    lines, numbers = shown(AttemptLog(compress.merge(parts)), Facts(baseline=clean(analyzer, 1)), 2000)
    at = lines.index("## In none of 1 clean runs of this job family")
    listed = lines[at + 1 : lines.index("", at)]
    assert len(listed) == 3
    assert all(line.endswith(f"| {numbers[int(line.split()[0])]}") for line in listed)


@pytest.mark.parametrize("size", [300, 600, 1500])
def test_a_view_with_new_lines_stays_within_its_size(analyzer: LogAnalyzer, size: int) -> None:
    """However many lines are new."""
    log = "".join(f"the {'a' * n} seam of the {'b' * n} quilt came loose\n" for n in range(1, 120))
    read = AttemptLog(delta(analyzer, log))
    assert tokens("\n".join(shown(read, Facts(baseline=clean(analyzer, 3)), size)[0])) <= size


def test_explain_tells_what_is_new(analyzer: LogAnalyzer) -> None:
    """Each line with its number, before the evidence."""
    console = Console(record=True, width=200)
    found = verdict_on(analyzer, ROUTINE + NEW, clean(analyzer, 4))
    explain.explain(console, "job.log", found, ())
    text = console.export_text()
    assert f"Not in clean runs\n + 4 {NEW}     ^ in none of 4 clean runs\n" in text


def test_nothing_hides_what_a_rule_is_proven_by(analyzer: LogAnalyzer) -> None:
    """Though each clean run printed it: also where the rule asks for certain digits, which no shape has."""
    known = clean(analyzer, 3, ROUTINE + "\n".join(anchored(analyzer)) + "\n")
    hidden = [text for text in anchored(analyzer) if not new(analyzer, text + "\n", known)]
    assert hidden == []


def anchored(analyzer: LogAnalyzer) -> Sequence[str]:
    """One-line examples of root rules."""
    rules = [one for one in analyzer.knowledge.engine.ruleset.rules if one.role is Role.ROOT]
    texts = [one.text if isinstance(one, Match) else one for rule in rules for one in rule.examples.match[:1]]
    return [text for text in texts if "\n" not in text]
