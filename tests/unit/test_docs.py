"""README.md and docs/ are checked against the code: tables, links, commands, routes, settings, metrics, paths."""

import re
import shlex
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from diagnoser import compress
from diagnoser.commands import client
from diagnoser.compress import Compressor, Prefilter
from diagnoser.config.settings import PREFIX, SECRETS, Settings
from diagnoser.model import AskReason, Evidence, LineBlock, Stream
from diagnoser.model.errors import ModelFailure
from diagnoser.rules import examples, schema
from diagnoser.rules.engine import Engine
from tests import generated_docs

pytestmark = pytest.mark.xdist_group("docs")  # with those of the map, which read all code as well
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*generated_docs.documents(), ROOT / "CHANGELOG.md", *sorted(ROOT.glob("deploy/*/README.md"))]
PAGES += sorted(ROOT.glob("skills/*/SKILL.md"))
TEXTS = {path: path.read_text("utf-8") for path in PAGES}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


@each_page
def test_generated_parts_are_what_the_code_says(page: Path) -> None:
    """Writing the generated parts again changes nothing; if this fails, run `make docs`."""
    assert _rendered(page) == TEXTS[page]


def test_every_generated_part_stands_once() -> None:
    """Settings, metrics, routes, commands and the map have one place each."""
    named = [found[2] for text in TEXTS.values() for found in generated_docs.PART.finditer(text)]
    assert sorted(named) == sorted(generated_docs.PARTS)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link names a file, and its anchor a heading of that file."""
    dead = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", _prose(TEXTS[page])):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in _anchors(path)):
            dead.append(target)
    assert dead == []


def test_the_index_names_every_page() -> None:
    """Each page of docs/ is linked from docs/README.md."""
    linked = set(re.findall(r"\(([\w-]+\.md)", TEXTS[DOCS / "README.md"]))
    assert linked == {path.name for path in DOCS.glob("*.md")} - {"README.md"}


@each_page
def test_commands_exist(page: Path) -> None:
    """Each `diagnoser ...` in a page is a command with those options."""
    assert [" ".join(words) for words in _diagnoser_commands(TEXTS[page]) if not _is_command(words)] == []


@each_page
def test_make_targets_and_test_programs_exist(page: Path) -> None:
    """Each `make x` is a target, and each `python -m tests.x` a module."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^|`)make ([a-z-]+)", TEXTS[page], re.MULTILINE)
    assert set(named) - targets == set()
    programs = [ROOT / name.replace(".", "/") for name in re.findall(r"python -m ((?:tests|tools)[.\w]*)", TEXTS[page])]
    assert [
        one for one in programs if not one.with_suffix(".py").is_file() and not (one / "__main__.py").is_file()
    ] == []


@each_page
def test_paths_exist(page: Path) -> None:
    """Each file or folder of this repository that a page names is there."""
    inline = re.findall(r"`((?:diagnoser|rules)/[\w./-]+)`", TEXTS[page])
    anywhere = re.findall(r"(?<![\w/.-])((?:deploy|tests|tools|prompts)/[\w./-]*\w)", TEXTS[page])
    assert [path for path in (*inline, *anywhere) if not (ROOT / path).exists()] == []


