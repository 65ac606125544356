"""What proves that a node is at fault, and that nothing does which a process can choose."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser.config.folders import read_rule_files
from diagnoser.config.loader import load_node_proofs, site_node_queries
from diagnoser.config.settings import Settings
from diagnoser.diagnosis.node_faults import find_faults, proofs
from diagnoser.dialects.system_log import read_record
from diagnoser.model import Line, Provenance, QueryResult, QueryState, Stream
from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import FailureType
from diagnoser.recovery import node_proofs
from diagnoser.recovery.node_query import Answer
from tests import accuracy_bars
from tests.thorough import diagonal, examples

TABLE = load_node_proofs(read_rule_files(None))
QUERIES = site_node_queries(Settings())
ANALYZER = accuracy_bars.load()
NODE = "gpu-02"
NOON = 1_772_362_800.0  # 2026-03-01 11:00:00 UTC
KERNEL_ROWS = [row for row in TABLE.proofs if row.sender == "kernel"]
FAULTS = [line for row in TABLE.proofs for line in row.examples.proves]
"""What a liar would have a process be called."""

FORMS = (Path(__file__).parents[1] / "kernel_messages.txt").read_text().splitlines()
"""Messages of the kernel with each field that a process, a path, a control group or a mount gives."""
LENGTHS = {"comm": 15, "device": 15, "file": 255, "path": 4000, "group": 255, "label": 255}
"""Most characters that the kernel keeps of each."""


def filled(form: str, lie: str) -> str:
    """The message with the lie in every field, as long as the field may be."""
    values = {name: lie[:length] for name, length in LENGTHS.items()}
    values["device"] = re.sub(r"[\s/:]", "_", values["device"])
    values["path"] = "/tmp/" + lie
    return form.format(**values)


def log_line(text: str, source: str = "kernel", *, continues: bool = False) -> Line:
    stream = Stream(source, NODE, provenance=Provenance.NODE)
    return Line(stream, 1, text, text, node=NODE, time=NOON, continues=continues)


def proved_in_log(text: str, source: str = "kernel", *, continues: bool = False) -> bool:
    faults = find_faults([log_line(text, source, continues=continues)], (NODE,), ANALYZER.knowledge)
    return bool(proofs(faults, ANALYZER.knowledge))


def suspected(text: str) -> set[FailureType]:
    return {fault.type for fault in find_faults([log_line(text)], (NODE,), ANALYZER.knowledge)}


def proved_in_answer(text: str) -> bool:
    types = tuple(FailureType)
    for query, stamp in (
        ("kernel_journal", f"2026-03-01T11:00:01+0000 {NODE} kernel: "),
        ("kernel_ring_buffer", "2026-03-01T11:00:01,520113+00:00 "),
    ):
        result = QUERIES.judge(QueryResult(NODE, query), Answer(text=stamp + text), types, NOON)
        if result.state is QueryState.PROVES:
            return True
    return False


HEADS = (
    "",
    "[ 9021.114520] ",
    "[ 9021.114520][ T4711] ",
    "[Sun Mar  1 11:00:01 2026] ",
    "<3>[ 9021.114520] ",
    "kern  :err   : [ 9021.114520] ",
    "kern  :err   : 2026-03-01T11:00:01,520113+00:00 ",
    "3,4711,9021114520,-;",
    "3,4711,9021114520,-,caller=T991;",
    "2026-03-01T11:00:01,520113+00:00 ",
    f"Mar  1 11:00:01 {NODE} kernel: ",
    f"Mar  1 11:00:01 {NODE}.hpc.example kernel: [ 9021.114520] ",
    f"2026-03-01T11:00:01.520113+00:00 {NODE} kernel: ",
    f"2026-03-01T11:00:01+0000 {NODE} kernel: ",
    f"<3>2026-03-01T11:00:01.520Z {NODE} kernel: ",
    f"<3>1 2026-03-01T11:00:01.520Z {NODE} kernel - - - ",
    f'<3>1 2026-03-01T11:00:01.520Z {NODE} kernel 0 - [a@1 b="]"] ',
    f"<3>{NODE} kernel: ",
)  # fmt: skip
OF_OTHERS = (
    f"Mar  1 11:00:01 {NODE} root: ",
    f"Mar  1 11:00:01 {NODE} kernel[7]x: ",
    f"<11>Mar  1 11:00:01 {NODE} kernel: ",
    f"<11>1 2026-03-01T11:00:01.520Z {NODE} kernel - - - ",
    f"<3>1 2026-03-01T11:00:01.520Z {NODE} logger - - - ",
    f"2026-03-01T11:00:01+0000 {NODE} logger[7]: ",
    "user  :err   : [ 9021.114520] ",
    "11,4711,9021114520,-;",
    "3,4711,9021114520,c;",
    "3,4711,9021114520,+;",
    "<11>[ 9021.114520] ",
    " ",
    "root: ",
    "Mar  1 11:00:01 gpu-99 kernel: ",
)  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
def test_the_head_of_a_record_is_no_part_of_its_message(head: str) -> None:
    """However a kernel's record is printed, every example of the table proves behind it."""
    assert read_record(head + "x").start == len(head)
    for row in KERNEL_ROWS:
        for line in row.examples.proves:
            assert any(TABLE.in_log("kernel", head + line, fault) for fault in row.faults), head + line


@pytest.mark.parametrize("head", OF_OTHERS)
def test_a_record_that_shows_another_sender_is_not_the_kernels(head: str) -> None:
    """Another facility, another program, a piece of a message, another host: even in a stream called kernel."""
    for line in FAULTS:
        assert not proved_in_log(head + line), head + line


