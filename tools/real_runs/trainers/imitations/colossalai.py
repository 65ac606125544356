"""ColossalAI by ``colossalai run`` on 2 hosts of 8 GPUs: lines of its distributed logger, a bar, pdsh's heads of hosts."""

_SITE = "/opt/conda/lib/python3.10/site-packages"


def _say(text, host="gpu-051", place="train.py:284 main"):
    return [
        f"{host}: [@COMMA] INFO     colossalai - {place}",
        f"{host}:                      INFO     colossalai - {text}",
    ]


def begin(draw):
    return [
        "gpu-051: /opt/conda/lib/python3.10/site-packages/torch/library.py:357: UserWarning: Warning only once for all operators",
        "gpu-052: /opt/conda/lib/python3.10/site-packages/torch/library.py:357: UserWarning: Warning only once for all operators",
        *_say("Distributed environment is initialized, world size: 16", place="colossalai/initialize.py:75 launch"),
        *_say("Plugin: HybridParallelPlugin tp=4 pp=2 zero=1, precision bf16"),
        *_say("Model params: 6.74 B"),
        *_say("Booster init max device memory: 31211.42 MB"),
        *_say("Start finetuning from epoch 0, step 0"),
    ]


def step(draw, number, steps):
    loss = max(1.4, 3.1 - number * 0.014) + draw.uniform(-0.05, 0.05)
    lines = [
        f"gpu-051: Epoch 0:  {100 * number // steps:2d}%|{'█' * (10 * number // steps):<10}| {number}/{steps} [{number * 4 // 60:02d}:{number * 4 % 60:02d}<{(steps - number) * 4 // 60:02d}:{(steps - number) * 4 % 60:02d},  {draw.uniform(4.0, 4.3):.2f}s/it, loss={loss:.3f}]"
    ]
    if number % 50 == 0:
        lines += _say(f"Saved checkpoint at epoch 0 step {number} at folder /mnt/out/epoch-0_step-{number}")
    return lines


def finish(draw):
    return [
        *_say("Save model completed"),
        *_say("Finetuning is finished, releasing the process group"),
        "gpu-051: INFO: ====== Training on All Nodes ====="[:44],
        "gpu-051: 127.0.0.1: success",
        "gpu-052: 10.8.0.52: success",
    ]


def _trace(host, rank, frames, error):
    return [
        f"{host}: [rank{rank}]: Traceback (most recent call last):",
        f'{host}: [rank{rank}]:   File "/workspace/applications/Colossal-LLaMA/train.py", line 341, in main',
        f"{host}: [rank{rank}]:     booster.backward(loss, optimizer)",
        *(f"{host}: [rank{rank}]: {frame}" for frame in frames),
        f"{host}: [rank{rank}]: {error}",
    ]


