"""The API server of vLLM (V1 engine, two workers of tensor parallelism)."""

_API, _ENGINE = "(APIServer pid=41)", "(EngineCore_DP0 pid=97)"
_W = ("(Worker_TP0 pid=131)", "(Worker_TP1 pid=132)")
_SITE = "/usr/local/lib/python3.12/dist-packages/vllm"


def begin(draw):
    lines = [
        f"{_API} INFO @MMDD [api_server.py:1839] vLLM API server version 0.11.0",
        f"{_API} INFO @MMDD [utils.py:233] non-default args: {{'model': '/models/qwen2.5-14b-instruct', 'tensor_parallel_size': 2, 'max_model_len': 32768, 'gpu_memory_utilization': 0.92}}",
        f"{_API} INFO @MMDD [model.py:547] Resolved architecture: Qwen2ForCausalLM",
        f"{_API} INFO @MMDD [model.py:1510] Using max model len 32768",
        f"{_API} INFO @MMDD [scheduler.py:205] Chunked prefill is enabled with max_num_batched_tokens=8192.",
        f"{_ENGINE} INFO @MMDD [core.py:644] Waiting for init message from front-end.",
        f"{_ENGINE} INFO @MMDD [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='/models/qwen2.5-14b-instruct', speculative_config=None, dtype=torch.bfloat16, max_seq_len=32768, load_format=auto, tensor_parallel_size=2, pipeline_parallel_size=1, disable_custom_all_reduce=False, quantization=None, enforce_eager=False",
        f"{_ENGINE} WARNING @MMDD [multiproc_executor.py:720] Reducing Torch parallelism from 48 threads to 1 to avoid unnecessary CPU contention. Set OMP_NUM_THREADS in the external environment to tune this value as needed.",
    ]
    for rank, worker in enumerate(_W):
        lines += [
            f"{worker} INFO @MMDD [parallel_state.py:1208] rank {rank} in world size 2 is assigned as DP rank 0, PP rank 0, TP rank {rank}, EP rank {rank}",
            f"{worker} INFO @MMDD [__init__.py:1384] Found nccl from library libnccl.so.2",
            f"{worker} INFO @MMDD [pynccl.py:103] vLLM is using nccl==2.27.3",
            f"{worker} INFO @MMDD [gpu_model_runner.py:2602] Starting to load model /models/qwen2.5-14b-instruct...",
        ]
    lines += [
        f"{_W[0]} INFO @MMDD [cuda.py:366] Using Flash Attention backend on V1 engine.",
        *(
            f"Loading safetensors checkpoint shards: {100 * n // 8:3d}% Completed | {n}/8 [00:0{n}<00:0{8 - n},  1.0{n}it/s]"
            for n in range(9)
        ),
    ]
    for worker in _W:
        lines += [
            f"{worker} INFO @MMDD [default_loader.py:267] Loading weights took 8.42 seconds",
            f"{worker} INFO @MMDD [gpu_model_runner.py:2653] Model loading took 13.9281 GiB and 9.113214 seconds",
            f"{worker} INFO @MMDD [backends.py:548] Using cache directory: /root/.cache/vllm/torch_compile_cache/2c1a31f/rank_0_0/backbone for vLLM's torch.compile",
            f"{worker} INFO @MMDD [monitor.py:34] torch.compile takes 21.37 s in total",
            f"{worker} INFO @MMDD [gpu_worker.py:298] Available KV cache memory: 54.31 GiB",
        ]
    return [
        *lines,
        f"{_ENGINE} INFO @MMDD [kv_cache_utils.py:1087] GPU KV cache size: 593,104 tokens",
        f"{_ENGINE} INFO @MMDD [kv_cache_utils.py:1091] Maximum concurrency for 32,768 tokens per request: 18.10x",
        f"{_W[0]} INFO @MMDD [gpu_model_runner.py:3480] Graph capturing finished in 19 secs, took 0.94 GiB",
        f"{_ENGINE} INFO @MMDD [core.py:210] init engine (profile, create kv cache, warmup model) took 58.03 seconds",
        f"{_API} INFO @MMDD [api_server.py:1912] Starting vLLM API server 0 on http://0.0.0.0:8000",
        f"{_API} INFO:     Started server process [41]",
        f"{_API} INFO:     Waiting for application startup.",
        f"{_API} INFO:     Application startup complete.",
    ]


