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
    replicas, sets, led = dict[str, tuple[str, int]](), set[str](), False
    for pod in pods:
        match = _POD.fullmatch(pod)
        if match is None:
            return {}
        role = match["base"].rpartition("-")[2]
        replicas[pod] = role, int(match["index"])
        if role in LEADERS:
            led = True
        else:
            sets.add(match["base"])
    if len(pods) < 2:
        return {}
    if len(sets) != 1:
        return {}
    ranks = {pod: replica_rank(role, index, led=led) for pod, (role, index) in replicas.items()}
    return ranks if len(set(ranks.values())) == len(pods) else {}