_BACKWARD = [f'  File "{_SITE}/colossalai/booster/booster.py", line 166, in backward', "    optimizer.backward(loss)"]
_FAILED = [
    "gpu-051: Error: failed to run torch.distributed.run --nproc_per_node=8 --nnodes=2 --node_rank=0 train.py on 10.8.0.51, is localhost: True, exception: Encountered a bad command exit code!",
    "gpu-051: ====== Training on All Nodes =====",
    "gpu-051: 10.8.0.51: failure",
    "gpu-051: 10.8.0.52: failure",
]
FAULTS = {
    "ecc": (0.55, [
        "gpu-052: kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=88121, name=python, DBE (double bit error) ECC Error",
        *_trace("gpu-052", 11, _BACKWARD, "RuntimeError: CUDA error: uncorrectable ECC error encountered"), *_FAILED], 1),
    "lost": (0.4, [
        "gpu-052: kernel: NVRM: Xid (PCI:0000:db:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "gpu-052: kernel: NVRM: GPU 0000:db:00.0: GPU has fallen off the bus.",
        *_trace("gpu-052", 14, _BACKWARD, "RuntimeError: CUDA error: unspecified launch failure"), *_FAILED], 1),
    "fabric": (0.5, [
        "gpu-051: kernel: nvidia-nvswitch3: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 33 LTSSM Fault Up",
        "gpu-051: kernel: NVRM: Xid (PCI:0000:5d:00): 74, pid=90210, name=python, NVLink: fatal error detected on link 11(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        *_trace("gpu-051", 5, _BACKWARD, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2395, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5"), *_FAILED], 1),
    "device-memory": (0.1, [*_trace("gpu-052", 9, _BACKWARD, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.25 GiB. GPU 1 has a total capacity of 79.33 GiB of which 1.94 GiB is free."), *_FAILED], 1),
    "hang": (0.6, [
        "gpu-051: [rank3]:[E@MMDG.100712212 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8121, OpType=_ALLGATHER_BASE, NumelIn=1048576, NumelOut=8388608, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
        "gpu-052: [rank12]:[E@MMDG.131840771 ProcessGroupNCCL.cpp:629] [Rank 12] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8121, OpType=_ALLGATHER_BASE, NumelIn=1048576, NumelOut=8388608, Timeout(ms)=600000) ran for 600043 milliseconds before timing out.",
        "gpu-051: [rank3]:[E@MMDG.002117334 ProcessGroupNCCL.cpp:683] [Rank 3] To avoid data inconsistency, we are taking the entire process down.", *_FAILED], 1),
    "peer": (0.5, [*_trace("gpu-051", 2, _BACKWARD, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2395, remote process exited or there was a network error, NCCL version 2.21.5"), "gpu-051: [rank2]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", *_FAILED], 1),
    "port": (0.35, [
        "gpu-052: kernel: mlx5_core 0000:a3:00.0: mlx5_port_module_event: Port module event[error]: module 0, Cable error, Module unplugged",
        "gpu-052: gpu-052:88140:88951 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.8.0.51<48122> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::1 remoteGids fe80::2 hca mlx5_3",
        *_trace("gpu-052", 10, _BACKWARD, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2395, remote process exited or there was a network error, NCCL version 2.21.5"), *_FAILED], 1),
    "killed": (0.3, [
        "gpu-052: kernel: Memory cgroup out of memory: Killed process 88127 (python) total-vm:412120044kB, anon-rss:201120412kB, file-rss:91208kB, shmem-rss:0kB, UID:1003",
        "gpu-052: E1127 @SECONDS119 88101 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 6 (pid: 88127) of binary: /opt/conda/bin/python", *_FAILED], 1),
    "plugin": (-3, [*_trace("gpu-051", 0, [f'  File "{_SITE}/colossalai/booster/plugin/hybrid_parallel_plugin.py", line 1088, in __init__', "    assert ("], "AssertionError: World size 16 is not divisible by tp size 4 * pp size 3"), *_FAILED], 1),
    "checkpoint": (-4, [*_trace("gpu-051", 0, [f'  File "{_SITE}/colossalai/checkpoint_io/hybrid_parallel_checkpoint_io.py", line 352, in load_sharded_model', "    load(name)"], "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"), *_FAILED], 1),
    "dataset": (-4, [*_trace("gpu-051", 0, ['  File "/workspace/applications/Colossal-LLaMA/dataset/loader.py", line 41, in load_tokenized_dataset', "    datasets.load_from_disk(dataset_path)"], "FileNotFoundError: Directory /mnt/tokenized/arrow/part-00007 not found"), *_FAILED], 1),
    "nan-goes-on": (1.0, ["gpu-051: Epoch 0: 100%|██████████| @DONE/@DONE [09:12<00:00,  4.11s/it, loss=nan]", "gpu-051: Epoch 1:   1%|          | 1/@DONE [00:04<09:00,  4.11s/it, loss=nan]", "gpu-051: Epoch 1:   2%|          | 2/@DONE [00:08<08:58,  4.11s/it, loss=nan]"], 0),
    "readonly": (0.7, ["gpu-051: kernel: EXT4-fs error (device nvme1n1p1): ext4_journal_check_start:83: comm python: Detected aborted journal", "gpu-051: kernel: EXT4-fs (nvme1n1p1): Remounting filesystem read-only", *_trace("gpu-051", 0, ['  File "/workspace/colossal_llama/utils/ckpt_io.py", line 61, in save_checkpoint', "    os.makedirs(save_dir, exist_ok=True)"], "OSError: [Errno 30] Read-only file system: '/mnt/out/epoch-0_step-80'"), *_FAILED], 1),
    "ok-silent": (1.0, [], 0),
    "ok-warned": (1.0, ["gpu-052: [W@MMDG.220117334 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.", "gpu-051: [extension] Loading the JIT-built cpu_adam_x86 kernel during runtime now"], 0),
}  # fmt: skip
