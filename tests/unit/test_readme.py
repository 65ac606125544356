"""The README is checked against the code."""

import re
from pathlib import Path

import yaml

from diagnoser import compress
from diagnoser.compress import Compressor, Prefilter
from diagnoser.config.settings import PREFIX, SECRETS, Settings
from diagnoser.model import Evidence, LineBlock, Stream
from diagnoser.model.errors import ModelFailure
from diagnoser.rules import examples, schema
from diagnoser.rules.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def settings_table() -> str:
    """What stands under Configuration."""
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = "" if name in SECRETS or field.default in ("", None) else f"`{field.default}`"
        rows.append(f"| `{PREFIX}{name.upper()}` | {default} | {field.description} |")
    return "\n".join(rows)


def test_the_settings_table_is_the_settings() -> None:
    """Every setting stands in the README with its default and its description."""
    assert settings_table() in README


def test_the_map_names_every_module() -> None:
    """Whatever lies at the top of the package has its row, and no row names what is gone."""
    named = set(re.findall(r"`(diagnoser/[\w/.]+)`", README.split("### The map")[1].split("## ")[0]))
    there = {
        f"diagnoser/{path.name}/" if path.is_dir() else f"diagnoser/{path.name}"
        for path in (ROOT / "diagnoser").iterdir()
        if not path.name.startswith("__") and (path.is_dir() or path.suffix == ".py")
    }
    assert named == there


def test_every_failure_of_the_model_is_explained() -> None:
    """The table has one row for each reason, and none for what does not happen."""
    table = README.split("### The language model")[1].split("### ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(ModelFailure)


def test_the_make_commands_exist() -> None:
    """Each `make x` that the README names is a target."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert named - targets == set()


def test_the_example_rule_holds() -> None:
    """The rule that the README shows loads and passes its own examples."""
    text = re.search(r"```yaml\n(id: .*?)```", README, re.DOTALL)
    assert text is not None
    rule = yaml.safe_load(text[1])
    engine = Engine(schema.load({f"infrastructure/{rule['id']}.yaml": text[1]}))

    def digest(data: bytes) -> Evidence:
        compressor = Compressor(Prefilter(engine.ruleset.anchors, engine.ruleset.watched))
        compressor.feed(LineBlock(Stream(), data))
        return compress.digest(compressor.take()).evidence

    assert examples.check(engine, digest) == []
