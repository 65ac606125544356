"""Protocols for a scheduler: ``Cluster`` to act on it, ``JobSource`` to watch it.

``docs/agents.md`` says how to write both for another scheduler.
"""

import shlex
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import orjson

from diagnoser.agent.changes import Changes
from diagnoser.agent.nodes import NodeRecord
from diagnoser.agent.places import Places
from diagnoser.agent.plan_spec import PlanSpec
from diagnoser.agent.state_file import AgentState, JobCheckpoint
from diagnoser.model import EvidenceRequest, RuntimeFile


@dataclass(frozen=True, slots=True)
class Command:
    """A change of the cluster. words: program and arguments, or method and path. body: of a request.

    note: what a person reads in place of a body that is long or may hold secrets.
    """

    words: tuple[str, ...]
    body: Mapping[str, Any] | None = field(default=None, compare=False)
    note: str = ""

    @property
    def line(self) -> str:
        details = self.note
        if self.body and not details:
            details = orjson.dumps(self.body).decode()
        return f"{shlex.join(self.words)} {details}".rstrip()


@dataclass(frozen=True, slots=True)
class CommandAttempt:
    """A command that was run. code: 0 done; None no answer, so that it may have arrived; anything else refused.

    passing: refused only for now, because the cluster is busy or has changed.
    """

    command: Command
    code: int | None
    output: str = ""
    passing: bool = False

    @property
    def is_final(self) -> bool:
        """Whether another try would end the same way."""
        if self.code is None:
            return False
        return not self.passing

    @property
    def is_refused(self) -> bool:
        if not self.is_final:
            return False
        return self.code != 0


@dataclass(frozen=True, slots=True)
class Run:
    """Run this. cordons: the node that it takes out."""

    command: Command
    cordons: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    reason: str


@dataclass(frozen=True, slots=True)
class Held:
    """The job is out of the way: its nodes can be checked. nodes: only these, empty for all."""

    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """requeued: id of the job of the next launch. drained: the plan's nodes that are out for its reason.

    refused: why the agent would not act, in the service's terms.
    """

    reached: bool
    detail: str
    requeued: str = ""
    drained: tuple[str, ...] = ()
    refused: str = ""


NextStep = Run | Wait | Held | Done


class Attempts(tuple[CommandAttempt, ...]):
    """Commands that were run for a plan, oldest first."""

    def succeeded(self, command: Command) -> bool:
        return 0 in self.codes(command)

    def codes(self, command: Command) -> list[int | None]:
        """Answers to the command; none where it was not tried."""
        return [attempt.code for attempt in self if attempt.command == command]

    def refusal(self, command: Command) -> CommandAttempt | None:
        for attempt in self:
            if attempt.command.words != command.words:
                continue
            if attempt.is_refused:
                return attempt
        return None

    def unless_refused(self, command: Command, failure: str) -> Run | Done:
        """Run the command, or end the plan where the cluster has refused it. failure: of the plan, in words."""
        refused = self.refusal(command)
        return Done(False, f"{failure}: {refused.output}") if refused else Run(command)


@dataclass(frozen=True, slots=True)
class CheckResults:
    """results: of each group of nodes, as the service takes them. attempts: what was run for them."""

    results: Sequence[Mapping[str, Any]]
    attempts: Sequence[CommandAttempt]


@dataclass(frozen=True, slots=True)
class NodeQuestion:
    """A command that only reads, to be run on a node without a shell. id: of the query. seconds: that it may take.

    bytes: of the end of its output that are kept, 0 for as many as an answer needs.
    """

    node: str
    id: str
    argv: tuple[str, ...]
    seconds: float
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class AskResults:
    """answers: to each question, as the service takes them. attempts: what was run for them."""

    answers: Sequence[Mapping[str, Any]]
    attempts: Sequence[CommandAttempt]


@dataclass(frozen=True, slots=True)
class NotCollected:
    """Evidence that there should be, or may be, and is not. why: with the node or file that it is about."""

    why: str


class JobState(Protocol):
    @property
    def nodes(self) -> Collection[str]:
        """Nodes where the scheduler shows that the job runs or ran, in any launch; empty once it shows none."""

    @property
    def held(self) -> str:
        """Where the job is kept while only an agent can launch it again, in words; "" otherwise."""


S = TypeVar("S", bound=JobState)
J = TypeVar("J")


