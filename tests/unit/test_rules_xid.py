"""NVIDIA's catalogue of Xid codes, against the rules that know them and the verdicts that follow from it."""

import pytest

from diagnoser.diagnosis import pipeline
from diagnoser.model import Diagnosis, Evidence, Facts, Line, Stream
from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import Action
from diagnoser.rules import xid
from diagnoser.rules.schema import Blame
from diagnoser.rules.xid import XidCode, XidSubcode, XidTable
from tests.rule_files import ANALYZER

ENGINE = ANALYZER.knowledge.engine
CODES = ANALYZER.knowledge.codes
OF_THE_APPLICATION = ("RESTART_APP", "IGNORE", "WORKFLOW_XID_45", "RECOVERED", "XID_154_EVAL")
"""What the catalogue asks for where neither GPU nor node has a fault."""
SYSLOG = "Mar  3 04:12:44 trn-17 kernel: [88.441] NVRM: Xid (PCI:0019:01:00): {}"
FORMS = (
    "NVRM: Xid (PCI:0000:1b:00): {}, pid='<unknown>', name=<unknown>, said by the driver",
    "NVRM: Xid (0000:1b:00): {}, said by an old driver",
    "NVRM: Xid (PCI:0000:1b:00 GPU-I:05): {}, pid=7, name=python3, said of a MIG slice",
    SYSLOG.format("{}, pid=7, name=python3, said by syslog"),
)


def best(text: str) -> str | None:
    line = Line(Stream("kernel", "gpu-1"), 1, text, text)
    hits = ENGINE.match(Evidence(lines=(line,)))
    return hits[0].rule.id if hits else None


def verdict(*bodies: str) -> Diagnosis:
    """Of a log with these lines behind the prefix of a kernel's syslog."""
    text = "".join(f"{SYSLOG.format(body)}\n" for body in bodies)
    return pipeline.diagnose(ANALYZER.evidence_of(text.encode()), Facts(), ANALYZER.knowledge)


def link(code: int, unit: str, intr_info: int, status: int = 0, severity: str = "Nonfatal") -> str:
    """A line of an NVLink 5 code as the driver prints it, without its prefix."""
    return f"{code}, {unit} {severity} XC0 i0 Link 03 ({intr_info:#x} {status:#x} 0x0 0x0 0x0 0x0 0x0)"


def register(bits: str) -> int:
    """A value of the register, with ones where any digit will do."""
    return int(bits.replace("-", "1"), 2)


@pytest.mark.parametrize("form", FORMS)
def test_the_rule_that_the_table_names_knows_the_line_of_its_code(form: str) -> None:
    """In every form in which drivers print it, a code is known by its rule before any other."""
    wrong = {row.code: rule for row in CODES.xid if (rule := best(form.format(row.code))) != row.rule}
    assert wrong == {}


@pytest.mark.parametrize("row", CODES.xid, ids=lambda row: f"{row.code}-{row.immediate}")
def test_each_code_leads_to_the_action_that_nvidia_asks_for(row: XidCode) -> None:
    """Alone in a node's kernel log, a code has its type, the action of its bucket, and advice that names all of it."""
    asked = row.immediate or row.treated_as
    diagnosis = verdict(f"{row.code}, pid=7, name=python3, said by syslog")
    assert (diagnosis.type, diagnosis.recovery.action) == (row.type, CODES.actions[asked].action)
    assert f"Xid {row.code} ({row.name})" in diagnosis.mitigation and f"({asked})" in diagnosis.mitigation
    assert CODES.actions[asked].asks in diagnosis.mitigation


@pytest.mark.parametrize("row", CODES.xid, ids=lambda row: f"{row.code}-{row.immediate}")
def test_a_code_of_the_application_neither_blames_nor_checks_a_node(row: XidCode) -> None:
    """RESTART_APP and IGNORE name no node as suspect; what asks for work on the machine names its node."""
    asked = row.immediate or row.treated_as
    diagnosis = verdict(f"{row.code}, pid=7, name=python3, said by syslog")
    if asked in OF_THE_APPLICATION:
        assert diagnosis.nodes == ()
        assert diagnosis.recovery.action not in (Action.CHECK_AND_RESUBMIT, Action.CORDON_AND_RESUBMIT)
    else:
        assert [suspect.node for suspect in diagnosis.nodes] == ["trn-17"]


def test_the_catalogue_is_whole() -> None:
    """Its 172 codes stand in the table, and every name of an action or advice is used."""
    assert sorted(CODES.by_code) == list(range(1, 173))
    asked = {row.immediate or row.treated_as for row in CODES.xid} | {row.immediate for row in CODES.subcodes}
    asked |= {*CODES.recovery_actions.values(), *(bits.immediate for bits in CODES.link_bits)}
    assert asked == CODES.actions.keys()
    advice = {row.investigate for row in CODES.xid} | {row.investigate for row in CODES.subcodes}
    assert advice - {""} == CODES.investigate.keys()


