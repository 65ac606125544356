"""Does any test notice? ``python -m tools.planted_faults [--only WORD] [--json]`` plants one fault after the other.

Each fault of the table is a small change of a central module, as a tired person makes it. It is planted in a copy of
the tree, and the tests next to it run there. Exit code 1 when a fault survives, 2 when the code that a fault changes
is no longer there: the table then follows the code.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREE = ("diagnoser", "tests", "tools", "rules", "prompts", "deploy", "docs", "requirements")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile", "docker-compose.yml", "LICENSE")
LIMIT_SECONDS = 600.0
_PYTEST = ("-x", "-n", "0", "-p", "no:cacheprovider", "-k", "not postgresql")
_NOTHING_FAILED, _TEST_FAILED = 0, 1


class Fate(StrEnum):
    """What became of a fault. stale: its file does not hold the code exactly once, or the tests cannot run."""

    DIED = "died"
    SURVIVED = "survived"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of one place.

    what: how the program would misbehave.

    file: below the package.

    old: code that stands exactly once in the file.

    new: code that takes its place.

    tests: files below ``tests/`` that must notice it; patterns of names are allowed.
    """

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_GUARDRAILS = ("unit/test_recovery_guardrails*.py", "unit/test_recovery_closed_attempts.py")
_PLAN_STATES = ("unit/test_recovery_plan_states*.py", "unit/test_planning_*.py")
_BREAKER = ("unit/test_recovery_*.py",)
_EXECUTOR = ("unit/test_agent_executor*.py",)
_RULES = ("unit/test_rules_causality*.py", "unit/test_rules_outcome.py", "unit/test_diagnosis_*.py")
_PLACES = ("unit/test_localize_*.py", "unit/test_diagnosis_pipeline.py")
_COMPRESS = ("unit/test_compress_merge.py", "unit/test_compress_bounds.py", "unit/test_compress_digest.py")
_ACCESS = (
    "unit/test_web_access.py",
    "unit/test_web_authenti*.py",
    "unit/test_web_login.py",
    "unit/test_web_sign_in.py",
    "integration/test_tenants.py",
)

