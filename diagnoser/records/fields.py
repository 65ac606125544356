"""What the fields of a record are called, by the loggers and shippers of the field: names in lower case, with dots
between levels, and without the containers that hold fields of the caller's choice.

Of several names of one thing the first that has a value counts.
"""

from collections.abc import Mapping

CONTAINERS = frozenset(
    {
        "record", "extra", "context", "labels", "attributes", "resource", "fields", "tags", "data", "meta", "metadata",
        "mdc", "contextmap", "properties", "kubernetes", "jsonpayload", "event_dict", "kwargs", "structured_data",
        "stream", "values",
    }
)  # fmt: skip
MESSAGE = (
    "message", "msg", "event", "@message", "@m", "@mt", "short_message", "body", "log", "text", "textpayload", "line",
    "_raw", "_msg",
)  # fmt: skip
"""Of these, ``text`` is loguru's whole record as it would print it."""
WEAK_MESSAGE = frozenset({"event", "body", "log", "text", "line"})
"""Names that data have as well."""
LEVEL = (
    "levelname", "level.name", "severity_text", "severitytext", "loglevel", "log_level", "log.level", "level",
    "severity", "lvl", "@l", "@level", "level_name", "levelno", "level.no", "severitynumber", "severity_number",
    "priority", "level_value", "levelvalue",
)  # fmt: skip
SHIPPERS_LEVEL = frozenset({"priority"})
"""Levels that the shipper gives to whatever a program prints: systemd calls each line of a service information."""
TIME = (
    "timestamp", "time", "ts", "@timestamp", "@t", "asctime", "time.timestamp", "datetime", "date", "t",
    "__realtime_timestamp", "timeunixnano", "observedtimeunixnano", "timemillis", "created", "instant.epochsecond",
    "_time",
)  # fmt: skip
RANK = (
    "rank", "global_rank", "world_rank", "worker_rank", "process_rank", "dist_rank", "rank_id", "rankid", "proc_rank",
    "process_index", "replica_rank", "globalrank", "torchelastic.rank", "omp.rank", "slurm_procid", "mpi_rank",
    "node.rank", "rank.global",
)  # fmt: skip
NUMBER = (
    "worker", "worker_id", "worker_index", "worker_num", "workerid", "replica", "replica_id", "replica_index", "task",
    "task_id", "task_index", "taskid", "trainer", "trainer_id", "learner", "learner_id", "proc_id", "procid",
    "shard_id", "machine_rank", "node_rank", "container_index", "job_completion_index",
    "batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index", "training.kubeflow.org/replica-index",
    "jobset.sigs.k8s.io/job-global-index", "leaderworkerset.sigs.k8s.io/worker-index",
)  # fmt: skip
"""Numbers of processes by other words: those of ranks where each process has one number in all of its records."""
HOST = (
    "host", "hostname", "host.name", "host.hostname", "node", "node_name", "nodename", "node.name", "k8s.node.name",
    "_hostname", "server", "host_name", "pod_node_name", "k8s_node_name", "spec.nodename", "host.ip", "host_ip",
    "instance", "instance_name", "ec2_instance_id", "compute.googleapis.com/resource_name", "worker_host",
    "source_host", "src_host", "agent.hostname", "beat.hostname", "computer", "vm_name",
)  # fmt: skip
PID = ("pid", "process", "process.id", "process_id", "process.pid", "processid", "_pid", "proc")
PLACE = frozenset(
    {*RANK, *HOST, *PID, "world", "world_size", "size", "local_rank", "local", "node_rank", "nnodes", "gpu"}
)
"""What an object of a record that says where its process runs has, and nothing else."""
OTHERS = frozenset({"peer", "remote", "target", "source", "src", "destination", "dst", "from", "to", "other", "sender"})
"""Objects of that kind that are about another process."""
FILES = ("log.file.path", "log.file", "file.path", "filename", "file", "source", "path", "tailed_path", "log_path")
"""The file that a shipper read a line from; its name may be that of a stream of one rank. Loggers name their source,
which is no file of a log."""
INSTANCE = (
    "pod_name", "pod", "podname", "pod.name", "k8s.pod.name", "k8s_pod_name", "kubernetes_pod_name", "_systemd_unit",
    "systemd.unit", "service.instance.id", "container_name", "container.name", "containername", "_container_name",
    "container", "docker.name", "task_arn", "container_id", "container.id", "docker.container_id",
)  # fmt: skip
"""Where a process runs by itself: its pod, the instance of its service (``train@1.service``), its container."""
ERROR_TEXTS = (
    "exception", "exc_info", "exc_text", "traceback", "stack_trace", "stacktrace", "error.stack_trace", "error.stack",
    "err.stack", "exception.stacktrace", "exception.stack_trace", "exception.traceback", "thrown.extendedstacktrace",
    "errorverbose", "stack", "full_message",
)  # fmt: skip
"""Tracebacks and stacks as text."""
ERROR_PAIRS = (
    ("exc_type", "exc_value"), ("error.type", "error.message"), ("exception.type", "exception.message"),
    ("exception.type", "exception.value"), ("err.type", "err.message"), ("error.name", "error.message"),
    ("error.kind", "error.message"), ("thrown.name", "thrown.message"), ("error_type", "error_message"),
)  # fmt: skip
"""Class and message of an exception."""
ERRORS = ("error", "err", "exc", "exception", "error_message", "errormessage", "cause")
"""The message of an exception alone."""
IGNORED = frozenset(
    {
        "logger", "name", "logger_name", "loggername", "log.logger", "filename", "pathname", "module",
        "funcname", "func_name", "function", "lineno", "line", "file", "file.name", "file.path", "thread",
        "thread.id", "thread.name", "threadname", "thread_name", "threadid", "processname", "process.name",
        "relativecreated", "msecs", "created", "taskname", "caller", "source", "source.file", "source.line",
        "source.function", "stream", "level.icon", "elapsed.repr", "elapsed.seconds", "time.repr", "v",
        "traceid", "spanid", "trace_id", "span_id", "flags", "attrs", "ecs.version", "loggerfqcn",
        "endofbatch", "threadpriority", "instant.nanoofsecond", "severitynumber", "observedtimeunixnano",
    }
)  # fmt: skip
"""What a logger says about its own call."""
SHIPPERS = frozenset(
    {
        *INSTANCE, "namespace_name", "namespace", "namespace.name", "k8s.namespace.name", "pod_id", "pod_ip", "pod_uid",
        "pod.uid", "pod.ip", "container_image", "container_hash", "container.image.name", "docker_id", "image_name",
        "container_image_id", "cluster_name", "k8s.container.name", "k8s.pod.uid", "input.type", "agent.type",
        "agent.version", "agent.id", "log.offset", "log.file.path", "_p", "logtag", "time_ns", "docker_image",
        "source_type",
    }
)  # fmt: skip
"""What a shipper says about where a line comes from."""

NUMBERED_LEVELS: Mapping[str, tuple[int, int, int, int]] = {
    "levelno": (20, 30, 40, 50),
    "level.no": (20, 30, 40, 50),
    "severitynumber": (9, 13, 17, 21),
    "severity_number": (9, 13, 17, 21),
    "level": (30, 40, 50, 60),
    "level_value": (20000, 30000, 40000, 50000),
    "levelvalue": (20000, 30000, 40000, 50000),
}
"""From which number on a level is INFO, WARNING, ERROR, CRITICAL: Python's logging, loguru, OpenTelemetry, bunyan and
pino, logback."""
SYSLOG_LEVELS = (7, 4, 3, 2)
"""Up to which number a level of syslog is DEBUG, WARNING, ERROR, CRITICAL: journald, GELF."""
