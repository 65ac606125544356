"""The table of Xid and SXid codes, against the rules that know them."""

import pytest

from diagnoser.config.loader import load_analyzer, load_codes
from diagnoser.config.settings import Settings
from diagnoser.model import Evidence, Line, Stream
from diagnoser.model.errors import RuleFaults
from diagnoser.rules import xid
from diagnoser.rules.xid import XidTable

READER = load_analyzer(Settings())
ENGINE = READER.knowledge.engine
CODES = load_codes(Settings(), ENGINE.ruleset)


FORMS = (
    "NVRM: Xid (PCI:0000:1b:00): {}, pid='<unknown>', name=<unknown>, said by the driver",
    "NVRM: Xid (0000:1b:00): {}, said by an old driver",
    "NVRM: Xid (PCI:0000:1b:00 GPU-I:05): {}, pid=7, name=python3, said of a MIG slice",
    "Mar  3 04:12:44 trn-17 kernel: [88.441] NVRM: Xid (PCI:0019:01:00): {}, pid=7, name=python3, said by syslog",
)


def best(text: str) -> str | None:
    line = Line(Stream("kernel", "gpu-1"), 1, text, text)
    found = ENGINE.match(Evidence(lines=(line,)))
    return found[0].rule.id if found else None


@pytest.mark.parametrize("form", FORMS)
def test_the_rule_that_the_table_names_knows_the_line_of_its_code(form: str) -> None:
    """In every form in which drivers print it, a code is known by its rule before any other."""
    wrong = {row.code: found for row in CODES.xid if row.rule and (found := best(form.format(row.code))) != row.rule}
    assert wrong == {}


def test_every_code_that_names_a_failure_has_its_rule() -> None:
    """No Xid or SXid with a failure type is explained only: each is diagnosed."""
    assert [row.code for row in (*CODES.xid, *CODES.sxid) if row.type and not row.rule] == []


@pytest.mark.parametrize("code", [row.code for row in CODES.xid if row.type is None and not row.rule])
def test_a_code_without_a_type_is_no_root(code: int) -> None:
    """Reserved, display and informational codes hit nothing."""
    assert best(FORMS[0].format(code)) is None


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
    assert isinstance(CODES, XidTable)
    numbers = [row.code for row in (*CODES.xid, *CODES.sxid)]
    assert len(numbers) == len(set(numbers))
