"""Finds the ranks that run in a pod. Pure."""

from collections.abc import Mapping
from typing import Any

from diagnoser.agent.kubernetes import fields, names
from diagnoser.dialects.replicas import replica_rank

MOST = 100_000
_INDEX = "batch.kubernetes.io/job-completion-index"
_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
_REPLICAS = ("training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index")
_OLD_REPLICAS = ("replica-type", "replica-index")
_NODE_RANKS = ("NODE_RANK", "PET_NODE_RANK", "GROUP_RANK", "RANK")
"""Kubeflow's RANK counts pods."""
_PROCESSES = ("NPROC_PER_NODE", "PET_NPROC_PER_NODE", "LOCAL_WORLD_SIZE")


def place(pod: Mapping[str, Any]) -> tuple[int, int] | None:
    """(first rank, number of ranks) in the pod; None when it cannot be told.

    A label or annotation of ours wins, then variables that hold a number, then what the controllers write: the index
    of a Job or JobSet, the replica of a PyTorchJob. Where that counts pods, each pod runs one rank for each GPU.
    """
    marks, spec = fields.marks(pod), fields.section(pod, "spec")
    variables = _variables(spec)
    stated = _number(variables, _PROCESSES)
    own = _number(marks, (names.RANK,))
    if own is not None:
        return own, stated or 1
    index = _number(variables, _NODE_RANKS)
    if index is None:
        index = _by_controller(marks)
    processes = stated or gpus(spec) or 1
    if index is None:
        return None
    if index * processes > MOST:
        return None
    return index * processes, processes


def gpus(spec: Mapping[str, Any]) -> int:
    total = 0
    for container in fields.entries(spec, "containers"):
        for name, count in fields.resources(container).items():
            if not name.endswith("/gpu"):
                continue
            if str(count).isdecimal():
                total += int(count)
    return total


def _by_controller(marks: Mapping[str, Any]) -> int | None:
    index = _number(marks, (_INDEX,))
    job = _number(marks, (_JOB_INDEX,))
    if index is not None:
        return None if job else index  # how many pods the jobs before it have is not known
    if job is not None:
        return job
    for kind, number in (_REPLICAS, _OLD_REPLICAS):
        replica = _number(marks, (number,))
        if replica is not None:
            return replica_rank(str(marks.get(kind, "")).lower(), replica, led=True)
    return None


def _variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """Read the variables of the first container that hold their value themselves."""
    variables = {}
    for container in fields.entries(spec, "containers")[:1]:
        for variable in fields.entries(container, "env"):
            if "name" in variable:
                variables[variable["name"]] = str(variable.get("value", ""))
    return variables


def _number(values_by_name: Mapping[str, Any], candidates: tuple[str, ...]) -> int | None:
    for name in candidates:
        value = str(values_by_name.get(name, ""))
        if not value.isdecimal():
            continue
        if int(value) <= MOST:
            return int(value)
    return None
