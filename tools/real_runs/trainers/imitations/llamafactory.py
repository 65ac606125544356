"""LLaMA-Factory in one pod of 4 GPUs: bracketed heads with dates, dictionaries of figures, transformers' own lines."""

_SITE = "/usr/local/lib/python3.11/dist-packages"


def begin(draw):
    return [
        "[INFO|@BRACKET] llamafactory.cli:143 >> Initializing 4 distributed tasks at: 127.0.0.1:34127",
        "W1127 @SECONDS000 61 torch/distributed/run.py:766] *****************************************",
        "[INFO|@BRACKET] llamafactory.hparams.parser:406 >> Process rank: 0, world size: 4, device: cuda:0, distributed training: True, compute dtype: torch.bfloat16",
        "[INFO|tokenization_utils_base.py:2093] @BRACKET,114 >> loading file tokenizer.json",
        "[INFO|@BRACKET] llamafactory.data.loader:143 >> Loading dataset alpaca_en_demo.json...",
        "Converting format of dataset (num_proc=16): 100%|██████████| 999/999 [00:00<00:00, 4812.11 examples/s]",
        "[INFO|modeling_utils.py:1172] @BRACKET,401 >> loading weights file /models/Qwen3-8B/model.safetensors.index.json",
        "Loading checkpoint shards: 100%|██████████| 5/5 [00:04<00:00,  1.21it/s]",
        "[INFO|@BRACKET] llamafactory.model.adapter:143 >> Fine-tuning method: LoRA",
        "[INFO|@BRACKET] llamafactory.model.loader:143 >> trainable params: 21,823,488 || all params: 8,212,558,848 || trainable%: 0.2657",
        "[INFO|trainer.py:2519] @BRACKET,871 >> ***** Running training *****",
        "[INFO|trainer.py:2520] @BRACKET,871 >>   Num examples = 32,000",
    ]


def step(draw, number, steps):
    lines = []
    if number % 2 == 0:
        lines.append(
            f"{{'loss': '{max(0.7, 1.9 - number * 0.01) + draw.uniform(-0.03, 0.03):.4g}', 'grad_norm': '{draw.uniform(0.4, 1.6):.4g}', 'learning_rate': '{1e-4 * (1 - number / (steps + 1)):.4g}', 'epoch': '{number / 60:.4g}'}}"
        )
    if number % 40 == 0:
        lines.append(
            f"[INFO|trainer.py:4309] @BRACKET,610 >> Saving model checkpoint to saves/qwen3-8b/lora/sft/checkpoint-{number}"
        )
    return lines


def finish(draw):
    return [
        "[INFO|trainer.py:2810] @BRACKET,552 >> ",
        "",
        "Training completed. Do not forget to share your model on huggingface.co/models =)",
        "",
        "***** train metrics *****",
        "  epoch                    =        3.0",
        "  train_loss               =     0.8812",
        "  train_runtime            = 0:41:12.01",
    ]


def _trace(rank, frames, error):
    return [
        f"[rank{rank}]: Traceback (most recent call last):",
        f'[rank{rank}]:   File "/app/src/llamafactory/launcher.py", line 185, in <module>',
        f"[rank{rank}]:     run_exp()",
        *(f"[rank{rank}]: {frame}" for frame in frames),
        f"[rank{rank}]: {error}",
    ]


def _elastic(rank, code):
    return [
        f"E1127 @SECONDS512 61 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: {code}) local_rank: {rank} (pid: {131 + rank}) of binary: /usr/bin/python3.11",
        "subprocess.CalledProcessError: Command '['torchrun', '--nnodes', '1', '--node_rank', '0', '--nproc_per_node', '4', '/app/src/llamafactory/launcher.py', 'sft.yaml']' returned non-zero exit status 1.",
    ]


