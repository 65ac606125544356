"""NeMo on Kubernetes: Lightning's bar and logger on 2 nodes, events of the cluster among the lines."""

_SITE = "/opt/NeMo/nemo"


def begin(draw):
    return [
        "[NeMo I @BRACKET exp_manager:450] ExpManager schema",
        "[NeMo W @BRACKET exp_manager:946] There were no checkpoints found in checkpoint_dir or no checkpoint folder at checkpoint_dir :/results/nemo-15b/checkpoints. Training from scratch.",
        "[NeMo I @BRACKET exp_manager:509] Experiments will be logged at /results/nemo-15b",
        "GPU available: True (cuda), used: True",
        "TPU available: False, using: 0 TPU cores",
        "[NeMo I @BRACKET megatron_init:314] Rank 0 has data parallel group : [0, 4, 8, 12]",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/16",
        "----------------------------------------------------------------------------------------------------",
        "distributed_backend=nccl",
        "All distributed processes registered. Starting with 16 processes",
        "----------------------------------------------------------------------------------------------------",
        "[NeMo I @BRACKET megatron_gpt_model:1290] Building GPT datasets.",
        "[NeMo I @BRACKET gpt_dataset:120] Finished building GPT datasets.",
        "LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES: [0,1,2,3,4,5,6,7]",
        "[NeMo I @BRACKET nlp_overrides:1042] 15B parameters, 0 frozen",
        "Sanity Checking DataLoader 0: 100%|██████████| 2/2 [00:31<00:00, 15.6s/it]",
    ]


def step(draw, number, steps):
    lines = [
        f"Epoch 0: :  {100 * number // steps:3d}%|{'█' * (10 * number // steps):<10}| {number}/{steps} [{number // 4:02d}:{number % 60:02d}<{(steps - number) // 4:02d}:11, v_num=3, reduced_train_loss={max(2.4, 9.8 - number * 0.06) + draw.uniform(-0.05, 0.05):.3f}, global_step={number}.0, consumed_samples={256 * number}.0, train_step_timing in s={draw.uniform(7.9, 8.2):.2f}]"
    ]
    if number % 30 == 0:
        lines.append(
            f"Epoch 0, global step {number}: 'val_loss' reached {max(2.3, 9.5 - number * 0.06):.5f} (best {max(2.3, 9.5 - number * 0.06):.5f}), saving model to '/results/nemo-15b/checkpoints/step={number}.ckpt' as top 3"
        )
    return lines


def finish(draw):
    return [
        "`Trainer.fit` stopped: `max_steps` reached.",
        "[NeMo I @BRACKET train_script_utils:92] destroying process group",
    ]


def _trace(frames, error):
    return [
        "Error executing job with overrides: ['trainer.num_nodes=2', 'model.micro_batch_size=2']",
        "Traceback (most recent call last):",
        '  File "/opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py", line 43, in main',
        "    trainer.fit(model)",
        *frames,
        error,
        "",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    ]