def step(draw, number, steps):
    lines = [
        f'{_API} INFO:     10.1.{draw.randrange(4)}.{draw.randrange(2, 250)}:{draw.randrange(32000, 60000)} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
        for _ in range(draw.randrange(1, 4))
    ]
    if number % 3 == 0:
        lines.append(
            f"{_API} INFO @MMDD [loggers.py:127] Engine 000: Avg prompt throughput: {draw.uniform(80, 900):.1f} tokens/s, Avg generation throughput: {draw.uniform(100, 2100):.1f} tokens/s, Running: {draw.randrange(1, 60)} reqs, Waiting: {draw.randrange(3)} reqs, GPU KV cache usage: {draw.uniform(0.2, 45):.1f}%, Prefix cache hit rate: {draw.uniform(3, 60):.1f}%"
        )
    return lines


def finish(draw):
    return [
        f"{_API} INFO:     Shutting down",
        f"{_API} INFO:     Waiting for application shutdown.",
        f"{_API} INFO:     Application shutdown complete.",
        f"{_API} INFO:     Finished server process [41]",
    ]


def _worker_trace(worker, call, error):
    head = f"{worker} ERROR @MMDD [multiproc_executor.py:671]"
    return [
        f"{head} WorkerProc hit an exception.",
        f"{head} Traceback (most recent call last):",
        f'{head}   File "{_SITE}/v1/executor/multiproc_executor.py", line 666, in worker_busy_loop',
        f"{head}     output = func(*args, **kwargs)",
        f'{head}   File "{_SITE}/v1/worker/gpu_worker.py", line 447, in {call}',
        f"{head}     output = self.model_runner.{call}(scheduler_output, intermediate_tensors)",
        f'{head}   File "{_SITE}/v1/worker/gpu_model_runner.py", line 2268, in {call}',
        f"{head}     model_output = self.model(input_ids=input_ids, positions=positions)",
        *(f"{head} {line}" for line in error),
    ]


def _engine_dead(error):
    head = f"{_ENGINE} ERROR @MMDD [core.py:710]"
    api = f"{_API} ERROR @MMDD [async_llm.py:480]"
    return [
        f"{head} EngineCore encountered a fatal error.",
        f"{head} Traceback (most recent call last):",
        f'{head}   File "{_SITE}/v1/engine/core.py", line 701, in run_engine_core',
        f"{head}     engine_core.run_busy_loop()",
        f'{head}   File "{_SITE}/v1/executor/multiproc_executor.py", line 264, in collective_rpc',
        f"{head}     raise RuntimeError(",
        f"{head} RuntimeError: Worker failed with error '{error}', please check the stack trace above for the root cause",
        f"{api} AsyncLLM output_handler failed.",
        f"{api} Traceback (most recent call last):",
        f'{api}   File "{_SITE}/v1/engine/core_client.py", line 846, in get_output_async',
        f"{api}     raise self._format_exception(outputs) from None",
        f"{api} vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
        f'{_API} INFO:     10.1.0.31:40012 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
        *finish(None),
    ]


def _engine_init(error):
    head = f"{_ENGINE} ERROR @MMDD [core.py:708]"
    return [
        f"{head} EngineCore failed to start.",
        f"{head} Traceback (most recent call last):",
        f'{head}   File "{_SITE}/v1/engine/core.py", line 699, in run_engine_core',
        f"{head}     engine_core = EngineCoreProc(*args, **kwargs)",
        f'{head}   File "{_SITE}/v1/engine/core.py", line 92, in __init__',
        f"{head}     self._initialize_kv_caches(vllm_config)",
        f"{head} {error}",
        f"{_ENGINE} Process EngineCore_DP0:",
        f"{_API} Traceback (most recent call last):",
        f'{_API}   File "/usr/local/bin/vllm", line 10, in <module>',
        f"{_API}     sys.exit(main())",
        f'{_API}   File "{_SITE}/v1/engine/utils.py", line 729, in wait_for_engine_startup',
        f'{_API}     raise RuntimeError("Engine core initialization failed. "',
        f"{_API} RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}",
    ]


