"""A site's rules, laid over the shipped ones."""

import json
import shutil
from pathlib import Path

import pytest

from diagnoser.adapters.files import bundled
from diagnoser.config.alerting import load_table
from diagnoser.config.folders import read_rule_files
from diagnoser.config.llm_factory import FAILURE_AGENT, load_prompt
from diagnoser.config.loader import load_analyzer
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.model.errors import BadInput, DiagnoserError
from diagnoser.model.taxonomy import FailureType
from tests import accuracy_bars
from tests.command_line import invoke

SHIPPED = bundled("rules")
OWN = """\
id: fabric_switch_link_lost
title: The fabric switch reported a dead link
type: network_error
role: root
blame: self
maturity: sandbox
anchors: [fabricd]
patterns: ['fabricd: link lost']
specificity: message
mitigation: Look at the switch port of the node.
examples: {match: ['fabricd: link lost on 3'], no_match: ['fabricd: link restored']}
"""


def put(folder: Path, path: str, text: str) -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def ids(analyzer: LogAnalyzer) -> set[str]:
    return {rule.id for rule in analyzer.knowledge.engine.ruleset.rules}


@pytest.fixture(scope="module")
def shipped() -> LogAnalyzer:
    return accuracy_bars.load()


def test_a_rule_is_added_and_all_shipped_ones_stay(tmp_path: Path, shipped: LogAnalyzer) -> None:
    """A folder with nothing but that rule is a whole site; policy and tables are the shipped ones."""
    put(tmp_path, "infrastructure/fabric_switch_link_lost.yaml", OWN)
    analyzer = load_analyzer(Settings(rules_dir=tmp_path))
    assert ids(analyzer) == ids(shipped) | {"fabric_switch_link_lost"}
    assert analyzer.knowledge.policy.hash == shipped.knowledge.policy.hash


def test_a_rule_replaces_the_shipped_one_of_its_id_in_any_category(tmp_path: Path, shipped: LogAnalyzer) -> None:
    """Also where the site gives the failure another type, so that the file lies elsewhere."""
    put(tmp_path, "infrastructure/cuda_oom.yaml", OWN.replace("fabric_switch_link_lost", "cuda_oom"))
    analyzer = load_analyzer(Settings(rules_dir=tmp_path))
    (rule,) = (rule for rule in analyzer.knowledge.engine.ruleset.rules if rule.id == "cuda_oom")
    assert rule.type is FailureType.NETWORK_ERROR
    assert ids(analyzer) == ids(shipped)


def test_what_is_disabled_is_not_used(tmp_path: Path, shipped: LogAnalyzer) -> None:
    """A rule that tables name as well, and a file of filters; the rule set has another hash."""
    put(tmp_path, "disabled.yaml", "version: 1\nrules: [gpu_fell_off_bus]\nfilters: [nccl]\n")
    analyzer = load_analyzer(Settings(rules_dir=tmp_path))
    assert ids(analyzer) == ids(shipped) - {"gpu_fell_off_bus"}
    assert analyzer.knowledge.engine.ruleset.hash != shipped.knowledge.engine.ruleset.hash
    assert "nccl.yaml" not in read_rule_files(tmp_path).filters()


def test_a_full_copy_works_as_before(tmp_path: Path, shipped: LogAnalyzer) -> None:
    """An older copy too: shipped rules go on with the shipped lists that the copy does not have."""
    shutil.copytree(SHIPPED, tmp_path / "rules")
    put(tmp_path, "rules/explains.yaml", "version: 1\nlists: {peers: [nccl_remote_error]}\n")
    analyzer = load_analyzer(Settings(rules_dir=tmp_path / "rules"))
    assert ids(analyzer) == ids(shipped)
    assert analyzer.knowledge.engine.ruleset.lists["peers"] == (FailureType.NCCL_REMOTE_ERROR,)


