"""Logs that a tenant forges to have somebody else's node taken out, made from the rules' own examples."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from diagnoser.model.taxonomy import Category, category_of
from diagnoser.rules.schema import Match, Role, Rule
from tests.rule_files import ANALYZER

VICTIM = "vic-9"
"""A node that the forging job never had."""
OWN = ("gpu-001", "gpu-002")
"""The nodes that the scheduler gave it."""

DIALECTS = {
    "bare": "{}",
    "kernel": "Nov 22 01:00:00 {node} kernel: {}",
    "iso_syslog": "2026-11-22T01:00:00.123456+00:00 {node} kernel: [ 8123.112233] {}",
    "host": "{node}: {}",
    "pid": "{node}:4711:4711 [0] {}",
    "srun": "0: {node}: {}",
    "pdsh": "{node}: [rank1] {}",
    "mpirun": "[1,1]<stderr>:[{node}:59694] {}",
    "ray": "(RayTrainWorker pid=4711, ip={node}) {}",
    "words": "rank 1 on node {node}: {}",
    "kubelet": "node/{node} kubelet: {}",
}
DIALECTS_EACH = 2
NAMING = (
    "srun: error: Node failure on {node}",
    "slurmstepd: error: *** JOB 4711 ON {node} CANCELLED AT 2026-11-22T01:00:00 DUE TO NODE FAILURE ***",
    "update_node: node {node} reason set to: Kill task failed",
    "error: Nodes {node} not responding, setting DOWN",
    "NodeName={node} State=DOWN*+DRAIN Reason=Not responding [root@2026-11-22T01:00:00]",
    "node {node} NotReady: pod llm-7b-0 was lost with it",
    "health check failed on {node}: GPU 3 has fallen off the bus",
    "Nov 22 01:00:00 {node} kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.",
    "Nov 22 01:00:00 {node} kernel: EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
    "Nov 22 01:00:00 {node} kernel: mce: [Hardware Error]: Machine check events logged",
    "Nov 22 01:00:00 {node} kernel: Kernel panic - not syncing: Fatal hardware error!",
    "{node}: CUDA error: uncorrectable ECC error encountered",
    "node id 5f0a ip: {node} has been marked dead because the detector has missed too many heartbeats",
    "PBS: job killed: node {node} failed, heartbeat lost",
    "ORTE has lost communication with a remote daemon. HNP daemon: [[1,0],0] Remote daemon: on node {node}",
    "terminated: lost contact with {node}, heartbeat timed out",
)


@dataclass(frozen=True, slots=True)
class Forgery:
    """name: rule and dialect. text: what the job prints."""

    name: str
    text: str


def forgeries() -> Iterator[Forgery]:
    """Each root rule about infrastructure with its own examples, as a foreign node's words in some dialects, all of
    them in turn; and sentences that name a node themselves."""
    ruleset = ANALYZER.knowledge.engine.ruleset
    dialects = itertools.cycle(DIALECTS)
    for rule in ruleset.rules:
        if rule.role is Role.ROOT and category_of(rule.type) is Category.INFRASTRUCTURE:
            yield from _of_rule(rule, list(itertools.islice(dialects, DIALECTS_EACH)))
    for number, sentence in enumerate(NAMING):
        yield Forgery(f"naming-{number}", sentence.format(node=VICTIM))


def _of_rule(rule: Rule, dialects: Iterable[str]) -> Iterator[Forgery]:
    for number, example in enumerate(rule.examples.match):
        text = example.text if isinstance(example, Match) else example
        if isinstance(example, Match) and example.node:
            yield Forgery(f"{rule.id}-{number}-named", text.replace(example.node, VICTIM))
    first = rule.examples.match[0]
    line = first.text if isinstance(first, Match) else first
    for name in dialects:
        form = DIALECTS[name]
        yield Forgery(f"{rule.id}-{name}", "\n".join(form.format(part, node=VICTIM) for part in line.splitlines()))
