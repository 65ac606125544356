"""`evaluations run --kubernetes`: what is refused before anything is started."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diagnoser.commands.evaluations_kubernetes import KubernetesOptions, kubernetes_executor
from diagnoser.model.errors import BadInput, Denied
from tests.trial_runs import trial_run

GIVEN = KubernetesOptions("evaluation", image="eval:1", host_paths=["/"], gpu="nvidia.com/gpu", run_as="1000:1000")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"image": ""}, "needs the --image"),
        ({"namespace": "../x"}, "cannot be the name of a namespace"),
        ({"run_as": "0:0"}, "pods do not run as root"),
        ({"run_as": "me"}, "must be UID:GID"),
        ({"host_paths": []}, "name the shared file system: --claim or --host-path"),
        ({"claims": ["data"]}, "'' is no absolute path"),
        ({"claims": ["Data=/data"]}, "cannot be the name of a claim"),
        ({"weights": "memory"}, "'memory' is no absolute path"),
        ({"host_paths": ["/no/such"]}, "it is below no --claim or --host-path"),
        ({"template": Path("none.yaml")}, "none.yaml: No such file"),
    ],
)
async def test_what_a_pod_could_not_do_is_refused(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    """In words that name the option; the API server is not asked."""
    with pytest.raises(BadInput) as refused:
        async with kubernetes_executor(replace(GIVEN, **given), trial_run(tmp_path), ()):
            raise AssertionError
    assert told in str(refused.value)


async def test_without_credentials_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options themselves are right."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(Denied, match="no credentials"):
        async with kubernetes_executor(GIVEN, trial_run(tmp_path), ()):
            raise AssertionError
