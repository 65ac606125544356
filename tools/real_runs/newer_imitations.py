"""Software of the second generation that cannot be run here: what goes wrong in it."""

from tools.real_runs.frameworks import Framework
from tools.real_runs.imitations import imitated, truth_of

_CHECK, _AGAIN = "check_and_resubmit", "resubmit"
_MEGATRON = {
    "xid79": truth_of(
        "gpu_lost", r"Xid \(PCI:0000:9a:00\): 79", "a GPU falls off the bus", recovery=_CHECK, node="gpu-041", rank=13
    ),
    "ecc": truth_of(
        "ecc_error",
        r"uncorrectable ECC error encountered",
        "memory of a GPU is broken",
        recovery=_CHECK,
        rank=9,
        node="gpu-041",
    ),
    "nvlink": truth_of(
        "nvlink_error",
        r"Xid \(PCI:0000:1b:00\): 74",
        "a link between GPUs fails",
        recovery=_CHECK,
        node="gpu-033",
        rank=1,
    ),
    "node": truth_of("node_failure", r"Node failure on gpu-041", "a node is lost", recovery=_CHECK, node="gpu-041"),
    "ib": truth_of(
        "network_error",
        r"async event: port error|Got completion from peer",
        "a port of InfiniBand fails",
        recovery=_CHECK,
        node="gpu-033",
        rank=3,
        also=("nccl_remote_error",),
    ),
    "hang": truth_of(
        "nccl_timeout_error", r"Watchdog caught collective operation timeout", "a collective hangs", recovery=_CHECK
    ),
    "device-memory": truth_of(
        "out_of_memory_error", r"torch\.OutOfMemoryError", "a GPU is full", rank=6, node="gpu-033"
    ),
    "oom-kill": truth_of(
        "host_out_of_memory", r"Detected 1 oom_kill event", "the kernel kills a rank", rank=12, node="gpu-041"
    ),
    "nan": truth_of(
        "loss_divergence",
        r"Unexpected result nan",
        "the loss is no number",
        rank=0,
        node="gpu-033",
        recovery="rollback_and_resubmit",
    ),
    "stale": truth_of(
        "filesystem_error",
        r"\[Errno 116\] Stale file handle",
        "the file system is gone",
        recovery=_CHECK,
        rank=0,
        node="gpu-033",
    ),
    "quota": truth_of(
        "disk_full",
        r"\[Errno 122\] Disk quota exceeded",
        "the quota is used up",
        recovery="notify_user",
        rank=8,
        node="gpu-041",
    ),
    "limit": truth_of("time_limit", r"DUE TO TIME LIMIT", "Slurm's limit", outcome="time_limit", recovery="none"),
    "scancel": truth_of("cancelled", r"CANCELLED AT", "a person cancels the job", outcome="cancelled", recovery="none"),
    "parallel": truth_of(
        "configuration_error", r"AssertionError: world size \(16\)", "sizes that do not fit", also=("assertion_error",)
    ),
    "index": truth_of(
        "dataset_loading_error",
        r"AssertionError: bad header",
        "the index of the corpus is broken",
        rank=4,
        node="gpu-033",
        also=("assertion_error",),
    ),
}
_MAXTEXT = {
    "hbm": truth_of("out_of_memory_error", r"RESOURCE_EXHAUSTED", "the program does not fit the memory of the chip"),
    "heartbeat": truth_of(
        "node_failure",
        r"tasks are unhealthy|task:3$|Polled an error from coordination",
        "a task is gone, and nothing says why",
        recovery=_CHECK,
        visible=False,
        also=("connection_error", "nccl_remote_error", "network_error", "host_out_of_memory", "runtime_error"),
    ),
    "gcs": truth_of("s3_storage_error", r"ServiceUnavailable: 503 POST", "the object store fails", recovery=_AGAIN),
    "forbidden": truth_of(
        "s3_storage_error",
        r"exceptions\.Forbidden: 403",
        "the bucket may not be listed",
        recovery="notify_user",
        also=("permission_error",),
    ),
    "preempted": truth_of(
        "preempted",
        r"Preemption occurred at step|SIGTERM caught at",
        "the VM is reclaimed",
        outcome="preempted",
        recovery="none",
    ),
    "nan": truth_of(
        "loss_divergence", r"learning/loss is nan|loss: nan", "the loss is no number", recovery="rollback_and_resubmit"
    ),
    "nan-goes-on": truth_of(
        "loss_divergence", r"loss: nan", "the loss is no number to the end", recovery="rollback_and_resubmit"
    ),
    "flag": truth_of(
        "configuration_error",
        r"Key per_device_batchsize was passed",
        "a setting that there is not",
        also=("argument_error", "value_error"),
    ),
    "mesh": truth_of(
        "configuration_error", r"ici parallelism product 32", "a mesh that does not fit", also=("assertion_error",)
    ),
    "grain": truth_of(
        "dataset_loading_error", r"Corrupted chunk at position", "a part of the corpus is broken", also=("value_error",)
    ),
    "sharding": truth_of(
        "value_error",
        r"ValueError: One of pjit arguments",
        "an array that the mesh does not divide",
        also=("configuration_error",),
    ),
    "libtpu": truth_of(
        "gpu_driver_error",
        r"Unable to initialize backend 'tpu'",
        "the chips may not be opened",
        recovery=_CHECK,
        also=("runtime_error", "permission_error", "container_runtime_error"),
    ),
    "restore": truth_of(
        "model_loading_error", r"tree structures do not match", "a checkpoint of another model", also=("value_error",)
    ),
}
FIRST: tuple[Framework, ...] = (
    imitated(
        "megatron",
        _MEGATRON,
        ("ok-spike", "ok-silent"),
        launchers=("plain", "kubectl --prefix --timestamps"),
    ),
    imitated(
        "maxtext",
        _MAXTEXT,
        ("ok-retried", "ok-silent"),
        {"ok-silent": {"visible": False}},
        launchers=("plain", "vertex", "filebeat", "kubectl --prefix --timestamps"),
    ),
)

