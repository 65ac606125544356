"""The operator's files made into what reads logs. Apart from `app.py`, so that the command line starts fast."""

from pathlib import Path

from diagnoser.adapters import files
from diagnoser.compress import Gate, parse_filters
from diagnoser.pipeline import Knowledge
from diagnoser.reader import Reader
from diagnoser.recovery import policy
from diagnoser.rules import confidence, schema, xid
from diagnoser.rules.engine import Engine
from diagnoser.rules.schema import RuleSet
from diagnoser.rules.xid import Codes
from diagnoser.settings import Settings


def load_reader(settings: Settings) -> Reader:
    """Rules, filters, policy and calibration of this site. Raises RuleFaults, BadInput."""
    folder = settings.rules_dir or files.bundled("rules")
    rules = {path: text for path, text in files.texts(folder, "*/*.yaml").items() if not path.startswith("filters/")}
    ruleset = schema.load(rules)
    knowledge = Knowledge(
        Engine(ruleset),
        policy.load("policy.yaml", files.text(folder / "policy.yaml")),
        confidence.load("calibration.yaml", files.text(folder / "calibration.yaml")),
    )
    gate = Gate(knowledge.anchors, ruleset.watched)
    return Reader(knowledge, gate, parse_filters(files.texts(folder / "filters", "*.yaml")))


def load_more(reader: Reader, folder: Path) -> tuple[Reader, RuleSet]:
    """A folder of further rules: the reader with them, and they alone. Its Filter Rules are checked as well.

    Raises RuleFaults, BadInput.
    """
    found = files.texts(folder, "*/*.yaml")
    filters = {path: text for path, text in found.items() if path.startswith("filters/")}
    parse_filters(filters)
    ruleset = schema.load({path: text for path, text in found.items() if path not in filters})
    return reader.with_rules(ruleset), ruleset


def load_codes(settings: Settings, rules: RuleSet) -> Codes:
    """The table of Xid and SXid codes of this site. Raises RuleFaults, BadInput."""
    folder = settings.rules_dir or files.bundled("rules")
    return xid.load("xid.yaml", files.text(folder / "xid.yaml"), rules)
