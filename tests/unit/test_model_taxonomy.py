"""The closed lists that everything else refers to."""

from diagnoser.model.taxonomy import DEFINITIONS, NODE_FAULTS, Category, FailureType, category_of


def test_every_type_has_a_definition_of_one_line() -> None:
    """People choose by it."""
    assert DEFINITIONS.keys() == set(FailureType)
    for kind, text in DEFINITIONS.items():
        assert 10 < len(text) <= 120 and "\n" not in text and not text.endswith("."), kind
    python = [text for text in DEFINITIONS.values() if text.startswith("a Python")]
    assert len(set(DEFINITIONS.values())) == len(DEFINITIONS) and len(python) > 5


def test_a_node_can_have_every_infrastructure_fault_and_few_others() -> None:
    """Weights below one are for failures that mostly are the job's own; no fault of a script makes a node suspect."""
    kinds = {category: {kind for kind in NODE_FAULTS if category_of(kind) is category} for category in Category}
    assert kinds[Category.INFRASTRUCTURE] == {
        kind for kind in FailureType if category_of(kind) is Category.INFRASTRUCTURE
    }
    assert not kinds[Category.SCRIPT] | kinds[Category.NONE] | kinds[Category.UNKNOWN]
    assert all(NODE_FAULTS[kind].weight < 1 for kind in kinds[Category.FRAMEWORK])
