"""Which ranks run in a pod. Pure."""

from collections.abc import Mapping
from typing import Any

from diagnoser.agent.kubernetes import names
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
    meta, spec = pod["metadata"], pod.get("spec") or {}
    marks = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    variables = _variables(spec)
    stated = _number(variables, _PROCESSES)
    processes = stated or gpus(spec) or 1
    own = _number(marks, (names.RANK,))
    if own is not None:
        return own, processes if stated else 1
    index = _number(variables, _NODE_RANKS)
    if index is None:
        index = _by_controller(marks)
    return None if index is None else _within_bounds(index * processes, processes)


def _within_bounds(first: int, count: int) -> tuple[int, int] | None:
    return (first, count) if first <= MOST else None


def gpus(spec: Mapping[str, Any]) -> int:
    """Of all containers of a pod."""
    total = 0
    for container in spec.get("containers") or ():
        resources = container.get("resources") or {}
        limits = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        total += sum(int(count) for name, count in limits.items() if name.endswith("/gpu") and str(count).isdecimal())
    return total


def _by_controller(marks: Mapping[str, Any]) -> int | None:
    index = _number(marks, (_INDEX,))
    if index is not None:
        return index if _number(marks, (_JOB_INDEX,)) in (None, 0) else None
    job = _number(marks, (_JOB_INDEX,))
    if job is not None:
        return job
    for kind, number in (_REPLICAS, _OLD_REPLICAS):
        replica = _number(marks, (number,))
        if replica is not None:
            return replica_rank(str(marks.get(kind, "")).lower(), replica, led=True)
    return None


def _variables(spec: Mapping[str, Any]) -> dict[str, str]:
    """Those of the first container that hold their value themselves."""
    containers: list[dict[str, Any]] = spec.get("containers") or [{}]
    env = containers[0].get("env") or ()
    return {variable["name"]: str(variable.get("value", "")) for variable in env if "name" in variable}


def _number(values_by_name: Mapping[str, Any], candidates: tuple[str, ...]) -> int | None:
    values = (str(values_by_name.get(name, "")) for name in candidates)
    return next((int(value) for value in values if value.isdecimal() and int(value) <= MOST), None)
