"""torchtitan under torchrun on a host of 8 GPUs; only the first rank logs."""

_SITE = "/opt/venv/lib/python3.12/site-packages"


def begin(draw):
    return [
        "[rank0]:[titan] @BRACKET,114 - root - INFO - Starting job: Llama 3 8B training",
        "[rank0]:[titan] @BRACKET,402 - root - WARNING - ENV[TORCH_NCCL_ASYNC_ERROR_HANDLING] = 1 will be overridden to 3 based on job config",
        "[rank0]:[titan] @BRACKET,871 - root - INFO - Building 1-D device mesh with ['dp_shard'], [8]",
        "[rank0]:[titan] @BRACKET,113 - root - INFO - Preparing c4 dataset from allenai/c4",
        "[rank0]:[titan] @BRACKET,540 - root - INFO - Building llama3 8B with TransformerModelArgs(dim=4096, n_layers=32, n_heads=32)",
        "[rank0]:[titan] @BRACKET,664 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.11GiB memory",
        "[rank0]:[titan] @BRACKET,702 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters",
        "[rank0]:[titan] @BRACKET,931 - root - INFO - Applied FSDP to the model",
        "[rank0]:[titan] @BRACKET,012 - root - INFO - Checkpointing active. Checkpoints will be loaded from and saved to ./outputs/checkpoint",
        "[rank0]:[titan] @BRACKET,338 - root - INFO - Training starts at step 1.",
    ]


def step(draw, number, steps):
    lines = [
        f"[rank0]:[titan] @BRACKET,{draw.randrange(100, 999)} - root - INFO - step: {number:2d}  loss: {max(3.1, 12.2 - number * 0.08) + draw.uniform(-0.1, 0.1):7.4f}  grad_norm: {draw.uniform(0.8, 3):7.4f}  memory: 48.40GiB(61.18%)  tps: {draw.randrange(6900, 7200):,}  tflops: {draw.uniform(403, 411):.2f}  mfu: {draw.uniform(40, 42):.2f}%"
    ]
    if number % 40 == 0:
        lines += [
            "[rank0]:[titan] @BRACKET,201 - root - INFO - Saving the checkpoint (or staging if async is enabled).",
            "[rank0]:[titan] @BRACKET,611 - root - INFO - Finished saving the checkpoint (or staging if async is enabled)in 9.41 seconds.",
        ]
    return lines


def finish(draw):
    return [
        "[rank0]:[titan] @BRACKET,871 - root - INFO - Sleeping 2 seconds for other ranks to complete",
        "[rank0]:[titan] @BRACKET,907 - root - INFO - Training completed",
        "[rank0]:[titan] @BRACKET,944 - root - INFO - Process group destroyed",
    ]


def _trace(rank, frames, error):
    return [
        f"[rank{rank}]: Traceback (most recent call last):",
        f'[rank{rank}]:   File "/opt/torchtitan/torchtitan/train.py", line 578, in train',
        f"[rank{rank}]:     self.train_step(data_iterator)",
        *(f"[rank{rank}]: {frame}" for frame in frames),
        f"[rank{rank}]: {error}",
    ]


def _elastic(rank, code, signal=""):
    told = f" ({signal})" if signal else ""
    return [
        f"E1126 @SECONDS118 3011 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) local_rank: {rank} (pid: {3040 + rank}) of binary: /opt/venv/bin/python3",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "============================================================",
        "torchtitan.train FAILED",
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        "  host      : gpu-027",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: {3040 + rank}){told}",
        "============================================================",
    ]