def test_every_example_proves_in_the_log_and_in_an_answer() -> None:
    """One table for both: what the kernel says is worth the same however it came."""
    for row in KERNEL_ROWS:
        for line in row.examples.proves:
            assert proved_in_answer(line) is not row.decoded, line
            assert proved_in_log(line), line
    assert sum(len(row.examples.proves) for row in KERNEL_ROWS) > 40


def test_only_streams_that_user_space_cannot_write_prove() -> None:
    """The same line of a node's syslog, of monitoring, or in the middle of a message, is a suspicion."""
    line = FAULTS[0]
    proving = {
        source for source in ("kernel", "dmesg", "syslog", "daemon", "alertmanager") if proved_in_log(line, source)
    }
    assert proving == {"kernel", "dmesg"}
    assert not proved_in_log(line, continues=True)
    assert find_faults([log_line(line, "syslog")], (NODE,), ANALYZER.knowledge), "it is still suspected"


def test_a_daemon_speaks_for_itself_alone() -> None:
    """Its stream says that the shipper knows it; the kernel's words are not its own, nor are its words the kernel's."""
    (line,) = next(row for row in TABLE.proofs if row.id == "fabric_manager_fatal").examples.proves
    assert proved_in_log(line, "daemon")
    assert proved_in_log(f"Mar  1 11:00:01 {NODE} nv-fabricmanager[812]: {line}", "daemon")
    assert not proved_in_log(f"Mar  1 11:00:01 {NODE} smartd[812]: {line}", "daemon")
    assert not proved_in_log(line, "kernel")


def lies_for(form: str) -> Sequence[str]:
    """Those that are tried in a form: a fourth, so that each is told in fifteen forms; all in thorough runs."""
    return diagonal([*lies()], FORMS.index(form), 4)


def lies() -> Iterator[str]:
    yield from FAULTS
    yield from (fault.removeprefix("NVRM: ") for fault in FAULTS)
    yield from (f"x\n{fault}" for fault in FAULTS)
    yield from ("NVRM: Xid 79", "Xid=79", "GPU lost", "EDAC M: 1 UE x", "[1.5] NVRM: Xid", f"{NODE} kernel: NV")


@pytest.mark.parametrize("form", FORMS)
def test_a_name_in_a_message_of_the_kernels_proves_nothing(form: str) -> None:
    """A process, path, control group, label or device called like a fault, in each form: neither as it is shipped, with
    any head, nor as an answer."""
    for lie in lies_for(form):
        message = filled(form, lie)
        for place, line in enumerate(message.split("\n")):
            assert not proved_in_log(line, continues=place > 0), line
        assert not proved_in_answer(message.replace("\n", "\\x0a")), message


@pytest.mark.parametrize("form", FORMS)
def test_a_name_is_no_suspicion_either(form: str) -> None:
    """Whatever stands in the fields, the rules read the message as they read it with a plain name."""
    plain = suspected(filled(form, "python3"))
    for lie in lies_for(form):
        if "\n" not in lie:
            assert suspected(filled(form, lie)) == plain, lie


@settings(deadline=None, max_examples=examples(300))
@given(
    st.sampled_from(FORMS),
    st.sampled_from(HEADS),
    st.lists(
        st.sampled_from([*FAULTS, " ", "]", ")", "'", '"', ",", ": ", "[9]: ", "79", "kernel: ", "\\x0a"]), max_size=5
    ),
)
def test_no_name_made_of_pieces_proves(form: str, head: str, pieces: list[str]) -> None:
    """Nor does a name that closes the field it stands in and begins the next one."""
    message = filled(form, "".join(pieces))
    assert not proved_in_log(head + message)
    assert not proved_in_answer(message)


@given(st.text(max_size=200))
def test_blanks_keep_the_length_and_the_head(message: str) -> None:
    """What rules read has each character where the line has it."""
    assert len(TABLE.blanked(message)) == len(message)


def test_no_pattern_can_be_completed_by_a_name() -> None:
    """A process's name has 15 characters, and stands first in many messages: no example is recognised by so few."""
    for row in KERNEL_ROWS:
        for line in row.examples.proves:
            for rest in (
                "[991]: segfault at 0 ip 0 sp 0 error 4",
                " invoked oom-killer: order=0",
                " (991): drop_caches: 3",
            ):
                assert not any(TABLE.in_log("kernel", line[:15] + rest, fault) for fault in row.faults), line


ROW = """version: 1
parts: {{comm: '(.{{0,15}})'}}
proofs:
  - id: {id}
    pattern: '{pattern}'
    faults: [gpu_lost]
    reference: https://example.org
    examples: {{proves: ['{good}'], proves_nothing: ['{bad}']}}
free_fields:
  - {{pattern: '{free}', examples: [{{line: '{line}', blanked: [{blanked}]}}]}}
"""
GOOD = {
    "id": "lost",
    "pattern": "^gpu gone",
    "good": "gpu gone",
    "bad": "gpu here",
    "free": "name={comm},",
    "line": "a name=b, c",
    "blanked": "b",
}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"pattern": "gpu gone"}, "should match pattern"),
        ({"pattern": "^(gpu"}, "not an RE2 expression"),
        ({"good": "gpu here"}, "example 'gpu here' proves nothing"),
        ({"bad": "gpu gone"}, "example 'gpu gone' proves a fault, by 'lost'"),
        ({"free": "name=b"}, "needs a group"),
        ({"blanked": "c"}, "is blanked: b"),
    ],
)
def test_a_bad_table_says_what_is_wrong(fields: dict[str, str], fault: str) -> None:
    """Each fault with its line; a good one is read."""
    assert node_proofs.load("p.yaml", ROW.format(**GOOD)).proofs
    with pytest.raises(RuleFaults, match=re.escape(fault)):
        node_proofs.load("p.yaml", ROW.format(**GOOD | fields))
