"""What is masked before text leaves the site, and what stays readable."""

import importlib
import random
from collections.abc import Iterator
from pathlib import Path
from string import ascii_letters, ascii_lowercase, digits
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnoser.dialects.host_places import hosts_in
from diagnoser.learning.rule_context import hidden
from diagnoser.llm.hosts import HostMap
from diagnoser.llm.view import Pseudonymizer, plain
from diagnoser.redaction.redact import mask_key_blocks, redact
from diagnoser.redaction.secret_patterns import BLANKS, PATTERNS, PERSONAL
from tests.secret_formats import disguised, is_told, listed, secrets

NORMAL = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "normal"
FORMATS = [known["name"] for known in listed()["formats"]]
READABLE = listed()["readable"]


def test_the_list_is_long_enough() -> None:
    """Each format has a name of its own and its source, and ordinary lines stand beside them."""
    assert len(set(FORMATS)) == len(FORMATS) >= 150
    assert all(known["source"] for known in listed()["formats"])
    assert len(READABLE) >= 60


@pytest.mark.parametrize("name", FORMATS)
def test_a_secret_of_each_format_is_masked(name: str) -> None:
    """Nothing of its value is left, whatever its characters are."""
    for seed in range(5):
        secret = next(secret for secret in secrets(seed) if secret.name == name)
        masked = redact(secret.text)
        assert not any(is_told(part, masked) for part in secret.parts), (secret.text, masked)
        assert "<" in masked


@pytest.mark.parametrize("name", listed()["disguises"])
def test_a_disguised_secret_is_masked(name: str) -> None:
    """Colours, characters without a width and wide letters hide nothing from the mask."""
    secret = next(secret for secret in disguised(1) if secret.name == name)
    assert secret.parts[0] not in redact(secret.text)


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=30)


@given(WORDS, WORDS, st.integers(0, 2**32))
def test_a_secret_survives_nowhere_in_a_line(before: str, after: str, seed: int) -> None:
    """Whatever stands around it, a blank away."""
    for secret in list(secrets(seed))[seed % 5 :: 5]:
        if secret.name == "base64 of a key" and after.strip():
            continue
        line = f"{'' if secret.name == 'base64 of a key' else before} {secret.text} {after}"
        masked = redact(line)
        assert not any(part in masked for part in secret.parts), (secret.name, line, masked)


@given(st.text(ascii_letters + digits + "_=:;,.\"'([{/|>\\", max_size=10), st.integers(0, 2**32))
def test_a_token_with_a_prefix_of_its_own_needs_no_boundary(before: str, seed: int) -> None:
    """Also where it is glued to other text."""
    for secret in secrets(seed):
        if secret.glued:
            masked = redact(before + secret.text)
            assert not any(part in masked for part in secret.parts), (secret.name, masked)


@pytest.mark.parametrize("line", READABLE)
def test_what_only_looks_like_a_secret_stays(line: str) -> None:
    """Counts, hashes, code, placeholders and paths are what a log is read for."""
    assert redact(line) == line


def test_masking_is_idempotent() -> None:
    """What was masked once stays as it is."""
    for secret in secrets(1):
        once = redact(secret.text)
        assert redact(once) == once, secret.name


def test_an_encrypted_key_block_is_masked_with_its_headers() -> None:
    """Headers and empty lines belong to the block and do not end it."""
    block = ["1| -----BEGIN RSA PRIVATE KEY-----", "2| Proc-Type: 4,ENCRYPTED", "3| ", "4| MIIEpAIB", "5| step 3"]
    assert list(mask_key_blocks(block))[1:] == ["2| <private key>", "3| <private key>", "4| <private key>", "5| step 3"]


def unbounded(tree: Any, last: bool = True) -> Iterator[str]:
    """Repetitions without a bound of a parsed pattern that are not at its end."""
    parser, constants = importlib.import_module("re._parser"), importlib.import_module("re._constants")
    items = list(tree)
    for place, (kind, parts) in enumerate(items):
        rest = parser.SubPattern(tree.state, items[place + 1 :])
        at_end = last and rest.getwidth()[1] <= 2
        if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT):
            if parts[1] == constants.MAXREPEAT and not at_end:
                yield repr(parts)
            yield from unbounded(parts[2], at_end)
        elif kind is constants.SUBPATTERN:
            yield from unbounded(parts[3], at_end)
        elif kind is constants.BRANCH:
            for branch in parts[1]:
                yield from unbounded(branch, at_end)


