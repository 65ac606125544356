"""Released prompts are frozen, and what a model gets is held as text.

A prompt that must change becomes a new version. To accept a new one: its hash into ``released.yaml``, and
`python -m tests.prompts.test_prompts` to write the snapshots.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from diagnoser.adapters.files import bundled, texts
from diagnoser.learning import rule_writer
from diagnoser.learning.rule_context import RuleContext
from diagnoser.llm import prompt
from diagnoser.llm.prompt import Prompt
from diagnoser.llm.question import Background, Section, variables
from diagnoser.llm.view import LogView, Pseudonymizer
from diagnoser.model import AskReason, Diagnosis, Event, EventKind, Facts, Job, Line, Rejected, RootCause, Stream
from diagnoser.model.taxonomy import Category, FailureType, Outcome, category_of
from diagnoser.redaction.redact import redact
from diagnoser.rules.schema import Blame

HERE = Path(__file__).parent
RELEASED: Mapping[str, str] = yaml.safe_load((HERE / "released.yaml").read_text())
FOLDERS = sorted(
    path.parent.relative_to(bundled("prompts")).as_posix() for path in bundled("prompts").glob("*/*/meta.yaml")
)

LOST = "[ 812.4] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
TOLD = "gpu-7 rank 3: watchdog timeout, token=s3cr3ts3cr3t, peer 10.1.2.3, see /home/mia/run.log"
VIEW = LogView(f"# 2 lines, 150 bytes; 2 lines kept verbatim\n\n## Lines\n41| {LOST}\n57 r3| {TOLD}\n", {})
PLAIN = Diagnosis(Outcome.FAILED, Category.UNKNOWN, FailureType.UNKNOWN, 0.2, "heuristic:no_evidence")
WEIGHED = replace(
    PLAIN,
    category=Category.INFRASTRUCTURE,
    type=FailureType.GPU_LOST,
    doubts=(AskReason.UNSURE,),
    root_cause=RootCause(41, LOST),
    rejected=(Rejected(57, TOLD, FailureType.NCCL_TIMEOUT_ERROR, "explained by the root"),),
)
FACTS = Facts(Job("j", nodes=("gpu-7", "gpu-8"), framework="Megatron-LM"), 2, (Event(EventKind.EXIT, 9.0, code=137),))


def line(number: int, text: str) -> Line:
    return Line(Stream(), number, text, text)


CASES: dict[str, Mapping[str, Any]] = {
    "failure_agent_v4_bare": variables(PLAIN, Facts(), VIEW, Background(), (), Pseudonymizer(redact, []), "LOG-MARKER"),
    "failure_agent_v4_full": variables(
        WEIGHED,
        FACTS,
        replace(VIEW, lines={41: line(41, LOST), 57: line(57, TOLD)}),
        Background(
            WEIGHED.rejected,
            (
                Section("Where the ranks run", ("gpu-7: ranks 0-3", "gpu-8: ranks 4-7")),
                Section("Silence", ("never printed a line: ranks 6",)),
                Section("From the logs of the job's nodes", ("gpu-8 kernel: LOG-MARKER link down at 10.1.2.3",)),
            ),
        ),
        ("gpu_lost on gpu-8: 'GPU has fallen off the bus', confirmed by a person",),
        Pseudonymizer(redact, ["gpu-7", "gpu-8"]),
        "LOG-MARKER",
    ),
}


RULE_CONTEXT = RuleContext(
    FailureType.NVLINK_ERROR,
    "zx81: lane 4 of host-1 degraded beyond repair, LOG-MARKER giving up",
    ("step 11 loss 2.1", "zx81: closing lane 4"),
    ("step 10 loss 2.2",),
    (FailureType.NCCL_TIMEOUT_ERROR,),
    Blame.NONE,
    "Replace the bridge.",
    "host-",
)
BARE = replace(RULE_CONTEXT, around=(), healthy=())
CASES |= {
    "rule_writer_v1_bare": rule_writer.variables(BARE, "LOG-MARKER"),
    "rule_writer_v1_full": rule_writer.variables(RULE_CONTEXT, "LOG-MARKER"),
}

CASES["log_agent_v2_full"] = {"marker": "LOG-MARKER", "lines": ["90x page sweep number 4 gave 4 pages back"]}


def load(folder: str) -> Prompt:
    return prompt.load(folder, texts(bundled("prompts") / folder, "*"))


CLAIMS: tuple[Mapping[str, object], ...] = (
    {"type": "gpu_lost", "line": 41, "text": LOST},
    {"type": "node_failure", "line": None, "text": ""},
)


def snapshot(name: str) -> str:
    prompt, version = name.rsplit("_", 2)[:2]
    found = load(f"{prompt}/{version}")
    system, user = found.render(CASES[name])
    second = f"--- second look\n{found.render_second_look(CLAIMS, 'LOG-MARKER')}\n" if found.second_look else ""
    return f"--- system\n{system}\n--- user\n{user}\n{second}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_released_prompt_is_frozen(folder: str) -> None:
    """Answers are stored with the hash of their prompt: a released one never changes, and none is forgotten."""
    found = load(folder)
    if found.meta.released:
        assert RELEASED.get(folder) == found.hash


def test_no_released_prompt_is_gone() -> None:
    """Stored answers name it; of a prompt that was replaced, the history of the repository has the text."""
    assert set(RELEASED) <= set(FOLDERS)


@pytest.mark.parametrize("name", CASES)
def test_what_a_model_gets_is_what_was_agreed(name: str) -> None:
    """The whole text, system and user, with fixed variables."""
    assert snapshot(name) == (HERE / "snapshots" / f"{name}.txt").read_text()


def test_every_type_is_defined_once_and_under_its_category() -> None:
    """The closed list of the code is that of the instructions: one line for each type, also where types share it."""
    text = load("failure_agent/v4").render(CASES["failure_agent_v4_bare"])[0]
    text = text.split("Types:\n")[1].split("\n\n")[0]
    defined: list[tuple[str, str]] = []
    category = ""
    for heading, kinds in re.findall(r"(?m)^(?:(\w+)|- (\w+(?:, \w+)*): .*)$", text):
        category = heading or category
        defined += [(kind, category) for kind in kinds.split(", ") if kind]
    assert sorted(defined) == sorted((str(kind), str(category_of(kind))) for kind in FailureType)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_repair_names_the_fault(folder: str) -> None:
    """What was wrong with the answer is told."""
    assert "type: no such value" in load(folder).render_repair("type: no such value")


if __name__ == "__main__":
    for each in CASES:
        (HERE / "snapshots" / f"{each}.txt").write_text(snapshot(each))
