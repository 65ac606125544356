"""Builds the analyzer from the operator's files. Apart from `app.py`, so that the command line starts fast."""

from pathlib import Path
from typing import TYPE_CHECKING

from diagnoser.compress import Prefilter, parse_filters
from diagnoser.config.folders import FILTERS, RuleFiles, folder_texts, rule_id, site_rules
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
    likely_lines,
    node_faults,
    node_metrics,
    schema,
    xid,
)
from diagnoser.rules.candidate_sources import Heuristics
from diagnoser.rules.engine import Engine
from diagnoser.rules.schema import RuleSet

if TYPE_CHECKING:
    from diagnoser.recovery.node_query import NodeQueryTable

LISTS = "explains.yaml"
NODE_QUERIES = "node_queries.yaml"
NODE_PROOFS = "node_proofs.yaml"


def load_analyzer(settings: Settings) -> LogAnalyzer:
    """Rules, filters, policy and calibration of this site. Raises RuleFaults, BadInput."""
    files_of_site = site_rules(settings)
    table = files_of_site.used.__getitem__
    tested = settings.rules_dir is None  # tests compile those that are shipped, and try their examples
    ruleset = schema.load(files_of_site.rules(), _lists(files_of_site), tested=tested)
    deciding = ruleset.without(files_of_site.disabled.rules)  # the tables may name rules that never decide
    knowledge = RuleKnowledge(
        Engine(deciding),
        _heuristics(files_of_site, tested=tested),
        policy.load("policy.yaml", table("policy.yaml")),
        calibration.load("calibration.yaml", table("calibration.yaml")),
        xid.load("xid.yaml", table("xid.yaml"), ruleset),
        node_faults.load("node_faults.yaml", table("node_faults.yaml"), ruleset),
        exit_reports.load("exit_reports.yaml", table("exit_reports.yaml"), tested=tested),
        load_node_proofs(files_of_site, tested=tested),
        node_metrics.load(node_metrics.FILE, table(node_metrics.FILE)),
    )
    gate = Prefilter(knowledge.anchors, deciding.watched)
    return LogAnalyzer(knowledge, gate, parse_filters(files_of_site.filters(), tested=tested))


def _lists(rule_files: RuleFiles) -> schema.Lists:
    """Read the named lists. Those that the site's file lacks are the shipped ones: shipped rules name them."""
    shipped = schema.load_lists(LISTS, rule_files.shipped[LISTS])
    return {**shipped, **schema.load_lists(LISTS, rule_files.used[LISTS])}


def _heuristics(rule_files: RuleFiles, *, tested: bool) -> Heuristics:
    table = rule_files.used.__getitem__
    subjects, weights = ((name, table(name)) for name in exception_words.FILES)
    return Heuristics(
        exceptions.load("exceptions.yaml", table("exceptions.yaml"), tested=tested),
        keyword_classifier.load("keywords.yaml", table("keywords.yaml"), tested=tested),
        clean_end.load("run_end.yaml", table("run_end.yaml"), tested=tested),
        exception_words.load(subjects, weights),
        exception_lines.load(exception_lines.FILE, table(exception_lines.FILE), tested=tested),
        likely_lines.load_ranker(likely_lines.FILE, table(likely_lines.FILE)),
    )


def load_more(analyzer: LogAnalyzer, folder: Path) -> tuple[LogAnalyzer, RuleSet]:
    """A folder of further rules: the analyzer with them added, and those rules alone. Checks its filter rules too.

    Raises RuleFaults, BadInput.
    """
    texts = folder_texts(folder)
    filters = {path: text for path, text in texts.items() if path.startswith(FILTERS)}
    rules = {path: text for path, text in texts.items() if rule_id(path)}
    if not rules and not filters:
        raise BadInput(_no_rules(folder))
    parse_filters(filters)
    ruleset = schema.load(rules, analyzer.knowledge.engine.ruleset.lists)
    return analyzer.with_rules(ruleset), ruleset


def _no_rules(folder: Path) -> str:
    """Say where rules are expected, and which files lie elsewhere."""
    where = f"{folder} holds no rules: they are expected in {folder}/CATEGORY/ID.yaml, filters in {folder}/filters"
    elsewhere = sorted(folder.rglob("*.yaml"))
    if not elsewhere:
        return where
    return f"{where}; {elsewhere[0]} lies elsewhere"


def load_node_proofs(rule_files: RuleFiles, *, tested: bool = False) -> NodeProofTable:
    """Read what proves a node's fault. Raises RuleFaults. tested: its examples are known to hold."""
    return node_proofs.load(NODE_PROOFS, rule_files.used[NODE_PROOFS], tested=tested)


def site_node_queries(settings: Settings, *, tested: bool = False) -> "NodeQueryTable":
    """Read what suspected nodes of this site can be asked. Raises RuleFaults, BadInput. tested: its examples are known
    to hold."""
    from diagnoser.recovery import node_query  # no log file is asked about

    rule_files = site_rules(settings)
    proofs = load_node_proofs(rule_files, tested=tested)
    return node_query.load(NODE_QUERIES, rule_files.used[NODE_QUERIES], proofs, tested=tested)
