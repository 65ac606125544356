"""Names that this agent writes on, or looks for in, the objects of a cluster."""

import re

from diagnoser.model.errors import BadInput

DOMAIN = "diagnoser.io/"
WATCH = DOMAIN + "watch"
"""Label or annotation of a workload: "true" to be looked after, "false" to be left alone."""
RESTART = DOMAIN + "restart"
"""Label or annotation of a workload: "false" when it must never be launched again by a plan."""
CONTRACT = DOMAIN + "contract"
"""Annotation of a workload: what it promises and asks for, as JSON."""
ATTEMPT = DOMAIN + "attempt"
PLAN = DOMAIN + "plan"
REASON = DOMAIN + "reason"
BY = DOMAIN + "by"
FROM = DOMAIN + "from"
"""Annotation of a stored copy: uid of the object that it was made of."""
NODES = DOMAIN + "nodes"
"""Annotation of a stored copy: the nodes on which the object's pods were when it was made."""
RANK = DOMAIN + "rank"
EXCLUDED = DOMAIN + "excluded-nodes"
MANAGED = {"app.kubernetes.io/managed-by": "diagnoser"}

NODE_ANNOTATIONS = (PLAN, REASON, BY)

_NAME = re.compile(r"(?!.*\.\.)[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PREFIX = "k8s"


def valid(name: str, what: str) -> str:
    """Raises BadInput for what cannot be the name of an object: it becomes part of an address."""
    if not _NAME.fullmatch(name):
        raise BadInput(f"{name[:80]!r} cannot be the name of a {what}")
    return name


def job_id(cluster: str, word: str, namespace: str, name: str) -> str:
    """The workload as the service knows it."""
    return f"{_PREFIX}:{cluster}:{word}:{namespace}:{name}"


def workload_of(job: str, cluster: str) -> tuple[str, str, str]:
    """(kind, namespace, name). Raises BadInput for a job of somewhere else."""
    parts = job.split(":")
    if len(parts) != 5 or parts[:2] != [_PREFIX, cluster]:
        raise BadInput(f"{job[:100]!r} is no job of the cluster {cluster}")
    return parts[2], valid(parts[3], "namespace"), valid(parts[4], "workload")