FAULTS = (
    Fault(
        "an attempt that completed itself counts as closed by a later one",
        "recovery/guardrails.py",
        "if case.history.completed > plan.attempt:",
        "if case.history.completed >= plan.attempt:",
        _GUARDRAILS,
    ),
    Fault(
        "launches of the job for other failures do not count as retries",
        "recovery/guardrails.py",
        "spent = max(\n",
        "spent = min(\n",
        _GUARDRAILS,
    ),
    Fault(
        "one tenant's launches are held against another tenant",
        "recovery/guardrails.py",
        "own = (past for past in case.history.past if past.tenant == plan.tenant)",
        "own = case.history.past",
        _GUARDRAILS,
    ),
    Fault(
        "a plan that has to cool down loses that time of its life",
        "recovery/guardrails.py",
        "expires=plan.expires + free_at - case.now)",
        "expires=plan.expires)",
        _GUARDRAILS,
    ),
    Fault(
        "a plan that names one own and one foreign node passes",
        "recovery/trust.py",
        "    if foreign:\n",
        "    if len(foreign) == len(plan.nodes):\n",
        ("unit/test_recovery_trust.py",),
    ),
    Fault(
        "a short name that fits two nodes is taken for the first",
        "recovery/trust.py",
        "len(alike) == 1",
        "alike",
        ("unit/test_recovery_trust.py",),
    ),
    Fault(
        "a cluster may lose one node more than its healthy share allows",
        "recovery/breaker.py",
        "fleet - len(unavailable) >= limits.healthy_share * fleet",
        "fleet - len(unavailable) + 1 >= limits.healthy_share * fleet",
        _BREAKER,
    ),
    Fault(
        "a tenant in a small cluster may take out no node at all",
        "recovery/breaker.py",
        "max(1, int(limits.tenant_share * count.allowed))",
        "int(limits.tenant_share * count.allowed)",
        _BREAKER,
    ),
    Fault(
        "a plan is counted as of its making, not of its last change",
        "recovery/breaker.py",
        "max([plan.created, *(change.time for change in plan.history)]) > since",
        "plan.created > since",
        _BREAKER,
    ),
    Fault(
        "a plan whose executor died never expires",
        "recovery/plan_states.py",
        "    if plan.is_leased(now):\n        return False\n    if plan.state is PlanState.SENT:",
        "    if plan.lease:\n        return False\n    if plan.state is PlanState.SENT:",
        _PLAN_STATES,
    ),
    Fault(
        "an approval that was taken back still vouches for its nodes",
        "recovery/plan_states.py",
        "return replace(waits, proofs=tuple(proof for proof in plan.proofs if proof.kind is not ProofKind.PERSON))",
        "return waits",
        _PLAN_STATES,
    ),
    Fault(
        "steps that are reported again are stored twice",
        "recovery/plan_states.py",
        "for size in range(min(len(steps), len(trimmed)), 0, -1):",
        "for size in range(1, min(len(steps), len(trimmed)) + 1):",
        _PLAN_STATES,
    ),
    Fault(
        "an executor that ends after the plan's time is not believed",
        "recovery/plan_states.py",
        "if plan.state not in (PlanState.SENT, PlanState.EXPIRED):",
        "if plan.state is not PlanState.SENT:",
        _PLAN_STATES,
    ),
    Fault(
        "a claim looks at the allocation of the planning, not at what is known now",
        "planning/transitions.py",
        "trust.why_not_removable(plan, allocation or plan.allocation)",
        "trust.why_not_removable(plan, plan.allocation or allocation)",
        ("unit/test_recovery_trust.py", *_PLAN_STATES),
    ),
    Fault(
        "a node check suspects nodes that the job never had",
        "planning/transitions.py",
        "suspects = [node for node in plan.suspects if node in plan.allocation]",
        "suspects = list(plan.suspects)",
        (*_PLAN_STATES, "unit/test_recovery_node_check.py", "unit/test_recovery_flow.py"),
    ),
    Fault(
        "a job that is held gets no more time than one that is not",
        "agent/executor.py",
        "limit = GIVE_UP_HELD_SECONDS if state.held else GIVE_UP_SECONDS",
        "limit = GIVE_UP_SECONDS",
        _EXECUTOR,
    ),
    Fault(
        "an earlier launch that ended counts as the end of this one",
        "agent/executor.py",
        "return max(ended, default=0) < execution.spec.attempt",
        "return not ended",
        _EXECUTOR,
    ),
    Fault(
        "of two equally exact candidates the later one is the root",
        "rules/causality.py",
        "return candidate.specificity, -candidate.line",
        "return candidate.specificity, candidate.line",
        _RULES,
    ),
    Fault(
        "a root that several ranks repeat is put on any one of them",
        "rules/causality.py",
        "rank=ranks.pop()) if len(ranks) == 1 else root",
        "rank=ranks.pop()) if ranks else root",
        _RULES,
    ),
    Fault(
        "last words of the node's own log count as the job's",
        "rules/clean_end.py",
        "        if not line.stream.from_job:\n",
        "        if False:\n",
        ("unit/test_rules_clean_end.py", "unit/test_rules_outcome.py", "unit/test_run_endings.py"),
    ),
    Fault(
        "a failure on exactly half of the nodes counts as a shared one",
        "localize/suspect_nodes.py",
        "len(nodes) * 2 > len(set(ranks.values()))",
        "len(nodes) * 2 >= len(set(ranks.values()))",
        _PLACES,
    ),
    Fault(
        "the only node that prints is taken for the job's only node",
        "localize/ranks.py",
        "    if len(listed) > 1 and only in listed:\n        only = None  # the others just do not print\n",
        "",
        _PLACES,
    ),
    Fault(
        "merged deltas keep the first node of a rank, not the last",
        "compress/delta.py",
        "self.nodes[key] = max(node, self.nodes.get(key, node))",
        "self.nodes[key] = min(node, self.nodes.get(key, node))",
        _COMPRESS,
    ),
    Fault(
        "a request larger than a job's share is refused although nothing waits",
        "ingest/fair_queue.py",
        "if own and own + size > self._limit // JOB_SHARE:",
        "if own + size > self._limit // JOB_SHARE:",
        ("unit/test_ingest_fair_queue.py",),
    ),
    Fault(
        "neighbouring ranges of line numbers stay apart",
        "ingest/offsets.py",
        "pair[1] < first - 1]",
        "pair[1] < first]",
        ("unit/test_ingest_offsets.py",),
    ),
    Fault(
        "a lease that somebody else has is renewed on and on",
        "worker/lease.py",
        "        except Conflict:\n            return\n",
        "        except Conflict:\n            continue\n",
        ("unit/test_worker_lease.py",),
    ),
    Fault(
        "a message that waits for its turn is looked at again after its expiry at the earliest",
        "worker/outbox.py",
        "retry_at=min(now + wait, due.message.expires))",
        "retry_at=now + wait)",
        ("unit/test_worker_outbox.py",),
    ),
    Fault(
        "a message that was put off spends its tries",
        "adapters/sql/outbox.py",
        'if state in ("expired", "deferred"):',
        'if state == "expired":',
        ("contract/test_outbox_rows.py", "unit/test_worker_outbox.py"),
    ),
    Fault(
        "whose a job is, once read, is believed forever",
        "ingest/job_access.py",
        "            if until > now:\n",
        "            if job in self._owners:\n",
        _ACCESS,
    ),
    Fault(
        "a person who was shut out stays signed in",
        "web/http/sessions.py",
        "        if user.disabled is not None:\n",
        "        if False:\n",
        _ACCESS,
    ),
)


