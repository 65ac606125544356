"""The closed lists that everything else refers to."""

from diagnoser.model.taxonomy import DEFINITIONS, FailureType


def test_every_type_has_a_definition_of_one_line() -> None:
    """People choose by it."""
    assert DEFINITIONS.keys() == set(FailureType)
    for kind, text in DEFINITIONS.items():
        assert 10 < len(text) <= 120 and "\n" not in text and not text.endswith("."), kind
    python = [text for text in DEFINITIONS.values() if text.startswith("a Python")]
    assert len(set(DEFINITIONS.values())) == len(DEFINITIONS) and len(python) > 5
