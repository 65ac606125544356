"""PPO with verl: a task runner and workers as Ray actors, a rollout server beside them."""

_T, _W = "(TaskRunner pid=2311)", "(WorkerDict pid=2{0}, ip=10.1.0.{1})"
_SITE = "/opt/verl/verl"


def worker(rank):
    return _W.format(456 + 17 * rank, 34 + rank // 2)


def begin(draw):
    return [
        "@COMMA\tINFO worker.py:1832 -- Connecting to existing Ray cluster at address: 10.1.0.34:6379...",
        "@COMMA\tINFO worker.py:2003 -- Connected to Ray cluster.",
        f"{_T} TaskRunner hostname: gpu-014, PID: 2311",
        f"{_T} {{'actor_rollout_ref': {{'actor': {{'clip_ratio': 0.2, 'entropy_coeff': 0, 'fsdp_config': {{'param_offload': False}},",
        f"{_T}                                  'kl_loss_coef': 0.001, 'optim': {{'lr': 1e-06}}, 'ppo_mini_batch_size': 64}},",
        f"{_T}                       'rollout': {{'gpu_memory_utilization': 0.6, 'n': 5, 'name': 'vllm', 'tensor_model_parallel_size': 2}}}},",
        f"{_T}  'trainer': {{'balance_batch': True, 'n_gpus_per_node': 2, 'nnodes': 2, 'total_epochs': 15}}}}",
        f"{_T} dataset len: 7473",
        f"{_T} filter dataset len: 7473",
        f"{_T} Size of train dataloader: 29, Size of val dataloader: 1",
        f"{_T} Total training steps: 435",
        f"{_T} colocated worker base class <class 'verl.single_controller.base.worker.Worker'>",
        *(f"{worker(rank)} [Rank {rank}] Qwen2ForCausalLM contains 1.54B parameters" for rank in range(4)),
        f"{worker(0)} wrap_policy: functools.partial(<function _or_policy at 0x7f2c5c1e5a20>, policies=[functools.partial(<function transformer_auto_wrap_policy>)])",
        *(f"{worker(rank)} Total steps: 435, num_warmup_steps: 0" for rank in range(4)),
        f"{worker(0)} Before building vllm rollout, memory allocated (GB): 1.4432, memory reserved (GB): 2.8203, device memory used/total (GB): 4.61/79.10",
        f"{worker(2)} WARNING @MMDD [topk_topp_sampler.py:69] FlashInfer is not available. Falling back to the PyTorch-native implementation of top-p & top-k sampling.",
        f"{worker(1)} After building vllm rollout, memory allocated (GB): 0.7181, memory reserved (GB): 45.39, device memory used/total (GB): 47.80/79.10",
        f"{worker(0)} kwargs: {{'n': 5, 'logprobs': 0, 'max_tokens': 1024, 'detokenize': False, 'temperature': 1.0}}",
        f"{_T} Checkpoint tracker file does not exist: /data/ckpt/gsm8k/latest_checkpointed_iteration.txt",
        f"{_T} Training from scratch",
        f"{_T} test_gen_batch meta info: {{'eos_token_id': 151645, 'validate': True}}",
        f"{_T} validation generation end",
        f"{_T} (\"Initial validation metrics: {{'val-core/openai/gsm8k/reward/mean@1': 0.0417}}\")",
        f"{_T} step:0 - val-core/openai/gsm8k/reward/mean@1:0.0417",
    ]


def step(draw, number, steps):
    score = 0.05 + 0.7 * number / steps + draw.uniform(-0.02, 0.02)
    return [
        f"{_T} step:{number} - global_seqlen/mean:{draw.uniform(6e4, 8e4):.1f} - actor/entropy:{draw.uniform(0.1, 0.5):.4f} - actor/kl_loss:{draw.uniform(0, 0.01):.5f} - actor/pg_loss:{draw.uniform(-0.02, 0.02):.5f} - actor/pg_clipfrac:{draw.uniform(0, 0.004):.5f} - actor/grad_norm:{draw.uniform(0.1, 0.6):.4f} - actor/lr:1e-06 - critic/score/mean:{score:.4f} - critic/rewards/mean:{score:.4f} - response_length/mean:{draw.uniform(180, 320):.2f} - response_length/clip_ratio:0.0 - timing_s/gen:{draw.uniform(9, 14):.3f} - timing_s/update_actor:{draw.uniform(11, 15):.3f} - timing_s/step:{draw.uniform(27, 39):.3f} - perf/throughput:{draw.uniform(1100, 1900):.2f}",
        f"\rTraining Progress: {100 * number // steps:3d}%|{'█' * (10 * number // steps):<10}| {number}/{steps} [{number // 2:02d}:11<{(steps - number) // 2}:03, 31.{number % 10}s/it]",
        *(
            [
                f"{worker(0)} INFO:@COMMA:[Rank 0] Saved model to /data/ckpt/gsm8k/global_step_{number}/actor/model_world_size_4_rank_0.pt"
            ]
            if number % 20 == 0
            else []
        ),
    ]


def finish(draw):
    return [
        f"{_T} validation generation end",
        f"{_T} (\"Final validation metrics: {{'val-core/openai/gsm8k/reward/mean@1': 0.7733}}\")",
        f"{_T} \rTraining Progress: 100%|██████████| 435/435 [3:47:41<00:00, 31.41s/it]",
    ]


def _task_error(kind, method, rank, frames, error):
    where = f"ray::WorkerDict.{method}() (pid=2{456 + 17 * rank}, ip=10.1.0.{34 + rank // 2}, actor_id=3f0c{rank}a11, repr=<verl.single_controller.ray.base.WorkerDict object at 0x7f1{rank}>)"
    return [
        "Error executing job with overrides: ['data.train_batch_size=256', 'actor_rollout_ref.rollout.name=vllm', 'trainer.total_epochs=15']",
        "Traceback (most recent call last):",
        f'  File "{_SITE}/trainer/main_ppo.py", line 42, in main',
        "    run_ppo(config)",
        f'  File "{_SITE}/trainer/main_ppo.py", line 80, in run_ppo',
        "    ray.get(runner.run.remote(config))",
        '  File "/usr/local/lib/python3.10/dist-packages/ray/_private/worker.py", line 2822, in get',
        "    values, debugger_breakpoint = worker.get_objects(object_refs, timeout=timeout)",
        f"ray.exceptions.RayTaskError({kind}): ray::TaskRunner.run() (pid=2311, ip=10.1.0.34, actor_id=8c1f, repr=<main_ppo.TaskRunner object at 0x7f9c>)",
        f'  File "{_SITE}/trainer/ppo/ray_trainer.py", line 1101, in fit',
        f"    batch = self.actor_rollout_wg.{method.split('_', 2)[-1]}(batch)",
        f"ray.exceptions.RayTaskError({kind}): {where}",
        *frames,
        error,
        "",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    ]


_UPDATE = [
    f'  File "{_SITE}/single_controller/base/decorator.py", line 514, in inner',
    "    return func(*args, **kwargs)",
    f'  File "{_SITE}/workers/actor/dp_actor.py", line 431, in update_policy',
    "    loss.backward()",
]
FAULTS = {
    "memory": (
        0.6,
        _task_error(
            "OutOfMemoryError",
            "actor_rollout_update_actor",
            2,
            _UPDATE,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.80 GiB. GPU 0 has a total capacity of 79.10 GiB of which 3.12 GiB is free. Process 118202 has 75.97 GiB memory in use.",
        ),
        1,
    ),
    "reward": (
        0.2,
        [
            "Error executing job with overrides: ['data.train_batch_size=256', 'reward_model.reward_manager=naive']",
            "Traceback (most recent call last):",
            f'  File "{_SITE}/trainer/main_ppo.py", line 42, in main',
            "    run_ppo(config)",
            "ray.exceptions.RayTaskError(KeyError): ray::TaskRunner.run() (pid=2311, ip=10.1.0.34, actor_id=8c1f, repr=<main_ppo.TaskRunner object at 0x7f9c>)",
            f'  File "{_SITE}/workers/reward_manager/naive.py", line 82, in __call__',
            '    ground_truth = data_item.non_tensor_batch["reward_model"]["ground_truth"]',
            "KeyError: 'ground_truth'",
        ],
        1,
    ),
    "batch": (
        -12,
        [
            "Traceback (most recent call last):",
            f'  File "{_SITE}/trainer/main_ppo.py", line 42, in main',
            "    run_ppo(config)",
            "ray.exceptions.RayTaskError(AssertionError): ray::TaskRunner.run() (pid=2311, ip=10.1.0.34, actor_id=8c1f, repr=<main_ppo.TaskRunner object at 0x7f9c>)",
            f'  File "{_SITE}/trainer/ppo/ray_trainer.py", line 402, in _validate_config',
            "    assert real_train_batch_size % minimal_bsz == 0, (",
            "AssertionError: real_train_batch_size (250) must be divisible by minimal possible batch size (4)",
        ],
        1,
    ),
    "override": (
        -1,
        [
            "Could not override 'actor_rollout_ref.actor.ppo_micro_batch'.",
            "Key 'ppo_micro_batch' is not in struct",
            "    full_key: actor_rollout_ref.actor.ppo_micro_batch",
            "    object_type=dict",
            "",
            "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
        ],
        1,
    ),
    "parquet": (
        -7,
        [
            "Traceback (most recent call last):",
            f'  File "{_SITE}/trainer/main_ppo.py", line 42, in main',
            "ray.exceptions.RayTaskError(FileNotFoundError): ray::TaskRunner.run() (pid=2311, ip=10.1.0.34, actor_id=8c1f, repr=<main_ppo.TaskRunner object at 0x7f9c>)",
            f'  File "{_SITE}/utils/dataset/rl_dataset.py", line 131, in _read_files_and_tokenize',
            '    dataframe = datasets.load_dataset("parquet", data_files=parquet_file)["train"]',
            "FileNotFoundError: Unable to find '/data/gsm8k/train.parquet'",
        ],
        1,
    ),
    "actor-died": (
        0.5,
        [
            "(raylet, ip=10.1.0.35) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker. RayTask ID: ffffffff Worker ID: 51c2e8 Node ID: 9d01 Worker IP address: 10.1.0.35 Worker port: 10021 Worker PID: 2507 Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.",
            "Traceback (most recent call last):",
            f'  File "{_SITE}/trainer/main_ppo.py", line 80, in run_ppo',
            "    ray.get(runner.run.remote(config))",
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
            "\tclass_name: create_colocated_worker_cls.<locals>.WorkerDict",
            "\tactor_id: 3f0c2a11",
            "\tpid: 2507",
            "\tip: 10.1.0.35",
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.",
        ],
        1,
    ),
    "ray-oom": (
        0.7,
        [
            "(raylet, ip=10.1.0.35) [@COMMA E 812 812] (raylet) node_manager.cc:3064: 1 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 9d01, IP: 10.1.0.35) over the last time period.",
            "Traceback (most recent call last):",
            f'  File "{_SITE}/trainer/main_ppo.py", line 80, in run_ppo',
            "    ray.get(runner.run.remote(config))",
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
            "Memory on the node (IP: 10.1.0.35, ID: 9d01) where the task (actor ID: 3f0c2a11, name=WorkerDict, pid=2507, memory used=411.07GB) was running was 957.41GB / 1007.51GB (0.950273), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 51c2e8) because it was the most recently scheduled task; to see more information about memory usage on this node, use `ray logs raylet.out -ip 10.1.0.35`.",
        ],
        1,
    ),
    "nan": (
        1.0,
        [
            f"{_T} step:91 - global_seqlen/mean:70112.2 - actor/entropy:nan - actor/kl_loss:nan - actor/pg_loss:nan - actor/grad_norm:nan - critic/score/mean:0.0 - timing_s/step:33.1",
            f"{worker(1)} WARN: rank 1 grad_norm is not finite: nan",
            *(
                f"{_T} step:{number} - global_seqlen/mean:70112.2 - actor/entropy:nan - actor/kl_loss:nan - actor/pg_loss:nan - actor/grad_norm:nan - critic/score/mean:0.0 - timing_s/step:33.1"
                for number in range(92, 110)
            ),
        ],
        0,
    ),
    "ok-silent": (1.0, [], 0),
    "ok-preempted-rollout": (
        1.0,
        [
            f"{worker(3)} WARNING @MMDD [scheduler.py:1784] Sequence group 141_parallel_sample_3 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can affect the end-to-end performance.",
            f"{_T} step:91 - actor/pg_loss:0.0012 - critic/score/mean:0.7611 - timing_s/step:33.1",
        ],
        0,
    ),
}
