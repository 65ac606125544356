"""Everything in a log that could be the cause: rule hits, and what exceptions say where no rule knows them."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from diagnoser.model import Evidence, ExitReport
from diagnoser.rules import candidate_refinements as refinements
from diagnoser.rules import candidate_sources as sources
from diagnoser.rules import last_words
from diagnoser.rules.candidate import Candidate, LossDivergence
from diagnoser.rules.candidate_sources import Heuristics, RuleLog
from diagnoser.rules.clean_end import CleanEnd
from diagnoser.rules.engine import Hit

_Source = Callable[[RuleLog], Iterable[Candidate]]
_Refinement = Callable[[Candidate, RuleLog], Candidate]
"""The candidate as more of the log shows it, or as it was."""

_BY_MESSAGE: tuple[_Source, ...] = (sources.from_rules, sources.from_loss, sources.from_end)
"""The surest first: of two candidates for one line the first counts."""
_BY_CLASS: tuple[_Source, ...] = (sources.from_traces, sources.from_terminations, sources.from_lines)
"""The sources that count only for lines of which nothing else is known, not even the report of a process's end."""
_NAMING: tuple[_Refinement, ...] = (
    refinements.named_by_context,
    refinements.named_by_words,
    refinements.named_by_task,
)
"""What an exception is by more than its class."""
_HANDLING: tuple[_Refinement, ...] = (
    refinements.with_control_flow,
    refinements.with_logged,
    refinements.with_last_words,
)
"""Whether the program handled it, or ended of it."""


def collect(
    evidence: Evidence,
    hits: Sequence[Hit],
    heuristics: Heuristics,
    loss: LossDivergence | None = None,
    end: CleanEnd | None = None,
) -> tuple[Candidate, ...]:
    """At most one candidate per line, in the order of the lines; a benign one where the best rule is benign."""
    log = RuleLog(evidence, heuristics, hits, loss, end)
    best: dict[int, Candidate] = {}
    _add(best, _BY_MESSAGE, log)
    _add_exits(best, evidence.exits)
    _add(best, _BY_CLASS, log)
    candidates = _refined(best.values(), _NAMING, log)
    roots = filter(attrgetter("is_root"), candidates)
    raised = frozenset(candidate.line for candidate in roots if candidate.raised)
    candidates = [refinements.opened(candidate, raised, log) for candidate in candidates]
    candidates += last_words.from_last_words(candidates, best.keys(), log)
    candidates += last_words.from_reported(candidates, log)
    return tuple(sorted(_refined(candidates, _HANDLING, log), key=lambda candidate: candidate.line))


def _add(best: dict[int, Candidate], chosen: Iterable[_Source], log: RuleLog) -> None:
    for source in chosen:
        for candidate in source(log):
            best.setdefault(candidate.line, candidate)


def _add_exits(best: dict[int, Candidate], reports: Iterable[ExitReport]) -> None:
    """A rule that knows the line of a report keeps its type; one that sees a mere wrapper there knows less than the
    code does."""
    for report in reports:
        if not report.failed:
            continue
        known = best.get(report.line)
        if known is None or sources.outweighs(report, known):
            best[report.line] = sources.from_exit(report)
        else:
            rank = sources.only_rank(report) if known.rank is None else known.rank
            best[report.line] = replace(known, rank=rank, node=known.node or report.node or None, exit=True)


def _refined(candidates: Collection[Candidate], chosen: Sequence[_Refinement], log: RuleLog) -> list[Candidate]:
    refined = []
    for candidate in candidates:
        for refinement in chosen:
            candidate = refinement(candidate, log)
        refined.append(candidate)
    return refined