@dataclass(frozen=True, slots=True)
class Result:
    """noticed: the first test that failed, "" where none did."""

    what: str
    file: str
    fate: Fate
    noticed: str = ""


def plant_all(faults: tuple[Fault, ...]) -> Iterator[Result]:
    """Plant each fault alone in one copy of the tree, in the order of the table."""
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder)
        _copy_tree(copy)
        for fault in faults:
            yield _plant(fault, copy)


def _copy_tree(target: Path) -> None:
    for name in TREE:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy2(ROOT / name, target / name)


def _plant(fault: Fault, tree: Path) -> Result:
    path = tree / "diagnoser" / fault.file
    text = path.read_text() if path.is_file() else ""
    if text.count(fault.old) != 1:
        return Result(fault.what, fault.file, Fate.STALE)
    path.write_text(text.replace(fault.old, fault.new))
    try:
        return _run_tests(fault, tree)
    finally:
        path.write_text(text)


def _run_tests(fault: Fault, tree: Path) -> Result:
    files = [str(file) for pattern in fault.tests for file in sorted((tree / "tests").glob(pattern))]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-k",
        "not postgresql",
        *files,
    ]
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Result(fault.what, fault.file, Fate.DIED, f"no end within {LIMIT_SECONDS:.0f} s")
    if run.returncode == _NOTHING_FAILED:
        return Result(fault.what, fault.file, Fate.SURVIVED)
    if run.returncode != _TEST_FAILED or not files:
        return Result(fault.what, fault.file, Fate.STALE, run.stdout[-500:])
    return Result(fault.what, fault.file, Fate.DIED, _first_failure(run.stdout))


def _first_failure(output: str) -> str:
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split()[1]
    return "a test"


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.planted_faults", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORD", help="faults whose description or file has this word")
    parser.add_argument("--json", action="store_true", help="print the results for a program")
    options = parser.parse_args()
    faults = tuple(fault for fault in FAULTS if options.only in f"{fault.file} {fault.what}")
    results = []
    for result in plant_all(faults):
        results.append(result)
        if not options.json:
            sys.stdout.write(f"{result.fate.value:9} {result.file}: {result.what} {result.noticed}\n")
            sys.stdout.flush()
    fates = [result.fate for result in results]
    if options.json:
        sys.stdout.write(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    else:
        sys.stdout.write(f"{fates.count(Fate.DIED)} of {len(fates)} died\n")
    if Fate.STALE in fates:
        return 2
    return 1 if Fate.SURVIVED in fates else 0


if __name__ == "__main__":
    sys.exit(main())
