"""Runtimes that print for the processes they start: Ray, Kubernetes, NCCL."""

import re

from diagnoser.dialects.dialect import HOST, Dialect, Example
from diagnoser.dialects.replicas import POD_SUFFIX

_NUMBERED = r"[A-Za-z]\w{0,60}\[\d{1,5}\]"
"""What an actor may call itself: its class with a number."""

DIALECTS = (
    Dialect(
        "vLLM",  # one tensor-parallel group numbers its workers as ranks
        r"\((?:Vllm)?Worker(?:_TP| rank=)(?P<rank>\d{1,5})(?:_EP\d{1,5})? pid=(?P<pid>\d{1,8})\) ",
        (
            Example("(Worker_TP1 pid=812) hello", "hello", {"rank": "1", "pid": "812"}),
            Example("(Worker_TP1_EP1 pid=812) hello", "hello", {"rank": "1", "pid": "812"}),
            Example("(VllmWorker rank=1 pid=812) hello", "hello", {"rank": "1", "pid": "812"}),
        ),
        blurred=r"\((?:Vllm)?Worker(?:_TP| rank=)0(?:_EP0)? pid=0\) ",
    ),
    Dialect(
        "Ray",  # and SkyPilot
        rf"\((?:(?P<pod>{_NUMBERED}) |(?:[^()\n=, ]{{1,60}}+,? ){{0,3}})pid=(?P<pid>\d++)"
        r"(?:, ip=(?P<ip>[\w.:-]{1,80}))?\) ",
        (
            Example("(Trainer pid=812, ip=10.1.2.3) hello", "hello", {"pid": "812", "ip": "10.1.2.3"}),
            Example("(Worker pid=812, ip=gpu-026) hello", "hello", {"pid": "812", "ip": "gpu-026"}),
            Example("(Actor[2] pid=812) hello", "hello", {"pid": "812", "pod": "Actor[2]"}),
        ),
        blurred=r"\([^()\n=]{1,250}pid=0(?:, ip=[\w.: ]{1,80})?\) ",
    ),
    Dialect(
        "kubectl logs --prefix",
        r"\[pod/(?P<pod>[^\]/\n]{1,100})[^\]\n]{0,100}\] ",
        (Example("[pod/train-0/worker] hello", "hello", {"pod": "train-0"}),),
    ),
    Dialect(
        "replica of a training operator",
        r"(?P<pod>[a-z][a-z0-9]{0,40}+-(?:[a-z0-9]{1,40}-){0,4}"
        rf"(?:master|worker|launcher|chief|ps|head)-\d{{1,4}}(?:-{POD_SUFFIX})?):? ",
        (
            Example("llm-worker-3 hello", "hello", {"pod": "llm-worker-3"}),
            Example("llm-worker-3-x7k2p rank 3 on node n1", "rank 3 on node n1", {"pod": "llm-worker-3-x7k2p"}),
            Example("llm-worker-3 rank 3 on node n1", "rank 3 on node n1", {"pod": "llm-worker-3"}),
        ),
    ),
    Dialect(
        "Prefect",  # output of a task at the level that it gives to all of it
        r"\d\d:\d\d:\d\d\.\d{3} \| INFO {4}\| Task run '(?P<pod>[^'\n]{1,100})' - ",
        (Example("03:04:05.123 | INFO    | Task run 'fit-1' -   File", "  File", {"pod": "fit-1"}),),
    ),
    Dialect(
        "NCCL",
        rf"(?P<node>{HOST}):\d{{1,8}}+:\d{{1,8}}+ \[\d{{1,2}}\] ",
        (Example("node-a7:811:902 [3] NCCL WARN x", "NCCL WARN x", {"node": "node-a7"}),),
    ),
)

_REPETITION = re.compile(r" ?\[repeated \d{1,9}x across cluster\](?: \(Ray deduplicates logs.{0,400})?\s*$")


def repetition(body: str) -> str:
    """The message of a line that stands for others which Ray held back: the first of its kind was printed when it came,
    this one seconds later, or when the driver ended. "" for any other line."""
    if "x across cluster]" not in body:
        return ""
    match = _REPETITION.search(body)
    return body[: match.start()] if match else ""
