"""The two-round node check, simulated."""

import itertools
from collections.abc import Callable, Collection, Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnoser.model import CheckVerdict, NodeCheck, PairResult, QueryResult, QueryState
from diagnoser.model.errors import BadInput, Conflict
from diagnoser.recovery import node_check
from tests.thorough import THOROUGH

Seconds = Callable[[tuple[str, ...]], float]


def names(count: int) -> list[str]:
    return [f"n{number:03}" for number in range(count)]


def run(
    nodes: Iterable[str], faulty: Collection[str], seconds: Seconds = lambda group: 1.0, breaks: str = ""
) -> NodeCheck:
    """The check over groups that fail exactly when they hold a faulty node. breaks: a node, after the first round."""
    check, bad = node_check.begin(nodes), set(faulty)
    while check.verdict is None:
        results = [PairResult(group, bad.isdisjoint(group), seconds(group)) for group in node_check.todo(check)]
        bad.add(breaks)
        assert results, "a round without groups would never end"
        check = node_check.record(check, check.round, results)
    return check


def verdict(nodes: Iterable[str], faulty: Collection[str]) -> CheckVerdict:
    found = run(nodes, faulty).verdict
    assert found is not None
    return found


def all_groups_fail(nodes: list[str], faulty: Collection[str]) -> bool:
    return all(set(group) & set(faulty) for group in node_check.begin(nodes).groups)


@pytest.mark.parametrize("size", range(1, 65) if THOROUGH else (*range(1, 18), 31, 32, 33))
def test_every_single_and_double_fault(size: int) -> None:
    """No healthy node is ever named. All faulty ones are, unless every group holds one: then the cause counts as
    shared (sizes 1 to 3, and two faults in the two groups of 4 or 5 nodes)."""
    nodes = names(size)
    for count in (0, 1, 2):
        for faulty in itertools.combinations(nodes, count):
            found = verdict(nodes, faulty)
            assert set(found.faulty) <= set(faulty)
            assert found.shared_cause == all_groups_fail(nodes, faulty)
            assert found.shared_cause or found.faulty == faulty


