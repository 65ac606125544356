"""Launchers of distributed jobs, and the parallel shells below them."""

import re

from diagnoser.dialects.dialect import HOST, Dialect, Example, PrefixStripping

_NO_HOST = (
    r"(?!(?i:rank|epoch|step|iter|gpu|cuda|device|worker|loss|layer|trial|fold|task|srun|line)\w*+:"
    r"|[\w.]*(?:Error|Exception|Warning|Exit|Interrupt):)"
)
"""A counter or the name of a class, which a colon follows as well."""
NUMBERED_HOST = rf"{_NO_HOST}[A-Za-z][\w.-]{{0,60}}\d[\w.-]{{0,40}}"
ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}"
_BLURRED_HOST = rf"{_NO_HOST}[A-Za-z][\w. ]{{0,60}}0[\w. ]{{0,40}}"

_CTIME = r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}"

AGENT = re.compile(r"torch[./]distributed[./](?:elastic|launcher|run)|torchrun|elastic_launch")
"""Says that one process for each node starts the ranks."""

DIALECTS = (
    Dialect(
        "srun --label",
        r" {0,4}(?P<task>\d{1,5}): ",
        (Example("12: step", "step", {"task": "12"}), Example("  3: step", "step", {"task": "3"})),
    ),
    Dialect(
        "torchrun --tee",
        r"\[default(?P<local>\d{1,4})\]: ?",
        (Example("[default3]:[rank11]: boom", "boom", {"local": "3", "rank": "11"}),),
    ),
    Dialect(
        "torch",  # its excepthook and c10d's logger
        r"\[rank ?(?P<rank>\d{1,5})\]:? ?",
        (Example("[rank7]:[E317 10:11:12.5 x.cpp:1] boom", "[E317 10:11:12.5 x.cpp:1] boom", {"rank": "7"}),),
    ),
    Dialect(
        "mpirun --tag-output",
        rf"(?:{_CTIME})?\[\d{{1,3}},(?P<rank>\d{{1,5}})\]<std(?:out|err|diag)>: ?",
        (
            Example("[1,12]<stdout>:hello", "hello", {"rank": "12"}),
            Example("Fri Jan  2 03:04:05 2026[1,12]<stderr>:hello", "hello", {"rank": "12"}),
        ),
    ),
    Dialect(
        "SageMaker",  # its own mpirun
        rf"\[\d{{1,3}},mpirank:(?P<rank>\d{{1,5}}),(?P<node>{HOST})\]<std(?:out|err)>: ?",
        (Example("[1,mpirank:3,algo-2]<stdout>:hello", "hello", {"rank": "3", "node": "algo-2"}),),
    ),
    Dialect(
        "horovodrun",
        r"\[(?P<rank>\d{1,5})\]<std(?:out|err)>: ?",
        (Example("[3]<stderr>:hello", "hello", {"rank": "3"}),),
    ),
    Dialect(
        "mpiexec -prepend-pattern '[%r@%h] '",
        rf"\[(?P<rank>\d{{1,5}})@(?P<host>{HOST})\] ?",
        (Example("[3@gpu-7]   File", "  File", {"rank": "3", "host": "gpu-7"}),),
    ),
    Dialect(
        "Open MPI",
        rf"\[(?P<node>{HOST}):(?P<pid>\d{{1,8}})\] ",
        (
            Example(
                "[1,12]<stderr>:[gpu-027:59694] *** Process received signal ***",
                "[gpu-027:59694] *** Process received signal ***",
                {"rank": "12", "node": "gpu-027", "pid": "59694"},
            ),
        ),
        opens=True,
    ),
    Dialect(
        "UCX",
        rf"\[\d{{9,11}}\.\d{{6}}\] \[(?P<node>{HOST}):(?P<pid>\d{{1,8}}) {{0,4}}:\d{{1,5}}(?::\d{{1,8}})?\] ",
        (
            Example(
                "[1771113600.123456] [gpu-047:2498 :0]  ib_mlx5_log.c:171  UCX  ERROR Transport retry count exceeded",
                "[1771113600.123456] [gpu-047:2498 :0]  ib_mlx5_log.c:171  UCX  ERROR Transport retry count exceeded",
                {"node": "gpu-047", "pid": "2498"},
            ),
        ),
        opens=True,
    ),
    Dialect(
        "UCX, signal",
        rf"\[(?P<node>{HOST}):(?P<pid>\d{{1,8}}) {{0,4}}:\d{{1,5}}:\d{{1,8}}\] ",
        (
            Example(
                "[gpu-047:2498 :0:2599] Caught signal 11 (Segmentation fault)",
                "[gpu-047:2498 :0:2599] Caught signal 11 (Segmentation fault)",
                {"node": "gpu-047", "pid": "2498"},
            ),
        ),
        opens=True,
    ),
    Dialect(
        "numbered shell",
        r"\[\d{1,5}\]:(?=\[)",
        (Example("[4]:[rank4]: boom", "boom", {"rank": "4"}),),
    ),
    Dialect(
        "own launcher",
        rf"(?P<host>{HOST}) \[std(?:out|err)\] ",
        (Example("gpu-a [stderr] boom", "boom", {"host": "gpu-a"}),),
    ),
    Dialect(
        "parallel shell in front of a rank",  # pdsh, and DeepSpeed through it
        rf"(?P<host>{HOST}): (?=(?: {{0,4}}\d{{1,5}}: )?\[(?:rank|default)\d)",
        (
            Example("gpu-037: [rank19]: boom", "boom", {"host": "gpu-037", "rank": "19"}),
            Example("gpu-037: 2: [rank19]: boom", "boom", {"host": "gpu-037", "task": "2", "rank": "19"}),
        ),
    ),
    Dialect(
        "parallel shell",
        rf"(?P<host>{NUMBERED_HOST}|{ADDRESS}): ",
        (
            Example('gpu-037:   File "a.py", line 3', '  File "a.py", line 3', {"host": "gpu-037"}),
            Example('10.1.2.3:   File "a.py", line 3', '  File "a.py", line 3', {"host": "10.1.2.3"}),
        ),
        blurred=rf"(?:{_BLURRED_HOST}|0\.0\.0\.0): ",
        peeled=PrefixStripping.CARRIED,
    ),
)
