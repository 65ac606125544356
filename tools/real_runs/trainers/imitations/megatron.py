"""Megatron-LM under Slurm: 16 ranks on two nodes, their output in one file; what Slurm and the kernel add."""

_NODES = ("gpu-033", "gpu-041")
_SITE = "/opt/megatron/megatron"
_STEP = "StepId=771204.0"


def begin(draw):
    return [
        "using world size: 16, data-parallel size: 2, context-parallel size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 2",
        "setting global batch size to 512",
        "using torch.bfloat16 for parameters ...",
        "------------------------ arguments ------------------------",
        "  accumulate_allreduce_grads_in_fp32 .............. True",
        "  adam_beta2 ...................................... 0.95",
        "  check_for_nan_in_loss_and_grad .................. True",
        "  clip_grad ....................................... 1.0",
        "  distributed_timeout_minutes ..................... 10",
        "  seq_length ...................................... 4096",
        "-------------------- end of arguments ---------------------",
        "> building GPT2BPETokenizer tokenizer ...",
        " > padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)",
        "> initializing torch distributed ...",
        "> setting random seeds to 1234 ...",
        "time to initialize megatron (seconds): 21.884",
        "[after megatron is initialized] datetime: @BRACKET ",
        "building GPT model ...",
        *(f" > number of parameters on (tensor, pipeline) model parallel rank ({n}, 0): 862404608" for n in range(4)),
        "> learning rate decay style: cosine",
        " loading checkpoint from /lustre/ckpt/gpt-7b at iteration 49000",
        "  successfully loaded checkpoint from /lustre/ckpt/gpt-7b [ t 0, p 0 ] at iteration 49000",
        "> building train, validation, and test datasets ...",
        "done with setup ...",
        "training ...",
        "[before the start of training step] datetime: @BRACKET ",
    ]


