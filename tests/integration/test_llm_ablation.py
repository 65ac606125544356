"""What the model stage adds on labelled logs: nothing is lost on the way of a right answer, and a lie does no harm.

The rules decide nearly all labelled logs, so the rule files are left out here: what heuristics alone do not decide is
what a model is asked about.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from io import BytesIO

import pytest

from diagnoser.accuracy.llm_ablation import AblationCase, AblationResult
from diagnoser.accuracy.scoring import Label
from diagnoser.config import llm_factory
from diagnoser.config.settings import Settings
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.llm_stage import consultation_input
from diagnoser.model import Facts
from diagnoser.rules import schema
from diagnoser.rules.engine import Engine
from tests import accuracy_bars
from tests.corpus import CORPUS, needs_corpus
from tests.integration.model_server import Say, model_server
from tests.integration.scripted import Truth, knows, lies
from tests.rule_files import ANALYZER
from tests.thorough import THOROUGH

pytestmark = [needs_corpus, pytest.mark.corpus, pytest.mark.xdist_group("ablation")]
ONE_IN = 3 if THOROUGH else 9
"""Without rules nearly every case is asked about, six times in all stages: a fixed share of them is enough."""


def without_rules(analyzer: LogAnalyzer) -> LogAnalyzer:
    """Lines are kept as in service; no rule names a cause."""
    return replace(analyzer, knowledge=replace(analyzer.knowledge, engine=Engine(schema.load({}))))


HEURISTICS = without_rules(ANALYZER)


@cache
def cases(folder: str, *, heuristics_only: bool) -> tuple[AblationCase, ...]:
    """The labelled logs of a folder with their verdicts; without rules, a fixed share of them."""
    analyzer = HEURISTICS if heuristics_only else ANALYZER
    chosen = accuracy_bars.share(folder, ONE_IN if heuristics_only else 1)
    found = []
    for label in accuracy_bars.labels(folder):
        if label.id not in chosen:
            continue
        log = analyzer.read(BytesIO((CORPUS / folder / f"{label.id}.log").read_bytes()))
        diagnosis = pipeline.diagnose(log.evidence, Facts(), analyzer.knowledge)
        found.append(AblationCase(label, diagnosis, consultation_input(diagnosis, log, Facts(), analyzer.knowledge)))
    return tuple(found)


class Labels:
    """What a scripted model knows: the label of the case that is asked about."""

    def __init__(self) -> None:
        self.now: Label | None = None

    def began(self, one: AblationCase) -> None:
        self.now = one.label

    def truth(self) -> Truth:
        assert self.now is not None
        return Truth(self.now.type, self.now.root_text, self.now.root_lines)


async def tried(
    folder: str, model: Say, labels: Labels, *, heuristics_only: bool = True
) -> Mapping[str, AblationResult]:
    with model_server(model) as server:
        settings = Settings(llm_url=server.url, llm_model="scripted")
        subjects = cases(folder, heuristics_only=heuristics_only)
        outcomes = await llm_factory.run_ablation(settings, subjects, ANALYZER.knowledge.policy, labels.began)
    return {one.name: one for one in outcomes}


async def test_a_model_that_knows_is_heard() -> None:
    """Of what has no cause by rules at least 98 % come out right, at two calls each, and the figures add up."""
    labels = Labels()
    outcomes = await tried("dev", knows(labels.truth), labels)
    rules, memory, model = (outcomes[name] for name in ("rules only", "+ retrieval", "+ model"))
    asked = model.counts["asked"]
    assert asked >= 60 / ONE_IN  # fewer would show little
    assert memory.counts["calls"] == 0
    assert (memory.report.shares["type"] or 0) >= (rules.report.shares["type"] or 0)
    assert (model.undecided.shares["type"] or 0) >= 0.98
    assert (model.report.shares["type"] or 0) > (rules.report.shares["type"] or 0)
    assert rules.counts["calls"] == 0
    assert 2 * asked <= model.counts["calls"] <= 3 * asked
    assert outcomes["- vote"].counts["calls"] == asked
    assert (model.counts["tokens_in"], model.counts["tokens_out"]) == (
        900 * model.counts["calls"],
        60 * model.counts["calls"],
    )


async def test_made_up_quotes_change_nothing() -> None:
    """A model that lies without proof is not heard: the verdicts and actions of the rules stand."""
    labels = Labels()
    outcomes = await tried("dev", lies(labels.truth, quotes=False), labels)
    rules, model = outcomes["+ retrieval"], outcomes["+ model"]
    assert model.report.shares == rules.report.shares
    assert (model.counts["actions_moved"], model.failures) == (0, {"evidence_not_found": model.counts["asked"]})
    assert not outcomes["- evidence check"].failures


async def test_a_liar_with_true_quotes_spoils_no_more_than_it_is_asked_about() -> None:
    """With the rules that ship that is a small share of the cases, and no lie takes a node out."""
    labels = Labels()
    outcomes = await tried("dev", lies(labels.truth, quotes=True), labels, heuristics_only=False)
    rules, model = outcomes["+ retrieval"].report, outcomes["+ model"].report
    share = outcomes["+ model"].counts["asked"] / rules.counts["cases"]
    assert 0 < share <= 0.1
    for name in ("type", "category", "action"):
        assert (model.shares[name] or 0) >= (rules.shares[name] or 0) - share
    assert model.counts["false_cordon"] == rules.counts["false_cordon"]
    assert model.counts["wrong_node_cordon"] == rules.counts["wrong_node_cordon"]
