"""A line of a log that could be the cause of a failure, and as what."""

from dataclasses import dataclass

from diagnoser.model.taxonomy import Action, Category, FailureType, category_of
from diagnoser.rules.schema import Blame, Maturity, Role, Specificity


@dataclass(frozen=True, slots=True)
class Candidate:
    """A line that could be the cause.

    line: index into ``Evidence.lines``.
    by: the source of the candidate: a rule or a heuristic, by name.
    explains: types, or ``all``.
    overrides: deciders that it stands before.
    trace: index into ``Evidence.tracebacks`` or -1.
    maturity: of the rule, None without one.
    raised: the line is an exception as Python or C++ prints it, not a log line that mentions one.
    control_flow: its class is raised on purpose and handled.
    logged: the program caught the error and logged it, without calling it its end.
    exit: the line reports that a process ended in failure.
    last_words: its runtime prints such a line only as it ends the process.
    """

    line: int
    type: FailureType
    role: Role
    by: str
    why: str
    specificity: Specificity
    explains: frozenset[str] = frozenset()
    overrides: frozenset[str] = frozenset()
    blame: Blame = Blame.NONE
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None
    maturity: Maturity | None = None
    action: Action | None = None
    mitigation: str = ""
    trace: int = -1
    raised: bool = False
    control_flow: bool = False
    logged: bool = False
    exit: bool = False
    last_words: bool = False

    @property
    def is_failing(self) -> bool:
        """Whether the line can be the verdict: a cause, or what a cause leads to."""
        return self.role in (Role.ROOT, Role.SYMPTOM)

    @property
    def is_root(self) -> bool:
        return self.role is Role.ROOT

    @property
    def names_no_failure(self) -> bool:
        return category_of(self.type) is Category.NONE

    @property
    def is_end(self) -> bool:
        """Whether the line says that the run is complete, or that it was ordered to stop."""
        return (self.role, category_of(self.type)) == (Role.ROOT, Category.NONE)

    @property
    def is_completed(self) -> bool:
        return (self.role, self.type) == (Role.ROOT, FailureType.COMPLETED)

    @property
    def is_ordered_end(self) -> bool:
        """Whether the line is a signal or a cancelled step: seen when somebody stops a job, and when it fails for
        another reason."""
        return (self.role, category_of(self.type)) == (Role.SYMPTOM, Category.NONE)

    @property
    def is_fault(self) -> bool:
        return self.is_root and not self.names_no_failure

    @property
    def is_failure(self) -> bool:
        """Whether the line tells of a failure: of its cause, or of what the cause led to."""
        return self.is_failing and not self.names_no_failure

    @property
    def is_vague(self) -> bool:
        """Whether it knows no more of the line than words, or the class of an exception."""
        return self.specificity <= Specificity.CLASS

    @property
    def is_by_rule(self) -> bool:
        return self.by.startswith("rule:")


@dataclass(frozen=True, slots=True)
class LossDivergence:
    """Where the progress series shows that the loss diverged.

    line: index into ``Evidence.lines``.
    """

    line: int
    why: str
