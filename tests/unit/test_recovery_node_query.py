"""What suspected nodes are asked, and what their answers prove."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnoser.adapters.files import bundled, text
from diagnoser.config.folders import read_rule_files
from diagnoser.config.loader import load_node_proofs, site_node_queries
from diagnoser.config.settings import Settings
from diagnoser.model import QueryResult, QueryState
from diagnoser.model.errors import RuleFaults
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.recovery import node_query
from diagnoser.recovery.node_query import SITE_CHECK, Answer, ExampleAnswer, NodeQuery, prove

T = FailureType
PROOFS = load_node_proofs(read_rule_files(None))
TABLE = node_query.load("node_queries.yaml", text(bundled("rules") / "node_queries.yaml"), PROOFS)
CASES = [
    (query, ExampleAnswer(text=entry) if isinstance(entry, str) else entry, proves)
    for query in TABLE.queries
    for entries, proves in ((query.examples.proves, True), (query.examples.proves_nothing, False))
    for entry in entries
]
FAILURE = datetime(2026, 11, 22, 1, 0, tzinfo=UTC).timestamp()


def judged(query: str, answer: Answer, *types: FailureType) -> QueryResult:
    return TABLE.judge(QueryResult("n1", query), answer, types or (T.ECC_ERROR,), FAILURE)


@pytest.mark.parametrize(("query", "example", "proves"), CASES, ids=lambda value: getattr(value, "id", ""))
def test_an_answer_proves_exactly_what_its_example_says(query: NodeQuery, example: ExampleAnswer, proves: bool) -> None:
    """In the real output formats: faults that prove, and answers that look like it."""
    since = query.examples.since.timestamp() if query.examples.since else 0.0
    proof = prove(query, example, (example.type or query.types[0],), since, PROOFS)
    assert (proof is not None) == proves
    assert not example.line or proof == example.line.strip()


def test_every_infrastructure_failure_of_a_node_asks_something() -> None:
    """Only failures of a remote store have nothing to do with a node."""
    silent = {kind for kind in T if category_of(kind) is Category.INFRASTRUCTURE and not TABLE.queries_for([kind])}
    assert silent == {T.S3_STORAGE_ERROR}
    assert TABLE.queries_for([T.VALUE_ERROR]) == ()


def test_commands_only_read_and_need_no_shell() -> None:
    """No command of the table can change a node, none is a shell, and none leaves a placeholder to be filled."""
    programs = {query.argv[0] for query in TABLE.queries}
    assert programs <= {"nvidia-smi", "dcgmi", "journalctl", "dmesg", "rdma", "cat", "df"}
    words = {word for query in TABLE.queries for word in query.argv if query.argv[0] != "dcgmi"}
    assert not words & {"-c", "-C", "--clear", "-r", "--gpu-reset", "-pm", "-e=0", "set", "reset", "--vacuum-time"}
    assert [query.argv for query in TABLE.queries if query.argv[0] == "dcgmi"] == [("dcgmi", "diag", "-r", "1")]
    assert not any(set(word) & set("{}$`;|&><") for word in words)


def test_a_kernel_line_counts_only_since_the_failure() -> None:
    """One second before it is another story, whatever zone the node writes."""
    line = "{} n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    early, late = line.format("2026-11-22T01:59:59+01:00"), line.format("2026-11-22T02:00:00+01:00")
    assert judged("kernel_journal", Answer(text=early)).state is QueryState.PROVES_NOTHING
    result = judged("kernel_journal", Answer(text=f"{early}\n{late}"))
    assert (result.state, result.text) == (QueryState.PROVES, late)
    impossible = line.format("2026-13-41T25:61:61+00:00")
    assert judged("kernel_journal", Answer(text=impossible)).state is QueryState.PROVES_NOTHING


def test_an_answer_that_cannot_be_had_proves_nothing() -> None:
    """A program that is missing, too slow or refused, even when what it printed looks like a fault."""
    line = "1, 00000000:0F:00.0, 3"
    assert judged("gpu_ecc", Answer(text=line)).state is QueryState.PROVES
    for answer in (Answer(text=line, exit_code=None), Answer(text="nvidia-smi: command not result", exit_code=127)):
        assert judged("gpu_ecc", answer).state is QueryState.NOT_AVAILABLE
    denied = Answer(text="dmesg: read kernel buffer failed: Operation not permitted", exit_code=1)
    assert judged("kernel_ring_buffer", denied).state is QueryState.NOT_AVAILABLE


def test_an_answer_without_proof_is_shown_in_part() -> None:
    """Of a log the lines since the failure, of anything else its beginning."""
    old, new = "2026-11-22T00:10:00+0000 n1 kernel: usb 1-1: old", "2026-11-22T01:10:00+0000 n1 kernel: usb 1-1: new"
    assert judged("kernel_journal", Answer(text=f"{old}\n{new}\n")).text == new
    assert judged("kernel_journal", Answer(text=old)).text == "no lines since the failure"
    result = judged("rdma_counters", Answer(text="link mlx5_0/1 out_of_buffer 7 " * 100), T.NETWORK_ERROR)
    assert (result.state, len(result.text)) == (QueryState.PROVES_NOTHING, node_query.EXCERPT_LENGTH)


@pytest.mark.parametrize(
    ("code", "printed", "state", "shown"),
    [
        (0, "all is well", QueryState.PROVES_NOTHING, "all is well"),
        (1, "\n ib0: width 2x \nmore", QueryState.PROVES, "ib0: width 2x"),
        (125, "", QueryState.PROVES, "exit code 125"),
        (126, "permission denied", QueryState.NOT_AVAILABLE, "permission denied"),
        (127, "nhc: not result", QueryState.NOT_AVAILABLE, "nhc: not result"),
        (-9, "killed", QueryState.NOT_AVAILABLE, "killed"),
        (None, "no answer within 120 s", QueryState.NOT_AVAILABLE, "no answer within 120 s"),
    ],
)
def test_a_site_s_script_proves_by_its_exit_code(code: int | None, printed: str, state: QueryState, shown: str) -> None:
    """Its first line says why; a script that could not run, or was killed, says nothing about the node."""
    result = judged(SITE_CHECK, Answer(text=printed, exit_code=code))
    assert (result.state, result.text, result.exit_code) == (state, shown, code)


@given(st.text(), st.sampled_from([query.id for query in TABLE.queries] + [SITE_CHECK]))
def test_any_text_is_judged(printed: str, query: str) -> None:
    """Answers are hostile text: nothing that a node prints raises, and what is kept of it is bounded."""
    assert len(judged(query, Answer(text=printed)).text) <= node_query.EXCERPT_LENGTH


ROW = """version: 1
queries:
  - id: {id}
    title: t
    types: [ecc_error]
    argv: [nvidia-smi]
    timeout_seconds: 5
    proves: [{line}]
    reference: https://example.org
    examples: {{proves: ['{good}'], proves_nothing: ['{bad}']}}
