"""Node check: which nodes of a job are faulty, from what they answer and from all-gathers of small groups. A pure state
machine.

First the suspected nodes are asked (``node_query``). Where an answer proves a fault, or where nobody can test groups,
that is the verdict; else two rounds follow.

Round 1 tests pairs (one triple when the number is odd). Nodes of a group that failed are tested again, each with a
node that has passed; in waves when there are too few of those, and once more where both nodes of a pair fail again:
who passed may have broken since. When every group fails, the nodes cannot be told apart: the cause is shared, and no
node is cordoned. Idea: section 6.1 of "Characterization of Large Language Model Development in the Datacenter" (Hu et
al., NSDI 2024).

Groups that pass but take more than ``SLOW`` times the median are tested again too, with the fastest nodes: a node
that is slow there as well is a straggler.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, filterfalse, starmap
from statistics import median

from diagnoser.model import CheckVerdict, NodeCheck, PairResult, QueryResult, QueryState
from diagnoser.model.errors import BadInput, Conflict

SLOW = 2.0
FIRST_ROUND = 1
WITNESSES = 2
"""Healthy nodes beside which a node fails before it is at fault: a single one may have broken since it passed."""
EXCHANGE = 0.05
"""Seconds below which a difference in time is start-up noise."""

RESULTS_KEPT, DETAIL_KEPT = 256, 200
"""Of a round that is over: results, and characters of what a failed one printed."""

NodeGroup = tuple[str, ...]


def begin(nodes: Iterable[str], suspects: Sequence[str] = ()) -> NodeCheck:
    """suspects: those of the nodes that may be at fault, most likely first. Raises BadInput when there are no nodes."""
    names = tuple(sorted(set(nodes)))
    if not names:
        raise BadInput("a node check needs the names of the job's nodes")
    suspects = tuple(dict.fromkeys(node for node in suspects if node in names))
    others = (node for node in names if node not in suspects)
    return NodeCheck(names, FIRST_ROUND, _pairs((*suspects, *others)), suspects=suspects)


def ask(check: NodeCheck, queries: Iterable[tuple[str, str]]) -> NodeCheck:
    """The check with queries to begin with: (node, id of the query)."""
    return replace(check, queries=tuple(starmap(QueryResult, queries)))


def unanswered(check: NodeCheck) -> tuple[QueryResult, ...]:
    """List the queries that have no answer yet; while there are some, no group is tested."""
    if check.verdict:
        return ()
    return _in_state(check, QueryState.ASKED)


def record_answers(check: NodeCheck, answers: Sequence[QueryResult]) -> NodeCheck:
    """Record answers; with the last of them comes a verdict, if any proves a fault. The first answer of a query counts.
    Raises BadInput for one that was not asked."""
    asked = {(query.node, query.query): query for query in check.queries}
    for answer in answers:
        key = answer.node, answer.query
        if key not in asked:
            raise BadInput(f"{answer.node[:200]} was not asked {answer.query[:100]}")
        if asked[key].state is QueryState.ASKED:
            asked[key] = answer
    after = replace(check, queries=tuple(asked.values()))
    if check.verdict:
        return after
    if unanswered(after):
        return after
    faulty = [query.node for query in _in_state(after, QueryState.PROVES)]
    if after.groups and not faulty:
        return after
    return _with_verdict(replace(after, faulty=tuple(dict.fromkeys((*after.faulty, *faulty)))))


def _in_state(check: NodeCheck, state: QueryState) -> tuple[QueryResult, ...]:
    return tuple(query for query in check.queries if query.state is state)


def skip_queries(check: NodeCheck) -> NodeCheck:
    """Leave open queries without an answer: nobody is there who could ask."""
    queries = []
    for query in check.queries:
        if query.state is QueryState.ASKED:
            query = replace(query, state=QueryState.NOT_AVAILABLE)
        queries.append(query)
    return record_answers(replace(check, queries=tuple(queries)), ())


def skip_pairs(check: NodeCheck) -> NodeCheck:
    """Test no group, as nobody is there who could: once no query is left, what is known so far is the verdict."""
    return record_answers(replace(check, groups=(), results=(), open=()), ())


def todo(check: NodeCheck) -> tuple[NodeGroup, ...]:
    """List the groups to test now: those of this round that have no result yet, once no query is left."""
    if check.verdict:
        return ()
    if unanswered(check):
        return ()
    return _untested(check)


def _untested(check: NodeCheck) -> tuple[NodeGroup, ...]:
    tested = _by_group(check)
    return tuple(group for group in check.groups if frozenset(group) not in tested)


def _by_group(check: NodeCheck) -> dict[frozenset[str], PairResult]:
    """The results of this round so far."""
    return {frozenset(result.nodes): result for result in check.results}


def record(check: NodeCheck, round: int, results: Sequence[PairResult], *, vouched: bool = True) -> NodeCheck:
    """Record results. The first result of a group counts, so that a repeated report changes nothing.

    vouched: whether they are the word of the operator's program; one result that is not makes the check unvouched.
    Raises Conflict for a round that has not begun, BadInput for a group that is not part of the round.
    """
    if check.verdict:
        return check
    if round < check.round:
        return check
    if round > check.round:
        raise Conflict(f"round {round} has not begun: the check is in round {check.round}")
    check = _with_results(check, results, vouched=vouched)
    if _untested(check):
        return check
    if not check.groups:
        return check
    check = replace(check, rounds=(*check.rounds, _kept(check.results)))
    return _after_first(check) if check.round == FIRST_ROUND else _after_wave(check)


def _with_results(check: NodeCheck, results: Sequence[PairResult], *, vouched: bool) -> NodeCheck:
    """Raises BadInput."""
    groups, tested = set(map(frozenset, check.groups)), set(_by_group(check))
    for result in results:
        group = frozenset(result.nodes)
        if group not in groups:
            raise BadInput(f"round {check.round} has no group {', '.join(result.nodes)[:200]}")
        if group not in tested:
            tested.add(group)
            check = replace(check, results=(*check.results, result), vouched=check.vouched and vouched)
    return check


def _kept(results: Iterable[PairResult]) -> tuple[PairResult, ...]:
    """Cut results to what is shown of a round later."""
    worst = sorted(results, key=lambda result: (result.ok, -result.seconds))[:RESULTS_KEPT]
    return tuple(replace(result, detail="" if result.ok else result.detail[:DETAIL_KEPT]) for result in worst)


def _pairs(names: Sequence[str]) -> tuple[NodeGroup, ...]:
    """Suspects meet others, and neighbours in the sorted order are kept apart: they often share a switch or chassis."""
    half = len(names) // 2
    if half == 0:
        return (tuple(names),)
    groups = list(zip(names[:half], names[half : 2 * half], strict=True))
    return (*groups[:-1], (*groups[-1], *names[2 * half :]))


def _after_first(check: NodeCheck) -> NodeCheck:
    times = [result.seconds for result in check.results if result.ok]
    if not times:
        return _with_verdict(check, shared=True)
    usual = median(times)
    seconds, slow, failed = dict[str, float](), set[str](), set[str]()
    for result in check.results:
        if not result.ok:
            failed.update(result.nodes)
            continue
        seconds |= dict.fromkeys(result.nodes, result.seconds)
        if _is_slow(result.seconds, usual):
            slow.update(result.nodes)
    healthy = sorted(set(seconds) - slow, key=lambda node: (seconds[node], node))
    in_doubt = sorted(failed, key=lambda node: (node not in check.suspects, node))
    state = replace(
        check, usual=usual, seconds=seconds, healthy=tuple(healthy), open=(*in_doubt, *sorted(slow)), results=()
    )
    return _next_wave(state)


def _after_wave(check: NodeCheck) -> NodeCheck:
    """The first node of each group is in doubt, the second is its healthy partner: who passes is known before who
    fails, so that it counts as a partner of the first round."""
    by_group = _by_group(check)
    results = sorted(((group, by_group[frozenset(group)]) for group in check.groups), key=lambda pair: not pair[1].ok)
    beside, still_open = _failed_beside(check), dict.fromkeys(check.open)
    faulty, stragglers, healthy = list(check.faulty), list(check.stragglers), list(check.healthy)
    for (node, *partners), result in results:
        if result.ok:
            (stragglers if _is_slow(result.seconds, check.usual) else healthy).append(node)
        else:
            healthy = [*(name for name in healthy if name not in partners), *partners]  # asked last, if it broke
            if len(beside[node].intersection(healthy)) < WITNESSES:
                continue
            faulty.append(node)
        del still_open[node]
    after = replace(check, faulty=tuple(faulty), stragglers=tuple(stragglers), healthy=tuple(healthy), results=())
    return _next_wave(replace(after, open=tuple(still_open)))


def _failed_beside(check: NodeCheck) -> Mapping[str, set[str]]:
    """Return for each node the others of the groups that failed with it, in the rounds that are over."""
    beside = defaultdict[str, set[str]](set)
    for result in chain.from_iterable(check.rounds):
        for node in () if result.ok else result.nodes:
            beside[node].update(set(result.nodes) - {node})
    return beside


def _next_wave(check: NodeCheck) -> NodeCheck:
    """Give each open node, as far as they suffice, a healthy partner that it has not failed beside."""
    beside, free, groups = _failed_beside(check), list(check.healthy), []
    for node in check.open:
        for partner in filterfalse(beside[node].__contains__, free):
            groups.append((node, partner))
            free.remove(partner)
            break
    if not groups:
        return _with_verdict(check)
    return replace(check, round=check.round + 1, groups=tuple(groups))


def _with_verdict(check: NodeCheck, *, shared: bool = False) -> NodeCheck:
    faulty, slow = tuple(sorted(check.faulty)), tuple(sorted(check.stragglers))
    verdict = CheckVerdict(faulty, slow, shared, _reason(check, shared, faulty))
    return replace(check, verdict=verdict, groups=(), results=(), open=())


def _reason(check: NodeCheck, shared: bool, faulty: NodeGroup) -> str:
    proving = _in_state(check, QueryState.PROVES)
    if proving:
        return "; ".join(f"{query.node} says so itself ({query.query}): {query.text[:200]}" for query in proving[:4])
    if not check.groups:
        why = "the agent has no program to test pairs of nodes with (--check)"
        return f"no answer proves a fault, and {why}" if check.queries else why
    if not shared:
        tested = f"{len(check.nodes)} nodes tested in {check.round} round{'s' if check.round > 1 else ''}"
        return f"{tested}, {len(faulty)} faulty" if faulty else f"{tested}, all passed"
    if len(check.groups) == 1:
        return "the only group failed: no other node can tell which of it is at fault"
    return "every group failed: the cause is shared (network, storage, software), not a node"


def _is_slow(seconds: float, usual: float) -> bool:
    return seconds > SLOW * usual and seconds - usual > EXCHANGE