_FORWARD = [
    f'  File "{_SITE}/torch/nn/modules/module.py", line 1784, in _call_impl',
    "    return forward_call(*args, **kwargs)",
]
FAULTS = {
    "memory": (
        0.1,
        [
            *_trace(
                3,
                _FORWARD,
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 3 has a total capacity of 79.11 GiB of which 1.02 GiB is free.",
            ),
            *_elastic(3, 1),
        ],
        1,
    ),
    "illegal": (
        0.6,
        [
            *_trace(5, _FORWARD, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
            *_elastic(5, 1),
        ],
        1,
    ),
    "driver": (
        -3,
        [
            *_trace(
                0,
                [f'  File "{_SITE}/torch/cuda/__init__.py", line 412, in _lazy_init', "    torch._C._cuda_init()"],
                "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
            ),
            *_elastic(0, 1),
        ],
        1,
    ),
    "row-remap": (
        0.5,
        [
            "gpu-027 kernel: [81344.120021] NVRM: Xid (PCI:0000:4c:00): 64, pid=3042, name=python3, Failed to remap row: bank 0x1, row 0x2d31",
            *_trace(2, _FORWARD, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
            *_elastic(2, 1),
        ],
        1,
    ),
    "gsp": (
        0.4,
        [
            "gpu-027 kernel: [40911.775310] NVRM: Xid (PCI:0000:5d:00): 119, pid=3046, name=python3, Timeout after 6s of waiting for RPC response from GPU6 GSP! Expected function 76 (GSP_RM_CONTROL).",
            *_trace(6, _FORWARD, "RuntimeError: CUDA error: unknown error"),
            *_elastic(6, 1),
        ],
        1,
    ),
    "killed": (0.7, _elastic(4, -9, "SIGKILL"), 1),
    "segv": (
        0.3,
        [
            "[rank1]:Fatal Python error: Segmentation fault",
            "[rank1]:Current thread 0x00007f91aa5fd640 (most recent call first):",
            f'[rank1]:  File "{_SITE}/torch/_inductor/runtime/triton_heuristics.py", line 1210 in launcher',
            *_elastic(1, -11, "SIGSEGV"),
        ],
        1,
    ),
    "timeout": (
        0.5,
        [
            "[rank7]:[E1126 22:01:07.118220201 ProcessGroupNCCL.cpp:685] [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4410, OpType=_ALLGATHER_BASE, NumelIn=27262976, NumelOut=218103808, Timeout(ms)=100000) ran for 100029 milliseconds before timing out.",
            "[rank7]:[E1126 22:01:07.118491002 ProcessGroupNCCL.cpp:739] [Rank 7] To avoid data inconsistency, we are taking the entire process down.",
            *_elastic(7, -6, "SIGABRT"),
        ],
        1,
    ),
    "rendezvous": (
        -1,
        [
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.3.0.14, 29500)."
        ],
        1,
    ),
    "mesh": (
        -3,
        [
            *_trace(
                0,
                [
                    '  File "/opt/torchtitan/torchtitan/distributed/parallel_dims.py", line 61, in _validate',
                    "    raise ValueError(msg)",
                ],
                "AssertionError: Invalid parallel dims: dp_replicate(1) * dp_shard(4) * cp(1) * tp(4) * pp(1) != WORLD_SIZE(8)",
            ),
            *_elastic(0, 1),
        ],
        1,
    ),
    "toml": (-1, ["tomllib.TOMLDecodeError: Cannot overwrite a value (at line 31, column 22)"], 1),
    "input-output": (
        0.45,
        [
            *_trace(
                0,
                [
                    f'  File "{_SITE}/torch/distributed/checkpoint/filesystem.py", line 431, in _write_item',
                    "    torch.save(tensor, stream)",
                ],
                "OSError: [Errno 5] Input/output error: './outputs/checkpoint/step-40/__0_0.distcp'",
            ),
            *_elastic(0, 1),
        ],
        1,
    ),
    "checkpoint": (
        -9,
        [
            *_trace(
                0,
                [
                    f'  File "{_SITE}/torch/distributed/checkpoint/default_planner.py", line 471, in create_default_local_load_plan',
                    '    raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")',
                ],
                "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0]) Missing key in checkpoint state_dict: layers.31.attention.wq.weight.",
            ),
            *_elastic(0, 1),
        ],
        1,
    ),
    "nan-goes-on": (
        1.0,
        [
            *(
                f"[rank0]:[titan] @BRACKET,411 - root - INFO - step: @DONE+{n}  loss:     nan  grad_norm:     nan  memory: 48.40GiB(61.18%)  tps: 7,011  tflops: 406.02  mfu: 41.06%"
                for n in range(1, 40)
            )
        ],
        0,
    ),
    "ok-silent": (1.0, [], 0),
    "ok-warned": (1.0, ["[rank0]:[titan] @BRACKET,700 - root - WARNING - Dataset c4 is being re-looped"], 0),
}
