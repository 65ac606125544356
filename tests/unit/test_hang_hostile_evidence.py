"""Whatever is sent as evidence of a hang is read or refused."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser.hang.flight_recorder import DumpReader
from diagnoser.model.errors import BadInput
from tests import hostile_evidence
from tests.hang_dumps import dump, entry, written
from tests.thorough import examples

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
OF_ENTRY = [*entry("0", 1, order=1), "filename", "line"]
PLACES = ["entries", "pg_config", "pg_status", "name", "desc", "ranks", *OF_ENTRY]
OPCODES = b"(.0]}ea\x85\x86\x87\x88\x89Nhqrjtsu)KMJGX\x8a\x8c\x8d\x94\x95cRbiop\x81\x82\x93BC2"


@given(st.binary(max_size=300), st.sampled_from([b"", b"\x80\x02", b"\x80\x04", b"{", b"[", *hostile_evidence.SEEDS]))
@settings(max_examples=examples(150))
def test_any_bytes_are_read_or_refused(data: bytes, head: bytes) -> None:
    """Alone, behind the first bytes of a format, and behind a whole file of it."""
    hostile_evidence.one_input(head + data)


@given(st.lists(st.sampled_from([bytes([code]) for code in OPCODES]) | st.binary(max_size=3), max_size=60))
@settings(max_examples=examples(150))
def test_any_opcodes_are_read_or_refused(parts: list[bytes]) -> None:
    """Of a pickle, in any order, with any arguments."""
    hostile_evidence.one_input(b"\x80\x02" + b"".join(parts) + b".")


@given(st.dictionaries(st.sampled_from(PLACES), VALUES, max_size=5), st.booleans())
@settings(max_examples=examples(150))
def test_any_values_are_read_or_refused(values: dict[str, Any], as_json: bool) -> None:
    """In the place of what an entry, a group or the dump should have there."""
    content = dump({"0": (0, 1, 2, 3)}, [entry("0", 5, order=2)])
    for place in (content, *content["entries"], *content["pg_config"].values(), *content["entries"][0]["frames"]):
        place.update({name: value for name, value in values.items() if name in place})
    try:
        assert len(DumpReader().read(written(content, as_json=as_json), 1).operations) <= 1
    except BadInput as error:
        assert str(error)
    hostile_evidence.one_input(written(content, as_json=as_json))


def test_broken_files_of_every_format_are_read_or_refused() -> None:
    """As ``make fuzz`` breaks them."""
    rng = random.Random(5)
    for _ in range(300):
        hostile_evidence.one_input(hostile_evidence.mutated(rng))
