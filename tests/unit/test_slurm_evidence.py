"""How evidence is asked for on Slurm: of which launch, as whom, and what is left alone. Commands answer from texts."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diagnoser.agent import evidence
from diagnoser.agent.cluster import NotCollected
from diagnoser.agent.evidence import Collected
from diagnoser.agent.slurm import commands
from diagnoser.agent.slurm.commands import CommandResult, Slurm
from diagnoser.agent.slurm.evidence import FIELDS, SlurmEvidence
from diagnoser.model import AttemptKey, EvidenceKind, EvidenceRequest, RequestReason, RuntimeFile
from diagnoser.model.errors import BadInput

STARTED = 1000.0
JOB: dict[str, Any] = {
    "job_id": 7,
    "job_state": "RUNNING",
    "nodes": "n[1-2]",
    "user_name": "ida",
    "user_id": 4711,
    "group_id": 42,
    "start_time": int(STARTED),
}
STACK = b"Thread 7 (idle)\n    f (t.py:1)\n"


@dataclass
class Texts:
    """What squeue and the collector print. code: of the steps."""

    jobs: list[dict[str, Any]] = field(default_factory=lambda: [JOB])
    printed: str = '{"note": "py-spy is not installed"}\n'
    code: int | None = 0
    error: str = ""
    steps: list[Sequence[str]] = field(default_factory=list)

    async def run(self, words: Sequence[str], seconds: float) -> CommandResult:
        if words[0] == "squeue":
            return CommandResult(tuple(words), 0, json.dumps({"jobs": self.jobs}))
        self.steps.append(words)
        return CommandResult(tuple(words), self.code, self.printed, self.error)


async def collected(
    texts: Texts, *, programs: bool = True, dumps: tuple[str, ...] = (), dry: bool = False, **fields: Any
) -> list[Collected]:
    reason, since = fields.get("reason", RequestReason.SILENCE), fields.get("since", STARTED + 500.0)
    key = AttemptKey(fields.get("job", "slurm-lab-7"), fields.get("attempt", 1))
    asked = EvidenceRequest("1", key, "lab", since, reason, 0.0)
    options = evidence.options(dumps, (), FIELDS, programs=programs)
    source = SlurmEvidence(Slurm(texts.run), "lab", options, dry, texts.run)
    return [found async for found in source.collect(asked)]


async def test_each_node_of_the_job_runs_one_task_within_its_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the job's user, without our groups and rights, beside what runs there."""
    monkeypatch.setattr(os, "getuid", lambda: 0)
    texts = Texts()
    assert await collected(texts) == [NotCollected(f"{node}: py-spy is not installed") for node in ("n1", "n2")]
    for words, node in zip(sorted(texts.steps, key=str), ("n1", "n2"), strict=True):
        user, step = words[: words.index("--")], words[words.index("--") + 1 : words.index("python3")]
        assert user == ("setpriv", "--reuid=4711", "--regid=42", "--clear-groups", "--no-new-privs")
        assert {"srun", "--jobid=7", f"--nodelist={node}", "--overlap", "--ntasks=1", "--mem=0"} <= set(step)
        asked = json.loads(words[-1])
        assert (asked["job"], asked["dumps"]) == ("7", [])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"attempt": 2}, "no more"),
        ({"job": "slurm-lab-8"}, "no more"),
        ({"dry": True}, "dry run"),
    ],
)
async def test_where_nothing_is_run_the_result_says_why(fields: dict[str, Any], why: str) -> None:
    """A launch or a job that is not there, and a dry run."""
    texts = Texts()
    (found,) = await collected(texts, **fields)
    assert isinstance(found, NotCollected)
    assert why in found.why
    assert texts.steps == []


async def test_a_launch_that_has_ended_has_only_files() -> None:
    """Its processes are gone, and those of the next launch are not asked for it."""
    for job in (JOB | {"restart_cnt": 1}, JOB | {"job_state": "FAILED"}):
        texts = Texts([job])
        assert await collected(texts) == [NotCollected("launch 1 has ended")]
        assert texts.steps == []
    texts = Texts()
    assert await collected(texts, reason=RequestReason.TIMEOUT) == []
    assert texts.steps == []


async def test_without_the_switch_nothing_is_run() -> None:
    """Files from the operator's folders are all there is."""
    texts = Texts()
    assert await collected(texts, programs=False) == []
    assert texts.steps == []


async def test_a_job_of_another_cluster_is_none_of_ours() -> None:
    """Whatever the service asks for."""
    with pytest.raises(BadInput):
        await collected(Texts(), job="slurm-other-7")


@pytest.mark.parametrize(
    ("changed", "restarts", "since", "read"),
    [
        (STARTED + 600, 0, STARTED + 500, True),
        (STARTED + 450, 0, STARTED + 500, True),  # clocks differ
        (STARTED + 100, 0, STARTED + 500, False),  # of an earlier silence
        (STARTED - 10, 0, STARTED + 10, False),  # of the launch before
        (STARTED - 10, 1, STARTED - 500, True),  # asked for that launch
        (STARTED + 10, 1, STARTED - 500, False),  # of the launch after it
    ],
)
async def test_only_dumps_of_that_launch_and_silence_count(
    tmp_path: Path, changed: float, restarts: int, since: float, read: bool
) -> None:
    """Launches of a job write to the same names."""
    dump = tmp_path / "7" / "_dump_3"
    dump.parent.mkdir()
    dump.write_bytes(STACK)
    os.utime(dump, (changed, changed))
    texts = Texts([JOB | {"restart_cnt": restarts, "user_id": os.getuid()}])
    found = await collected(texts, programs=False, dumps=(f"{tmp_path}/{{job}}/_dump_*",), since=since)
    assert found == ([RuntimeFile(EvidenceKind.STACKS, STACK, 3)] if read else [])


async def test_a_step_that_fails_says_why() -> None:
    """Refused by Slurm, or ended early: what was printed until then counts."""
    refused = Texts(printed="", code=1, error="srun: error: Unable to create step for job 7: Access/permission denied")
    (first, _) = await collected(refused)
    assert isinstance(first, NotCollected)
    assert "Access/permission denied" in first.why
    late = await collected(Texts(code=None))
    assert [one.why for one in late if isinstance(one, NotCollected)] == [
        f"{node}: {why}"
        for node in ("n1", "n2")
        for why in ("py-spy is not installed", "the collector ended early: None")
    ]


async def test_what_a_command_prints_is_kept_within_a_bound() -> None:
    """The rest is read and thrown away: the command does not wait."""
    result = await commands.run(("head", "-c", "300000", "/dev/zero"), 30.0, limit=1000)
    assert (result.code, len(result.output)) == (0, 1000)
