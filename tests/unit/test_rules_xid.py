"""The table of Xid and SXid codes, against the rules that know them."""

import pytest

from diagnoser.errors import RuleFaults
from diagnoser.model import Evidence, Line, Stream
from diagnoser.rules import xid
from diagnoser.rules.xid import Code, Codes
from diagnoser.settings import Settings
from diagnoser.site import load_codes, load_reader

READER = load_reader(Settings())
ENGINE = READER.knowledge.engine
CODES = load_codes(Settings(), ENGINE.ruleset)


def hits(text: str) -> set[str]:
    line = Line(Stream("kernel", "gpu-1"), 1, text, text)
    return {hit.rule.id for hit in ENGINE.match(Evidence(lines=(line,)))}


@pytest.mark.parametrize("code", [row for row in CODES.xid if row.rule], ids=lambda row: str(row.code))
def test_the_rule_of_an_xid_knows_its_line(code: Code) -> None:
    """The kernel's line with this code is hit by the rule that the table names."""
    text = f"NVRM: Xid (PCI:0000:1b:00): {code.code}, pid='<unknown>', name=<unknown>, {code.name}"
    assert code.rule in hits(text)


def test_codes_that_say_nothing_alone_have_no_failure_type() -> None:
    """43 and 45 accompany another event; none such may decide a verdict."""
    silent = {row.code: row for row in CODES.xid if row.says_nothing_alone}
    assert {43, 45} <= silent.keys()
    assert {row.type for row in silent.values()} == {None}


def test_the_codes_that_cost_most_are_named() -> None:
    """Off the bus, NVLink, double-bit ECC, row remapping, GSP: each has its type."""
    types = {row.code: str(row.type) for row in CODES.xid}
    assert {code: types[code] for code in (79, 74, 48, 64, 94, 95, 119, 120)} == {
        79: "gpu_lost",
        74: "nvlink_error",
        48: "ecc_error",
        64: "ecc_error",
        94: "ecc_error",
        95: "ecc_error",
        119: "gpu_driver_error",
        120: "gpu_driver_error",
    }


def test_faults_of_the_table_are_told_together() -> None:
    """A code that stands twice and a rule that does not exist are both told with their line."""
    row = "{code: 5, name: x, type: null, blame: none, action: null, says_nothing_alone: true"
    text = f"version: 1\nreferences: []\nxid:\n  - {row}}}\n  - {row}, rule: no_such_rule}}\nsxid: []\n"
    with pytest.raises(RuleFaults) as error:
        xid.load("xid.yaml", text, ENGINE.ruleset)
    assert [(fault.line, fault.message) for fault in error.value.faults] == [
        (5, "code 5 appears twice"),
        (5, "code 5: no rule 'no_such_rule'"),
    ]


def test_numbers_are_unique_over_both_tables() -> None:
    """One number names one code."""
    assert isinstance(CODES, Codes)
    numbers = [row.code for row in (*CODES.xid, *CODES.sxid)]
    assert len(numbers) == len(set(numbers))
