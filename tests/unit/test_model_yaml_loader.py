"""YAML documents into shapes, with all faults."""

from pydantic import BaseModel, ConfigDict

from diagnoser.model.yaml_loader import locate, read


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    parts: list[Part]


def test_a_sound_document_has_no_fault() -> None:
    """What fits the shape comes back as the shape."""
    whole, faults = read("a.yaml", "name: x\nparts:\n- size: 3\n", Whole)
    assert whole == Whole(name="x", parts=[Part(size=3)])
    assert faults == []


def test_each_fault_has_its_line() -> None:
    """A wrong value, an unknown key and a missing one are told together, each where it stands."""
    _, faults = read("a.yaml", "parts:\n- size: 3\n- size: big\n- sise: 4\n", Whole)
    told = {str(fault) for fault in faults}
    assert any(text.startswith("a.yaml:3: parts.1.size") for text in told)
    assert "a.yaml:4: parts.2.sise: unknown key" in told
    assert any("name: missing" in text for text in told)


def test_a_key_that_appears_twice_is_a_fault() -> None:
    """YAML would silently take the last one."""
    whole, faults = read("a.yaml", "name: x\nname: y\nparts: []\n", Whole)
    assert whole is None
    assert [str(fault) for fault in faults] == ["a.yaml:2: key 'name' appears twice"]


def test_what_is_no_yaml_is_told_with_its_line() -> None:
    """A syntax error names the line and stops there."""
    _, faults = read("a.yaml", "name: x\nparts: [\n", Whole)
    assert len(faults) == 1
    assert faults[0].line >= 2


def test_a_document_must_be_a_mapping() -> None:
    """A list or an empty file is told as such."""
    assert read("a.yaml", "- 1\n", Whole)[1][0].message == "must be a mapping"
    assert read("a.yaml", "", Whole)[1][0].message == "must be a mapping"


def test_locate_finds_the_deepest_known_step() -> None:
    """A location that goes further than the document ends at its last known line."""
    assert locate("name: x\nparts:\n- size: 3\n", "parts", 0, "size", "deeper") == 3


def test_a_merged_key_may_be_overridden() -> None:
    """A mapping that ``<<`` brings in gives what its neighbours do not say; that is no key that stands twice."""
    text = "name: x\nparts:\n- &first\n  size: 3\n- <<: *first\n- <<: *first\n  size: 4\n"
    assert read("a.yaml", text, Whole) == (Whole(name="x", parts=[Part(size=3), Part(size=3), Part(size=4)]), [])


def test_anchors_that_repeat_each_other_are_read_once() -> None:
    """Ten levels of ten aliases are a few lines of text: reading them takes no ten billion steps."""
    levels = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11))]
    _, faults = read("a.yaml", "\n".join(levels), Whole)
    assert {fault.message for fault in faults} >= {"a10: unknown key"}


def test_a_key_must_be_a_scalar() -> None:
    """A mapping as a key cannot be looked up by its name."""
    (fault,) = read("a.yaml", "name: x\n{a: 1}: y\n", Whole)[1]
    assert str(fault) == "a.yaml:2: not YAML: a key must be a scalar"
