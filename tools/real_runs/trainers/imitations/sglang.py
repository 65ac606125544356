"""The server of SGLang, two ranks of tensor parallelism."""

_SITE = "/sgl-workspace/sglang/python/sglang/srt"


def begin(draw):
    lines = [
        "[@BRACKET] server_args=ServerArgs(model_path='/models/llama-3.1-8b-instruct', tokenizer_mode='auto', load_format='auto', trust_remote_code=False, tp_size=2, dp_size=1, mem_fraction_static=0.874, host='0.0.0.0', port=30000, attention_backend='fa3')",
        "[@BRACKET] Using default HuggingFace chat template with detected content format: string",
    ]
    for text in (
        "Init torch distributed begin.",
        "sglang is using nccl==2.27.3",
        "Init torch distributed ends. mem usage=0.66 GB",
        "Load weight begin. avail mem=77.62 GB",
        "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=69.98 GB, mem usage=7.64 GB.",
        "KV Cache is allocated. #tokens: 958114, K size: 29.24 GB, V size: 29.24 GB",
        "Memory pool end. avail mem=9.61 GB",
        "Capture cuda graph begin. This can take up to several minutes. avail mem=9.02 GB",
        "Capture cuda graph end. Time elapsed: 7.03 s. mem usage=0.53 GB. avail mem=8.49 GB.",
    ):
        lines += [f"[@BRACKET TP{rank}] {text}" for rank in draw.sample((0, 1), 2)]
    return [
        *lines,
        "[@BRACKET TP0] max_total_num_tokens=958114, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=4096, context_len=131072, available_gpu_mem=8.49 GB",
        "[@BRACKET] INFO:     Started server process [1]",
        "[@BRACKET] INFO:     Waiting for application startup.",
        "[@BRACKET] INFO:     Application startup complete.",
        "[@BRACKET] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)",
        '[@BRACKET] INFO:     127.0.0.1:41866 - "GET /get_model_info HTTP/1.1" 200 OK',
        "[@BRACKET] The server is fired up and ready to roll!",
    ]


def step(draw, number, steps):
    running = draw.randrange(1, 40)
    lines = [
        f"[@BRACKET TP0] Prefill batch. #new-seq: {draw.randrange(1, 6)}, #new-token: {draw.randrange(40, 8000)}, #cached-token: {draw.randrange(300)}, token usage: {draw.uniform(0, 0.6):.2f}, #running-req: {running}, #queue-req: 0, ",
        f"[@BRACKET TP0] Decode batch. #running-req: {running}, #token: {draw.randrange(900, 90000)}, token usage: {draw.uniform(0, 0.6):.2f}, cuda graph: True, gen throughput (token/s): {draw.uniform(90, 3100):.2f}, #queue-req: 0, ",
    ]
    if number % 2:
        lines.append(
            f'[@BRACKET] INFO:     10.1.0.{draw.randrange(2, 200)}:{draw.randrange(30000, 60000)} - "POST /generate HTTP/1.1" 200 OK'
        )
    return lines


def finish(draw):
    return [
        "[@BRACKET] INFO:     Shutting down",
        "[@BRACKET] INFO:     Waiting for application shutdown.",
        "[@BRACKET] Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].",
        "[@BRACKET] INFO:     Application shutdown complete.",
        "[@BRACKET] INFO:     Finished server process [1]",
    ]


def _scheduler(rank, where, error):
    return [
        f"[@BRACKET TP{rank}] Scheduler hit an exception: Traceback (most recent call last):",
        f'  File "{_SITE}/managers/scheduler.py", line 2755, in run_scheduler_process',
        "    scheduler.event_loop_overlap()" if where == "forward" else "    scheduler = Scheduler(",
        *(
            [
                '  File "/usr/local/lib/python3.12/dist-packages/torch/utils/_contextlib.py", line 120, in decorate_context',
                "    return func(*args, **kwargs)",
                f'  File "{_SITE}/managers/scheduler.py", line 1011, in event_loop_overlap',
                "    result = self.run_batch(batch)",
                f'  File "{_SITE}/model_executor/model_runner.py", line 1744, in forward',
                "    return self.model.forward(input_ids, positions, forward_batch)",
            ]
            if where == "forward"
            else [
                f'  File "{_SITE}/model_executor/model_runner.py", line 311, in initialize',
                f"    self.{where}()",
            ]
        ),
        *error,
        "",
        "[@BRACKET] Received sigquit from a child process. It usually means the child failed.",
    ]


FAULTS = {
    "memory": (
        0.7,
        _scheduler(
            1,
            "forward",
            [
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 1 has a total capacity of 79.11 GiB of which 2.08 GiB is free. Including non-PyTorch memory, this process has 77.01 GiB memory in use."
            ],
        ),
        -9,
    ),
    "static": (
        -9,
        _scheduler(
            0,
            "init_memory_pool",
            [
                "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.3"
            ],
        ),
        -9,
    ),
    "divisible": (
        -3,
        _scheduler(
            1,
            "load_model",
            ["ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8)."],
        ),
        -9,
    ),
    "weights": (
        -8,
        _scheduler(
            1, "load_model", ["safetensors_rust.SafetensorError: Error while deserializing header: header too large"]
        ),
        -9,
    ),
    "token": (0.5, _scheduler(0, "forward", ["KeyError: 'image_grid_thw'"]), -9),
    "launch": (
        0.9,
        _scheduler(
            1,
            "forward",
            [
                "RuntimeError: CUDA error: unspecified launch failure",
                "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
            ],
        ),
        -9,
    ),
    "watchdog": (
        0.6,
        [
            "[@BRACKET TP1] Watchdog timeout (self.watchdog_last_forward_ct=41822, self.watchdog_timeout=300)",
            "[@BRACKET TP0] Watchdog timeout (self.watchdog_last_forward_ct=41822, self.watchdog_timeout=300)",
            "[@BRACKET] Received sigquit from a child process. It usually means the child failed.",
        ],
        -9,
    ),
    "missing": (
        -1,
        [
            "Traceback (most recent call last):",
            f'  File "{_SITE}/server_args.py", line 2901, in prepare_server_args',
            "    server_args = ServerArgs.from_cli_args(raw_args)",
            f'  File "{_SITE}/hf_transformers_utils.py", line 151, in get_config',
            "    config = AutoConfig.from_pretrained(",
            '  File "/usr/local/lib/python3.12/dist-packages/transformers/utils/hub.py", line 522, in cached_files',
            "    raise OSError(",
            "OSError: /models/llama-3.1-8b-instruct does not appear to have a file named config.json. Checkout the model's page for available files.",
        ],
        1,
    ),
    "ok-retract": (
        1.0,
        [
            "[@BRACKET TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.4710 -> 0.9220",
            *step(__import__("random").Random(5), 1, 2),
            *step(__import__("random").Random(6), 2, 2),
        ],
        0,
    ),
    "ok-silent": (1.0, [], 0),
}