@pytest.mark.parametrize("known", (*PATTERNS, *PERSONAL), ids=lambda known: known.kind)
def test_only_the_end_of_a_pattern_repeats_without_a_bound(known: Any) -> None:
    """One search of RE2 is linear; with this form it also reads little more than what it masks, so all are linear.

    The exception may begin only where its own repetition cannot go on: two of its candidates never overlap.
    """
    parser = importlib.import_module("re._parser")
    inner = list(unbounded(parser.parse(known.pattern)))
    assert not inner or known.pattern == rf"(?m)(^|[|\]:] )[A-Za-z0-9+/]{{60,}}={{0,2}}{BLANKS}$"


def test_healthy_logs_stay_as_they_are() -> None:
    """Of the published logs of runs that went well nothing changes but home folders, e-mail addresses and base64."""
    if not NORMAL.is_dir():
        pytest.skip("the corpus is not beside the project")
    chance = random.Random(11)
    for path in sorted(NORMAL.glob("*.log")):
        lines = path.read_bytes().decode("utf-8", "replace").split("\n")
        for line in chance.sample(lines, min(150, len(lines))):
            text = plain(line[:4000])
            masked = redact(text)
            kinds = {known.kind for known in (*PATTERNS, *PERSONAL)}
            shown = {kind for kind in kinds if masked.count(f"<{kind}>") > text.count(f"<{kind}>")}
            assert shown <= {"e-mail", "home", "base64"}, (path.name, text)


NAMES_A_HOST = {
    "Nov 22 01:00:00 gpu-500 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.": ["gpu-500"],
    "Nov 22 01:00:00 login3 sshd[811]: Accepted publickey": ["login3"],
    "2026-11-22T01:00:00.123456+00:00 node7.lab slurmd[12]: launch task": ["node7.lab"],
    "  host      : trainbox": ["trainbox"],
    "  host      : gpu-31.cluster.local": ["gpu-31.cluster.local"],
    "Job was executed on host(s) <8*lsf04>, in queue <normal>": ["lsf04"],
    "                            <8*lsf05>": ["lsf05"],
    "Started 1 Task(s) on Host(s) <lsfmaster>": ["lsfmaster"],
    'LSB_HOSTS="b12 b12 b13"': ["b12", "b13"],
    'LSB_MCPU_HOSTS="b12 8 b13 8"': ["b12", "b13"],
    "exec_host = pb4/0+pb5/0": ["pb4"],
    "slurmstepd: error: *** JOB 1 ON rack-9 CANCELLED AT 2026-11-22T01:00:00 ***": ["rack-9"],
    "slurmstepd-gpu-01: error: *** STEP 26.0 ON gpu-01 CANCELLED AT 2026-11-22T01:00:00 ***": ["gpu-01"],
    "srun: error: tpu-[01-03,07]: tasks 0-31: Killed": ["tpu-01", "tpu-02", "tpu-03", "tpu-07"],
    "SLURM_JOB_NODELIST=k-[1-2],q4": ["k-1", "k-2", "q4"],
    "gpu01:123:456 [0] NCCL INFO Bootstrap": ["gpu01"],
    "client socket has timed out connecting to [mm-1.lab]:29500": ["mm-1.lab"],
    "rendezvous at tcp://mm1:29500": ["mm1"],
    "ip-10-0-1-2.ec2.internal left": ["ip-10-0-1-2.ec2.internal"],
    "srun: error: Node failure on gpu-7": ["gpu-7"],
}


@pytest.mark.parametrize(("line", "names"), NAMES_A_HOST.items())
def test_hosts_are_found_where_only_a_host_stands(line: str, names: list[str]) -> None:
    """In syslog prefixes, launchers' tables and schedulers' lists, also those that are no known node of the job."""
    assert [name for name in hosts_in(line) if name in names] == names
    shown = HostMap([]).hide(line)
    assert not any(name in shown for name in names), shown


