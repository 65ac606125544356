"""MosaicML's Composer and llm-foundry on 2 nodes: its console logger's blocks, heads with rank and thread."""


def _head(rank, level="INFO", place="composer.trainer.trainer"):
    return f"@BRACKET,{401 + rank}: rank{rank}[{611 + rank}][MainThread]: {level}: {place}: "


def begin(draw):
    return [
        _head(0, place="llmfoundry.command_utils.train") + "Building tokenizer...",
        _head(0, place="llmfoundry.command_utils.train") + "Building train loader...",
        _head(0, place="streaming.base.dataset")
        + "Because `predownload` was not specified, it will default to 8*batch_size if batch_size is not None, otherwise 64.",
        _head(0, place="llmfoundry.command_utils.train") + "Initializing model...",
        _head(0) + "Run name: 1764211004-mpt-3b",
        _head(0)
        + "Stepping schedulers every batch. To step schedulers every epoch, set `step_schedulers_every_batch=False`.",
        "Config:",
        "enabled_algorithms/GradientClipping: true",
        "node_name: [gpu-061, gpu-062]",
        "num_gpus_per_node: 8",
        "num_nodes: 2",
        "******************************",
    ]


def step(draw, number, steps):
    loss = max(2.6, 9.4 - number * 0.07) + draw.uniform(-0.04, 0.04)
    lines = [
        f"[batch={number}/{steps}]:",
        f"\t Train loss/train/total: {loss:.4f}",
        f"\t Train time/remaining_estimate: {(steps - number) * 0.0021:.4f}",
        f"\t Train throughput/tokens_per_sec: {draw.randrange(180000, 190000)}.0211",
    ]
    if number % 40 == 0:
        lines.append(
            _head(0, place="composer.callbacks.checkpoint_saver") + f"Saving checkpoint to ep0-ba{number}-rank0.pt"
        )
    return lines


def finish(draw):
    return [_head(0, place="llmfoundry.command_utils.train") + "Done.", _head(0) + "Closing the engine."]


def _trace(rank, frames, error):
    return [
        _head(rank, "ERROR", "composer.cli.launcher") + f"Rank {rank} crashed with exit code 1.",
        f"----------Begin global rank {rank} STDERR----------",
        "Traceback (most recent call last):",
        '  File "/llm-foundry/scripts/train/train.py", line 9, in <module>',
        "    train_from_yaml(yaml_path, args_list)",
        *frames,
        error,
        f"----------End global rank {rank} STDERR----------",
        "ERROR:composer.cli.launcher:Global rank 0 (PID 611) exited with code -15"
        if rank
        else "ERROR:composer.cli.launcher:Waiting up to 30 seconds for all training processes to terminate. Press Ctrl-C to exit immediately.",
    ]