@each_page
def test_settings_exist(page: Path) -> None:
    """Each `DIAGNOSER_...` is a setting, a secret's file, or a variable that the agents or the deploy scripts use."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    known |= {f"{PREFIX}{name.upper()}_FILE" for name in SECRETS}
    named = set(re.findall(rf"{PREFIX}[A-Z_]*[A-Z]", TEXTS[page]))
    assert {name for name in named - known if name not in _sources()} == set()


@each_page
def test_metrics_exist(page: Path) -> None:
    """Each `diagnoser_...` is a metric with those labels, or with `...` the beginning of one."""
    known = re.findall(r"^- `(\w+)", generated_docs.metrics(), re.MULTILINE)
    whole = re.findall(r"`(diagnoser_\w+)(?:\{.*?\})?`", TEXTS[page])
    begun = re.findall(r"`(diagnoser_\w+)\.\.\.`", TEXTS[page])
    assert [name for name in whole if name not in known] == []
    assert [name for name in begun if not any(one.startswith(name) for one in known)] == []


@each_page
def test_routes_exist(page: Path) -> None:
    """Each `GET /x`, `POST /x` and each address of the API in a command is a route."""
    text, known = TEXTS[page], _routes()
    named = re.findall(r"`((?:GET|POST) /[\w/{}.-]+)", text)
    assert [route for route in named if route not in known] == []
    called = re.findall(r"(?:localhost|127\.0\.0\.1):8321(/api/[\w/$.-]+)", text)
    forms = [re.sub(r"\{\w+\}", "[^/]+", route.split(" ", 1)[1]) for route in known]
    assert [path for path in called if not any(re.fullmatch(form, path) for form in forms)] == []


def test_every_failure_of_the_model_is_explained() -> None:
    """The table has one row for each reason, and none for what does not happen."""
    rows = re.findall(r"^\| `(\w+)` \|", TEXTS[DOCS / "language-model.md"].split("## When it fails")[1], re.MULTILINE)
    assert sorted(rows) == sorted(ModelFailure)


def test_every_reason_to_ask_the_model_is_explained() -> None:
    """One row for each value of the closed list, but for those that only old diagnoses have."""
    old = {AskReason.HEURISTIC, AskReason.GENERIC_RULE, AskReason.CONSEQUENCE, AskReason.GUESS}
    old |= {AskReason.UNSURE_LOCATION}
    part = TEXTS[DOCS / "language-model.md"].split("## When it is asked")[1].split("##")[0]
    assert re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) == [reason for reason in AskReason if reason not in old]


@pytest.mark.parametrize("page", [DOCS / "rules.md", ROOT / "rules" / "README.md"], ids=["docs", "rules"])
def test_example_rules_hold(page: Path) -> None:
    """A rule that a page shows loads and passes its own examples."""
    shown = re.findall(r"```yaml\n(id: (\w+)\n.*?)```", page.read_text("utf-8"), re.DOTALL)
    assert shown
    lists = schema.load_lists("explains.yaml", (ROOT / "rules" / "explains.yaml").read_text("utf-8"))
    for text, name in shown:
        engine = Engine(schema.load({f"infrastructure/{name}.yaml": text}, lists))
        assert examples.check(engine, partial(_digest, engine)) == []


def _digest(engine: Engine, data: bytes) -> Evidence:
    compressor = Compressor(Prefilter(engine.ruleset.anchors, engine.ruleset.watched))
    compressor.feed(LineBlock(Stream(), data))
    return compress.digest(compressor.take()).evidence


@cache
def _rendered(page: Path) -> str:
    return generated_docs.rendered(TEXTS[page])


def _prose(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


@cache
def _anchors(page: Path) -> set[str]:
    """Of the headings, as the forges make them."""
    headings = re.findall(r"^#+ (.*)$", _prose(page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _diagnoser_commands(text: str) -> Iterator[list[str]]:
    """The words of each command behind `diagnoser`, from blocks, indented lines and code within sentences."""
    blocks = "\n".join(re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL))
    lines = [*blocks.replace("\\\n", " ").splitlines(), *re.findall(r"(?<!`)`([^`\n]+)`(?!`)", _prose(text))]
    for line in lines:
        found = re.match(r"(?:.*; )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?diagnoser ([a-z].*)", line.strip())
        if found:
            yield shlex.split(found[1], comments=True)


@cache
def _commands() -> dict[tuple[str, ...], Any]:
    return {tuple(name.split()[1:]): command for name, command in generated_docs.leaf_commands()}


def _is_command(words: list[str]) -> bool:
    commands = _commands()
    name = next((key for key in commands if tuple(words[: len(key)]) == key), None)
    if name is None:  # a group, such as `diagnoser agent`
        return any(key[: len(words)] == tuple(words) for key in commands)
    if parser := client.parsers().get(" ".join(name)):  # it has words of its own behind --
        known = {option for action in parser._actions for option in action.option_strings}
        words = words[: words.index("--")] if "--" in words else words
    else:
        known = {option for one in commands[name].params for option in (*one.opts, *one.secondary_opts)}
    return all(word.partition("=")[0] in known for word in words if word.startswith("--"))


@cache
def _sources() -> str:
    files = [path for folder in ("diagnoser", "deploy") for path in (ROOT / folder).rglob("*") if path.is_file()]
    return "\n".join(path.read_text("utf-8") for path in files if path.suffix not in (".png", ".pyc", ".md"))


@cache
def _routes() -> list[str]:
    return re.findall(r"^- `((?:GET|POST) .*?)` \(", generated_docs.routes(), re.MULTILINE)