def test_tables_and_prompts_are_replaced_file_by_file(tmp_path: Path) -> None:
    """The site's alerts with the shipped policy, the site's version of one prompt beside the shipped others."""
    put(tmp_path / "rules", "alerts.yaml", (SHIPPED / "alerts.yaml").read_text())
    shutil.copytree(bundled("prompts") / "rule_writer" / "v1", tmp_path / "prompts" / "rule_writer" / "v1")
    site = Settings(rules_dir=tmp_path / "rules", prompts_dir=tmp_path / "prompts")
    assert load_table(site) == load_table(Settings())
    assert load_prompt(site, FAILURE_AGENT).hash == load_prompt(Settings(), FAILURE_AGENT).hash


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("fabric.yaml", OWN, "is no table of the rules: rules are files CATEGORY/ID.yaml"),
        ("polcy.yaml", "a: b", "did you mean policy.yaml"),
        ("infrastructure/site/deep.yaml", OWN, "is not read: rules are files CATEGORY/ID.yaml"),
        ("infrastructure/rule.yml", OWN, "is not read"),
        ("disabled.yaml", "version: 1\nrules: [no_such_rule]\n", "there is no rule no_such_rule"),
        ("disabled.yaml", "version: 1\nfilters: [ncccl]\n", "there is no file filters/ncccl.yaml"),
        ("disabled.yaml", "version: 1\nrule: [cuda_oom]\n", "disabled.yaml:2: rule"),
        ("infrastructure/wrong.yaml", OWN, "must be named infrastructure/fabric_switch_link_lost.yaml"),
    ],
)
def test_a_file_that_would_have_no_effect_is_an_error(tmp_path: Path, path: str, text: str, why: str) -> None:
    """With what to do about it."""
    put(tmp_path, path, text)
    with pytest.raises(DiagnoserError, match=why):
        load_analyzer(Settings(rules_dir=tmp_path))


def test_a_diff_shows_the_sites_changes_and_those_of_an_upgrade(tmp_path: Path) -> None:
    """Once the replaced files are recorded, what an upgrade changed in them."""
    put(tmp_path, "infrastructure/fabric_switch_link_lost.yaml", OWN)
    put(tmp_path, "disabled.yaml", "version: 1\nrules: [cuda_oom]\n")
    put(tmp_path, "xid.yaml", (SHIPPED / "xid.yaml").read_text())
    explains = (SHIPPED / "explains.yaml").read_text()
    put(tmp_path, "explains.yaml", explains.replace("runtime_error, seg", "seg", 1))

    def diff(*options: str) -> list[tuple[str, str]]:
        output = invoke("rules", "diff", tmp_path, "--json", *options).stdout
        return [(change["kind"], change["name"]) for change in map(json.loads, output.splitlines())]

    changed = [
        ("replaced", "explains.yaml"),
        ("added", "infrastructure/fabric_switch_link_lost.yaml"),
        ("equal", "xid.yaml"),
        ("disabled", "cuda_oom"),
    ]
    assert diff() == diff("--accept") == changed
    put(tmp_path, ".shipped/explains.yaml", explains.replace("gpu_lost", "os_error", 1))  # the version before
    assert diff() == [*changed, ("upgraded", "explains.yaml")]
    shown = invoke("rules", "diff", tmp_path).stdout
    assert "1 files are equal" in shown and "+  accelerator: [cuda_error, gpu_lost" in shown


def test_learned_rules_are_exported_into_the_overlay(tmp_path: Path) -> None:
    """Without a folder it is that of the site; without either the command says what is missing."""
    url = f"sqlite:///{tmp_path}/d.db"
    done = invoke("rules", "export", DATABASE_URL=url, RULES_DIR=str(tmp_path))
    assert f"0 rules written to {tmp_path}" in done.stdout.replace("\n", "")
    with pytest.raises(BadInput, match="DIAGNOSER_RULES_DIR"):
        invoke("rules", "export", DATABASE_URL=url)