_FIT = [
    '  File "/usr/lib/python3/dist-packages/composer/trainer/trainer.py", line 2931, in _train_loop',
    "    total_loss_dict = self._train_batch(use_grad_scaling)",
]
FAULTS = {
    "oci": (0.45, _trace(0, ['  File "/usr/lib/python3/dist-packages/composer/utils/object_store/oci_object_store.py", line 231, in upload_object', "    self.upload_manager.upload_file("], "oci.exceptions.ServiceError: {'target_service': 'object_storage', 'status': 503, 'code': 'ServiceUnavailable', 'message': 'The service is currently unavailable.'}"), 1),
    "s3-denied": (-5, _trace(0, ['  File "/usr/lib/python3/dist-packages/streaming/base/storage/download.py", line 118, in download_from_s3', "    _download_file(unsigned=True, extra_args=extra_args)"], "botocore.exceptions.ClientError: An error occurred (403) when calling the HeadObject operation: Forbidden"), 1),
    "shard": (0.3, _trace(4, ['  File "/usr/lib/python3/dist-packages/streaming/base/stream.py", line 371, in _decompress_shard_part', "    raise ValueError("], "ValueError: Checksum failure: zstd shard.00412.mds.zstd"), 1),
    "shared-memory": (-6, _trace(1, ['  File "/usr/lib/python3/dist-packages/streaming/base/shared/memory.py", line 88, in __init__', "    shm = BuiltinSharedMemory(name, create, size)"], "FileExistsError: [Errno 17] File exists: '/000001_locals'"), 1),
    "yaml-key": (-2, _trace(0, ['  File "/llm-foundry/llmfoundry/utils/config_utils.py", line 211, in make_dataclass_and_log_config', "    raise ValueError("], "ValueError: Unused parameter lr_sheduler found in cfg. Please check your yaml to ensure this parameter is necessary."), 1),
    "batch": (-4, _trace(0, ['  File "/llm-foundry/llmfoundry/utils/config_utils.py", line 480, in calculate_batch_size_info', "    raise ValueError("], "ValueError: Global batch size 250 is not divisible by 16 as a result, the batch size would be truncated, please adjust `global_batch_size` to be divisible by world size, 16."), 1),
    "device-memory": (0.1, _trace(6, _FIT, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 12.50 GiB. GPU 6 has a total capacity of 79.11 GiB of which 5.31 GiB is free."), 1),
    "ecc": (0.6, _trace(13, _FIT, "RuntimeError: CUDA error: uncorrectable ECC error encountered"), 1),
    "row": (0.5, ["@KERN gpu-062 kernel: NVRM: Xid (PCI:0000:cd:00): 94, pid=7211, name=python, Contained: SM (0x1). RST: No, D-RST: No", *_trace(11, _FIT, "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered")], 1),
    "thermal": (0.55, ["@KERN gpu-061 kernel: mce: [Hardware Error]: Machine check events logged", "@KERN gpu-061 kernel: mce: [Hardware Error]: CPU 41: Machine Check: 0 Bank 8: bc00000001010091", "@KERN gpu-061 kernel: mce: [Hardware Error]: Kernel panic - not syncing: Fatal machine check", _head(8, "ERROR", "composer.cli.launcher") + "Lost connection to node 0"], 1),
    "timeout": (0.5, ["[rank9]:[E@MMDG.002120114 ProcessGroupNCCL.cpp:632] [Rank 9] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4410, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600088 milliseconds before timing out.", _head(9, "ERROR", "composer.cli.launcher") + "Rank 9 crashed with exit code -6."], 1),
    "spike": (0.6, _trace(0, ['  File "/llm-foundry/llmfoundry/callbacks/loss_spike_detector.py", line 44, in batch_end', "    raise RuntimeError("], "RuntimeError: Train loss is nan at batch @DONE, halting the run"), 1),
    "store": (-1, _trace(8, ['  File "/usr/lib/python3/dist-packages/torch/distributed/rendezvous.py", line 258, in _env_rendezvous_handler', "    store = _create_c10d_store("], "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (gpu-061, 7501)."), 1),
    "preempt": (0.5, [_head(0, "WARNING", "composer.callbacks.mlflow") + "MosaicML platform is preempting this run (PREEMPTED), it goes back to the queue", _head(0, "WARNING", "composer.cli.launcher") + "Caught SIGTERM, killing all training processes"], 143),
    "max-time": (0.9, [_head(0, "INFO", "composer.callbacks.run_timer") + "max_run_time 14400 s of the queue is reached, run is being stopped (status TIMED_OUT)", _head(0, "WARNING", "composer.cli.launcher") + "Caught SIGTERM, killing all training processes"], 143),
    "ok-silent": (1.0, [], 0),
    "ok-warned": (1.0, [_head(0, "WARNING", "llmfoundry.callbacks.hf_checkpointer") + "Unable to log the model card, going on", _head(0, "WARNING", "composer.loggers.wandb_logger") + "wandb.errors.CommError: Run initialization has timed out after 90.0 sec, metrics are kept offline"], 0),
}  # fmt: skip
