"""The workload that is launched again: the same object, kept off some nodes, with variables for its programs. Pure."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from diagnoser.agent.kubernetes import names
from diagnoser.agent.kubernetes.fields import entries, section
from diagnoser.agent.kubernetes.kinds import JOB, Object, WorkloadKind, templates
from diagnoser.agent.plan_spec import PLAN_VARIABLE

_SERVERS_OWN = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink", "finalizers")
_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
JOBS_OWN = ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name")
"""Labels by which a Job finds its pods; each new Job gets new ones."""
_TRACKING = "batch.kubernetes.io/job-tracking"


def cleaned(kind: WorkloadKind, manifest: Mapping[str, Any]) -> Object:
    """The object as its owner wrote it, without what the server and the controllers added."""
    copy = deepcopy(dict(manifest))
    copy.pop("status", None)
    meta = copy["metadata"]
    for name in (*_SERVERS_OWN, *_DELETION):
        meta.pop(name, None)
    _drop(meta.get("annotations"), (_TRACKING,))
    if kind is JOB and not copy["spec"].get("manualSelector"):
        copy["spec"].pop("selector", None)
        _drop(meta.get("labels"), JOBS_OWN)
        _drop(section(copy["spec"]["template"], "metadata").get("labels"), JOBS_OWN)
    return copy


def _drop(marks: dict[str, Any] | None, names_of_marks: Sequence[str]) -> None:
    if not marks:
        return
    for name in names_of_marks:
        marks.pop(name, None)


def launched_again(
    kind: WorkloadKind,
    stored: Mapping[str, Any],
    *,
    plan: str,
    attempt: int,
    without: Sequence[str],
    variables: Sequence[tuple[str, str]],
) -> Object:
    """Make the workload of the next launch.

    stored: as ``cleaned``. attempt: number of the new launch. without: nodes that its pods must not run on.
    """
    copy = deepcopy(dict(stored))
    marks = copy["metadata"].setdefault("annotations", {})
    marks |= {names.PLAN: plan, names.ATTEMPT: str(attempt)}
    if without:
        marks[names.EXCLUDED] = ",".join(without)
    for template in templates(kind, copy):
        spec = template.setdefault("spec", {})
        for name in without:
            _keep_off(spec, name)
        for container in entries(spec, "containers"):
            _set_variables(container, {PLAN_VARIABLE: plan, **dict(variables)})
    return copy


def _keep_off(spec: Object, node: str) -> None:
    """Exclude a node by its name: its host name label may differ. Terms are alternatives, so that each must say it; and
    a requirement on fields takes exactly one value."""
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    required = affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    elsewhere = {"key": "metadata.name", "operator": "NotIn", "values": [node]}
    terms = required["nodeSelectorTerms"] = required.get("nodeSelectorTerms") or [{}]
    for term in terms:
        if elsewhere not in entries(term, "matchFields"):
            term["matchFields"] = [*entries(term, "matchFields"), elsewhere]


def _set_variables(container: Object, variables: Mapping[str, str]) -> None:
    """``$(NAME)`` would be read as a reference to another variable: the dollar is doubled."""
    others = [variable for variable in entries(container, "env") if variable.get("name") not in variables]
    ours = [{"name": name, "value": value.replace("$(", "$$(")} for name, value in variables.items()]
    container["env"] = [*others, *ours]