def test_what_costs_a_node_is_what_the_catalogue_says() -> None:
    """Off the bus, double-bit ECC, GSP and a failed remap take the node out; a contained error and a note do not."""
    asked = {row.code: row.immediate for row in CODES.xid}
    assert {code: asked[code] for code in (79, 48, 119, 64, 95, 94, 63, 31, 13, 43, 137)} == {
        79: "RESTART_BM",
        48: "WORKFLOW_XID_48",
        119: "RESET_GPU",
        64: "RESET_GPU",
        95: "RESET_GPU",
        94: "RESTART_APP",
        63: "IGNORE",
        31: "RESTART_APP",
        13: "RESTART_APP",
        43: "IGNORE",
        137: "IGNORE",
    }


@pytest.mark.parametrize("row", CODES.subcodes, ids=lambda row: f"{row.code}-{row.units[-1]}-{row.immediate}")
@pytest.mark.parametrize("since_r575", [False, True])
def test_the_registers_of_an_nvlink_line_decide(row: XidSubcode, since_r575: bool) -> None:
    """In the layout of either driver generation, the registers lead to the action of their sub-code."""
    unit, bits = row.units[-1 if since_r575 else 0], row.intr_info[since_r575]
    for status in row.status or (0,):
        diagnosis = verdict(link(row.code, unit, register(bits), status))
        assert diagnosis.recovery.action is CODES.actions[row.immediate].action
        assert f", {unit}): " in diagnosis.mitigation and f"({row.immediate})" in diagnosis.mitigation
        assert (diagnosis.nodes == ()) is (CODES.actions[row.immediate].blame is not Blame.SELF)


def test_the_layouts_of_two_driver_generations_are_not_mixed() -> None:
    """A register in the layout of R575 is not read by the older one: the same bits mean another unit there."""
    since = register("------000000-------------0001010")
    assert verdict(link(146, "TLW_RX_PIPE0", since, 4)).recovery.action is Action.CORDON_AND_RESUBMIT
    assert verdict(link(146, "TLW_RX", since & 0x3FF, 4)).recovery.action is Action.CHECK_AND_RESUBMIT


@pytest.mark.parametrize(
    ("rest", "action"),
    [
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (...)", Action.CHECK_AND_RESUBMIT),
        ("145, RLW_SRC_TRACK Nonfatal XC0 i0 Link 07 (0x00000004)", Action.CHECK_AND_RESUBMIT),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x1 0x0 0x0 0x0 0x0 0x0 0x0)", Action.CORDON_AND_RESUBMIT),
        ("149, pid=7, name=python3", Action.CHECK_AND_RESUBMIT),
    ],
)
def test_an_nvlink_line_that_cannot_be_decoded_leads_to_a_check(rest: str, action: Action) -> None:
    """Without registers that the table knows, a fatal line asks for a reset and any other for a look at the node."""
    assert verdict(rest).recovery.action is action


@pytest.mark.parametrize(
    ("registers", "action"),
    [
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Action.NOTIFY_USER),
        ("0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0", Action.NOTIFY_USER),
        ("0x10001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", Action.CORDON_AND_RESUBMIT),
        ("0x0, 0x0, 0x10000, 0x0", Action.CORDON_AND_RESUBMIT),
        ("0x0, 0x0, 0x0, 0x0", Action.CORDON_AND_RESUBMIT),
    ],
)
def test_bits_of_xid_74_that_mean_nothing_take_no_node(registers: str, action: Action) -> None:
    """Only where no other bit is set: one that means a fault outweighs them."""
    diagnosis = verdict(f"74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 4({registers})")
    assert diagnosis.recovery.action is action


def recovery(stated: str) -> str:
    return f"154, pid='<unknown>', name=<unknown>, GPU recovery action changed from 0x0 (None) to 0x2 ({stated})"


@pytest.mark.parametrize(("stated", "asked"), CODES.recovery_actions.items())
def test_the_action_that_xid_154_states_is_followed(stated: str, asked: str) -> None:
    """Alone, and behind an Xid of the same GPU whose own action it outweighs."""
    action = CODES.actions[asked]
    alone = verdict(recovery(stated))
    behind = verdict("94, pid=7, name=python3, Contained: CE User Channel (0x9)", recovery(stated))
    lost = verdict("79, pid=7, name=python3, GPU has fallen off the bus.", recovery(stated))
    assert {diagnosis.recovery.action for diagnosis in (alone, behind, lost)} == {action.action}
    assert f"'{stated}'" in behind.mitigation and asked in behind.mitigation
    assert (behind.nodes == ()) is (action.blame is not Blame.SELF)
    assert (str(behind.type), str(lost.type)) == ("ecc_error", "gpu_lost")


def test_a_recovery_stated_for_another_gpu_or_before_says_nothing() -> None:
    """Xid 154 speaks of its own GPU, and of what happened to it so far."""
    fault, other = SYSLOG.format("31, pid=7, name=python3"), SYSLOG.format(recovery("Node Reboot Required"))
    text = f"{fault}\n{other.replace('0019:01', '0019:02')}\n"
    elsewhere = pipeline.diagnose(ANALYZER.evidence_of(text.encode()), Facts(), ANALYZER.knowledge)
    assert elsewhere.root_cause is not None and elsewhere.root_cause.gpu == "0019:02:00"
    before = verdict(recovery("None"), "79, pid=7, name=python3, GPU has fallen off the bus.")
    assert before.recovery.action is Action.CORDON_AND_RESUBMIT


