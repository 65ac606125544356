"""The program that asks a node, run on this machine as an agent starts it on another."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from diagnoser.agent import node_query, node_query_runner
from diagnoser.agent.cluster import NodeQuestion
from diagnoser.model.errors import BadInput, RuleFaults
from diagnoser.recovery.node_query import SITE_CHECK


def ask(*commands: tuple[str, ...], seconds: float = 30.0, cwd: Path | None = None) -> list[dict[str, Any]]:
    """The answers of these commands, in their order."""
    questions = [NodeQuestion("n1", f"q{place}", command, seconds) for place, command in enumerate(commands)]
    words = (sys.executable, *node_query.program(questions)[1:])
    done = subprocess.run(words, capture_output=True, timeout=100, check=True, cwd=cwd)
    found = list(node_query._parse("n1", done.stdout.decode("ascii"), 50_000))
    assert [answer["id"] for answer in found] == [question.id for question in questions]
    return found


def test_each_command_has_its_answer() -> None:
    """Its exit code and both of its outputs; one that is missing has none; no argument is read by a shell."""
    both = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    ran, missing, quoted = ask((sys.executable, "-c", both), ("no-such-program-here",), ("echo", "$HOME; `id` > /x"))
    assert (ran["exit_code"], sorted(ran["output"].split())) == (3, ["err", "out"])
    assert (missing["exit_code"], missing["output"]) == (None, "no-such-program-here: No such file or directory")
    assert quoted["output"] == "$HOME; `id` > /x\n"


def test_a_command_that_hangs_is_ended_with_its_children() -> None:
    """The others have their answers; what it printed before is kept."""
    hang = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '1000'])"
    started = time.monotonic()
    hung, quick = ask((sys.executable, "-c", hang), ("echo", "x"), seconds=5.0)
    assert (hung["exit_code"], hung["output"]) == (None, "begun\n\nno answer within 5 s")
    assert quick["output"] == "x\n"
    assert time.monotonic() - started < 90


def test_what_a_command_prints_is_bounded() -> None:
    """Of very much the beginning and the end, in whole lines; bytes that are no text are replaced."""
    many = "import sys; sys.stdout.writelines(f'line {n}\\n' for n in range(200_000))"
    raw = "import os; os.write(1, b'a\\xff\\x00b')"
    long, binary = ask((sys.executable, "-c", many), (sys.executable, "-c", raw))
    lines = long["output"].splitlines()
    assert len(long["output"]) <= node_query_runner.HEAD + node_query_runner.TAIL + 10
    assert (lines[0], lines[-1], lines.count("[...]")) == ("line 0", "line 199999", 1)
    assert all(line.startswith("line ") for line in lines if line != "[...]")
    assert binary["output"] == "a\ufffdb"


def test_nothing_of_the_working_folder_is_imported(tmp_path: Path) -> None:
    """The program may run as root, in a folder where somebody else may write."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    (tmp_path / "subprocess.py").write_text("raise SystemExit('imported')")
    assert ask(("echo", "x"), cwd=tmp_path)[0]["output"] == "x\n"


def test_the_program_is_one_that_old_interpreters_read() -> None:
    """No syntax of after Python 3.7, which is as far back as ours can compile for."""
    source = node_query.program([NodeQuestion("n1", "q", ("x",), 1.0)])[3]
    import ast

    ast.parse(source, feature_version=(3, 7))
    assert "from __future__" not in source


def test_the_agent_s_own_table_says_what_may_be_run(tmp_path: Path) -> None:
    """The shipped one, with the site's script beside it; a bad table stops the start with its faults."""
    known = node_query.known_commands(node_query.load_table(None), "/opt/nhc")
    assert known[SITE_CHECK] == ("/opt/nhc",)
    assert known["gpu_present"] == ("nvidia-smi", "-L")
    assert SITE_CHECK not in node_query.known_commands(node_query.load_table(None))
    own = tmp_path / "own.yaml"
    with pytest.raises(BadInput, match="cannot read"):
        node_query.load_table(own)
    own.write_text("version: 1\nqueries: [{id: x}]")
    with pytest.raises(RuleFaults, match=r"own\.yaml"):
        node_query.load_table(own)


def test_answers_that_are_no_answers_are_skipped() -> None:
    """A prolog may print as well, and a program may be replaced."""
    lines = [
        "Hello",
        "[1]",
        json.dumps({"id": 1, "output": ""}),
        json.dumps({"id": "a", "exit_code": 10**9, "output": "x"}),
    ]
    found = list(node_query._parse("n1", "\n".join(lines), 50_000))
    assert found == [{"node": "n1", "id": "a", "exit_code": None, "output": "x"}]
