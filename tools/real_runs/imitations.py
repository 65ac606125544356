"""Software that cannot be run here: what goes wrong in it (``faults/imitations.yaml``), as ``trainers/imitations``
print it."""

from typing import Any

from tools.real_runs import faults
from tools.real_runs.frameworks import Framework
from tools.real_runs.scenarios import Scenario, Truth


def _imitated(
    name: str, *healthy: str, open_end: bool = False, launchers: tuple[str, ...] = (), **more: Any
) -> Framework:
    """healthy: its clean ends beside two plain ones. open_end: it never says how many steps there are, so a log that
    just stops shows no end. launchers: those under which the software is met; all when empty."""
    bad = [
        Scenario(fault, Truth(**row), arguments=(name, "--fault", fault))
        for fault, row in faults.read("imitations")[name].items()
    ]
    done = Truth("completed", "clean run", outcome="completed")
    good = [Scenario(end, done, arguments=(name, "--fault", end)) for end in ("ok", *healthy)]
    good.insert(1, Scenario("ok-long", done, arguments=(name, "--fault", "ok", "--steps", "400")))
    return Framework(
        name,
        "tabular",
        "imitations/imitate.py",
        "python",
        faults=(*bad, *good),
        single=True,
        kind="imitation",
        truths={"ok-silent": {"visible": False}} if open_end else {},
        settings={"logger": "", "launchers": launchers},
        **more,
    )


_PODS = "kubectl --prefix --timestamps"
IMITATIONS: tuple[Framework, ...] = (
    _imitated("vllm", "ok-bad-requests", "ok-silent", open_end=True),
    _imitated("sglang", "ok-retract", "ok-silent", open_end=True),
    _imitated("verl", "ok-preempted-rollout", "ok-silent"),
    _imitated("openrlhf", "ok-retry", "ok-silent"),
    _imitated("spark", "ok-lost-task", "ok-silent", open_end=True),
    _imitated("nextflow", "ok-retry", "ok-silent"),
    _imitated("airflow", "ok-warned"),
    _imitated("megatron", "ok-spike", "ok-silent", generation=2, launchers=("plain", _PODS)),
    _imitated(
        *("maxtext", "ok-retried", "ok-silent"),
        open_end=True,
        generation=2,
        launchers=("plain", "vertex", "filebeat", _PODS),
    ),
    _imitated(
        *("torchtitan", "ok-warned", "ok-silent"),
        open_end=True,
        generation=2,
        half=1,
        launchers=("ts", "tai64n", "pbs", "aws batch"),
    ),
    _imitated(
        *("nemo", "ok-retried", "ok-silent"), generation=2, half=1, launchers=("ts", "tai64n", "jenkins", "argo")
    ),
    _imitated(
        *("colossalai", "ok-warned", "ok-silent"), generation=3, launchers=("plain", "s6-log", "podman", "vector")
    ),
    _imitated("primus", "ok-warned", "ok-silent", generation=3, launchers=("plain", "gke json", "podman", "nomad")),
    _imitated(
        *("composer", "ok-warned", "ok-silent"),
        generation=3,
        half=1,
        launchers=("plain", "vector", "clearml", "s6-log"),
    ),
    _imitated(
        *("llamafactory", "ok-warned", "ok-silent"),
        open_end=True,
        generation=3,
        half=1,
        launchers=("plain", "gitlab", "determined", "gke json", "nomad"),
    ),
)
