"""How sure a model's verdict is, and what of it a person has to look at."""

import re
from pathlib import Path

import pytest

from diagnoser.failure_agent.acceptance import (
    CONFIDENCE_MAX,
    CONFIDENCE_UNJUDGED,
    lowered_action,
    model_confidence,
    model_confidences,
)
from diagnoser.model import Judgement
from diagnoser.model.taxonomy import DEFINITIONS, Action, FailureType, category_of
from tests.corpus import CORPUS


@pytest.mark.parametrize(
    ("right", "judged", "said"),
    [(0, 0, CONFIDENCE_UNJUDGED), (28, 30, 0.85), (5, 10, 0.55), (0, 20, 0.2), (990, 1000, CONFIDENCE_MAX)],
)
def test_a_model_is_as_sure_as_its_judged_verdicts_were_right(right: int, judged: int, said: float) -> None:
    """Cautious about one that nobody judged, and never surer than people's own judgements."""
    assert model_confidence(right, judged) == said


def test_each_model_is_judged_by_its_own_verdicts() -> None:
    """By the name of the model that decided; what rules decided says nothing about one."""
    memory, key = FailureType.OUT_OF_MEMORY_ERROR, FailureType.KEY_ERROR
    judged = [Judgement(f"a{number}", 1.0, memory, memory, "llm:qwen") for number in range(10)]
    judged += [Judgement(f"b{number}", 1.0, memory, key, "llm:small") for number in range(10)]
    judged += [Judgement("c", 1.0, memory, key, "rule:x")]
    assert model_confidences(judged) == {"qwen": 0.8, "small": 0.3}


@pytest.mark.parametrize(
    ("before", "after", "lowered"),
    [
        (Action.NOTIFY_USER, Action.NONE, True),
        (Action.RESUBMIT, Action.NOTIFY_USER, True),
        (Action.CORDON_AND_RESUBMIT, Action.CHECK_AND_RESUBMIT, True),
        (Action.RESUBMIT, Action.ROLLBACK_AND_RESUBMIT, False),
        (Action.NONE, Action.CHECK_AND_RESUBMIT, False),
        (Action.NONE, Action.NONE, False),
    ],
)
def test_a_milder_action_is_named(before: Action, after: Action, lowered: bool) -> None:
    """To none, to people alone, and to fewer looks at a node."""
    assert bool(lowered_action(before, after)) is lowered


TAXONOMY = CORPUS.parent / "TAXONOMY.md"
_HEADING = re.compile(r"^category: (\w+)")


def types_of(path: Path) -> dict[str, str]:
    """The types of a taxonomy page, with their categories."""
    types, category = dict[str, str](), ""
    for text in path.read_text("utf-8").splitlines():
        if heading := _HEADING.match(text):
            category = heading[1]
        elif text.startswith("recovery"):
            break
        elif category and text.startswith("- "):
            types.update(dict.fromkeys(re.findall(r"\b([a-z_0-9]+) [*+]", text), category))
    return types


@pytest.mark.skipif(not TAXONOMY.is_file(), reason="the shared taxonomy is absent")
def test_the_types_that_a_model_is_told_are_those_of_the_taxonomy() -> None:
    """Name by name and category by category; only ``unknown`` is added, for what no log shows."""
    told = {str(kind): str(category_of(kind)) for kind in DEFINITIONS if kind is not FailureType.UNKNOWN}
    assert told == types_of(TAXONOMY)
