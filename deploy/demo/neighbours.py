"""What else runs on the demo's cluster: nine jobs, so that the pages show what a site sees.

Their lines are written in the words of the real programs. One goes on until the demo ends; one fails on the node of the
main job, so that both are one incident; the plan of one waits for a person.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import yaml

NODES = ("gpu-011", "gpu-014", "gpu-017", "gpu-023")
STEP_SECONDS = 1.0
RUNNING = "moe-8x7b-pretrain"


@dataclass(frozen=True)
class DemoJob:
    """lines: after its training steps. gpus: what it asked the scheduler for."""

    id: str
    name: str
    lines: tuple[str, ...]
    code: int
    steps: int = 60
    gpus: int = 64
    node: str = "gpu-011"
    loss: float = 3.1


def traceback(path: str, line: int, code: str, error: str) -> tuple[str, ...]:
    return ("Traceback (most recent call last):", f'  File "{path}", line {line}, in <module>', f"    {code}", error)


JOBS = (
    DemoJob(
        "gpt-7b-ablation",
        "GPT 7B, other learning rate",
        (
            "[rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
            "[rank5]:[E1118 05:12:07.101 ProcessGroupNCCL.cpp:1896] [PG ID 0 PG GUID 0 Rank 5] Process group watchdog "
            "thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
            "srun: error: gpu-017: task 5: Aborted (core dumped)",
        ),
        code=134,
        gpus=256,
        node="gpu-017",
    ),
    DemoJob(
        "llama-13b-sft",
        "Llama 13B fine-tuning",
        traceback(
            "/workspace/sft/train.py",
            212,
            "loss.backward()",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB. GPU 0 has a total capacity of "
            "79.15 GiB of which 1.02 GiB is free.",
        ),
        code=1,
        gpus=128,
        node="gpu-014",
    ),
    DemoJob("vit-large", "ViT-L on ImageNet", ("Training finished: top-1 83.2 after 90 epochs",), code=0, gpus=8),
    DemoJob(
        "eval-mmlu",
        "MMLU of step 40000",
        traceback(
            "/workspace/eval/run.py",
            3,
            "import flash_attn",
            "ModuleNotFoundError: No module named 'flash_attn'",
        ),
        code=1,
        steps=0,
        gpus=8,
        node="gpu-023",
    ),
    DemoJob(
        "dpo-13b",
        "DPO of Llama 13B",
        (
            "step 61/500 loss nan grad_norm nan",
            *traceback(
                "/workspace/dpo/train.py",
                98,
                'raise FloatingPointError("loss is nan at step 61")',
                "FloatingPointError: loss is nan at step 61",
            ),
        ),
        code=1,
        gpus=128,
        node="gpu-014",
    ),
    DemoJob(
        "tokenizer-32k",
        "Tokenizer",
        traceback(
            "/workspace/data/tokenize.py",
            41,
            "with open(args.corpus) as corpus:",
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus/part-00017.jsonl'",
        ),
        code=1,
        steps=0,
        gpus=0,
    ),
    DemoJob(
        "reward-7b",
        "Reward model",
        (
            "slurmstepd: error: *** JOB 4711 ON gpu-023 CANCELLED AT 2026-11-18T04:10:00 DUE TO TIME LIMIT ***",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        ),
        code=143,
        node="gpu-023",
    ),
    DemoJob(
        "gpt-1b-long-context",
        "GPT 1B, 128k context",
        (
            "[rank2]: OSError: [Errno 116] Stale file handle: '/checkpoints/gpt-1b/step_60/rank2.pt'",
            "srun: error: gpu-014: task 2: Exited with exit code 1",
        ),
        code=1,
        gpus=32,
        node="gpu-014",
    ),
)


def rules_that_ask(shipped: Path, folder: Path) -> Path:
    """Rules of a site whose policy waits for a person's approval before anything is done."""
    table = yaml.safe_load((shipped / "policy.yaml").read_text("utf-8"))
    table["defaults"]["mode"] = "approve"
    folder.mkdir()
    (folder / "policy.yaml").write_text(yaml.safe_dump(table, sort_keys=False), "utf-8")
    return folder


def send(client: httpx.Client, now: datetime) -> None:
    """Eight jobs that end now, each with its log, its nodes and how it ended."""
    for job in JOBS:
        lines = [*steps(0, job.steps, job.loss), *job.lines]
        first = now - timedelta(seconds=STEP_SECONDS * len(lines))
        register(client, job.id, job.name, (job.node,), first, job.gpus)
        stamped = (f"{stamp(first, number)} {line}\n" for number, line in enumerate(lines))
        post(client, job.id, "".join(stamped), job.node, 0)
        event = {"kind": "exit", "code": job.code, "time": now.timestamp()}
        client.post(f"/api/v1/jobs/{job.id}/events", json=event).raise_for_status()


@contextmanager
def training(client: httpx.Client, now: datetime) -> Iterator[None]:
    """One job that has run for a while and goes on, a step a second, until the block ends."""
    past = 300
    register(client, RUNNING, "Mixture of experts, 8x7B", NODES, now - timedelta(seconds=STEP_SECONDS * past), 512)
    first = now - timedelta(seconds=STEP_SECONDS * past)
    history = (f"{stamp(first, number)} {line}\n" for number, line in enumerate(steps(0, past, 4.2, of=2000)))
    post(client, RUNNING, "".join(history), NODES[0], 0)
    stopped = threading.Event()

    def go_on() -> None:
        for number, line in enumerate(steps(past, 2000, 4.2, of=2000), past):
            if stopped.wait(STEP_SECONDS):
                return
            try:
                post(client, RUNNING, f"{stamp(datetime.now(UTC), 0)} {line}\n", NODES[0], number)
            except httpx.HTTPError:
                return  # the service is being stopped

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def register(client: httpx.Client, job: str, name: str, nodes: tuple[str, ...], started: datetime, gpus: int) -> None:
    event = {"kind": "started", "time": started.timestamp()}
    client.post(f"/api/v1/jobs/{job}/events", json=event).raise_for_status()
    body = {"id": job, "name": name, "nodes": list(nodes), "labels": {"gpus": str(gpus)}}
    client.post("/api/v1/jobs", json=body).raise_for_status()


def post(client: httpx.Client, job: str, text: str, node: str, offset: int) -> None:
    query: dict[str, str | int] = {"job": job, "node": node, "offset": offset}
    client.post("/api/v1/logs", params=query, content=text, headers={"Content-Type": "text/plain"}).raise_for_status()


def steps(first: int, last: int, loss: float, of: int = 500) -> Iterator[str]:
    for step in range(first + 1, last + 1):
        shown = loss * (0.4 + 0.6 / (1 + step / 80)) + 0.02 * ((step * 7919) % 11 - 5)
        speed = 41_000 + step % 700
        yield f"step {step}/{of} loss {shown:.4f} lr 3.0e-04 grad_norm {0.8 + step % 5 / 10:.2f} tokens/s {speed}"


def stamp(first: datetime, number: int) -> str:
    return (first + timedelta(seconds=STEP_SECONDS * number)).strftime("%Y-%m-%dT%H:%M:%SZ")
