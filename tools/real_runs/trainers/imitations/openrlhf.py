"""PPO with OpenRLHF: actors of Ray for policy, critic and rollout engines, DeepSpeed below."""

_P, _R, _L = "(PPOTrainer pid=3120)", "(PolicyModelActor pid={0})", "(LLMRayActor pid={0})"
_SITE = "/usr/local/lib/python3.12/dist-packages/openrlhf"


def begin(draw):
    return [
        "@COMMA\tINFO worker.py:1918 -- Started a local Ray instance. View the dashboard at 127.0.0.1:8265",
        *(
            f"{_L.format(3301 + n)} INFO @MMDD [llm_engine.py:228] Initializing a V1 LLM engine (v0.10.1) with config: model='/models/llama-3-8b-sft', tensor_parallel_size=1"
            for n in range(2)
        ),
        *(
            f"{_R.format(3500 + n)} [@BRACKET,112] [INFO] [real_accelerator.py:254:get_accelerator] Setting ds_accelerator to cuda (auto detect)"
            for n in range(4)
        ),
        f"{_R.format(3500)} [@BRACKET,902] [INFO] [comm.py:669:init_distributed] cdb=None",
        f"{_R.format(3500)} Actor(",
        f"{_R.format(3500)}   (model): LlamaForCausalLM(",
        f"{_R.format(3500)}     (lm_head): Linear(in_features=4096, out_features=128256, bias=False)",
        f"{_R.format(3500)}   )",
        f"{_R.format(3500)} )",
        f"{_R.format(3500)} [@BRACKET,330] [INFO] [config.py:1003:print]   zero_optimization_stage ....... 3",
        f"{_P} dataset: json:/data/prompts",
        f"{_P} Dataset({{ features: ['prompt', 'label'], num_rows: 20480 }})",
        f"{_R.format(3500)} init_process_group: master_address=10.1.0.34, master_port=47121,  rank=0, world_size=3, group_name=openrlhf",
        *(
            f"{_L.format(3301 + n)} init_process_group: master_address=10.1.0.34, master_port=47121,  rank={n + 1}, world_size=3, group_name=openrlhf"
            for n in range(2)
        ),
    ]


def step(draw, number, steps):
    return [
        f"{_P} Episode [1/1]: {100 * number // steps:3d}%|{'▉' * (10 * number // steps):<10}| {number}/{steps} [{number}:02<{steps - number}:40, 61.{number % 10}s/it]",
        f"{_P} ✨ Global step {number}: {{'policy_loss': {draw.uniform(-0.03, 0.03):.5f}, 'kl': {draw.uniform(0.001, 0.02):.5f}, 'actor_lr': 5e-07, 'critic_loss': {draw.uniform(0.01, 0.09):.4f}, 'reward': {0.2 + 0.5 * number / steps + draw.uniform(-0.05, 0.05):.4f}, 'return': {draw.uniform(0.1, 0.7):.4f}, 'response_length': {draw.uniform(200, 500):.1f}, 'generate_time': {draw.uniform(17, 31):.2f}}}",
        *(
            [
                f"{_R.format(3500)} [@BRACKET,517] [INFO] [torch_checkpoint_engine.py:21:save] [Torch] Saving /ckpt/_actor/global_step{number}/mp_rank_00_model_states.pt..."
            ]
            if number % 20 == 0
            else []
        ),
    ]


def finish(draw):
    return [
        f"{_P} Episode [1/1]: 100%|██████████| 90/90 [1:31:22<00:00, 60.9s/it]",
        f"{_R.format(3500)} Save HF model to /ckpt/llama-3-8b-rlhf",
        f"{_R.format(3502)} [rank2]:[W1126 20:51:07.118 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources. (function operator())",
    ]


def _driver(kind, actor, pid, frames, error):
    return [
        "Traceback (most recent call last):",
        '  File "<frozen runpy>", line 198, in _run_module_as_main',
        f'  File "{_SITE}/cli/train_ppo_ray.py", line 498, in <module>',
        "    train(args)",
        f'  File "{_SITE}/cli/train_ppo_ray.py", line 196, in train',
        "    ray.get(ppo_trainer.fit.remote())",
        f"ray.exceptions.RayTaskError({kind}): ray::PPOTrainer.fit() (pid=3120, ip=10.1.0.34, actor_id=11aa, repr=<openrlhf.trainer.ray.PPOTrainer object at 0x7fe1>)",
        f'  File "{_SITE}/trainer/ppo_trainer.py", line 417, in fit',
        "    status = self.ppo_train(steps)",
        f"ray.exceptions.RayTaskError({kind}): ray::{actor} (pid={pid}, ip=10.1.0.34, actor_id=22bb, repr=<openrlhf.trainer.ray.ppo_actor.PolicyModelActor object at 0x7fe2>)",
        *frames,
        error,
    ]