def step(draw, number, steps):
    total = 50000 - 10 * (steps - number)
    lines = [
        f" [@BRACKET] iteration {total:8d}/   50000 | consumed samples: {512 * total:12d} | elapsed time per iteration (ms): {draw.uniform(2210, 2290):.1f} | throughput per GPU (TFLOP/s/GPU): {draw.uniform(371, 399):.1f} | learning rate: {3e-4 - number * 1e-7:.6E} | global batch size:   512 | lm loss: {draw.uniform(2.11, 2.19):.6E} | loss scale: 1.0 | grad norm: {draw.uniform(0.2, 0.5):.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    ]
    if number % 25 == 0:
        lines += [
            f"saving checkpoint at iteration {total} to /lustre/ckpt/gpt-7b in torch_dist format",
            f"  successfully saved checkpoint from iteration {total} to /lustre/ckpt/gpt-7b [ t 1/4, p 1/2 ]",
        ]
    return lines


def finish(draw):
    return [
        "[after training is done] datetime: @BRACKET ",
        "saving checkpoint at iteration 50000 to /lustre/ckpt/gpt-7b in torch_dist format",
        "  successfully saved checkpoint from iteration 50000 to /lustre/ckpt/gpt-7b [ t 1/4, p 1/2 ]",
        " validation loss at iteration 50000 on validation set | lm loss value: 2.131204E+00 | lm loss PPL: 8.425007E+00 | ",
    ]


def _trace(rank, frames, error):
    head = f"[rank{rank}]: "
    return [
        head + "Traceback (most recent call last):",
        head + '  File "/opt/megatron/pretrain_gpt.py", line 302, in <module>',
        head + "    pretrain(",
        *(head + frame for frame in frames),
        head + error,
    ]


_LOOP = [
    f'  File "{_SITE}/training/training.py", line 1612, in train_step',
    "    losses_reduced = forward_backward_func(",
]
_GRADS = [
    f'  File "{_SITE}/core/distributed/param_and_grad_buffer.py", line 328, in start_grad_sync',
    "    dist_reduce_scatter_func(",
]
_SAVE = [
    f'  File "{_SITE}/training/checkpointing.py", line 511, in save_checkpoint',
    "    dist_checkpointing.save(state_dict, checkpoint_name, save_strategy,",
]


def _srun(node, tasks, how, step=_STEP):
    return [
        f"srun: error: {node}: task{'s' if '-' in tasks else ''} {tasks}: {how}",
        "srun: Terminating " + step,
        f"slurmstepd: error: *** STEP 771204.0 ON {_NODES[0]} CANCELLED AT @TSEC ***",
    ]


def _watchdog(ranks):
    return [
        f"[rank{rank}]:[E1126 22:14:{9 + rank:02d}.771402 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=183021, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600{rank:03d} milliseconds before timing out."
        for rank in ranks
    ]


FAULTS = {
    "xid79": (
        0.6,
        [
            f"{_NODES[1]} kernel: NVRM: GPU at PCI:0000:9a:00: GPU-6b0d1c33-2a75-41e0-9f0c-0ab2e1f4c9de",
            f"{_NODES[1]} kernel: NVRM: Xid (PCI:0000:9a:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            *_trace(13, _LOOP, "RuntimeError: CUDA error: unknown error"),
            *_watchdog((2, 5)),
            *_srun(_NODES[1], "13", "Exited with exit code 1"),
        ],
        1,
    ),
    "ecc": (
        0.4,
        [
            *_trace(9, _GRADS, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
            "[rank9]: CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
            *_srun(_NODES[1], "9", "Exited with exit code 1"),
        ],
        1,
    ),
    "nvlink": (
        0.5,
        [
            f"{_NODES[0]} kernel: NVRM: Xid (PCI:0000:1b:00): 74, pid=88121, name=python3, NVLink: fatal error detected on link 5(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
            *_trace(
                1,
                _GRADS,
                "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3",
            ),
            "[rank1]: ncclUnhandledCudaError: Call to CUDA function failed.",
            "[rank1]: Last error:",
            "[rank1]: Cuda failure 719 'unspecified launch failure'",
            *_srun(_NODES[0], "1", "Exited with exit code 1"),
        ],
        1,
    ),
    "node": (
        0.7,
        [
            f"srun: error: Node failure on {_NODES[1]}",
            f"slurmstepd: error: *** JOB 771204 ON {_NODES[0]} CANCELLED AT @TSEC DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***",
        ],
        1,
    ),
    "ib": (
        0.5,
        [
            f"{_NODES[0]}:91733:92160 [3] NCCL INFO NET/IB: mlx5_3:1/IB/SHARP async event: port error",
            f"{_NODES[0]}:91733:92160 [3] transport/net_ib.cc:2271 NCCL WARN NET/IB: Got completion from peer 10.41.0.41<43125> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::e42:a1ff:fe6b:8c03 remoteGids fe80::e42:a1ff:fe6b:9d2b hca mlx5_3",
            *_trace(
                3,
                _GRADS,
                "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2024, remote process exited or there was a network error, NCCL version 2.27.3",
            ),
            "[rank3]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            *_srun(_NODES[0], "3", "Exited with exit code 1"),
        ],
        1,
    ),
    "hang": (
        0.8,
        [
            *_watchdog((0, 4, 6, 11)),
            "[rank0]:[E1126 22:14:12.002118 ProcessGroupNCCL.cpp:681] [Rank 0] To avoid data inconsistency, we are taking the entire process down.",
            *_srun(_NODES[0], "0,4,6", "Aborted (core dumped)"),
        ],
        134,
    ),
    "device-memory": (
        0.1,
        [
            *_trace(
                6,
                _LOOP,
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 6 has a total capacity of 79.11 GiB of which 811.31 MiB is free. Including non-PyTorch memory, this process has 78.30 GiB memory in use.",
            ),
            *_srun(_NODES[0], "6", "Exited with exit code 1"),
        ],
        1,
    ),
    "oom-kill": (
        0.3,
        [
            f"slurmstepd: error: Detected 1 oom_kill event in {_STEP}. Some of the step tasks have been OOM Killed.",
            f"srun: error: {_NODES[1]}: task 12: Out Of Memory",
            f"srun: Terminating {_STEP}",
        ],
        137,
    ),
    "nan": (
        0.5,
        [
            *_trace(
                0,
                [
                    f'  File "{_SITE}/core/rerun_state_machine.py", line 515, in validate_result',
                    "    raise RuntimeError(full_message)",
                ],
                "RuntimeError: Rank 0, node gpu-033, device 0, iteration 49377: Unexpected result nan (message='found NaN in local forward loss calculation')",
            ),
            *_srun(_NODES[0], "0", "Exited with exit code 1"),
        ],
        1,
    ),
    "stale": (
        0.25,
        [
            *_trace(0, _SAVE, "OSError: [Errno 116] Stale file handle: '/lustre/ckpt/gpt-7b/iter_0049250/.metadata'"),
            *_srun(_NODES[0], "0", "Exited with exit code 1"),
        ],
        1,
    ),
    "quota": (
        0.25,
        [
            *_trace(8, _SAVE, "OSError: [Errno 122] Disk quota exceeded"),
            *_srun(_NODES[1], "8", "Exited with exit code 1"),
        ],
        1,
    ),
    "limit": (
        0.9,
        [
            f"slurmstepd: error: *** STEP 771204.0 ON {_NODES[0]} CANCELLED AT @TSEC DUE TO TIME LIMIT ***",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
            f"slurmstepd: error: *** JOB 771204 ON {_NODES[0]} CANCELLED AT @TSEC DUE TO TIME LIMIT ***",
        ],
        15,
    ),
    "scancel": (
        0.4,
        [
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
            f"slurmstepd: error: *** STEP 771204.0 ON {_NODES[0]} CANCELLED AT @TSEC ***",
            f"slurmstepd: error: *** JOB 771204 ON {_NODES[0]} CANCELLED AT @TSEC ***",
        ],
        15,
    ),
    "parallel": (
        -1,
        [
            "Traceback (most recent call last):",
            '  File "/opt/megatron/pretrain_gpt.py", line 302, in <module>',
            "    pretrain(",
            f'  File "{_SITE}/training/arguments.py", line 386, in validate_args',
            "    assert args.world_size % total_model_size == 0, (",
            "AssertionError: world size (16) is not divisible by total_model_size (encoder_model_size=0 + decoder_model_size=12)",
            *_srun(_NODES[0], "0-7", "Exited with exit code 1"),
        ],
        1,
    ),
    "index": (
        -22,
        [
            *_trace(
                4,
                [
                    f'  File "{_SITE}/core/datasets/indexed_dataset.py", line 268, in __init__',
                    '    assert header == _INDEX_HEADER, f"bad header, cannot read: {idx_path}"',
                ],
                "AssertionError: bad header, cannot read: /lustre/corpora/web_00_text_document.idx",
            ),
            *_srun(_NODES[0], "4", "Exited with exit code 1"),
        ],
        1,
    ),
    "ok-silent": (1.0, [], 0),
    "ok-spike": (
        1.0,
        [
            "WARNING:megatron.core.rerun_state_machine:Unexpected result tensor(7.1204) on rank 3 at iteration #49991 invocation #1 (message='unusually large loss, possible spike')",
            " [@BRACKET] iteration    50000/   50000 | consumed samples:     25600000 | elapsed time per iteration (ms): 2251.3 | lm loss: 2.132301E+00 | loss scale: 1.0 | grad norm: 0.311 | number of skipped iterations:   1 | number of nan iterations:   0 |",
        ],
        0,
    ),
}