@pytest.mark.parametrize(
    "line",
    [
        "libfabric/1.2 with aws-ofi-nccl 1.7.4 and torch==2.3.0",
        "node v18.1.0, node aws-ofi-nccl-1.7.4, host: libfabric-1.2",
        "NCCL INFO NET/OFI Using aws-ofi-nccl 1.7.4-aws, libfabric/1.22",
        "host: no, host=False, node: 3, host memory 512 GiB on host cuda:0",
        "moved the tensor from host to device; node rank 0, node_rank=1",
        "saved to host checkpoint_500.json",
    ],
)
def test_versions_and_words_are_no_hosts(line: str) -> None:
    """What a program is called and which version it has stays readable."""
    assert HostMap(["gpu-1"], line).hide(line) == line
    assert hosts_in(line) == []


def test_a_version_is_no_host_in_a_rule() -> None:
    """Texts of rules mask what looks like a host, but not a package with its version."""
    told = hidden("db-14 loaded aws-ofi-nccl-1.7.4 and libfabric/1.2", Pseudonymizer(redact, []))
    assert told == "host-0 loaded aws-ofi-nccl-1.7.4 and libfabric/1.2"


def test_no_bare_occurrence_gives_an_alias_away() -> None:
    """Wherever a line names the host, within other words and in lines before it was recognised too."""
    text = "\n".join(
        [
            "/logs/gpu-01_rank3.log of gpu-01-ib0, gpu-02.site.lab",
            "slurmstepd-gpu-01: error: *** STEP 26.0 ON gpu-01 CANCELLED AT 2026-11-22T01:00:00 ***",
            "Nov 22 01:00:00 gpu-500 kernel: x",
            "gpu-5001 and xgpu-01 are other words",
            "srun: error: gpu-[01-02]: tasks 0-15: Killed",
        ]
    )
    hosts = HostMap(["gpu-01", "gpu-02.site.lab"], text)
    first, second, third, fourth, last = [hosts.hide(line) for line in text.split("\n")]
    assert first == "/logs/host-1_rank3.log of host-1-ib0, host-2"
    assert second.startswith("slurmstepd-host-1: error: *** STEP 26.0 ON host-1 CANCELLED")
    assert third == "Nov 22 01:00:00 host-3 kernel: x"
    assert fourth == "gpu-5001 and xgpu-01 are other words"
    assert last == "srun: error: host-[1-2]: tasks 0-15: Killed"
    assert hosts.hide("gpu-02 answers") == "host-2 answers"
    assert hosts.show("drain host-2 and host-3") == "drain gpu-02.site.lab and gpu-500"


@given(st.text(ascii_lowercase + " -_.:/", max_size=20), st.text(ascii_lowercase + " -_.:/", max_size=20))
def test_a_node_survives_at_no_boundary(before: str, after: str) -> None:
    """Whatever separates it from its neighbours, its name is gone and the way back restores the line."""
    line = f"{before} _-./:"[: len(before) + 1] + "gpu-017" + f" {after}"
    hosts = HostMap(["gpu-017"], line)
    assert "gpu-017" not in hosts.hide(line)
    assert hosts.show(hosts.hide(line)) == line


def test_hostile_lists_name_only_so_many_hosts() -> None:
    """A line cannot make the map hold millions of names; what is too much is masked without its numbers."""
    lists = [f"nodes=a[{first}-9999999]" for first in range(100)]
    hosts = HostMap(["a1"], "\n".join(lists))
    shown = [hosts.hide(line) for line in lists]
    assert all(line.startswith("nodes=host-[") for line in shown)
    assert shown[-1] == "nodes=host-[]"
    assert len(hosts_in("\n".join(lists))) <= 4096


def test_the_name_of_a_header_behind_bearer_is_no_token() -> None:
    """A header behind the word "bearer" is masked by its value, not by its name."""
    assert redact("BEARER PRIVATE-TOKEN: a_8IdUoX5OHKHTgGPBU7").startswith("BEARER PRIVATE-TOKEN: <")
