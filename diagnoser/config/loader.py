"""Builds the analyzer from the operator's files. Apart from `app.py`, so that the command line starts fast."""

from pathlib import Path
from typing import TYPE_CHECKING

from diagnoser.adapters import files
from diagnoser.compress import Prefilter, parse_filters
from diagnoser.config.folders import rules_folder, site_or_shipped
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.pipeline import RuleKnowledge
from diagnoser.localize import exit_reports
from diagnoser.model.errors import BadInput
from diagnoser.recovery import node_proofs, policy
from diagnoser.recovery.node_proofs import NodeProofTable
from diagnoser.rules import (
    calibration,
    clean_end,
    exception_lines,
    exception_words,
    exceptions,
    keyword_classifier,
    node_faults,
    schema,
    xid,
)
from diagnoser.rules.candidate_sources import Heuristics
from diagnoser.rules.engine import Engine
from diagnoser.rules.exception_lines import ExceptionLines
from diagnoser.rules.exception_words import ExceptionClassifier
from diagnoser.rules.node_faults import NodeFaultTable
from diagnoser.rules.schema import RuleSet

if TYPE_CHECKING:
    from diagnoser.recovery.node_query import NodeQueryTable

NODE_QUERIES = "node_queries.yaml"
NODE_PROOFS = "node_proofs.yaml"


def load_analyzer(settings: Settings) -> LogAnalyzer:
    """Rules, filters, policy and calibration of this site. Raises RuleFaults, BadInput."""
    folder = rules_folder(settings)
    rules = {path: text for path, text in files.texts(folder, "*/*.yaml").items() if not path.startswith("filters/")}
    tested = settings.rules_dir is None  # tests compile those that are shipped, and try their examples
    ruleset = schema.load(rules, _lists(folder), tested=tested)
    knowledge = RuleKnowledge(
        Engine(ruleset),
        _heuristics(folder, tested=tested),
        policy.load("policy.yaml", files.text(folder / "policy.yaml")),
        calibration.load("calibration.yaml", files.text(folder / "calibration.yaml")),
        xid.load("xid.yaml", files.text(folder / "xid.yaml"), ruleset),
        _node_faults(folder, ruleset),
        exit_reports.load("exit_reports.yaml", files.text(folder / "exit_reports.yaml"), tested=tested),
        load_node_proofs(folder, tested=tested),
    )
    gate = Prefilter(knowledge.anchors, ruleset.watched)
    return LogAnalyzer(knowledge, gate, parse_filters(files.texts(folder / "filters", "*.yaml"), tested=tested))


def _lists(folder: Path) -> schema.Lists:
    """Read the file of lists; empty where the site has none: its rules then name each type."""
    path = folder / "explains.yaml"
    if not path.exists():
        return {}
    return schema.load_lists(path.name, files.text(path))


def _node_faults(folder: Path, ruleset: RuleSet) -> NodeFaultTable:
    """Read the table of node faults; empty where the site has none: no node's log then changes a verdict."""
    path = folder / "node_faults.yaml"
    if not path.exists():
        return NodeFaultTable()
    return node_faults.load(path.name, files.text(path), ruleset)


def _heuristics(folder: Path, *, tested: bool) -> Heuristics:
    return Heuristics(
        exceptions.load("exceptions.yaml", files.text(folder / "exceptions.yaml"), tested=tested),
        keyword_classifier.load("keywords.yaml", files.text(folder / "keywords.yaml"), tested=tested),
        clean_end.load("run_end.yaml", files.text(folder / "run_end.yaml"), tested=tested),
        _classifier(folder),
        _exception_lines(folder, tested=tested),
    )


def _exception_lines(folder: Path, *, tested: bool) -> ExceptionLines:
    """Read how languages print exceptions; without the table only Python's way is known."""
    path = folder / exception_lines.FILE
    if not path.exists():
        return ExceptionLines.empty()
    return exception_lines.load(path.name, files.text(path), tested=tested)


def _classifier(folder: Path) -> ExceptionClassifier:
    """Read the tables of the classifier of exceptions; without them it names none."""
    subjects, weights = (folder / name for name in exception_words.FILES)
    if not weights.exists():
        return ExceptionClassifier.empty()
    return exception_words.load((subjects.name, files.text(subjects)), (weights.name, files.text(weights)))


def load_more(analyzer: LogAnalyzer, folder: Path) -> tuple[LogAnalyzer, RuleSet]:
    """A folder of further rules: the analyzer with them added, and those rules alone. Checks its filter rules too.

    Raises RuleFaults, BadInput.
    """
    texts = files.texts(folder, "*/*.yaml")
    if not texts:
        raise BadInput(_no_rules(folder))
    filters = {path: text for path, text in texts.items() if path.startswith("filters/")}
    parse_filters(filters)
    rules = {path: text for path, text in texts.items() if path not in filters}
    ruleset = schema.load(rules, analyzer.knowledge.engine.ruleset.lists)
    return analyzer.with_rules(ruleset), ruleset


def _no_rules(folder: Path) -> str:
    """Say where rules are expected, and which files lie elsewhere."""
    where = f"{folder} holds no rules: they are expected in {folder}/CATEGORY/ID.yaml, filters in {folder}/filters"
    elsewhere = sorted(folder.rglob("*.yaml"))
    if not elsewhere:
        return where
    return f"{where}; {elsewhere[0]} lies elsewhere"


def load_node_proofs(folder: Path, *, tested: bool = False) -> NodeProofTable:
    """Read what proves a node's fault: the table of these rules; the shipped one where they have none. Raises
    RuleFaults. tested: its examples are known to hold."""
    path = site_or_shipped(folder, NODE_PROOFS)
    return node_proofs.load(path.name, files.text(path), tested=tested)


def site_node_queries(settings: Settings, *, tested: bool = False) -> "NodeQueryTable":
    """Read what suspected nodes of this site can be asked: the shipped table where its rules have none. Raises
    RuleFaults, BadInput. tested: its examples are known to hold."""
    from diagnoser.recovery import node_query  # no log file is asked about

    folder = rules_folder(settings)
    path = site_or_shipped(folder, NODE_QUERIES)
    return node_query.load(path.name, files.text(path), load_node_proofs(folder, tested=tested), tested=tested)
