"""Common part of the queries of all schedulers: one start of a small program on each node, and its answers.

The service names the queries. An agent only runs commands that stand in its own table, so that nobody who has the
service has the nodes. Answers are hostile text: they are bounded, passed on, and judged by the service.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import orjson

from diagnoser.adapters import files
from diagnoser.agent.cluster import AskResults, CommandAttempt, NodeQuestion
from diagnoser.agent.nodes import NodeRecord, is_down
from diagnoser.model import QueryResult
from diagnoser.model.errors import Unavailable
from diagnoser.model.taxonomy import FailureType
from diagnoser.recovery import node_proofs, node_query
from diagnoser.recovery.node_query import SITE_CHECK, Answer, NodeQueryTable

START_SECONDS = 10.0
"""For the interpreter, beside the time of the slowest query."""
OUTPUT_LENGTH = 50_000

Commands = Mapping[str, tuple[str, ...]]
"""Id of a query -> program and arguments."""
AskNode = Callable[[int, str, Sequence[NodeQuestion], list[CommandAttempt]], Awaitable[str]]
"""(place among the nodes, node, what to ask it, where to add what was run) -> what the program printed. Raises
Unavailable when it could not be started."""


def load_table(table: Path | None, *, tested: bool = False) -> NodeQueryTable:
    """The agent's own table, the shipped one by default, with the proofs beside it. Raises RuleFaults, BadInput.

    tested: its patterns and examples are known to hold.
    """
    path = table or files.bundled("rules") / "node_queries.yaml"
    proving = path.with_name("node_proofs.yaml")
    if not proving.exists():
        proving = files.bundled("rules") / proving.name
    proofs = node_proofs.load(proving.name, files.text(proving), tested=tested)
    return node_query.load(path.name, files.text(path), proofs, tested=tested)


def known_commands(table: NodeQueryTable, script: str = "") -> Commands:
    """The commands that may be run. script: of the site, "" for none."""
    commands = table.commands
    if script:
        commands[SITE_CHECK] = (script,)
    return commands


def questions_from_table(
    table: NodeQueryTable, types: Collection[FailureType], nodes: Iterable[str]
) -> list[NodeQuestion]:
    """The queries of the agent's own table that failures of these types ask for."""
    queries = table.queries_for(types)
    return [NodeQuestion(node, query.id, query.argv, query.timeout_seconds) for node in nodes for query in queries]


def judge_answers(
    table: NodeQueryTable, answers: Iterable[Mapping[str, Any]], types: Collection[FailureType], since: float
) -> list[QueryResult]:
    """Judge what the answers prove about failures of these types.

    since: what is older in a node's own log does not count, in seconds since the epoch.
    """
    results = []
    for answer in answers:
        given = Answer(text=answer["output"], exit_code=answer["exit_code"])
        results.append(table.judge(QueryResult(answer["node"], answer["id"]), given, types, since))
    return results


def allowed_questions(
    asked: Sequence[Mapping[str, Any]], known: Commands
) -> tuple[list[NodeQuestion], list[dict[str, Any]]]:
    """(the service's queries whose commands stand in the agent's table, answers to the others, which say so)."""
    allowed, refused = [], []
    for query in asked:
        argv, given = known.get(query["id"], ()), tuple(query["argv"])
        if argv and given in ((), argv):
            allowed.append(NodeQuestion(query["node"], query["id"], argv, float(query["timeout_seconds"])))
        else:
            refused.append(_no_answer(query["node"], query["id"], "not in this agent's table of queries"))
    return allowed, refused


async def ask_nodes(asked: Sequence[NodeQuestion], nodes: Mapping[str, NodeRecord], ask_node: AskNode) -> AskResults:
    """Every question has its answer, also where its node cannot be asked."""
    by_node: dict[str, list[NodeQuestion]] = {}
    for question in asked:
        by_node.setdefault(question.node, []).append(question)
    attempts = list[CommandAttempt]()

    async def answers(place: int, node: str, own: Sequence[NodeQuestion]) -> list[dict[str, Any]]:
        output, why = "", f"{node} is down"
        if not is_down(node, nodes):
            try:
                output = await ask_node(place, node, own, attempts)
                why = f"no answer: {output.strip()[-200:]}"
            except Unavailable as error:
                why = str(error)
        return parse_answers(node, output, own, why)

    by_place = (answers(place, node, own) for place, (node, own) in enumerate(by_node.items()))
    return AskResults(list(chain.from_iterable(await asyncio.gather(*by_place))), attempts)


def parse_answers(
    node: str, output: str, asked: Sequence[NodeQuestion], why: str = "no answer"
) -> list[dict[str, Any]]:
    """An answer to each question, from what the program printed. why: there is none."""
    limit = max([OUTPUT_LENGTH, *(question.bytes for question in asked)])
    given = {answer["id"]: answer for answer in _parse(node, output, limit)}
    return [given.get(question.id, _no_answer(node, question.id, why)) for question in asked]


def answers_of(node: str, answers: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [answer for answer in answers if answer["node"] == node]


def program(asked: Sequence[NodeQuestion]) -> tuple[str, ...]:
    """Build what to start on the node. Isolated: nothing of the working folder or the environment is imported."""
    source = Path(__file__).with_name("node_query_runner.py").read_text("utf-8")
    queries = [
        {"id": question.id, "argv": question.argv, "seconds": question.seconds, "bytes": question.bytes}
        for question in asked
    ]
    return ("python3", "-I", "-c", source, orjson.dumps(queries).decode())


def seconds(asked: Sequence[NodeQuestion]) -> float:
    return max(question.seconds for question in asked) + START_SECONDS


def summary(asked: Sequence[NodeQuestion]) -> str:
    return f"python3 (asks: {', '.join(question.id for question in asked)})"


def _parse(node: str, output: str, limit: int) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        try:
            given = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        match given:
            case {"id": str() as id, "output": str() as output_of_query}:
                text = output_of_query.replace("\0", "")[-limit:]
                yield {"node": node, "id": id, "exit_code": _exit_code(given.get("exit_code")), "output": text}


def _exit_code(code: object) -> int | None:
    if type(code) is not int:
        return None
    if not -256 < code < 256:
        return None
    return code


def _no_answer(node: str, id: str, why: str) -> dict[str, Any]:
    return {"node": node, "id": id, "exit_code": None, "output": why[:OUTPUT_LENGTH]}