class NodeControl(Protocol):
    """Taking nodes out and giving them back. Methods that ask the cluster raise Unavailable while it does not answer,
    and Denied when it refuses us for good."""

    async def nodes(self, names: Collection[str], /) -> Mapping[str, NodeRecord]:
        """At least these, as far as they exist."""

    def cordon(self, spec: PlanSpec, node: NodeRecord) -> Command:
        """Make the command that takes a node out, for ``spec.reason``."""

    def uncordon(self, node: NodeRecord) -> Command: ...

    async def run(self, command: Command) -> CommandAttempt: ...

    async def lend(self, node: NodeRecord) -> None:
        """Let what is run for ``return_spec`` run on a node that is cordoned, and nothing else. An agent that dies
        meanwhile must leave it out of service. Raises Denied where that cannot be had."""

    async def end_loan(self, node: NodeRecord) -> None:
        """Cordon the node as it was before it was lent. Raises Denied, Unavailable: then it is still lent."""


class Cluster(NodeControl, Protocol[S]):
    """A cluster on which plans are carried out. S: a job as this scheduler shows it.

    ``hold``, ``relaunch`` and ``put_back`` say what is next. They are pure, and have no memory: what was done before
    shows in ``S``, so that another agent can go on from there. ``attempts`` only holds the answers that this agent got.
    """

    @property
    def name(self) -> str: ...

    @property
    def can_check(self) -> bool:
        """Whether there is a program for the node check."""

    @property
    def check_is_vouched(self) -> bool:
        """Whether ``check`` runs a program that the operator chose, where the job has no say: only then its results
        prove that a node is at fault."""

    @property
    def can_ask(self) -> bool:
        """Whether commands can be run on a node of the caller's choice."""

    def spec(self, plan: Mapping[str, Any], failure_type: str) -> PlanSpec:
        """Raises BadInput for a plan that this cluster cannot carry out."""

    async def job(self, spec: PlanSpec) -> S: ...

    def running(self, spec: PlanSpec, state: S) -> bool:
        """Tell whether the scheduler shows that the plan's own launch runs, and nothing was done for the plan yet."""

    def hold(self, spec: PlanSpec, state: S, attempts: Attempts) -> NextStep:
        """Choose the next step to ``Held``: the job ends, and waits until ``relaunch``."""

    def relaunch(self, spec: PlanSpec, state: S, attempts: Attempts) -> NextStep:
        """Choose the next step to ``Done``: the job runs again without ``spec.nodes``, with ``spec.variables``."""

    def put_back(self, spec: PlanSpec, state: S, attempts: Attempts) -> NextStep:
        """Choose the next step to ``Done``: a held job runs again unchanged, as nobody carries out its plan."""

    async def check(self, spec: PlanSpec, round: Mapping[str, Any]) -> CheckResults:
        """One round of the node check. Raises Unavailable when a group could not be started."""

    async def ask(self, spec: PlanSpec, questions: Sequence[NodeQuestion]) -> AskResults:
        """Run the commands on their nodes, outside of any job. One that cannot be run is answered without an exit code.
        Raises Unavailable while the scheduler does not answer."""

    @property
    def can_collect(self) -> bool:
        """Whether the operator has said how evidence of a run that may hang can be had."""

    def collect(self, asked: EvidenceRequest) -> AsyncGenerator[RuntimeFile | NotCollected]:
        """Give dumps of the ranks of one launch as they come; there may be none. Programs run only beside a launch that
        still runs, and disturb it as little as can be. Raises BadInput for a job of another cluster, Unavailable while
        the scheduler does not answer."""

    async def free(self, spec: PlanSpec) -> None:
        """Release the nodes that ``hold`` reserved for the check. Must not raise when there are none."""


@dataclass(frozen=True, slots=True)
class ClusterSnapshot(Generic[J]):
    """jobs: to be looked at now, by their key in the state file; one that is missing is forgotten. time: of the look,
    in seconds since the epoch; 0.0 where the source does not need to know it later. places: of nodes, beside those that
    their records name."""

    jobs: Mapping[str, J]
    nodes: Mapping[str, NodeRecord]
    time: float = 0.0
    places: Places = field(default_factory=dict)


class JobSource(Protocol[J]):
    """A cluster that is watched. J: a job as one look shows it."""

    @property
    def log_source(self) -> str:
        """Name of the stream with the scheduler's own lines about a job."""

    async def wait(self, seconds: float) -> None:
        """Wait until something may have changed, at most so long."""

    async def snapshot(self, state: AgentState) -> ClusterSnapshot[J]:
        """Running jobs, and those known before even if they are gone. Raises Unavailable."""

    async def first_checkpoint(self, job: J) -> JobCheckpoint | None:
        """Say where to begin with an unknown job; None when there is nothing to tell yet. Raises Unavailable."""

    def diff(self, job: J, nodes: Mapping[str, NodeRecord], before: JobCheckpoint) -> tuple[JobCheckpoint, Changes]:
        """The job as it is known from now on, and what to tell. Pure."""

    async def ship(self, job: J, checkpoint: JobCheckpoint, *, rest: bool) -> None:
        """Send the new lines of the job's log, or begin to. rest: the launch writes no more. Raises Unavailable."""
