"""Pods of one job: which rank a pod runs, where each pod runs one."""

import re
from collections.abc import Collection

LEADERS = frozenset({"master", "chief"})
"""Replicas that come before the workers."""
POD_SUFFIX = "[bcdfghjklmnp-tv-xz2-9]{5}"
"""Kubernetes draws names from these letters, so that hardly a word is one."""
_POD = re.compile(rf"(?P<base>[a-z0-9](?:[a-z0-9.-]{{0,80}}[a-z0-9])?)-(?P<index>\d{{1,4}})(?:-{POD_SUFFIX})?")


def replica_rank(role: str, index: int, *, led: bool) -> int:
    """The number of a replica among all processes. led: the job has a leader besides its workers."""
    return index if role in LEADERS or not led else index + 1


def pod_ranks(pods: Collection[str]) -> dict[str, int]:
    """pod -> rank, from the numbers that Indexed Jobs, JobSets, StatefulSets and training operators give their pods:
    ``train-worker-1`` -> 1, or 2 where ``train-master-0`` leads. Empty where the names do not tell: those of other
    forms, of several sets, or one alone."""
    replicas = {pod: match for pod in pods if (match := _POD.fullmatch(pod))}
    roles = {pod: match["base"].rpartition("-")[2] for pod, match in replicas.items()}
    sets = {match["base"] for pod, match in replicas.items() if roles[pod] not in LEADERS}
    led = any(role in LEADERS for role in roles.values())
    ranks = {pod: replica_rank(roles[pod], int(match["index"]), led=led) for pod, match in replicas.items()}
    complete = len(pods) > 1 and len(replicas) == len(pods) and len(sets) == 1 and len(set(ranks.values())) == len(pods)
    return ranks if complete else {}
