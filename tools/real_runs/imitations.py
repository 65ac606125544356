"""Software that cannot be run here: what goes wrong in it, as ``trainers/imitations`` print it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tools.real_runs.frameworks import Framework
from tools.real_runs.scenarios import Scenario, Truth


def imitated(
    name: str,
    faults: Mapping[str, Mapping[str, Any]],
    healthy: tuple[str, ...],
    truths: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    launchers: tuple[str, ...] = (),
) -> Framework:
    """faults: name -> type, marker, why and more of the truth. truths: changes of the truths of healthy ends.
    launchers: those under which the software is met; all when empty."""
    module = name.lower().replace(" ", "_")
    scenarios = [
        Scenario(fault, Truth(**truth), arguments=(module, "--fault", fault)) for fault, truth in faults.items()
    ]
    done = Truth("completed", "clean run", outcome="completed")
    ends = [Scenario(end, done, arguments=(module, "--fault", end)) for end in ("ok", "ok-long", *healthy)]
    ends[1] = Scenario("ok-long", done, arguments=(module, "--fault", "ok", "--steps", "400"))
    return Framework(
        name,
        "tabular",
        "imitations/imitate.py",
        "python",
        faults=(*scenarios, *ends),
        single=True,
        imitation=True,
        truths=truths,
        settings={"logger": "", "launchers": launchers},
    )


def truth_of(type_: str, marker: str, why: str, **more: Any) -> Mapping[str, Any]:
    return {"type": type_, "marker": marker, "why": why, **more}


_VLLM = {
    "memory": truth_of(
        "out_of_memory_error",
        r"torch\.OutOfMemoryError: CUDA out of memory",
        "a worker runs out of device memory",
        rank=1,
    ),
    "illegal": truth_of(
        "cuda_error",
        r"an illegal memory access was encountered",
        "a kernel of a worker reads where it may not",
        recovery="resubmit",
        rank=1,
    ),
    "nccl": truth_of(
        "nccl_remote_error",
        r"NCCL error: remote process exited",
        "a remote process of the group is gone",
        recovery="check_and_resubmit",
        rank=0,
    ),
    "kv-cache": truth_of(
        "configuration_error",
        r"ValueError: To serve at least one request",
        "max_model_len does not fit the memory of the cache",
        also=("value_error", "out_of_memory_error"),
    ),
    "header": truth_of("model_loading_error", r"SafetensorError", "a shard of the weights is cut short", rank=0),
    "option": truth_of("argument_error", r"error: unrecognized arguments", "an option that does not exist"),
    "port": truth_of("connection_error", r"Address already in use", "the port is taken"),
    "architecture": truth_of(
        "configuration_error",
        r"ValidationError: 1 validation error|Model architectures",
        "the architecture is not supported",
        also=("value_error", "model_loading_error"),
    ),
    "worker-killed": truth_of(
        "host_out_of_memory",
        r"died unexpectedly",
        "a worker was killed, and nothing says by what",
        also=("called_process_error",),
        visible=False,
    ),
    "import": truth_of("import_error", r"ImportError: libcudart", "a CUDA library is not installed"),
}
_SGLANG = {
    "memory": truth_of("out_of_memory_error", r"torch\.OutOfMemoryError", "a rank runs out of device memory", rank=1),
    "static": truth_of(
        "configuration_error",
        r"RuntimeError: Not enough memory\. Please try to increase --mem-fraction",
        "mem_fraction_static is too small",
        also=("out_of_memory_error", "runtime_error"),
        rank=0,
    ),
    "divisible": truth_of(
        "configuration_error",
        r"ValueError: Total number of attention heads",
        "the heads do not fit the tensor parallel size",
        also=("value_error",),
        rank=1,
    ),
    "weights": truth_of("model_loading_error", r"SafetensorError", "the header of the weights is bad", rank=1),
    "token": truth_of("key_error", r"KeyError: 'image_grid_thw'", "a key of a multimodal input is missing", rank=0),
    "launch": truth_of(
        "cuda_error", r"CUDA error: unspecified launch failure", "a kernel failed", recovery="resubmit", rank=1
    ),
    "watchdog": truth_of(
        "nccl_timeout_error",
        r"Watchdog timeout",
        "a forward pass hangs",
        recovery="check_and_resubmit",
        also=("runtime_error",),
        rank=1,
    ),
    "missing": truth_of(
        "model_loading_error",
        r"OSError: /models",
        "the folder of the model has no config.json",
        also=("os_error", "file_not_found_error"),
    ),
}
_VERL = {
    "memory": truth_of(
        "out_of_memory_error",
        r"torch\.OutOfMemoryError",
        "a worker runs out of device memory in the update",
        node="10.1.0.35",
    ),
    "reward": truth_of("key_error", r"^KeyError: 'ground_truth'", "the data have no ground truth"),
    "batch": truth_of(
        "configuration_error",
        r"AssertionError: real_train_batch_size",
        "the batch size does not fit the parallelism",
        also=("assertion_error",),
    ),
    "override": truth_of(
        "configuration_error", r"Could not override|is not in struct", "an override of a key that does not exist"
    ),
    "parquet": truth_of(
        "file_not_found_error", r"^FileNotFoundError", "the data set is not there", also=("dataset_loading_error",)
    ),
    "actor-died": truth_of(
        "host_out_of_memory",
        r"A worker died or was killed|ActorDiedError|actor is dead because its worker process has died",
        "a worker was killed, and Ray cannot say by what",
        visible=False,
        also=("called_process_error", "segmentation_fault"),
        node="10.1.0.35",
    ),
    "ray-oom": truth_of(
        "host_out_of_memory",
        r"killed due to memory pressure|killed due to the node running low|[Mm]emory on the node",
        "Ray kills a worker as the node runs out of memory",
        node="10.1.0.35",
    ),
    "nan": truth_of(
        "loss_divergence",
        r"pg_loss:nan|grad_norm is not finite",
        "the loss is no number to the end",
        recovery="rollback_and_resubmit",
    ),
}
_OPENRLHF = {
    "memory": truth_of("out_of_memory_error", r"torch\.OutOfMemoryError", "the policy runs out of device memory"),
    "label": truth_of("key_error", r"^KeyError: 'answer'", "the label's key is not in the data"),
    "remote-reward": truth_of(
        "connection_error", r"Connection refused|Exception: Request error", "the reward server refuses the connection"
    ),
    "group-timeout": truth_of(
        "nccl_timeout_error",
        r"Watchdog caught collective operation timeout",
        "a collective hangs",
        recovery="check_and_resubmit",
        rank=3,
    ),
    "arguments": truth_of("argument_error", r"error: argument --advantage_estimator", "a value that is no choice"),
    "assertion": truth_of(
        "configuration_error",
        r"AssertionError: rollout_batch_size",
        "batch sizes that do not fit",
        also=("assertion_error",),
    ),
    "state": truth_of(
        "model_loading_error",
        r"Error\(s\) in loading state_dict|size mismatch for",
        "the checkpoint is of another vocabulary",
    ),
}
_SPARK = {
    "executor-memory": truth_of(
        "host_out_of_memory",
        r"Container killed by YARN for exceeding physical memory",
        "YARN kills an executor",
        node="gpu-015",
    ),
    "heap": truth_of(
        "host_out_of_memory", r"OutOfMemoryError: Java heap space", "the heap of an executor is full", node="gpu-016"
    ),
    "cell": truth_of(
        "dataset_loading_error",
        r"NumberFormatException",
        "a cell of the table is no number",
        also=("value_error",),
        node="gpu-014",
    ),
    "disk": truth_of("disk_full", r"No space left on device", "the disk of an executor is full", node="gpu-015"),
    "fetch": truth_of(
        "connection_error",
        r"FetchFailed|Failed to connect to",
        "a shuffle block cannot be fetched",
        also=("network_error",),
    ),
    "path": truth_of(
        "file_not_found_error", r"PATH_NOT_FOUND", "the path does not exist", also=("dataset_loading_error",)
    ),
    "column": truth_of(
        "key_error",
        r"UNRESOLVED_COLUMN",
        "a column that there is not",
        also=("name_error", "value_error", "dataset_loading_error"),
    ),
    "udf": truth_of(
        "index_error",
        r"IndexError: list index out of range",
        "a function of the user reads behind a list",
        node="gpu-014",
    ),
    "denied": truth_of(
        "permission_error", r"AccessControlException: Permission denied", "the model may not be written"
    ),
}
_NEXTFLOW = {
    "key": truth_of("key_error", r"KeyError: 'target'", "a fold's table lacks a column"),
    "killed": truth_of(
        "host_out_of_memory", r"oom_kill event|\bKilled\b|error exit status \(137\)", "a fold is killed for its memory"
    ),
    "time": truth_of(
        "time_limit",
        r"DUE TO TIME LIMIT",
        "a fold reaches its time limit",
        outcome="time_limit",
        recovery="none",
        node="gpu-027",
    ),
    "module": truth_of("import_error", r"ModuleNotFoundError", "a module is not installed"),
    "parameter": truth_of(
        "name_error", r"No such variable: outDir", "an undefined parameter", also=("configuration_error",)
    ),
    "input": truth_of("file_not_found_error", r"No such file or directory: /data/folds", "the sample sheet is missing"),
    "missing-output": truth_of(
        "file_not_found_error",
        r"Missing output file",
        "a fold wrote no model",
        also=("called_process_error", "runtime_error"),
    ),
    "image": truth_of(
        "container_runtime_error",
        r"manifest unknown|While making image",
        "the image cannot be had",
        recovery="resubmit",
    ),
}
_AIRFLOW = {
    "type": truth_of("type_error", r"TypeError: unsupported operand", "text among numbers"),
    "nan-input": truth_of("value_error", r"ValueError: Input X contains NaN", "empty cells"),
    "database": truth_of(
        "connection_error", r"OperationalError: connection to server", "the warehouse refuses the connection"
    ),
    "attribute": truth_of("attribute_error", r"AttributeError: 'DataFrame'", "a method that pandas no longer has"),
    "zombie": truth_of(
        "node_failure",
        r"Detected zombie job",
        "the task's heartbeat stopped, and nothing says why",
        visible=False,
        also=("host_out_of_memory", "called_process_error"),
    ),
    "killed": truth_of(
        "host_out_of_memory", r"return code -9|killed before it finished", "the task is killed for its memory"
    ),
    "externally-set": truth_of(
        "cancelled",
        r"externally set to failed|Received SIGTERM",
        "a person marked the task as failed",
        outcome="cancelled",
        recovery="none",
    ),
    "timeout": truth_of(
        "time_limit",
        r"Process timed out|AirflowTaskTimeout",
        "the task reaches its execution timeout",
        outcome="time_limit",
        recovery="none",
    ),
}
_OPEN_END = {"ok-silent": {"visible": False}}
"""A server has no last step: a log that just stops shows no end."""
IMITATIONS: tuple[Framework, ...] = (
    imitated("vllm", _VLLM, ("ok-bad-requests", "ok-silent"), _OPEN_END),
    imitated("sglang", _SGLANG, ("ok-retract", "ok-silent"), _OPEN_END),
    imitated("verl", _VERL, ("ok-preempted-rollout", "ok-silent")),
    imitated("openrlhf", _OPENRLHF, ("ok-retry", "ok-silent")),
    imitated("spark", _SPARK, ("ok-lost-task", "ok-silent"), _OPEN_END),
    imitated("nextflow", _NEXTFLOW, ("ok-retry", "ok-silent")),
    imitated("airflow", _AIRFLOW, ("ok-warned",)),
)
