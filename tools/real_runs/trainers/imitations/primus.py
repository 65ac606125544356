"""A Megatron derivative on AMD GPUs: ROCm's and RCCL's messages, heads with node and rank in the site's manner."""


def _head(rank, level="INFO"):
    node = "amd-007" if rank < 8 else "amd-008"
    return f"[@BRACKET] [{node}] [rank-{rank}/16] [{level:>5}] "


def begin(draw):
    return [
        _head(0) + "[primus] backend: megatron, model: llama3.1_70B, world size 16",
        _head(0) + "[primus] HSA_ENABLE_SDMA=1 GPU_MAX_HW_QUEUES=2 NCCL_IB_HCA=bnxt_re0,bnxt_re1",
        "amd-007:2211:2211 [0] NCCL INFO RCCL version : 2.22.3-HEAD:b9c1af8 HIP version : 6.4.43483",
        _head(0) + "> building train, validation, and test datasets for GPT ...",
        _head(0) + "> finished creating GPT datasets ...",
        _head(15) + "[after dataloaders are built] datetime: @BRACKET",
        _head(0) + "training ...",
    ]


def step(draw, number, steps):
    loss = max(2.2, 11.7 - number * 0.09) + draw.uniform(-0.05, 0.05)
    lines = [
        _head(15)
        + f"iteration {number:8d}/{steps:8d} | consumed samples: {128 * number:12d} | elapsed time per iteration (ms): {draw.uniform(7010, 7090):.1f} | hip mem usage: 171.20GB/191.98GB ({draw.uniform(89, 90):.2f}%) | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: {draw.uniform(0.4, 2.4):.3f} | number of skipped iterations: 0 |"
    ]
    if number % 50 == 0:
        lines.append(
            _head(0) + f"successfully saved checkpoint from iteration {number:7d} to /shared/out/ckpt [ t 1/2, p 1/2 ]"
        )
    return lines


def finish(draw):
    return [_head(15) + "[after training is done] datetime: @BRACKET", _head(0) + "[primus] run complete"]


def _trace(rank, frames, error):
    head = _head(rank, "ERROR")
    return [
        head + "Traceback (most recent call last):",
        head + '  File "/workspace/Primus/primus/modules/trainer/megatron/trainer.py", line 1411, in train',
        head + "    loss_dict = self.train_step(forward_step_func, data_iterator)",
        *(head + frame for frame in frames),
        head + error,
    ]


_STEP = [
    '  File "/workspace/megatron/core/pipeline_parallel/schedules.py", line 512, in forward_backward_no_pipelining',
    "    output_tensor.backward()",
]
FAULTS = {
    "fault": (0.4, ["Memory access fault by GPU node-5 (Agent handle: 0x55d0a1f2c0) on address 0x7f1c40000000. Reason: Page not present or supervisor privilege.", _head(3, "ERROR") + "process 2214 got SIGABRT (signal 6), core dumped"], 134),
    "hang-gpu": (0.5, ["amd-008 kernel: amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!", "HW Exception by GPU node-9 (Agent handle: 0x5581c0e2b0) reason :GPU Hang", _head(12, "ERROR") + "process 3120 got SIGABRT (signal 6), core dumped"], 134),
    "uncorrectable": (0.5, ["amd-008 kernel: amdgpu 0000:43:00.0: amdgpu: socket: 1, die: 0, 1 uncorrectable hardware errors detected in umc block", "amd-008 kernel: amdgpu 0000:43:00.0: amdgpu: GPU recovery disabled, the device is marked bad", *_trace(9, _STEP, "torch.AcceleratorError: HIP error: uncorrectable ECC error encountered")], 1),
    "xgmi": (0.6, ["amd-007 kernel: amdgpu 0000:85:00.0: amdgpu: socket: 0, die: 0, 4 uncorrectable hardware errors detected in xgmi_wafl block", *_trace(6, _STEP, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2398, unhandled cuda error, RCCL version 2.22.3")], 1),
    "hip-memory": (0.1, _trace(4, _STEP, "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 7.83 GiB. GPU 4 has a total capacity of 191.98 GiB of which 2.04 GiB is free."), 1),
    "no-device": (-2, _trace(8, ['  File "/opt/venv/lib/python3.12/site-packages/torch/cuda/__init__.py", line 412, in _lazy_init', "    torch._C._cuda_init()"], "RuntimeError: No HIP GPUs are available"), 1),
    "roce": (0.5, ["amd-008 kernel: bnxt_en 0000:a1:00.0 ens21np0: NIC Link is Down", "amd-008:3121:3190 [1] /workspace/rccl/src/transport/net_ib.cc:1302 NCCL WARN NET/IB : Got completion from peer 10.2.7.7<51822> with status=5 opcode=32 len=0 vendor err 0 (Recv) hca bnxt_re1", *_trace(9, _STEP, "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2398, remote process exited or there was a network error, RCCL version 2.22.3")], 1),
    "stuck": (0.7, [_head(14, "ERROR") + "[Rank 14] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=20171, OpType=_REDUCE_SCATTER_BASE, NumelIn=66060288, NumelOut=8257536, Timeout(ms)=900000) ran for 900041 milliseconds before timing out.", _head(2, "ERROR") + "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=20171, OpType=_REDUCE_SCATTER_BASE, NumelIn=66060288, NumelOut=8257536, Timeout(ms)=900000) ran for 900107 milliseconds before timing out."], 134),
    "node": (0.5, ["slurmctld: error: Nodes amd-008 not responding", "srun: error: Node failure on amd-008", "slurmstepd: error: *** STEP 90418.0 ON amd-007 CANCELLED AT @TSEC DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"], 1),
    "nfs": (0.6, ["amd-007 kernel: nfs: server 10.2.0.3 not responding, timed out", *_trace(0, ['  File "/workspace/megatron/training/checkpointing.py", line 612, in save_checkpoint', "    torch.save(state_dict, checkpoint_name)"], "OSError: [Errno 5] Input/output error: '/shared/out/ckpt/iter_0000050/mp_rank_00/model_optim_rng.pt'")], 1),
    "quota": (0.5, _trace(0, ['  File "/workspace/megatron/training/checkpointing.py", line 612, in save_checkpoint', "    torch.save(state_dict, checkpoint_name)"], "OSError: [Errno 122] Disk quota exceeded: '/shared/out/ckpt/iter_0000050'"), 1),
    "nan": (0.5, _trace(15, ['  File "/workspace/megatron/core/rerun_state_machine.py", line 482, in validate_result', "    raise RuntimeError(full_message)"], "RuntimeError: Rank 15, node amd-008, device 7, iteration @DONE: Unexpected result nan (message='found NaN in local forward loss calculation')"), 1),
    "config": (-1, [_head(0, "ERROR") + "[primus] pretrain.yaml: pipeline_model_parallel_size 3 x tensor_model_parallel_size 4 does not divide world size 16", _head(0, "ERROR") + "[primus] configuration refused, leaving"], 2),
    "limit": (0.8, ["slurmstepd: error: *** JOB 90418 ON amd-007 CANCELLED AT @TSEC DUE TO TIME LIMIT ***"], 143),
    "scancel": (0.4, ["slurmstepd: error: *** JOB 90418 ON amd-007 CANCELLED AT @TSEC ***"], 143),
    "ok-silent": (1.0, [], 0),
    "ok-warned": (1.0, [_head(0, "WARN") + "fused rope is not available on this device, falling back", "amd-007:2211:2302 [0] NCCL INFO NET/Plugin: Could not find: librccl-net.so. Using internal network plugin."], 0),
}  # fmt: skip
