"""What the model stage adds on labelled logs: nothing is lost on the way of a right answer, and a lie does no harm.

The rules decide nearly all labelled logs, so the rule files are left out here: what heuristics alone do not decide is
what a model is asked about.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from io import BytesIO

import pytest

from diagnoser.accuracy.llm_ablation import AblationCase, AblationResult
from diagnoser.accuracy.scoring import Label, label_of
from diagnoser.config import llm_factory, loader
from diagnoser.config.settings import Settings
from diagnoser.diagnosis import pipeline
from diagnoser.diagnosis.analyzer import LogAnalyzer
from diagnoser.diagnosis.llm_stage import consultation_input
from diagnoser.model import Facts
from diagnoser.rules import schema
from diagnoser.rules.engine import Engine
from tests.corpus import CORPUS, needs_corpus
from tests.integration.model_server import Say, model_server
from tests.integration.scripted import Truth, knows, lies

pytestmark = [needs_corpus, pytest.mark.corpus]


def without_rules(analyzer: LogAnalyzer) -> LogAnalyzer:
    """Lines are kept as in service; no rule names a cause."""
    return replace(analyzer, knowledge=replace(analyzer.knowledge, engine=Engine(schema.load({}))))


@cache
def cases(folder: str) -> tuple[AblationCase, ...]:
    """The labelled logs of a folder with the verdicts of heuristics alone."""
    analyzer = without_rules(loader.load_analyzer(Settings()))
    found = []
    for text in (CORPUS / folder / "labels.jsonl").read_text("utf-8").splitlines():
        label = label_of(json.loads(text))
        log = analyzer.read(BytesIO((CORPUS / folder / f"{label.id}.log").read_bytes()))
        diagnosis = pipeline.diagnose(log.evidence, Facts(), analyzer.knowledge)
        found.append(AblationCase(label, diagnosis, consultation_input(diagnosis, log, Facts())))
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


async def tried(folder: str, model: Say, labels: Labels) -> Mapping[str, AblationResult]:
    with model_server(model) as server:
        settings = Settings(
            llm_url=server.url,
            llm_model="scripted",
            llm_price_per_million_input_tokens=1.0,
            llm_price_per_million_output_tokens=2.0,
        )
        policy = loader.load_analyzer(Settings()).knowledge.policy
        outcomes = await llm_factory.run_ablation(settings, cases(folder), policy, labels.began)
    return {one.name: one for one in outcomes}


async def test_a_model_that_knows_is_heard() -> None:
    """Of what has no cause by rules at least 98 % come out right, at two calls each, and the figures add up."""
    labels = Labels()
    outcomes = await tried("dev", knows(labels.truth), labels)
    rules, memory, model = (outcomes[name] for name in ("rules only", "+ retrieval", "+ model"))
    asked = model.asked
    assert asked >= 30
    assert memory.calls == 0
    assert (memory.report.shares["type"] or 0) >= (rules.report.shares["type"] or 0)
    assert (model.undecided.shares["type"] or 0) >= 0.98
    assert (model.report.shares["type"] or 0) > (rules.report.shares["type"] or 0)
    assert (rules.calls, model.calls) == (0, 2 * asked)
    assert outcomes["- vote"].calls == asked
    assert model.cost == pytest.approx((900 + 2 * 60) * 2 * asked / 1e6)
    assert model.moved == 0


@pytest.mark.parametrize("quotes", [True, False], ids=["with real quotes", "with made-up quotes"])
async def test_a_model_that_lies_does_no_harm(quotes: bool) -> None:
    """Accuracy is at most one point below that of the rules, and no action is another."""
    labels = Labels()
    outcomes = await tried("dev", lies(labels.truth, quotes=quotes), labels)
    rules, model = outcomes["rules only"], outcomes["+ model"]
    for share in ("type", "category", "action"):
        assert (model.report.shares[share] or 0) >= (rules.report.shares[share] or 0) - 0.01
    assert model.moved == 0
    if not quotes:
        assert model.failures == {"evidence_not_found": model.asked}
        assert not outcomes["- evidence check"].failures