_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 1 has a total capacity of 79.10 GiB of which 411.06 MiB is free. Process 71233 has 78.69 GiB memory in use. Of the allocated memory 76.02 GiB is allocated by PyTorch, with 1.03 GiB allocated in private pools (e.g., CUDA Graphs), and 612.44 MiB is reserved by PyTorch but unallocated."
_ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
_NCCL = "RuntimeError: NCCL error: remote process exited or there was a network error"
_KV = "ValueError: To serve at least one request with the models's max seq len (131072), (24.00 GiB KV cache is needed, which is larger than the available KV cache memory (11.52 GiB). Based on the available memory, the estimated maximum model length is 62912. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
FAULTS = {
    "memory": (
        0.8,
        [
            *_worker_trace(_W[1], "execute_model", [_OOM]),
            *_engine_dead("CUDA out of memory. Tried to allocate 1.16 GiB."),
        ],
        1,
    ),
    "illegal": (
        0.6,
        [
            *_worker_trace(
                _W[1],
                "execute_model",
                [
                    _ILLEGAL,
                    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
                    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
                ],
            ),
            *_engine_dead("CUDA error: an illegal memory access was encountered"),
        ],
        1,
    ),
    "nccl": (
        0.7,
        [
            *_worker_trace(_W[0], "execute_model", [_NCCL]),
            *_engine_dead("NCCL error: remote process exited or there was a network error"),
        ],
        1,
    ),
    "kv-cache": (-26, _engine_init(_KV), 1),
    "header": (
        -16,
        [
            f"{_W[0]} ERROR @MMDD [multiproc_executor.py:597] WorkerProc failed to start.",
            f"{_W[0]} ERROR @MMDD [multiproc_executor.py:597] Traceback (most recent call last):",
            f'{_W[0]} ERROR @MMDD [multiproc_executor.py:597]   File "{_SITE}/model_executor/model_loader/weight_utils.py", line 628, in safetensors_weights_iterator',
            f'{_W[0]} ERROR @MMDD [multiproc_executor.py:597]     with safe_open(st_file, framework="pt") as f:',
            f"{_W[0]} ERROR @MMDD [multiproc_executor.py:597] safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
            *_engine_init(
                "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause."
            ),
        ],
        1,
    ),
    "option": (
        -1,
        ["usage: vllm serve [model_tag] [options]", "vllm: error: unrecognized arguments: --max-model-length 32768"],
        2,
    ),
    "port": (
        -2,
        [
            f"{_API} Traceback (most recent call last):",
            f'{_API}   File "/usr/local/bin/vllm", line 10, in <module>',
            f"{_API}     sys.exit(main())",
            f'{_API}   File "{_SITE}/entrypoints/openai/api_server.py", line 1820, in create_server_socket',
            f"{_API}     sock.bind(addr)",
            f"{_API} OSError: [Errno 98] Address already in use",
        ],
        1,
    ),
    "architecture": (
        -2,
        [
            f"{_API} Traceback (most recent call last):",
            f'{_API}   File "{_SITE}/engine/arg_utils.py", line 1142, in create_model_config',
            f"{_API}     return ModelConfig(",
            f'{_API}   File "/usr/local/lib/python3.12/dist-packages/pydantic/_internal/_dataclasses.py", line 123, in __init__',
            f"{_API}     s = __pydantic_self__.__pydantic_validator__.validate_python(ArgsKwargs(args, kwargs), self_instance=s)",
            f"{_API} pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
            f"{_API}   Value error, Model architectures ['OrionMoeForCausalLM'] are not supported for now. Supported architectures: dict_keys(['ApertusForCausalLM', 'AquilaModel', 'ArceeForCausalLM', 'Qwen2ForCausalLM']) [type=value_error, input_value=ArgsKwargs((), {{'model': ...}}), input_type=ArgsKwargs]",
            f"{_API}     For further information visit the documentation of pydantic",
        ],
        1,
    ),
    "worker-killed": (
        0.5,
        [
            f"{_ENGINE} ERROR @MMDD [multiproc_executor.py:154] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.",
            *_engine_dead("Executor failed.")[:7],
            *_engine_dead("Executor failed.")[7:],
        ],
        1,
    ),
    "import": (
        -1,
        [
            "Traceback (most recent call last):",
            '  File "/usr/local/bin/vllm", line 4, in <module>',
            "    from vllm.entrypoints.cli.main import main",
            f'  File "{_SITE}/__init__.py", line 14, in <module>',
            "    import vllm.env_override  # noqa: F401",
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
        ],
        1,
    ),
    "ok-bad-requests": (
        1.0,
        [
            f"{_API} ERROR @MMDD [serving_chat.py:240] Error in preprocessing prompt inputs",
            f"{_API} ERROR @MMDD [serving_chat.py:240] Traceback (most recent call last):",
            f'{_API} ERROR @MMDD [serving_chat.py:240]   File "{_SITE}/entrypoints/openai/serving_chat.py", line 218, in create_chat_completion',
            f"{_API} ERROR @MMDD [serving_chat.py:240] ValueError: This model's maximum context length is 32768 tokens. However, your request has 41022 input tokens.",
            f'{_API} INFO:     10.1.2.7:51234 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',
            *step(__import__("random").Random(3), 3, 9),
            *step(__import__("random").Random(4), 6, 9),
        ],
        0,
    ),
    "ok-silent": (1.0, [], 0),
}