@pytest.mark.parametrize("size", range(6, 65))
def test_from_six_nodes_on_two_faults_are_always_found(size: int) -> None:
    """Three groups cannot all hold one of two faulty nodes."""
    assert not all_groups_fail(names(size), names(size)[:: max(1, size // 2)][:2])
    assert len(node_check.begin(names(size)).groups) >= 3


@pytest.mark.parametrize("count", range(1, 21))
def test_few_faults_among_512_nodes_are_found_exactly_in_two_rounds(count: int) -> None:
    """1 to 20 random faulty nodes, three draws each, or ten; one round more where two of them were a pair."""
    nodes, rng = names(512), Random(count)
    for _ in range(10 if THOROUGH else 3):
        faulty = rng.sample(nodes, count)
        check = run(nodes, faulty)
        assert check.verdict is not None
        rounds = 2 + any(set(pair) <= set(faulty) for pair in node_check.begin(nodes).groups)
        assert (check.verdict.faulty, check.round) == (tuple(sorted(faulty)), rounds)


@given(st.integers(2, 60).flatmap(lambda size: st.tuples(st.just(size), st.sets(st.integers(0, size - 1)))))
def test_any_number_of_faults(case: tuple[int, set[int]]) -> None:
    """However many nodes are faulty: either all of them are named and nobody else, or nobody is."""
    size, numbers = case
    nodes = names(size)
    faulty = [nodes[number] for number in sorted(numbers)]
    found = verdict(nodes, faulty)
    assert found.faulty == (() if found.shared_cause else tuple(faulty))


@pytest.mark.parametrize("breaks", names(8)[1:])
def test_a_partner_that_breaks_during_the_check_blames_nobody(breaks: str) -> None:
    """Whichever node breaks behind the first round: the faulty one is found, and no healthy one is blamed."""
    found = run(names(8), ["n000"], breaks=breaks).verdict
    assert found is not None and "n000" in found.faulty
    assert set(found.faulty) <= {"n000", breaks}


def test_suspects_that_outnumber_the_healthy_are_tested_in_waves() -> None:
    """Seven of eight groups failed: two healthy nodes test fourteen suspects, and who passes helps."""
    nodes = names(16)
    faulty = nodes[:7]
    check = run(nodes, faulty)
    assert check.verdict is not None and check.verdict.faulty == tuple(faulty)
    assert check.round > 3


def test_a_triple_when_the_number_is_odd() -> None:
    """Nobody is left out of the first round, and nobody is tested twice."""
    groups = node_check.begin(names(7)).groups
    assert sorted(map(len, groups)) == [2, 2, 3]
    assert sorted(node for group in groups for node in group) == names(7)


def test_a_straggler_is_told_from_its_partner() -> None:
    """A slow pair is tested again with fast nodes: only who is slow there too is a straggler, and nobody is faulty."""
    found = run(names(16), [], lambda group: 9.0 if "n003" in group else 2.0)
    assert found.verdict is not None
    assert (found.verdict.stragglers, found.verdict.faulty) == (("n003",), ())


def test_noise_is_no_straggler() -> None:
    """Less than twice the median, or milliseconds, say nothing."""
    assert run(names(16), [], lambda group: 3.9 if "n003" in group else 2.0).round == 1
    assert run(names(16), [], lambda group: 0.03 if "n003" in group else 0.01).round == 1


def test_results_may_come_in_parts_and_twice() -> None:
    """The first result of a group counts; the round goes on when all are there; a late repeat changes nothing."""
    check = node_check.begin(names(4))
    first, second = check.groups
    check = node_check.record(check, 1, [PairResult(first, True, 1.0)])
    assert node_check.todo(check) == (second,)
    again = node_check.record(check, 1, [PairResult(first[::-1], False, 1.0)])
    assert again == check
    done = node_check.record(check, 1, [PairResult(second, False, 1.0)])
    assert done.round == 2
    assert node_check.record(done, 1, [PairResult(second, True, 1.0)]) == done


def test_what_does_not_belong_is_refused() -> None:
    """A round that has not begun and a group that was not asked for change nothing."""
    check = node_check.begin(names(4))
    with pytest.raises(Conflict):
        node_check.record(check, 2, [])
    with pytest.raises(BadInput):
        node_check.record(check, 1, [PairResult(("n000", "n001"), True)])
    with pytest.raises(BadInput):
        node_check.begin([])


def asked(*queries: tuple[str, str]) -> NodeCheck:
    return node_check.ask(node_check.begin(names(6), ["n004"]), queries)


def test_no_pair_is_tested_while_a_query_is_open() -> None:
    """The suspects are asked first; when all answers are in and none proves anything, the pairs follow."""
    check = asked(("n004", "gpu_ecc"), ("n004", "mounts"))
    assert (len(node_check.unanswered(check)), node_check.todo(check)) == (2, ())
    check = node_check.record_answers(check, [QueryResult("n004", "gpu_ecc", QueryState.PROVES_NOTHING, 0)])
    assert [query.query for query in node_check.unanswered(check)] == ["mounts"]
    check = node_check.record_answers(check, [QueryResult("n004", "mounts", QueryState.NOT_AVAILABLE)])
    assert len(node_check.todo(check)) == 3
    assert check.verdict is None


def test_a_node_that_says_so_itself_is_the_verdict() -> None:
    """No pair is tested; the reason names the query and its line."""
    check = asked(("n004", "gpu_ecc"), ("n005", "gpu_ecc"))
    proof = QueryResult("n004", "gpu_ecc", QueryState.PROVES, 0, "1, 00000000:0F:00.0, 3")
    check = node_check.record_answers(check, [proof])
    assert check.verdict is None, "the other suspect has not answered yet"
    check = node_check.record_answers(check, [QueryResult("n005", "gpu_ecc", QueryState.PROVES_NOTHING, 0)])
    assert check.verdict is not None and check.verdict.faulty == ("n004",)
    assert check.verdict.reason == "n004 says so itself (gpu_ecc): 1, 00000000:0F:00.0, 3"
    assert (node_check.todo(check), node_check.unanswered(check)) == ((), ())


def test_the_first_answer_of_a_query_counts() -> None:
    """A repeated report changes nothing, and an answer to a question that was not asked is refused."""
    check = asked(("n004", "gpu_ecc"), ("n004", "mounts"))
    first = node_check.record_answers(check, [QueryResult("n004", "gpu_ecc", QueryState.PROVES_NOTHING, 0)])
    assert node_check.record_answers(first, [QueryResult("n004", "gpu_ecc", QueryState.PROVES, 0)]) == first
    for node, query in (("n001", "gpu_ecc"), ("n004", "df")):
        with pytest.raises(BadInput, match="was not asked"):
            node_check.record_answers(check, [QueryResult(node, query, QueryState.PROVES)])


def test_queries_that_nobody_can_ask_are_skipped() -> None:
    """The pairs follow at once; what was answered before still counts."""
    check = node_check.skip_queries(asked(("n004", "gpu_ecc")))
    assert [query.state for query in check.queries] == [QueryState.NOT_AVAILABLE]
    assert len(node_check.todo(check)) == 3
    check = asked(("n004", "gpu_ecc"), ("n004", "mounts"))
    check = node_check.record_answers(check, [QueryResult("n004", "gpu_ecc", QueryState.PROVES, 0, "3")])
    check = node_check.skip_queries(check)
    assert check.verdict is not None and check.verdict.faulty == ("n004",)


def test_without_a_program_for_pairs_the_answers_are_the_verdict() -> None:
    """Once all are there, and not before; what they prove counts as ever."""
    asked = node_check.ask(node_check.begin(names(4), ["n001"]), [("n001", "gpu_ecc"), ("n001", "links")])
    check = node_check.skip_pairs(asked)
    assert (check.verdict, node_check.todo(check), len(node_check.unanswered(check))) == (None, (), 2)
    assert node_check.record(check, 1, ()) == check
    for state, faulty in ((QueryState.PROVES, ("n001",)), (QueryState.PROVES_NOTHING, ())):
        answers = [QueryResult("n001", "gpu_ecc", state), QueryResult("n001", "links", QueryState.NOT_AVAILABLE)]
        over = node_check.record_answers(check, answers)
        assert over.verdict is not None
        assert (over.verdict.faulty, over.verdict.shared_cause) == (faulty, False)
        assert node_check.skip_pairs(over) == over


def test_nodes_that_were_found_before_the_program_was_gone_stay_found() -> None:
    """Another agent takes over between the waves of a second round."""
    check = node_check.begin(names(6))
    check = node_check.record(check, 1, [PairResult(group, "n000" not in group, 1.0) for group in check.groups])
    check = node_check.record(check, 2, [PairResult(group, "n000" not in group, 1.0) for group in check.groups])
    verdict = node_check.skip_pairs(check).verdict
    assert verdict is not None and verdict.faulty == ("n000",)
    untested = node_check.skip_pairs(node_check.begin(names(6))).verdict
    assert untested is not None and (untested.faulty, "--check" in untested.reason) == ((), True)


def test_one_result_that_nobody_vouches_for_makes_the_check_such() -> None:
    """Results that change nothing, because they were there before, do not."""
    check = node_check.begin(names(4))
    first, second = (PairResult(group, True, 1.0) for group in check.groups)
    check = node_check.record(check, 1, [first])
    assert node_check.record(check, 1, [first], vouched=False).vouched
    assert not node_check.record(check, 1, [second], vouched=False).vouched


@given(st.integers(2, 20), st.data())
def test_suspects_come_first_and_meet_others(size: int, data: st.DataObject) -> None:
    """In the first round and among those in doubt; everybody is still tested exactly once."""
    nodes = names(size)
    suspects = data.draw(st.lists(st.sampled_from(nodes), unique=True, max_size=size // 2))
    check = node_check.begin(nodes, [*suspects, "elsewhere"])
    assert check.suspects == tuple(suspects)
    assert [group[0] for group in check.groups[: len(suspects)]] == suspects
    assert sorted(node for group in check.groups for node in group) == nodes
    assert not any(set(group[1:]) & set(suspects) for group in check.groups)


def test_a_suspect_is_tested_again_before_the_others_in_doubt() -> None:
    """The second round begins with it."""
    check = node_check.begin(names(6), ["n004"])
    failed = [PairResult(group, "n004" not in group, 1.0) for group in check.groups]
    assert node_check.record(check, 1, failed).groups[0][0] == "n004"
