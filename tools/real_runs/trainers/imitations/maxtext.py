"""MaxText on TPU slices: JAX and absl under a JobSet of Kubernetes."""

_SITE = "/usr/local/lib/python3.12/site-packages"


def begin(draw):
    return [
        "I1126 @SECONDS118 137204881 max_utils.py:238] Attempting to initialize the jax distributed system for GKE TPU...",
        "I1126 @SECONDS118 137204881 distributed.py:149] Connecting to JAX distributed service on train-slice-0-0.train:8476",
        "I1126 @SECONDS118 137204881 max_utils.py:252] Jax distributed system initialized on TPU!",
        "Config param base_emb_dim: 4096",
        "Config param checkpoint_period: 50",
        "Config param dataset_type: grain",
        "Config param ici_fsdp_parallelism: 16",
        "Config param per_device_batch_size: 8.0",
        "Config param run_name: mt-llama3-8b-r7",
        "System Information: Jax Version: 0.7.2",
        "System Information: Jax Backend: PJRT C API\\nTFRT TPU v5 lite",
        "Num_devices: 16, shape (1, 1, 1, 16, 1, 1, 1, 1, 1, 1, 1)",
        "Creating checkpoint manager with ocdbt=True and zarr3=True",
        "No existing checkpoints found, not restoring checkpoint.",
        "number parameters: 8.030 billion",
        "Per train step:\n Total TFLOPs: 394.82 ",
        "I1126 @SECONDS118 137204881 train.py:611] Sharding layout: fully sharded over fsdp",
    ]


def step(draw, number, steps):
    lines = [
        f"completed step: {number}, seconds: {draw.uniform(3.31, 3.38):.3f}, TFLOP/s/device: {draw.uniform(116, 120):.3f}, Tokens/s/device: {draw.uniform(2410, 2470):.3f}, total_weights: 1048576, loss: {max(2.2, 10.8 - 0.1 * number) + draw.uniform(-0.05, 0.05):.3f}"
    ]
    if number % 50 == 0:
        lines += [
            f"I1126 @SECONDS118 137204881 checkpoint_manager.py:1499] [process=0] Saving checkpoint at step {number}",
            f"I1126 @SECONDS118 137211440 checkpoint_manager.py:2311] [process=0][thread=save_finalize][step={number}] CheckpointManager Save Finalize is done.",
            f"saved a checkpoint at step {number}",
        ]
    return lines


def finish(draw):
    return [
        "I1126 @SECONDS118 137204881 checkpoint_manager.py:1788] [process=0][thread=MainThread] Wait for Save Finalize thread is done.",
        "Await local profiler threads... all joined.",
    ]


def _crash(frames, error):
    return [
        "Traceback (most recent call last):",
        '  File "<frozen runpy>", line 198, in _run_module_as_main',
        '  File "/deps/MaxText/train.py", line 702, in <module>',
        "    app.run(main)",
        f'  File "{_SITE}/absl/app.py", line 316, in run',
        "    _run_main(main, args)",
        *frames,
        error,
    ]


_STEP = [
    '  File "/deps/MaxText/train.py", line 655, in train_loop',
    "    state, metrics = p_train_step(state, example_batch, nextrng)",
]