_STEP = [
    f'  File "{_SITE}/collections/nlp/models/language_modeling/megatron_gpt_model.py", line 801, in training_step',
    "    loss_mean = self.fwd_bwd_step(dataloader_iter, False)",
]
FAULTS = {
    "pull": (
        -1,
        [
            'Warning  Failed     12s (x4 over 2m)  kubelet  Failed to pull image "registry.acme.example/nemo:25.09": failed to resolve reference: unexpected status code 403 Forbidden',
            "Warning  Failed     12s (x4 over 2m)  kubelet  Error: ErrImagePull",
            "Warning  Failed     1s (x6 over 2m)   kubelet  Error: ImagePullBackOff",
        ],
        1,
    ),
    "runtime": (
        -1,
        [
            "Error: failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error running hook #0: nvidia-container-cli: initialization error: driver rpc error: timed out: unknown"
        ],
        128,
    ),
    "not-ready": (
        0.6,
        [
            "Normal   NodeNotReady         node/gpu-027  Node gpu-027 status is now: NodeNotReady",
            "Warning  TaintManagerEviction pod/nemo-15b-worker-1  Marking for deletion Pod research/nemo-15b-worker-1",
            "[rank3]:[E1126 22:40:10.331829115 ProcessGroupNCCL.cpp:1146] [Rank 3] ProcessGroupNCCL watchdog: remote process exited",
        ],
        1,
    ),
    "aer": (
        0.5,
        [
            "gpu-027 kernel: pcieport 0000:40:01.1: AER: Uncorrectable (Fatal) error message received from 0000:41:00.0",
            "gpu-027 kernel: nvidia 0000:41:00.0: AER: device recovery failed",
            *_trace(_STEP, "RuntimeError: CUDA error: unspecified launch failure"),
        ],
        1,
    ),
    "evicted": (
        0.4,
        [
            "Warning  Evicted  pod/nemo-15b-worker-0  The node was low on resource: ephemeral-storage. Threshold quantity: 53687091200, available: 48121016Ki."
        ],
        137,
    ),
    "oom-killed": (
        0.35,
        [
            "    State:          Terminated",
            "      Reason:       OOMKilled",
            "      Exit Code:    137",
            "      Finished:     Thu, 26 Nov 2026 22:51:09 +0000",
        ],
        137,
    ),
    "lustre": (
        0.5,
        [
            "gpu-014 kernel: LustreError: 11-0: scratch-OST0012-osc-ffff9b1c: operation ost_write to node 10.3.9.12@o2ib failed: rc = -107",
            *_trace(
                [
                    f'  File "{_SITE}/utils/callbacks/nemo_model_checkpoint.py", line 392, in _save_checkpoint',
                    "    trainer.save_checkpoint(filepath, self.save_weights_only)",
                ],
                "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/results/nemo-15b/checkpoints/step=60.ckpt'",
            ),
        ],
        1,
    ),
    "hydra": (
        -1,
        [
            "Could not override 'model.optim.wd'.",
            "To append to your config use +model.optim.wd=0.01",
            "Key 'wd' is not in struct",
            "    full_key: model.optim.wd",
            "    object_type=dict",
            "",
            "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
        ],
        1,
    ),
    "mandatory": (
        -1,
        _trace([], "omegaconf.errors.MissingMandatoryValue: Missing mandatory value: model.data.data_prefix"),
        1,
    ),
    "nan": (
        0.5,
        _trace(
            [
                f'  File "{_SITE}/collections/nlp/parts/nlp_overrides.py", line 1310, in optimizer_step',
                "    raise RuntimeError(msg)",
            ],
            "RuntimeError: Detected NaN in gradients of 212 parameters at global step @DONE, stopping",
        ),
        1,
    ),
    "tokenizer": (
        -10,
        _trace([], "RuntimeError: Internal: could not parse ModelProto from /data/tokenizers/spm_15b.model"),
        1,
    ),
    "workers": (
        0.3,
        _trace(
            [*_STEP],
            "RuntimeError: DataLoader worker (pid 1312) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        ),
        1,
    ),
    "preempted": (
        0.6,
        [
            "Warning  Preempted  pod/nemo-15b-worker-0  Preempted by pod 1b0cc5cf on node gpu-014",
            "[NeMo I @BRACKET preemption:88] Received Signals.SIGTERM death signal, saving a checkpoint before exiting",
        ],
        143,
    ),
    "max-time": (
        0.8,
        [
            "`Trainer.fit` stopped: `max_time` reached. Elapsed time is 0 days, 03:50:00",
            "[NeMo I @BRACKET exp_manager:1230] Stateless timer: time limit reached",
        ],
        0,
    ),
    "ok-silent": (1.0, [], 0),
    "ok-retried": (
        1.0,
        [
            "[NeMo W @BRACKET nemo_logging:405] /usr/local/lib/python3.12/dist-packages/wandb/sdk/internal/sender.py:312: UserWarning: wandb: Network error (ConnectionError), entering retry loop.",
            "[NeMo I @BRACKET nemo_logging:393] wandb: Network error resolved after 0:00:31.204, resuming normal operation.",
        ],
        0,
    ),
}
