"""The shape of rule files."""

import pytest

from diagnoser.model.errors import RuleFaults
from diagnoser.rules import schema
from tests.rule_files import rule


def faults_of(*files: tuple[str, str]) -> list[str]:
    with pytest.raises(RuleFaults) as caught:
        schema.load(dict(files))
    return [str(fault) for fault in caught.value.faults]


def test_all_faults_of_all_files_are_told_at_once() -> None:
    """Two faulty files give all their faults in one error, each with path and line."""
    told = faults_of(rule("one", patterns=["("]), rule("two", anchors=["12"], speed="fast"))
    assert any(fault.startswith("infrastructure/one.yaml:") and "RE2" in fault for fault in told)
    assert any("unknown key" in fault for fault in told)


def test_path_and_content_agree() -> None:
    """A rule of a script type in the infrastructure folder is a fault."""
    path, text = rule("lost_key", "key_error")
    assert path == "script/lost_key.yaml"
    assert "must be named script/lost_key.yaml" in faults_of(("infrastructure/lost_key.yaml", text))[0]


def test_examples_are_mandatory() -> None:
    """A rule without a counter-example does not load."""
    assert any("no_match" in fault for fault in faults_of(rule("one", examples={"match": ["marker"]})))


def test_maturity_is_mandatory() -> None:
    """Without it a rule would be trusted by oversight: the fault names file and field."""
    path, text = rule("one")
    assert faults_of((path, text.replace("maturity: stable\n", ""))) == ["infrastructure/one.yaml:1: maturity: missing"]


def test_specificity_is_one_of_five_names() -> None:
    """The names are ordered from words to codes; a number is a fault that lists them."""
    names = ("word", "class", "family", "message", "code")
    loaded = schema.load(dict(rule(f"r{number}", specificity=name) for number, name in enumerate(names)))
    levels = [one.specificity for one in loaded.rules]
    assert levels == sorted(set(levels)) and loaded.rules[0].model_dump(mode="json")["specificity"] == "word"
    assert faults_of(rule("one", specificity=60))[0].endswith("must be one of word, class, family, message, code")


def test_unknown_group_is_told() -> None:
    """A named group that nothing reads is a fault."""
    assert "unknown group 'host'" in faults_of(rule("one", patterns=["(?P<host>marker)"]))[0]


def test_explains_knows_types_and_all() -> None:
    """``explains`` takes failure types and ``all``, and nothing else."""
    loaded = schema.load(dict([rule("one", explains=["all", "cuda_error"])]))
    assert [str(kind) for kind in loaded.rules[0].explains] == ["all", "cuda_error"]
    assert "not a failure type" in faults_of(rule("one", explains=["bad_luck"]))[0]


def test_explains_may_name_a_list() -> None:
    """A name of the lists stands for its types, each once, beside types named one by one."""
    lists = schema.load_lists("explains.yaml", "version: 1\nlists: {peers: [nccl_timeout_error, connection_error]}")
    loaded = schema.load(dict([rule("one", explains=["cuda_error", "peers", "connection_error"])]), lists)
    assert [str(kind) for kind in loaded.rules[0].explains] == ["cuda_error", "nccl_timeout_error", "connection_error"]
    with pytest.raises(RuleFaults, match=r"explains.yaml:2: 'all' has a meaning already"):
        schema.load_lists("explains.yaml", "version: 1\nlists: {all: [cuda_error]}")


def test_hash_names_exactly_the_set() -> None:
    """The same files have the same hash in any order, changed files another one."""
    one, two = rule("one"), rule("two")
    assert schema.load(dict([one, two])).hash == schema.load(dict([two, one])).hash
    assert schema.load(dict([one])).hash != schema.load(dict([one, two])).hash


def test_anchor_of_a_root_rule_is_fatal() -> None:
    """An anchor that a root and a symptom share counts as fatal, one of symptoms alone does not."""
    rules = schema.load(
        dict([rule("one", anchors=["shared"]), rule("two", role="symptom", anchors=["shared", "other"])])
    )
    assert {anchor.text: anchor.fatal for anchor in rules.anchors} == {"shared": True, "other": False}