FAULTS = {
    "hbm": (
        -17,
        _crash(
            _STEP,
            "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 18.41G of 15.75G hbm. Exceeded hbm capacity by 2.66G.",
        ),
        1,
    ),
    "heartbeat": (
        0.6,
        [
            "E1126 @SECONDS118 137204990 coordination_service_agent.cc:440] Polled an error from coordination service (this can be an error from this or another task).",
            "F1126 @SECONDS118 137204990 client.h:88] Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that another task died; see the other task logs for more details. Disable Python buffering, i.e. `python -u`, to be sure to see all the previous output. absl::Status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):",
            "/job:jax_worker/replica:0/task:3",
            "The tasks have crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption, eviction) to debug further.",
            "*** Check failure stack trace: ***",
            "    @     0x7bd8f2a3c4e9  absl::lts_20250127::log_internal::LogMessage::SendToLog()",
            "Fatal Python error: Aborted",
        ],
        134,
    ),
    "gcs": (
        0.5,
        _crash(
            [
                '  File "/deps/MaxText/checkpointing.py", line 301, in save_checkpoint',
                "    checkpoint_manager.save(step, args=save_args)",
            ],
            "google.api_core.exceptions.ServiceUnavailable: 503 POST https://storage.googleapis.com/upload/storage/v1/b/mt-ckpt/o?uploadType=multipart: We encountered an internal error. Please try again.",
        ),
        1,
    ),
    "forbidden": (
        -13,
        _crash(
            [
                f'  File "{_SITE}/orbax/checkpoint/checkpoint_manager.py", line 633, in __init__',
                "    self._directory = epath.Path(directory)",
            ],
            "google.api_core.exceptions.Forbidden: 403 GET https://storage.googleapis.com/storage/v1/b/mt-ckpt/o?prefix=r7: trainer@acme.iam.gserviceaccount.com does not have storage.objects.list access to the Google Cloud Storage bucket.",
        ),
        1,
    ),
    "preempted": (
        0.7,
        [
            "I1126 @SECONDS118 137204903 preemption_notifier.cc:87] SIGTERM caught at 2026-11-26T22:31:07.114-00:00",
            "I1126 @SECONDS118 137204881 preemption_sync_manager.cc:270] Preemption sync protocol cleared. Reached sync point at step @DONE",
            "W1126 @SECONDS118 137204881 checkpoint_manager.py:1310] [process=0] Preemption occurred at step: @DONE, saving a final checkpoint before the VM goes away.",
            "saved a checkpoint at step @DONE",
        ],
        143,
    ),
    "nan": (
        0.5,
        [
            "completed step: @DONE+1, seconds: 3.344, TFLOP/s/device: 118.071, Tokens/s/device: 2449.120, total_weights: 1048576, loss: nan",
            *_crash(
                ['  File "/deps/MaxText/metric_logger.py", line 118, in write_metrics', "    raise StopTraining(msg)"],
                "MaxText.exceptions.StopTraining: Aborting training since metric learning/loss is nan at step @DONE+1",
            ),
        ],
        1,
    ),
    "nan-goes-on": (
        1.0,
        [
            *(
                f"completed step: @DONE+{n}, seconds: 3.341, TFLOP/s/device: 118.2, Tokens/s/device: 2451.7, total_weights: 1048576, loss: nan"
                for n in range(1, 70)
            ),
            "saved a checkpoint at step @DONE+69",
        ],
        0,
    ),
    "flag": (
        -1,
        [
            "Traceback (most recent call last):",
            '  File "/deps/MaxText/pyconfig.py", line 560, in _validate_or_update',
            '    raise ValueError(f"Key {k} was passed at the command line but isn\'t in config.")',
            "ValueError: Key per_device_batchsize was passed at the command line but isn't in config.",
        ],
        1,
    ),
    "mesh": (
        -9,
        _crash(
            [
                '  File "/deps/MaxText/max_utils.py", line 411, in fill_unspecified_mesh_axes',
                "    assert np.prod(parallelism_vals) == target_product",
            ],
            "AssertionError: Unspecified value unsupported: ici parallelism product 32 does not match number of devices per slice 16",
        ),
        1,
    ),
    "grain": (
        0.3,
        _crash(
            [
                f'  File "{_SITE}/array_record/python/array_record_data_source.py", line 339, in __getitems__',
                "    return reader.read(positions)",
            ],
            "ValueError: INVALID_ARGUMENT: Corrupted chunk at position 7340032 while reading gs://corpora/c4/c4-train.array_record-00113-of-01024: Invalid record header",
        ),
        1,
    ),
    "sharding": (
        -17,
        _crash(
            _STEP,
            "ValueError: One of pjit arguments was given the sharding of NamedSharding(mesh=Mesh('fsdp': 16)), which implies that the global size of its dimension 0 should be divisible by 16, but it is equal to 20 (full shape: (20, 4096))",
        ),
        1,
    ),
    "libtpu": (
        -3,
        _crash(
            [f'  File "{_SITE}/jax/_src/xla_bridge.py", line 821, in backends', "    raise RuntimeError(err_msg)"],
            "RuntimeError: Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/accel0): Operation not permitted: Couldn't open iommu group /dev/vfio/0",
        ),
        1,
    ),
    "restore": (
        -13,
        _crash(
            [
                f'  File "{_SITE}/orbax/checkpoint/_src/tree/utils.py", line 212, in restore',
                "    raise ValueError(message)",
            ],
            "ValueError: User-provided restore item and on-disk value metadata tree structures do not match: {'params': {'decoder': {'layers': Diff(lhs={'k_norm': 'ShapeDtypeStruct'}, rhs=None)}}}",
        ),
        1,
    ),
    "ok-silent": (1.0, [], 0),
    "ok-retried": (
        1.0,
        [
            "W1126 @SECONDS118 137211440 retry.py:128] Retrying due to 503 UNAVAILABLE: connection reset by peer, sleeping 1.0s ...",
            "I1126 @SECONDS118 137211440 retry.py:134] upload succeeded after 2 attempts",
        ],
        0,
    ),
}