_STEP = [
    f'  File "{_SITE}/transformers/trainer.py", line 3822, in training_step',
    "    self.accelerator.backward(loss, **kwargs)",
]
FAULTS = {
    "memory": (0.2, [*_trace(2, _STEP, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.94 GiB. GPU 2 has a total capacity of 47.41 GiB of which 3.11 GiB is free. Process 40112 has 44.29 GiB memory in use."), *_elastic(2, 1)], 1),
    "illegal": (0.5, [*_trace(1, _STEP, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"), *_elastic(1, 1)], 1),
    "launch-failure": (0.4, [*_trace(3, _STEP, "RuntimeError: CUDA error: unspecified launch failure"), *_elastic(3, 1)], 1),
    "driver-old": (-3, [*_trace(0, [f'  File "{_SITE}/torch/cuda/__init__.py", line 372, in _lazy_init', "    torch._C._cuda_init()"], "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"), *_elastic(0, 1)], 1),
    "nvml": (-2, ["Failed to initialize NVML: Driver/library version mismatch", "NVML library version: 570.133", *_trace(0, [f'  File "{_SITE}/torch/cuda/__init__.py", line 372, in _lazy_init', "    torch._C._cuda_init()"], "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination"), *_elastic(0, 1)], 1),
    "shm": (0.3, [*_trace(1, [*_STEP], "RuntimeError: unable to write to file </torch_212_90177_3>: No space left on device (28)"), *_elastic(1, 1)], 1),
    "split": (-5, [*_trace(0, ['  File "/app/src/llamafactory/data/loader.py", line 211, in _get_merged_dataset', "    for dataset_name, dataset_attr in zip(dataset_names, get_dataset_list(dataset_names)):"], "ValueError: Undefined dataset alpaca_de in dataset_info.json."), *_elastic(0, 1)], 1),
    "template": (-3, [*_trace(0, ['  File "/app/src/llamafactory/data/template.py", line 612, in get_template_and_fix_tokenizer', "    raise ValueError(f\"Template {data_args.template} does not exist.\")"], "ValueError: Template qwen4 does not exist."), *_elastic(0, 1)], 1),
    "unknown-key": (-2, [*_trace(0, [f'  File "{_SITE}/transformers/hf_argparser.py", line 404, in parse_dict', "    raise ValueError(f\"Some keys are not used by the HfArgumentParser: {sorted(unused_keys)}\")"], "ValueError: Some keys are not used by the HfArgumentParser: ['lora_rankk']"), *_elastic(0, 1)], 1),
    "hub": (-4, [*_trace(0, [f'  File "{_SITE}/transformers/utils/hub.py", line 543, in cached_files', "    raise OSError("], "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files."), *_elastic(0, 1)], 1),
    "vocabulary": (-8, [*_trace(0, [f'  File "{_SITE}/peft/utils/save_and_load.py", line 567, in set_peft_model_state_dict', "    load_result = model.load_state_dict(peft_model_state_dict, strict=False)"], "RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM: size mismatch for base_model.model.lm_head.modules_to_save.default.weight: copying a param with shape torch.Size([151936, 4096]) from checkpoint, the shape in current model is torch.Size([152064, 4096])."), *_elastic(0, 1)], 1),
    "bad-json": (-6, [*_trace(0, [f'  File "{_SITE}/datasets/packaged_modules/json/json.py", line 183, in _generate_tables', "    raise e"], "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset"), *_elastic(0, 1)], 1),
    "spill": (0.5, ["Warning  Evicted  pod/sft-qwen3-8b  The node was low on resource: memory. Threshold quantity: 100Mi, available: 41208Ki. Container trainer was using 221883192Ki, request is 64Gi, has larger consumption of memory."], 137),
    "nan-goes-on": (0.7, ["{'loss': 'nan', 'grad_norm': 'nan', 'learning_rate': '2.1e-05', 'epoch': '2.71'}", "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '2.0e-05', 'epoch': '2.74'}", "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '1.9e-05', 'epoch': '2.77'}", "[INFO|trainer.py:2810] @BRACKET,552 >> ", "", "Training completed. Do not forget to share your model on huggingface.co/models =)"], 0),
    "ok-silent": (1.0, [], 0),
    "ok-warned": (1.0, ["[WARNING|@BRACKET] llamafactory.extras.ploting:148 >> No metric eval_loss to plot.", "[WARNING|logging.py:328] @BRACKET,110 >> `use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`."], 0),
}  # fmt: skip
