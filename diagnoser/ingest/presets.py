"""Names that job, attempt, rank, node, cluster and source go by, for each kind of cluster.

The syntax is that of an operator's file (docs/configuration.md). Names are compared without case, and with every run of
other characters than letters and digits as one ``_``: ``k8s.pod.name``, ``k8s_pod_name`` and the nested
``{"k8s": {"pod": {"name": ...}}}`` are one name. Labels and annotations of a pod go by their own name, whatever a
shipper nests them in. What these give for a workload is what our agents call it, so that lines of any shipper meet the
agent's registration.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

Field = Literal["cluster", "node", "attempt", "rank", "job", "source"]
Entry = Mapping[str, str | int]
"""One way to find a value, as a file writes it; it is validated as one."""
Candidates = Mapping[Field, Sequence[str | Entry]]

_NAMESPACES = ("k8s.namespace.name", "kubernetes.namespace_name", "kubernetes.pod_namespace", "kubernetes.namespace")
_PODS = ("k8s.pod.name", "kubernetes.pod_name", "kubernetes.pod.name")
_FILES = ("log.file.path", "file.path", "filename", "file", "path")


def _workloads(kind: str, *labels: str) -> list[str]:
    """Jobs named by these labels, as ``agent.kubernetes.names.job_id`` does it."""
    return [
        f"k8s:{cluster}{kind}:{{{namespace}}}:{{{label}}}"
        for cluster in ("{cluster}:", "")
        for label in labels
        for namespace in (*_NAMESPACES, "namespace")
    ]


def _matching(names: Sequence[str], match: str, value: str) -> list[Entry]:
    return [{"name": name, "match": match, "value": value} for name in names]


def _in_files(match: str, value: str) -> list[Entry]:
    return _matching(_FILES, match, value)


_RAY_JOBS: Sequence[Entry] = [
    {"name": "ray.io/originated-from-crd", "match": "^RayJob$", "value": value}
    for value in _workloads("rayjob", "ray.io/originated-from-cr-name")
]
"""Pods of a RayCluster carry the name of the RayJob that made it."""

SLURM: Candidates = {
    "cluster": ("slurm.cluster.name", "slurm.cluster"),
    "node": ("slurmd.nodename", "slurm.node.name"),
    "attempt": ({"name": "slurm.restart.count", "plus": 1},),
    "rank": ("slurm.procid",),
    "job": (
        *(
            value
            for name in ("slurm.job.id", "slurm.jobid")
            for value in (f"slurm-{{cluster}}-{{{name}}}", f"slurm-{{{name}}}")
        ),
        *_in_files(r"(?:^|/)slurm-([1-9]\d*)\.(?:out|err)$", "slurm-{cluster}-{1}"),
        *_in_files(r"(?:^|/)slurm-([1-9]\d*)\.(?:out|err)$", "slurm-{1}"),
    ),
    "source": (
        *_in_files(r"(?:^|/)slurm-[1-9]\d*\.out$", "stdout"),
        *_in_files(r"(?:^|/)slurm-[1-9]\d*\.err$", "stderr"),
        *_in_files(r"(?:^|/)(?:slurmd|slurmctld)[^/]*\.log$", "scheduler"),
    ),
}

KUBERNETES: Candidates = {
    "cluster": ("k8s.cluster.name", "kubernetes.cluster_name", "orchestrator.cluster.name"),
    "node": (
        "k8s.node.name",
        "kubernetes.host",
        "kubernetes.node_name",
        "kubernetes.pod_node_name",
        "kubernetes.node.name",
        "node_name",
    ),
    "job": (
        *_workloads("jobset", "jobset.sigs.k8s.io/jobset-name"),
        *_workloads("pytorchjob", "training.kubeflow.org/job-name"),
        *_RAY_JOBS,
        *_workloads("vcjob", "volcano.sh/job-name"),
        *_workloads("job", "batch.kubernetes.io/job-name", "k8s.job.name", "kubernetes.job.name", "job-name"),
    ),
    # Pods whose rank is not known are told apart by their names.
    "source": [{"name": name, "unless": "rank"} for name in (*_PODS, "pod")],
}

TORCHRUN: Candidates = {
    "rank": ("torchelastic.rank", "torch.distributed.rank", "global_rank", "world_rank"),
    "job": (
        "torchelastic.run.id",
        *_in_files(r"/([A-Za-z0-9][\w.@+=-]*)_[a-z0-9_]{8}/attempt_\d+/\d+/(?:stdout|stderr)\.log$", "{1}"),
    ),
    # A folder is named by the rank within the node, which is no rank of the job.
    "source": _in_files(r"/attempt_(\d+)/(\d+)/(stdout|stderr)\.log$", "{3}-{1}-{2}"),
}

RAY: Candidates = {
    "rank": ("ray.train.world.rank",),
    "job": (
        "ray.submission.id",
        "ray.job.submission.id",
        "ray.job.id",
        *_in_files(r"(?:^|/)job-driver-([A-Za-z0-9][\w.-]*)\.log$", "{1}"),
        *_in_files(r"(?:^|/)worker-[0-9a-f]+-([0-9a-f]{8})-\d+\.(?:out|err)$", "ray-{1}"),
    ),
    "source": (
        *_in_files(r"(?:^|/)(job-driver)-[A-Za-z0-9][\w.-]*\.log$", "{1}"),
        *_in_files(r"(?:^|/)(worker-[0-9a-f]+-[0-9a-f]{8}-\d+\.(?:out|err))$", "{1}"),
    ),
}

_LOG_STREAMS = ("aws.log.stream.names", "aws.cloudwatch.log.stream", "log_stream", "logStream")
_ALGO = r"^([A-Za-z0-9][A-Za-z0-9-]*)/(algo-\d+)(?:-\d+)?$"
SAGEMAKER: Candidates = {
    "node": ("sm.current.host", *_matching(_LOG_STREAMS, _ALGO, "{2}")),
    "job": (
        "training.job.name",
        "sagemaker.training.job.name",
        *_matching(_LOG_STREAMS, _ALGO, "{1}"),
    ),
}

SENDER_NAMES: Mapping[str, tuple[str, ...]] = {
    "transport": ("transport", "journal_transport", "systemd_transport"),
    "facility": ("facility", "syslog_facility", "journal_syslog_facility", "log_syslog_facility_code"),
    "identifier": ("appname", "syslog_identifier", "journal_syslog_identifier"),
    "uid": ("uid", "journal_uid", "journald_uid"),
    "unit": ("systemd_unit", "journal_systemd_unit"),
}
"""Names, in canonical form, by which collectors pass on what journald or syslog says of a record's sender."""

