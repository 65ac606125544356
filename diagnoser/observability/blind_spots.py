"""Finds what the service cannot see: a service that hears nothing must not look healthy. Pure."""

import math
from collections.abc import Iterator, Mapping

from diagnoser.model.vitals import BlindSpot, BlindSpotKind, Vitals, Waiting
from diagnoser.wording.words import minute

NAMED = 5
"""Jobs or nodes that a sentence names."""

# For how many seconds something may be missing before people are told.
ANY_LINE = 300.0
"""While jobs are known to run."""
ANY_LINE_UNANNOUNCED = 900.0
"""Where nobody says which jobs run, and several fell silent together."""
JOB_LINE = FIRST_JOB_LINE = 600.0
"""Of a job that runs."""
AGENT_REQUEST = 180.0
"""An agent asks for a plan at least once a minute."""
CLUSTER_NODE_LINE, NODE_LINE = 900.0, 3600.0
"""In the own logs of all nodes of a cluster; of a node that runs a job."""
VERDICT, DELIVERY = 300.0, 900.0
"""Of what waits."""

TOGETHER = 3
"""So many jobs do not fall silent within two minutes by chance."""


def find_blind_spots(vitals: Vitals) -> list[BlindSpot]:
    """The most serious first."""
    return [
        *_intake(vitals),
        *_agents(vitals),
        *_jobs(vitals),
        *_node_logs(vitals),
        *_waiting(vitals),
    ]


def _intake(vitals: Vitals) -> Iterator[BlindSpot]:
    if not _has_stopped(vitals):
        return
    jobs = max(vitals.running, vitals.together)
    yield BlindSpot(
        BlindSpotKind.INTAKE_STOPPED,
        "",
        vitals.newest_line,
        f"No line from any job since {minute(vitals.newest_line)}, although {_count(jobs, 'job')} should be printing.",
        "Failures and hangs since then are not seen. Look at the shippers, and at the network between them and here.",
    )


def _has_stopped(vitals: Vitals) -> bool:
    """One job alone may hang: that is told as a job that is silent."""
    if not vitals.newest_line:
        return False
    quiet = vitals.time - vitals.newest_line
    longest = math.inf
    if vitals.running >= 2:
        longest = ANY_LINE
    if vitals.together >= TOGETHER:
        longest = min(longest, ANY_LINE_UNANNOUNCED)
    return quiet > longest


def _agents(vitals: Vitals) -> Iterator[BlindSpot]:
    for agent in vitals.agents:
        if vitals.time - agent.last_seen > AGENT_REQUEST:
            yield BlindSpot(
                BlindSpotKind.AGENT_SILENT,
                agent.cluster,
                agent.last_seen,
                f"The agent of cluster {agent.cluster} ({agent.executor}) has not asked for work since "
                f"{minute(agent.last_seen)}.",
                "Plans are not carried out there, and ends of jobs and states of nodes are not known. Look at the "
                "agent's own log.",
            )


def _jobs(vitals: Vitals) -> Iterator[BlindSpot]:
    if vitals.silent.count and not _has_stopped(vitals):
        yield _spot(
            BlindSpotKind.JOB_SILENT,
            vitals.silent,
            ("job", "should be running and went silent, the first at", ". The logs do not say why."),
            "It may hang, or its log is not sent any more. Look at the job on its node, and at its shipper.",
        )
    if vitals.mute.count:
        yield _spot(
            BlindSpotKind.JOB_WITHOUT_LINES,
            vitals.mute,
            ("job", "began and never sent a line, the first at", "."),
            "Nothing can be said about a job without lines. Is its output sent here, and under the same job id?",
        )


def _node_logs(vitals: Vitals) -> Iterator[BlindSpot]:
    """Clusters whose nodes all fell silent, and single nodes of the others; then clusters that never sent any."""
    heard: dict[str, float] = {}
    for cluster, nodes in sorted(vitals.node_logs.items()):
        newest = max(nodes.values())
        if vitals.time - newest > CLUSTER_NODE_LINE:
            yield BlindSpot(
                BlindSpotKind.NODE_LOGS_STOPPED,
                cluster,
                newest,
                f"No node of cluster {cluster or '(unnamed)'} has sent a line of its own log since {minute(newest)}.",
                "Faults of hardware cannot be proven, so no node is taken out by itself. Look at what ships the "
                "nodes' logs.",
            )
        else:
            heard |= nodes
    if heard:
        yield from _silent_nodes(vitals, heard)
    yield from _node_logs_never_sent(vitals)


def _silent_nodes(vitals: Vitals, heard: Mapping[str, float]) -> Iterator[BlindSpot]:
    """heard: node -> time of its newest line, of clusters that send lines."""
    last = {node: heard.get(node, 0.0) for node in vitals.busy}
    missing = sorted((time, node) for node, time in last.items() if vitals.time - time > NODE_LINE)
    if missing:
        since = next((time for time, _ in missing if time), vitals.time - NODE_LINE)
        names = tuple(node for _, node in missing)
        yield BlindSpot(
            BlindSpotKind.NODE_LOGS_MISSING,
            "",
            since,
            f"{_count(len(names), 'node')} with a job sent no line of its own log for more than an hour"
            f"{_named(Waiting(len(names), since, names))}.",
            "Faults of their hardware cannot be proven. Look at what ships their logs.",
        )


def _node_logs_never_sent(vitals: Vitals) -> Iterator[BlindSpot]:
    for agent in vitals.agents:
        is_there = vitals.time - agent.last_seen <= AGENT_REQUEST
        if all((is_there, vitals.busy, agent.cluster not in vitals.node_logs)):
            yield BlindSpot(
                BlindSpotKind.NODE_LOGS_NEVER_SENT,
                agent.cluster,
                0.0,
                f"Nodes of cluster {agent.cluster} send no node logs.",
                "Faults of hardware are known only from what jobs print, which proves nothing: a person has to "
                "approve before a node is taken out.",
            )


def _waiting(vitals: Vitals) -> Iterator[BlindSpot]:
    if vitals.due.count and vitals.time - vitals.due.since > VERDICT:
        yield _spot(
            BlindSpotKind.DIAGNOSIS_LATE,
            vitals.due,
            ("attempt", "failed or ended and has no verdict yet, the first since", "."),
            "Incidents are missing from this page. Look at whether the worker runs, and at its log.",
        )
    if vitals.undelivered.count and vitals.time - vitals.undelivered.since > DELIVERY:
        yield _spot(
            BlindSpotKind.MESSAGES_UNDELIVERED,
            vitals.undelivered,
            ("message", "could not be delivered, the first since", "."),
            "People or agents are not told. Look at the outbox for the receiver's answer.",
        )


def _spot(kind: BlindSpotKind, waiting: Waiting, words: tuple[str, str, str], lost: str) -> BlindSpot:
    """words: what waits, what is wrong with it up to since when, and the end of the sentence."""
    noun, what, end = words
    told = f"{_count(waiting.count, noun)} {what} {minute(waiting.since)}{_named(waiting)}{end}"
    return BlindSpot(kind, "", waiting.since, told, lost)


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _named(waiting: Waiting) -> str:
    shown = list(dict.fromkeys(waiting.names))[:NAMED]
    more = waiting.count - len(shown)
    return f" ({', '.join(shown)}{f' and {more:,} more' if more > 0 else ''})" if shown else ""
