"""What holds for every rule that ships, beside its own examples."""

import re
from io import BytesIO
from itertools import cycle

import pytest

from diagnoser.adapters import files
from diagnoser.config.loader import load_analyzer, site_node_queries
from diagnoser.config.settings import Settings
from diagnoser.model.taxonomy import Action, FailureType, category_of
from diagnoser.recovery.policy import PolicyCase
from diagnoser.rules import schema
from diagnoser.rules.schema import Match, Maturity, Role, Rule
from tests.rule_files import ANALYZER
from tests.thorough import THOROUGH

ENGINE = ANALYZER.knowledge.engine
RULES = ENGINE.ruleset.rules
PREFIXES = (
    "0: ",
    "[rank3]: ",
    "[default3]:",
    "[1,3]<stderr>:",
    "(TrainWorker pid=811, ip=10.9.8.7) ",
    "2031-01-02T03:04:05.123456789Z stderr F ",
    "[pod/job-worker-3/main] ",
)
"""srun --label, PyTorch, torchrun, mpirun --tag-output, Ray, a container runtime and kubectl."""


def hits(rule: Rule, text: str, prefix: str = "") -> bool:
    log = "\n".join(prefix + line for line in text.split("\n"))
    evidence = ANALYZER.read(BytesIO(log.encode())).evidence
    return any(hit.rule.id == rule.id for hit in ENGINE.match(evidence))


def test_every_pattern_is_one_of_re2() -> None:
    """A start does not compile the shipped rules: a fault would show with the first log that asks for it."""
    folder = files.bundled("rules")
    texts = {path: text for path, text in files.texts(folder, "*/*.yaml").items() if not path.startswith("filters/")}
    assert schema.load(texts, ENGINE.ruleset.lists).hash == ENGINE.ruleset.hash


def test_every_table_holds() -> None:
    """Read as the rules of a site, whose patterns and examples are tried, the shipped ones are the same."""
    settings = Settings(rules_dir=files.bundled("rules"))
    assert load_analyzer(settings).knowledge.engine.ruleset.hash == ENGINE.ruleset.hash
    assert site_node_queries(settings) == site_node_queries(Settings(), tested=True)


def test_a_person_finds_what_a_rule_means_and_what_to_do() -> None:
    """Every rule has a page to read, and every failure more than a few words of what to do."""
    assert [rule.id for rule in RULES if not rule.reference.startswith("https://")] == []
    failures = [rule for rule in RULES if rule.type is not FailureType.COMPLETED]
    assert [rule.id for rule in failures if len(rule.mitigation.split()) <= 5] == []


def test_titles_tell_rules_apart() -> None:
    """No two rules have one title."""
    titles = [rule.title for rule in RULES]
    assert sorted({title for title in titles if titles.count(title) > 1}) == []


@pytest.mark.parametrize("start", range(len(PREFIXES) if THOROUGH else 1))
def test_examples_hold_behind_every_prefix_of_a_launcher(start: int) -> None:
    """Each example wears one prefix; which one differs from example to example."""
    wrong = []
    prefixes = cycle(PREFIXES[start:] + PREFIXES[:start])
    for rule in RULES:
        for example in rule.examples.match:
            prefix, text = next(prefixes), example.text if isinstance(example, Match) else example
            if not hits(rule, text, prefix):
                wrong.append((rule.id, prefix, text))
        wrong += [(rule.id, prefix, text) for text in rule.examples.no_match if hits(rule, text, prefix)]
    assert wrong == []


def may_act(rule: Rule) -> bool:
    """Whether a verdict by this rule, as sure as can be, can lead to more than a notice."""
    stable, sandbox = rule.maturity is Maturity.STABLE, rule.maturity is Maturity.SANDBOX
    kind = category_of(rule.type)
    cases = [PolicyCase(rule.type, kind, 1.0, named, stable, rule.action, sandbox) for named in (True, False)]
    actions = {ANALYZER.knowledge.policy.advise(case).action for case in cases}
    return rule.role is not Role.BENIGN and not actions <= {Action.NONE, Action.NOTIFY_USER}


def test_rules_that_may_act_are_proven_twice_in_each_direction() -> None:
    """Who can take a node out or launch a job again has two examples and two counter-examples at least."""
    acting = [rule for rule in RULES if may_act(rule)]
    thin = [rule.id for rule in acting if min(len(rule.examples.match), len(rule.examples.no_match)) < 2]
    assert len(acting) > 100 and thin == []


def test_no_pattern_is_made_for_words_that_ran_into_each_other() -> None:
    """An exception's name glued to the code before it is one garbled sample, not a format."""
    glued = re.compile(r"\[\)[^\]]*\](?:\(\?:\[\\w\.\]\+\\\.\)\?)?\(?(?:\?:)?[A-Z]\w+(?:Error|Interrupt)")
    assert [rule.id for rule in RULES if any(glued.search(pattern) for pattern in rule.patterns)] == []
