"""What proves that a node is at fault, and that nothing does which a process can choose."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnoser.adapters.files import bundled
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

TABLE = load_node_proofs(bundled("rules"))
QUERIES = site_node_queries(Settings())
ANALYZER = accuracy_bars.load()
NODE = "gpu-02"
NOON = 1_772_362_800.0  # 2026-03-01 11:00:00 UTC
KERNEL_ROWS = [row for row in TABLE.proofs if row.sender == "kernel"]
FAULTS = [line for row in TABLE.proofs for line in row.examples.proves]
"""What a liar would have a process be called."""

FORMS = (
    "traps: {comm}[991] trap invalid opcode ip:7f2cd1a0 sp:7ffd1b20 error:0 in {file}[7f2cd1a0,7f2cd000+1000]",
    "traps: {comm}[991] general protection fault ip:7f2cd1a0 sp:7ffd1b20 error:0 in {file}[7f2cd000+1c4000]",
    "{comm}[991]: segfault at 0 ip 00007f2cd1a0 sp 00007ffd1b20 error 4 in {file}[7f2cd000+1c4000] likely on CPU 3 (core 1)",
    "{comm}[991]: segfault (11) at 0 nip 10a0 lr 10a4 code 1 in {file}[10000+1000]",
    "{comm}[991]: unhandled signal 11 at 0000000000000000 nip 00001000",
    "{comm}[991]: bad frame in rt_sigreturn: 00000000d1a0b1c2 ip:0 sp:0 orax:0 in {file}[7f2c+1000]",
    "{comm}/991: potentially unexpected fatal signal 4.",
    "{comm}: potentially unexpected fatal signal 11.",
    "{comm} invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={group},mems_allowed=0-1,oom_memcg=/{group},task_memcg=/{group}/step_0,"
    "task={comm},pid=991,uid=1000",
    "Memory cgroup out of memory: Killed process 991 ({comm}) total-vm:93939kB, anon-rss:83838kB, file-rss:0kB, shmem-rss:0kB, UID:1000",
    "Out of memory: Killed process 991 ({comm}) total-vm:93939kB, anon-rss:83838kB, file-rss:0kB, shmem-rss:0kB, UID:1000",
    "Out of memory: Kill process 991 ({comm}) score 912 or sacrifice child",
    "oom_reaper: reaped process 991 ({comm}), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "[    991]  1000   991  2345678   123456  1234567        0             0 {comm}",
    "[    991]  1000   991  2345678   123456   100000    23456        0  1234567        0             0 {comm}",
    "Tasks in /{group} are going to be killed due to memory.oom.group set",
    "Task in /{group}/step_0 killed as a result of limit of /{group}",
    "Memory cgroup stats for /{group}:",
    "cgroup: fork rejected by pids controller in /{group}",
    "process '{path}' started with executable stack",
    "INFO: task {comm}:991 blocked for more than 122 seconds.",
    "INFO: task {comm}:991 blocked on a mutex likely owned by task {comm}:992.",
    "task:{comm}          state:D stack:0     pid:991   tgid:991   ppid:1      flags:0x00000002",
    "CPU: 3 PID: 991 Comm: {comm} Tainted: P           OE      6.8.0-40-generic #40",
    "CPU: 3 UID: 1000 PID: 991 Comm: {comm} Kdump: loaded Not tainted 6.12.0 #1",
    "BUG: Bad page state in process {comm}  pfn:7f2c1a",
    "EXT4-fs error (device loop7): ext4_lookup:1855: inode #2371: comm {comm}: deleted inode referenced: 12",
    "EXT4-fs warning (device loop7): ext4_dirblock_csum_verify:405: inode #2: comm {comm}: No space for directory leaf checksum",
    "BTRFS: device label {label} devid 1 transid 7 /dev/loop7 (7:7) scanned by {comm} (991)",
    "audit: type=1326 audit(1764000000.123:77): auid=1000 uid=1000 gid=1000 ses=3 pid=991 comm=\"{comm}\" exe=\"{path}\" sig=31 syscall=59",
    "audit: type=1400 audit(1764000000.123:78): apparmor=\"DENIED\" operation=\"open\" profile=\"{label}\" name=\"{path}\" pid=991 comm=\"{comm}\"",
    "audit: type=1701 audit(1764000000.123:79): auid=1000 uid=1000 pid=991 comm=\"{comm}\" exe=\"{path}\" sig=11 res=1",
    "warning: `{comm}' uses 32-bit capabilities (legacy support in use)",
    "process `{comm}' is using obsolete setsockopt SO_BSDCOMPAT",
    "{comm} (991): drop_caches: 3",
    "{comm} (991) used greatest stack depth: 11000 bytes left",
    "{comm}: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO), nodemask=(null),cpuset={group},mems_allowed=0-1",
    "{comm}: vmalloc error: size 4096, page order 0, failed to allocate pages",
    "ptrace attach of \"{path}\"[991] was attempted by \"{path}\"[992]",
    "x86/split lock detection: #AC: {comm}/991 took a split_lock trap at address: 0x55d1a0",
    "Memory failure: Killing {comm}:991 due to hardware memory corruption fault at 7f2c",
    "NVRM: Xid (PCI:0000:1b:00): 31, pid=991, name={comm}, Ch 00000008, intr 10000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0",
    "NVRM: Xid (PCI:0000:1b:00): 13, pid=991, name={comm}, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address",
    "NVRM: Xid (PCI:0000:1b:00): 43, pid=991, name={comm}, Ch 00000010",
    "amdgpu 0000:43:00.0: amdgpu: in process {comm} pid 991 thread {comm} pid 991)",
    "Pid 991({comm}) over core_pipe_limit",
    "Core dump to |{path} pipe failed",
    "coredump: 991({comm}): over core_pipe_limit, skipping core dump",
    "overlayfs: upperdir={path} is in-use by another mount, accessing files will result in undefined behavior.",
    "overlayfs: failed to resolve '{path}': -2",
    "CIFS: VFS: \\\\{label} Send error in SessSetup = -13",
    "nfs: server {label} not responding, still trying",
    "eth0: renamed from {device}",
    "{device}: renamed from veth1a2b",
    "bond0: (slave {device}): link status definitely down, disabling slave",
    "device {device} entered promiscuous mode",
    "usb 1-1: Product: {label}",
    "traps: PANIC: double fault, error_code: 0x0 in {comm}[991]",
    "File: {path} PID: 991 Comm: {comm}",
)  # fmt: skip
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
    proving = {source for source in ("kernel", "dmesg", "syslog", "daemon", "alertmanager") if proved_in_log(line, source)}
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


def lies() -> Iterator[str]:
    yield from FAULTS
    yield from (fault.removeprefix("NVRM: ") for fault in FAULTS)
    yield from (f"x\n{fault}" for fault in FAULTS)
    yield from ("NVRM: Xid 79", "Xid=79", "GPU lost", "EDAC M: 1 UE x", "[1.5] NVRM: Xid", f"{NODE} kernel: NV")


@pytest.mark.parametrize("form", FORMS)
def test_a_name_in_a_message_of_the_kernels_proves_nothing(form: str) -> None:
    """A process, path, control group, label or device called like a fault, in each form: neither as it is shipped, with
    any head, nor as an answer."""
    for lie in lies():
        message = filled(form, lie)
        for place, line in enumerate(message.split("\n")):
            assert not proved_in_log(line, continues=place > 0), line
        assert not proved_in_answer(message.replace("\n", "\\x0a")), message


@pytest.mark.parametrize("form", FORMS)
def test_a_name_is_no_suspicion_either(form: str) -> None:
    """Whatever stands in the fields, the rules read the message as they read it with a plain name."""
    plain = suspected(filled(form, "python3"))
    for lie in lies():
        if "\n" not in lie:
            assert suspected(filled(form, lie)) == plain, lie


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(FORMS),
    st.sampled_from(HEADS),
    st.lists(st.sampled_from([*FAULTS, " ", "]", ")", "'", '"', ",", ": ", "[9]: ", "79", "kernel: ", "\\x0a"]), max_size=5),
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
            for rest in ("[991]: segfault at 0 ip 0 sp 0 error 4", " invoked oom-killer: order=0", " (991): drop_caches: 3"):
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
