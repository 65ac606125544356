"""What `rules/README.md` says about writing a rule, tried as a newcomer would."""

import re
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import yaml

from diagnoser.config.loader import load_analyzer
from diagnoser.config.settings import Settings
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model import Diagnosis, Facts
from diagnoser.model.taxonomy import Action, FailureType
from diagnoser.rules import examples
from diagnoser.rules.engine import Engine

SHIPPED = Path(__file__).resolve().parents[2] / "rules"
EXAMPLE = re.findall(r"```yaml\n(id: .*?)```", (SHIPPED / "README.md").read_text(), re.DOTALL)[0]
LOG = """\
step 118 loss 2.41
step 119 loss 2.40
fabricd[311]: link lost on gpu-07 port 3
[rank3]: RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site's own rules folder with nothing but the example in it."""
    folder = tmp_path / "rules"
    (folder / "infrastructure").mkdir(parents=True)
    (folder / "infrastructure" / "fabric_switch_link_lost.yaml").write_text(EXAMPLE)
    return folder


def read(site: Path) -> LogAnalyzer:
    return load_analyzer(Settings(rules_dir=site))


def diagnosed(analyzer: LogAnalyzer) -> Diagnosis:
    return pipeline.diagnose(analyzer.read(BytesIO(LOG.encode())).evidence, Facts(), analyzer.knowledge)


def test_the_example_loads_and_proves_itself(site: Path) -> None:
    """The rule of the guide holds on its own examples."""
    analyzer = read(site)
    ruleset = analyzer.knowledge.engine.ruleset
    (own,) = [rule for rule in ruleset.rules if rule.id == "fabric_switch_link_lost"]
    assert examples.check(Engine(replace(ruleset, rules=(own,))), analyzer.evidence_of) == []


def test_a_newcomers_rule_decides_with_sandbox_confidence_and_moves_nothing(site: Path) -> None:
    """It names cause and node, no surer than a sandbox rule may be, and only a person is told."""
    analyzer = read(site)
    found = diagnosed(analyzer)
    assert (found.decided_by, found.type) == ("rule:fabric_switch_link_lost", FailureType.NETWORK_ERROR)
    assert found.nodes[0].node == "gpu-07" and found.grounds.sandbox and not found.grounds.stable
    assert found.confidence == analyzer.knowledge.calibration.sandbox == 0.5
    assert (found.recovery.action, found.recovery.reason) == (Action.NOTIFY_USER, "rule_on_trial")


def test_the_same_rule_made_stable_may_act(site: Path) -> None:
    """The word `stable` alone is what turns the notice into an action."""
    path = site / "infrastructure" / "fabric_switch_link_lost.yaml"
    path.write_text(EXAMPLE.replace("maturity: sandbox", "maturity: stable"))
    found = diagnosed(read(site))
    assert found.recovery.action is Action.CORDON_AND_RESUBMIT and found.confidence > 0.9


def test_every_shipped_rule_states_its_maturity() -> None:
    """No rule file leaves it to a default."""
    rules = [path for path in SHIPPED.glob("*/*.yaml") if path.parent.name != "filters"]
    assert [path.name for path in rules if "maturity" not in yaml.safe_load(path.read_text())] == []