_TORCHTITAN = {
    "memory": truth_of("out_of_memory_error", r"torch\.OutOfMemoryError", "a GPU is full", rank=3),
    "illegal": truth_of(
        "cuda_error", r"an illegal memory access", "a kernel reads where it may not", recovery=_AGAIN, rank=5
    ),
    "driver": truth_of(
        "gpu_driver_error", r"CUDA driver initialization failed", "the driver fails", recovery=_CHECK, rank=0
    ),
    "row-remap": truth_of(
        "ecc_error", r"\): 64, pid", "a row cannot be remapped", recovery=_CHECK, rank=2, node="gpu-027"
    ),
    "gsp": truth_of(
        "gpu_driver_error", r"\): 119, pid", "the GSP does not answer", recovery=_CHECK, rank=6, node="gpu-027"
    ),
    "killed": truth_of("host_out_of_memory", r"exitcode: -9\)|SIGKILL", "a rank is killed", rank=4),
    "segv": truth_of("segmentation_fault", r"Segmentation fault|exitcode: -11\)", "native code fails", rank=1),
    "timeout": truth_of(
        "nccl_timeout_error", r"Watchdog caught collective", "a collective hangs", recovery=_CHECK, rank=7
    ),
    "rendezvous": truth_of(
        "connection_error",
        r"client socket has timed out",
        "the store does not answer",
        recovery=_AGAIN,
        also=("network_error",),
    ),
    "mesh": truth_of(
        "configuration_error", r"Invalid parallel dims", "a mesh that does not fit", also=("assertion_error",), rank=0
    ),
    "toml": truth_of(
        "configuration_error", r"TOMLDecodeError", "settings that are no TOML", also=("value_error", "syntax_error")
    ),
    "input-output": truth_of(
        "filesystem_error", r"\[Errno 5\] Input/output error", "a checkpoint cannot be written", recovery=_CHECK, rank=0
    ),
    "checkpoint": truth_of("model_loading_error", r"CheckpointException: .*Missing key", "a weight is missing", rank=0),
    "nan-goes-on": truth_of(
        "loss_divergence", r"loss: +nan", "the loss is no number to the end", recovery="rollback_and_resubmit"
    ),
}
_NEMO = {
    "pull": truth_of(
        "container_runtime_error",
        r"Failed to pull image|ErrImagePull",
        "the image cannot be pulled",
        recovery="notify_user",
    ),
    "runtime": truth_of(
        "container_runtime_error",
        r"nvidia-container-cli",
        "the container cannot be made",
        recovery=_AGAIN,
        also=("gpu_driver_error",),
    ),
    "not-ready": truth_of("node_failure", r"NodeNotReady", "a node is lost", recovery=_CHECK, node="gpu-027"),
    "aer": truth_of("host_hardware_error", r"AER: ", "the bus of a node fails", recovery=_CHECK, node="gpu-027"),
    "evicted": truth_of(
        "disk_full",
        r"low on resource: ephemeral-storage",
        "the disk of a node is full",
        recovery=_CHECK,
        also=("preempted",),
    ),
    "oom-killed": truth_of("host_out_of_memory", r"OOMKilled|Exit Code: +137", "the pod is killed for its memory"),
    "lustre": truth_of(
        "filesystem_error", r"LustreError|\[Errno 108\]", "the file system fails", recovery=_CHECK, node="gpu-014"
    ),
    "hydra": truth_of(
        "configuration_error",
        r"Could not override|is not in struct",
        "a setting that there is not",
        also=("key_error",),
    ),
    "mandatory": truth_of("configuration_error", r"MissingMandatoryValue", "a setting is missing"),
    "nan": truth_of(
        "loss_divergence", r"Detected NaN in gradients", "gradients are no numbers", recovery="rollback_and_resubmit"
    ),
    "tokenizer": truth_of(
        "model_loading_error",
        r"could not parse ModelProto",
        "the tokenizer is broken",
        also=("runtime_error", "dataset_loading_error"),
    ),
    "workers": truth_of("dataloader_killed", r"DataLoader worker \(pid 1312\)", "shared memory is full"),
    "preempted": truth_of(
        "preempted",
        r"Preempted  pod|SIGTERM death signal",
        "the pod is preempted",
        outcome="preempted",
        recovery="none",
    ),
    "max-time": truth_of(
        "time_limit", r"max_time` reached", "the trainer's time limit", outcome="time_limit", recovery="none"
    ),
}
SECOND: tuple[Framework, ...] = (
    imitated(
        "torchtitan",
        _TORCHTITAN,
        ("ok-warned", "ok-silent"),
        {"ok-silent": {"visible": False}},
        launchers=("ts", "tai64n", "pbs", "aws batch"),
    ),
    imitated("nemo", _NEMO, ("ok-retried", "ok-silent"), launchers=("ts", "tai64n", "jenkins", "argo")),
)