"""


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"line": "{pattern: '(?P<value>\\d+)', above: 0}", "good": "0"}, "example '0' proves nothing"),
        ({"line": "{pattern: '(?P<value>\\d+)', above: 0}", "bad": "3"}, "example '3' proves a fault"),
        ({"line": "{pattern: '(?P<value>\\d+)'}"}, "belong together"),
        ({"line": "{pattern: '\\d+', below: 3}"}, "belong together"),
        ({"line": "{pattern: '(?P<node>\\d+)'}"}, "unknown group 'node'"),
        ({"line": "{pattern: '(a)\\1'}"}, "not an RE2 expression"),
        ({"line": "{pattern: '1', types: [disk_full]}"}, "which the query is not asked for"),
        ({"id": SITE_CHECK}, "is taken"),
    ],
)
def test_a_bad_row_says_what_is_wrong(fields: dict[str, str], fault: str) -> None:
    """With its line in the file; a table with a bad row is not used at all."""
    given = {"id": "counter", "line": "{pattern: '(?P<value>\\d+)', above: 0}", "good": "1", "bad": "0"} | fields
    with pytest.raises(RuleFaults, match=fault.replace("(", "\\(")) as raised:
        node_query.load("node_queries.yaml", ROW.format(**given), PROOFS)
    assert "node_queries.yaml:3" in str(raised.value)


def test_a_site_may_have_a_table_of_its_own(tmp_path: Path) -> None:
    """A folder of rules without one, made before there was any, goes on with the shipped table."""
    site = Settings(rules_dir=tmp_path)
    assert site_node_queries(site) == site_node_queries(Settings()) == TABLE
    own = {"id": "counter", "line": "{pattern: '(?P<value>\\d+)', above: 0}", "good": "1", "bad": "0"}
    (tmp_path / "node_queries.yaml").write_text(ROW.format(**own))
    assert [query.id for query in site_node_queries(site).queries] == ["counter"]
    (tmp_path / "node_queries.yaml").write_text(ROW.format(**own | {"bad": "3"}))
    with pytest.raises(RuleFaults, match="proves a fault"):
        site_node_queries(site)