def test_a_recovery_in_unknown_words_leads_to_a_check() -> None:
    """A newer driver's word for it takes no node out, and does not let the job go back unseen."""
    diagnosis = verdict(recovery("Replace Everything"))
    assert diagnosis.recovery.action is Action.CHECK_AND_RESUBMIT


def test_the_drivers_word_clears_the_node_of_the_jobs_cuda_error() -> None:
    """The job prints an illegal access and the driver Xid 31: no check; with Xid 79 beside it the node is at fault."""
    fault = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    page_fault = SYSLOG.format("31, pid=7, name=python3, Ch 00000048, MMU Fault: ENGINE GRAPHICS")
    lost = SYSLOG.format("79, pid=7, name=python3, GPU has fallen off the bus.")

    def diagnosed(text: str) -> Diagnosis:
        return pipeline.diagnose(ANALYZER.evidence_of(text.encode()), Facts(), ANALYZER.knowledge)

    assert diagnosed(fault).recovery.action is Action.CHECK_AND_RESUBMIT
    cleared = diagnosed(f"{fault}{page_fault}\n")
    assert (cleared.recovery.action, cleared.nodes) == (Action.RESUBMIT, ())
    assert "Xid 31" in cleared.mitigation
    assert diagnosed(f"{fault}{page_fault}\n{lost}\n").recovery.action is Action.CORDON_AND_RESUBMIT


def test_a_note_of_the_driver_is_no_cause_beside_another_error() -> None:
    """Xid 43, 45, 63 or 137 beside the application's own exception: the exception decides."""
    for code in (43, 45, 63, 137):
        text = f"{SYSLOG.format(f'{code}, pid=7, name=python3')}\nKeyError: 'mask'\n"
        diagnosis = pipeline.diagnose(ANALYZER.evidence_of(text.encode()), Facts(), ANALYZER.knowledge)
        assert str(diagnosis.type) == "key_error"


def test_a_code_that_the_catalogue_does_not_list_is_checked() -> None:
    """A newer driver's code neither takes a node out nor passes unseen."""
    assert verdict("312, pid=7, name=python3").recovery.action is Action.CHECK_AND_RESUBMIT


@pytest.mark.parametrize(
    "text",
    ["Xid (" * 2000, "xid" + " error" * 2000, "DCGM_FI_DEV_XID_ERRORS{" * 400, "Xid (PCI:1): 149, A" + " A" * 4000],
)
def test_hostile_text_has_no_guidance(text: str) -> None:
    """Half of a line again and again says nothing."""
    assert CODES.guidance(text) is None or CODES.guidance(text) == CODES.guidance("Xid (PCI:1): 149")


ROW = "mnemonic: X, name: x, type: ecc_error"
TABLE = """version: 2
references: []
actions:
  RESET_GPU: {{blame: self, cause: true, action: cordon_and_resubmit, asks: a}}
  RESTART_APP: {{blame: all, cause: true, action: resubmit, asks: b}}
  XID_154: {{blame: self, cause: true, action: check_and_resubmit, asks: c}}
investigate: {{}}
recovery_actions: {{}}
link_bits: []
xid:
{rows}
subcodes: []
sxid: []
"""


def test_faults_of_the_table_are_told_together() -> None:
    """A code that stands twice, unknown names, and a rule that blames somebody else are told with their lines."""
    rows = "\n".join(
        f"  - {{code: {code}, {ROW}, {more}}}"
        for code, more in (
            (48, "immediate: RESET_GPU, rule: xid_ecc_uncorrectable"),
            (48, "immediate: RESET_GPU, rule: no_such_rule"),
            (95, "immediate: RESTART_APP, rule: xid_ecc_uncorrectable"),
            (79, "immediate: PRAY, investigate: STARS, rule: gpu_fell_off_bus"),
        )
    )
    with pytest.raises(RuleFaults) as error:
        xid.load("xid.yaml", TABLE.format(rows=rows), ENGINE.ruleset)
    assert [(fault.line, fault.message) for fault in error.value.faults] == [
        (12, "code 48 appears twice"),
        (12, "code 48: no rule 'no_such_rule'"),
        (13, "code 95: RESTART_APP does not agree with blame and role of rule 'xid_ecc_uncorrectable'"),
        (14, "code 79: no action 'PRAY'"),
        (14, "code 79: nothing to investigate is called 'STARS'"),
        (14, "code 79: rule 'gpu_fell_off_bus' is of type gpu_lost, not ecc_error"),
    ]


def test_numbers_are_unique_over_both_tables() -> None:
    """One number names one code."""
    assert isinstance(CODES, XidTable)
    numbers = [row.code for row in CODES.xid] + [row.code for row in CODES.sxid]
    assert len(numbers) == len(set(numbers))
