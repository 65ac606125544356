"""One machine has one name."""

import pytest

from diagnoser.localize.node_names import NodeNames
from diagnoser.model import Facts
from tests.accuracy_bars import load
from tests.rule_files import log

NCCL = "gpu-3:77:78 [0] NCCL INFO Bootstrap : Using [0]eth0:10.9.0.3<0>"
OTHER = "gpu-4:77:78 [0] NCCL INFO Bootstrap : Using [0]eth0:10.9.0.4<0>"


@pytest.mark.parametrize(
    "name", ["localhost", "localhost.localdomain", "127.0.0.1", "::1", "(none)", "None", "unknown"]
)
def test_this_machine_is_the_only_one_that_the_log_names(name: str) -> None:
    """It takes the name of the log's only machine, and has none where there are several or the log names no machine."""
    assert NodeNames(log(NCCL)).canonical(name) == "gpu-3"
    assert NodeNames(log(NCCL, OTHER)).canonical(name) is None
    assert NodeNames(log("step 1 loss 2.0")).canonical(name) is None
    assert NodeNames(log("step 1"), registered=("gpu-9",)).canonical(name) == "gpu-9"


def test_a_container_is_named_only_where_its_machine_is_not() -> None:
    """The host name of a container is its id; the log may also show the machine below it."""
    assert NodeNames(log(NCCL)).canonical("2b5dd87e591a") == "gpu-3"
    assert NodeNames(log("step 1")).canonical("2b5dd87e591a") == "2b5dd87e591a"
    assert NodeNames(log("step 1"), pods={"llm-worker-0": "gpu-7"}).canonical("llm-worker-0") == "gpu-7"


def test_an_address_is_the_name_that_a_line_gives_it() -> None:
    """NCCL prints both, clouds make the name of the address; an address without a name stays."""
    assert NodeNames(log(NCCL, OTHER)).canonical("10.9.0.4") == "gpu-4"
    assert (
        NodeNames(log("x"), registered=("ip-10-0-0-7.ec2.internal",)).canonical("10.0.0.7")
        == "ip-10-0-0-7.ec2.internal"
    )
    assert NodeNames(log(NCCL)).canonical("192.0.2.2") == "192.0.2.2"


def test_short_and_full_names_are_one_machine() -> None:
    """The registered name wins, else the short one if it is printed; two full names that begin alike stay two."""
    assert NodeNames(log("x"), placed=("gpu-3", "gpu-3.hpc.example")).canonical("gpu-3.hpc.example") == "gpu-3"
    assert NodeNames(log("x"), ("gpu-3.hpc.example",), ("gpu-3",)).canonical("gpu-3") == "gpu-3.hpc.example"
    assert NodeNames(log("x"), placed=("gpu-3.hpc.example",)).canonical("gpu-3.hpc.example") == "gpu-3.hpc.example"
    two = NodeNames(log("x"), placed=("gpu-3.a.example", "gpu-3.b.example"))
    assert two.canonical("gpu-3.a.example") == "gpu-3.a.example"


TABLE = """step 10 loss 2.1
step 11 loss 2.0
Traceback (most recent call last):
  File "/job/train.py", line 9, in <module>
    assert batch
AssertionError: no batch
E1126 10:00:00.000000 81 torch/distributed/elastic/api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 93)
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_10:00:00
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 93)
  error_file: <N/A>
============================================================
"""


@pytest.mark.parametrize(("lines", "node"), [("", None), ("hostname: vm\n", "vm")])
def test_localhost_is_no_node_of_a_verdict(lines: str, node: str | None) -> None:
    """The table of a launcher on a machine without a name says localhost: the verdict names the machine or nobody."""
    analyzer = load()
    verdict = analyzer.diagnose_with_node_logs(analyzer.evidence_of((lines + TABLE).encode()), Facts())
    assert (verdict.type, verdict.nodes) == ("assertion_error", ())
    assert verdict.root_cause and (verdict.root_cause.rank, verdict.root_cause.node) == (0, node)