_FIT = [
    f'  File "{_SITE}/trainer/ray/ppo_actor.py", line 312, in training_step',
    "    action_log_probs, output = self.actor(sequences, action_mask, attention_mask=attention_mask)",
]
FAULTS = {
    "memory": (
        0.3,
        _driver(
            "OutOfMemoryError",
            "PolicyModelActor.fit()",
            3502,
            _FIT,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. GPU 0 has a total capacity of 79.10 GiB of which 5.21 GiB is free. Including non-PyTorch memory, this process has 73.88 GiB memory in use.",
        ),
        1,
    ),
    "label": (
        0.1,
        _driver(
            "KeyError",
            "PolicyModelActor.fit()",
            3501,
            [
                f'  File "{_SITE}/datasets/prompts_dataset.py", line 18, in preprocess_data',
                "    label = data[label_key]",
            ],
            "KeyError: 'answer'",
        ),
        1,
    ),
    "remote-reward": (
        0.5,
        [
            "(RemoteRewardModel pid=3811) INFO @MMDD [remote_rm_utils.py:29] Request error, please check: HTTPConnectionPool(host='10.1.0.60', port=5000): Max retries exceeded with url: /get_reward (Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f0>: Failed to establish a new connection: [Errno 111] Connection refused'))",
            *_driver(
                "Exception",
                "RemoteRewardModel.get_rewards()",
                3811,
                [
                    f'  File "{_SITE}/utils/remote_rm_utils.py", line 35, in request_api_wrapper',
                    '    raise Exception(f"Request error for {try_max_times} times, returning None. Please check the API server.")',
                ],
                "Exception: Request error for 5 times, returning None. Please check the API server.",
            ),
        ],
        1,
    ),
    "group-timeout": (
        0.8,
        [
            f"{_R.format(3503)} [rank3]:[E1126 20:41:40.201 ProcessGroupNCCL.cpp:685] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9120, OpType=_ALLGATHER_BASE, NumelIn=33554432, NumelOut=134217728, Timeout(ms)=1800000) ran for 1800021 milliseconds before timing out.",
            f"{_R.format(3500)} [rank0]:[E1126 20:41:40.388 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9120, OpType=_ALLGATHER_BASE, NumelIn=33554432, NumelOut=134217728, Timeout(ms)=1800000) ran for 1800077 milliseconds before timing out.",
            f"{_R.format(3503)} [rank3]:[E1126 20:41:40.733 ProcessGroupNCCL.cpp:739] [Rank 3] To avoid data inconsistency, we are taking the entire process down.",
            *_driver(
                "ActorDiedError",
                "PolicyModelActor.fit()",
                3503,
                _FIT,
                "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
            ),
        ],
        1,
    ),
    "arguments": (
        -1,
        [
            "usage: train_ppo_ray.py [-h] [--ref_num_nodes REF_NUM_NODES]",
            "train_ppo_ray.py: error: argument --advantage_estimator: invalid choice: 'grpo2' (choose from 'gae', 'reinforce', 'rloo', 'reinforce_baseline', 'group_norm', 'dr_grpo')",
        ],
        2,
    ),
    "assertion": (
        -1,
        [
            "Traceback (most recent call last):",
            f'  File "{_SITE}/cli/train_ppo_ray.py", line 460, in <module>',
            "    assert args.rollout_batch_size % args.micro_rollout_batch_size == 0",
            "AssertionError: rollout_batch_size must be divisible by micro_rollout_batch_size, got 1000 and 16",
        ],
        1,
    ),
    "state": (
        -8,
        _driver(
            "RuntimeError",
            "PolicyModelActor.init_model_from_pretrained()",
            3500,
            [
                '  File "/usr/local/lib/python3.12/dist-packages/torch/nn/modules/module.py", line 2581, in load_state_dict',
                "    raise RuntimeError(",
            ],
            "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([128258, 4096]) from checkpoint, the shape in current model is torch.Size([128256, 4096]).",
        ),
        1,
    ),
    "ok-silent": (1.0, [], 0),
    "ok-retry": (
        1.0,
        [
            "(RemoteRewardModel pid=3811) INFO @MMDD [remote_rm_utils.py:29] Request error, please check: HTTPConnectionPool(host='10.1.0.60', port=5000): Read timed out. (read timeout=180)",
            *(
                f"{_P} ✨ Global step {n}: {{'policy_loss': 0.0021, 'kl': 0.0051, 'reward': 0.7102}}"
                for n in (91, 92, 93)
            ),
        ],
        0,
    ),
}