DAEMON_UNITS = ("nvidia-fabricmanager.service",)
"""Units of daemons that speak of hardware, and print nothing that a job can choose."""

PLAIN: Candidates = {
    "cluster": ("cluster", "cluster_name"),
    "node": ("node", "host.name", "host", "hostname", "nodename"),
    "attempt": ("attempt",),
    "rank": ("rank",),
    # `job` of a Prometheus-like label set often names what was scraped: it comes last.
    "job": ("job_id", "job"),
    "source": (
        # Whether the record bears this out is looked at then (``senders``).
        *_matching(SENDER_NAMES["transport"], "^kernel$", "kernel"),
        *_matching(SENDER_NAMES["identifier"], "^kernel$", "syslog"),
        *_matching(SENDER_NAMES["unit"], f"^(?:{'|'.join(DAEMON_UNITS)})$", "daemon"),
        "source",
        "log.iostream",
        "stream",
    ),
}
"""What every set of names ends with."""

PRESETS: Mapping[str, Candidates] = {
    "slurm": SLURM,
    "kubernetes": KUBERNETES,
    "sagemaker": SAGEMAKER,
    "torchrun": TORCHRUN,
    "ray": RAY,
}
"""In the order in which they are tried: a scheduler names the job as our agents do, a launcher only its own run."""
