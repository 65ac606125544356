"""Which candidate is the cause, and why each other one is not."""

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from diagnoser.model import Evidence, Traceback
from diagnoser.model.taxonomy import FailureType
from diagnoser.rules import causality
from diagnoser.rules.candidate import Candidate, LossDivergence
from diagnoser.rules.candidate_set import RejectionReason
from diagnoser.rules.causality import CausalResult
from diagnoser.rules.run_end import RunTimeline
from diagnoser.rules.schema import Blame, Role, Specificity
from tests.rule_files import collect, engine, log, rule, trace

T = FailureType


def one(line: int, type: FailureType = T.KEY_ERROR, role: Role = Role.ROOT, **fields: object) -> Candidate:
    plain: dict[str, object] = {"by": f"rule:{type}", "why": "", "specificity": Specificity.FAMILY}
    return Candidate(line=line, type=type, role=role, **(plain | fields))  # type: ignore[arg-type]


def decide(
    *found: Candidate, evidence: Evidence | None = None, after: Collection[int] = (), begins: Sequence[int] = ()
) -> CausalResult:
    """after: lines after which training went on. begins: lines at which later launches begin."""
    evidence = evidence or log(*("line",) * 400)
    return causality.decide(found, RunTimeline(evidence, lambda candidate: candidate.line in after, begins))


def why(story: CausalResult, line: int) -> RejectionReason:
    return next(reason for candidate, reason in story.rejected if candidate.line == line)


def test_nothing_found_has_no_root() -> None:
    """Without candidates there is no root and nothing rejected."""
    assert decide() == CausalResult(None)


def test_a_root_explains_earlier_symptoms() -> None:
    """Ranks print symptoms before the cause reaches the log: the role decides, not the order."""
    story = decide(one(1, T.NCCL_TIMEOUT_ERROR, Role.SYMPTOM), one(9, T.ECC_ERROR))
    assert story.root is not None and story.root.type is T.ECC_ERROR
    assert why(story, 1) is RejectionReason.EXPLAINED


def test_only_symptoms_name_the_first() -> None:
    """A log with only symptoms is honest about it: the first one is the root."""
    story = decide(one(3, T.NCCL_TIMEOUT_ERROR, Role.SYMPTOM), one(300, T.NCCL_TIMEOUT_ERROR, Role.SYMPTOM))
    assert story.root is not None and story.root.line == 3
    assert why(story, 300) is RejectionReason.REPEATED


def test_a_symptom_explains_only_what_follows() -> None:
    """A task that srun kills after its peers timed out is not why they did."""
    killed = one(9, T.HOST_OUT_OF_MEMORY, Role.SYMPTOM, explains=frozenset({"all"}))
    story = decide(one(1, T.NCCL_TIMEOUT_ERROR, Role.SYMPTOM), killed)
    assert story.root is not None and story.root.type is T.NCCL_TIMEOUT_ERROR


@pytest.mark.parametrize(("reported", "type"), [(61, T.HOST_OUT_OF_MEMORY), (62, T.NCCL_TIMEOUT_ERROR)])
def test_a_death_reported_soon_after_its_peers_complained_explains_them(reported: int, type: FailureType) -> None:
    """Within 60 lines the launcher's report is why the peers complained; later it has another cause itself."""
    complaint = one(1, T.NCCL_TIMEOUT_ERROR, Role.SYMPTOM, blame=Blame.PEER)
    death = one(reported, T.HOST_OUT_OF_MEMORY, Role.SYMPTOM, blame=Blame.SELF, explains=frozenset({"all"}))
    story = decide(complaint, death)
    assert story.root is not None and story.root.type is type


@pytest.mark.parametrize(("cause", "other"), [(Blame.PEER, Blame.PEER), (Blame.SELF, Blame.SELF)])
def test_only_a_process_that_died_itself_explains_earlier_complaints_about_a_peer(cause: Blame, other: Blame) -> None:
    """A later complaint does not explain an earlier one, and a death not what another rank reported of itself."""
    complaint = one(1, T.NCCL_TIMEOUT_ERROR, Role.SYMPTOM, blame=other)
    death = one(9, T.HOST_OUT_OF_MEMORY, Role.SYMPTOM, blame=cause, explains=frozenset({"all"}))
    story = decide(complaint, death)
    assert story.root is not None and story.root.type is T.NCCL_TIMEOUT_ERROR


def test_explains_beats_order_among_roots() -> None:
    """A full disk explains the checkpoint error that was printed before it."""
    story = decide(one(1, T.MODEL_LOADING_ERROR), one(200, T.DISK_FULL, explains=frozenset({"model_loading_error"})))
    assert story.root is not None and story.root.type is T.DISK_FULL


def test_roots_that_explain_each_other_go_by_time() -> None:
    """Of two faults that could both have caused the other, the earlier one is the root."""
    both = frozenset({"all"})
    story = decide(one(5, T.GPU_LOST, explains=both), one(200, T.ECC_ERROR, explains=both))
    assert story.root is not None and story.root.type is T.GPU_LOST


def test_training_that_went_on_clears_an_error() -> None:
    """An error that the job survived is not its root."""
    story = decide(one(1), one(300, T.INDEX_ERROR), after=(1,))
    assert story.root is not None and story.root.type is T.INDEX_ERROR
    assert why(story, 1) is RejectionReason.RECOVERED


def test_what_was_survived_again_and_again_is_handled() -> None:
    """A worker that logs each sample it cannot read has raised ValueError three times and gone on: the last one is no
    failure either. A failure of another kind, or that an exact rule knows, still is."""
    handled = [one(line, T.VALUE_ERROR, specificity=Specificity.CLASS) for line in (10, 20, 30, 390)]
    assert decide(*handled, after=(10, 20, 30)).root is None
    twice = decide(*handled[1:], after=(20, 30))
    assert twice.root is not None and twice.root.line == 390
    other = decide(*handled, one(395, T.KEY_ERROR, specificity=Specificity.CLASS), after=(10, 20, 30))
    assert other.root is not None
    exact = [one(line, T.OUT_OF_MEMORY_ERROR, specificity=Specificity.CODE) for line in (10, 20, 30, 390)]
    assert decide(*exact, after=(10, 20, 30)).root is not None


def test_wrappers_and_teardown_are_last_resorts() -> None:
    """They are the root only when there is nothing else."""
    story = decide(one(1, T.CALLED_PROCESS_ERROR, Role.WRAPPER), one(2, role=Role.TEARDOWN), one(90))
    assert story.root is not None and story.root.line == 90
    assert (why(story, 1), why(story, 2)) == (RejectionReason.WRAPPER, RejectionReason.TEARDOWN)
    alone = decide(one(1, T.CALLED_PROCESS_ERROR, Role.WRAPPER))
    assert alone.root is not None and alone.root.line == 1


def test_the_exact_line_beats_the_vague_one_beside_it() -> None:
    """Within one story the more specific line is shown; far away it is another story and the earlier one counts."""
    near = decide(one(1, specificity=Specificity.CLASS), one(10, T.ECC_ERROR, specificity=Specificity.CODE))
    assert near.root is not None and near.root.type is T.ECC_ERROR
    assert why(near, 1) is RejectionReason.VAGUE
    far = decide(one(1, specificity=Specificity.FAMILY), one(300, T.ECC_ERROR, specificity=Specificity.CODE))
    assert far.root is not None and far.root.type is T.KEY_ERROR


def test_a_raised_exception_is_shown_before_a_log_line_of_it() -> None:
    """The logger's line and the raised exception say the same: the exception is the root line."""
    story = decide(one(1, specificity=Specificity.MESSAGE), one(4, specificity=Specificity.MESSAGE, raised=True))
    assert story.root is not None and story.root.line == 4


def test_a_completed_run_is_completed_in_spite_of_scary_lines() -> None:
    """What stands before the end of a completed run did not end it."""
    story = decide(one(1), one(50, T.CONNECTION_ERROR, Role.SYMPTOM), one(300, T.COMPLETED))
    assert story.root is not None and story.root.type is T.COMPLETED
    assert why(story, 1) is RejectionReason.FINISHED


def test_a_failure_after_completion_is_a_failure() -> None:
    """A script that fails after training is a failed job; peers that lose a connection then are not."""
    failed = decide(one(100, T.COMPLETED), one(300, T.ARGUMENT_ERROR))
    assert failed.root is not None and failed.root.type is T.ARGUMENT_ERROR
    noisy = decide(one(100, T.COMPLETED), one(300, T.CONNECTION_ERROR, Role.SYMPTOM))
    assert noisy.root is not None and noisy.root.type is T.COMPLETED


def test_an_end_is_that_of_its_own_launch() -> None:
    """Behind a completed run another one was launched: whatever that one shows counts, be it only a symptom."""
    lost, cancelled = one(300, T.CONNECTION_ERROR, Role.SYMPTOM), one(300, T.CANCELLED, Role.SYMPTOM)
    for last in (lost, cancelled):
        story = decide(one(100, T.COMPLETED), last, begins=(200,))
        assert story.root is last and why(story, 100) is RejectionReason.EARLIER_ATTEMPT
    silent = decide(one(100, T.COMPLETED), begins=(200,))
    assert silent.root is not None and silent.root.type is T.COMPLETED


def test_a_job_that_was_requeued_and_completed_stays_preempted() -> None:
    """The end by order is what is told, behind a run that completed long before as well."""
    story = decide(one(10, T.COMPLETED), one(150, T.PREEMPTED), one(300, T.COMPLETED), begins=(100, 200))
    assert story.root is not None and story.root.type is T.PREEMPTED
    assert why(story, 10) is RejectionReason.EARLIER_ATTEMPT


def test_an_order_to_end_after_the_work_was_done_ends_no_work() -> None:
    """A run that is done ends its own servers and workers."""
    story = decide(one(100, T.COMPLETED), one(300, T.CANCELLED, Role.SYMPTOM))
    assert story.root is not None and story.root.type is T.COMPLETED


def test_a_weak_end_does_not_clear_the_failure_beside_it() -> None:
    """A total time that is printed in a finally block says nothing about success."""
    story = decide(one(90), one(100, T.COMPLETED, specificity=Specificity.CLASS))
    assert story.root is not None and story.root.type is T.KEY_ERROR
    assert why(story, 100) is RejectionReason.VAGUE_END


def test_a_cancel_explains_what_follows_it_only() -> None:
    """After a cancel everything is its effect; a hang before it is what the person cancelled."""
    calm = decide(one(100, T.CANCELLED), one(110, T.CONNECTION_ERROR, Role.SYMPTOM), one(120))
    assert calm.root is not None and calm.root.type is T.CANCELLED
    hung = decide(one(10, T.NCCL_TIMEOUT_ERROR, Role.SYMPTOM), one(100, T.CANCELLED))
    assert hung.root is not None and hung.root.type is T.NCCL_TIMEOUT_ERROR


def test_the_last_attempt_of_a_requeued_job_counts() -> None:
    """A preempted attempt that went on and then failed: the later failure is the root, the first is an earlier one."""
    story = decide(one(10, T.PREEMPTED), one(300), after=(10,))
    assert story.root is not None and story.root.type is T.KEY_ERROR
    assert why(story, 10) is RejectionReason.EARLIER_ATTEMPT


def test_chain_keeps_the_cause_that_says_something() -> None:
    """Of a refused connection under a storage client the client's error speaks; KeyError while filling a cache not."""
    lines = log(*("x",) * 40, tracebacks=(trace(5, "ConnectionRefusedError"), trace(15, "S3Error", cause=0)))
    parts = one(5, T.CONNECTION_ERROR, trace=0, by="h"), one(15, T.S3_STORAGE_ERROR, trace=1, by="h")
    story = decide(*parts, evidence=lines)
    assert story.root is not None and story.root.type is T.S3_STORAGE_ERROR
    lines = log(*("x",) * 40, tracebacks=(trace(5, "KeyError"), trace(15, "PermissionError", cause=0)))
    parts = one(5, T.KEY_ERROR, trace=0, by="h", control_flow=True), one(15, T.PERMISSION_ERROR, trace=1, by="h")
    story = decide(*parts, evidence=lines)
    assert story.root is not None and story.root.type is T.PERMISSION_ERROR
    assert why(story, 5) is RejectionReason.CHAINED


def test_of_a_chain_an_exception_that_is_handled_on_purpose_is_not_the_cause() -> None:
    """Not even where rules know both of them equally well."""
    lines = log(*("x",) * 40, tracebacks=(trace(5, "KeyError"), trace(15, "PermissionError", cause=0)))
    parts = one(5, T.KEY_ERROR, trace=0, control_flow=True), one(15, T.PERMISSION_ERROR, trace=1)
    story = decide(*parts, evidence=lines)
    assert story.root is not None and story.root.type is T.PERMISSION_ERROR


def test_chain_keeps_the_first_of_equals() -> None:
    """A failed build command is why the extension is missing, not the other way round."""
    lines = log(*("x",) * 40, tracebacks=(trace(5, "CalledProcessError"), trace(15, "RuntimeError", cause=0)))
    parts = one(5, T.CALLED_PROCESS_ERROR, trace=0, by="h"), one(15, T.RUNTIME_ERROR, trace=1, by="h")
    story = decide(*parts, evidence=lines)
    assert story.root is not None and story.root.type is T.CALLED_PROCESS_ERROR


def test_unknown_exceptions_become_candidates() -> None:
    """Where no rule knows a traceback its class speaks, and a rule on its line goes before the class."""
    evidence = log("Traceback", "  File", "KeyError: 'a'", tracebacks=(trace(2, "KeyError", "'a'"),))
    (found,) = collect(evidence)
    assert (found.type, found.by, found.line) == (T.KEY_ERROR, "heuristic:exception_class", 2)
    assert found.control_flow
    made = engine(rule("known", anchors=["KeyError"], patterns=["KeyError"]))
    (found,) = collect(evidence, made.match(evidence))
    assert (found.by, found.trace) == ("rule:known", 0)


def test_benign_rules_clear_their_line() -> None:
    """A line whose best rule is benign is never a root, whatever else matches, and is listed with that reason."""
    made = engine(rule("calm", role="benign", specificity="code"), rule("scare", specificity="word"))
    evidence = log("marker ValueError: x")
    story = decide(*collect(evidence, made.match(evidence)), evidence=evidence)
    assert story.root is None
    assert why(story, 0) is RejectionReason.BENIGN


def test_bare_exception_lines_count_a_little() -> None:
    """A cut log that shows only the exception line still names the class."""
    (found,) = collect(log("2026-01-01 ERROR - TypeError: bad operand"), ())
    assert (found.type, found.by) == (T.TYPE_ERROR, "heuristic:exception_line")


def test_ignored_and_handler_exceptions_are_teardown() -> None:
    """What destructors and signal handlers raise is not why the job ended."""
    ignored = log(
        "Exception ignored in: <f>", "Traceback", "  File", "OSError: x", tracebacks=(trace(3, "OSError", start=1),)
    )
    assert [found.role for found in collect(ignored, ())] == [Role.TEARDOWN]


def test_a_break_of_the_loss_is_a_candidate() -> None:
    """The place where the series broke competes like any other line."""
    (found,) = collect(log("iter 9: loss nan"), (), LossDivergence(0, "loss is nan"))
    assert (found.type, found.by) == (T.LOSS_DIVERGENCE, "heuristic:loss_series")


def test_diverged_runs_are_not_completed() -> None:
    """A run that reached its end with a broken loss has diverged."""
    evidence = log(*("x",) * 400)
    found = (one(10, T.LOSS_DIVERGENCE), one(300, T.COMPLETED))
    story = causality.decide(found, RunTimeline(evidence, lambda _: False, diverged=True))
    assert story.root is not None and story.root.type is T.LOSS_DIVERGENCE


def test_a_mistake_in_handling_an_interrupt_follows_from_it() -> None:
    """Where nothing failed but the code that handles an interrupt, the run was interrupted; a real failure wins."""
    interrupt = one(3, T.CANCELLED, Role.SYMPTOM, explains=frozenset({"name_error"}))
    story = decide(interrupt, one(9, T.NAME_ERROR))
    assert story.root is not None and story.root.type is T.CANCELLED
    assert why(story, 9) is RejectionReason.EXPLAINED
    story = decide(interrupt, one(9, T.NAME_ERROR), one(12, T.DATALOADER_KILLED))
    assert story.root is not None and story.root.type is not T.CANCELLED


def test_a_line_without_a_rank_takes_that_of_its_only_repetition() -> None:
    """A library's line names no rank; the exception that repeats it does, unless several ranks repeat it."""
    by, kind = "rule:fabric", T.NETWORK_ERROR
    story = decide(one(3, kind, by=by), one(5, kind, by=by, rank=4))
    assert story.root is not None and (story.root.line, story.root.rank) == (3, 4)
    story = decide(one(3, kind, by=by), one(5, kind, by=by, rank=4), one(6, kind, by=by, rank=7))
    assert story.root is not None and story.root.rank is None


def test_a_run_that_ends_in_a_retry_did_not_get_through() -> None:
    """A retry is a calm word while the run goes on, not as its last one."""
    line = "retrying to write after error: oss request timed out"
    (found,) = collect(log("step 1", line), ())
    assert (found.type, found.by) == (T.S3_STORAGE_ERROR, "heuristic:words")
    assert not collect(log("step 1", line, *("step",) * 5), ())


def _raised(*names: str) -> Evidence:
    """One traceback for each exception, with a step below each: of a program where its name ends with a star, of its
    main function where with a plus."""
    bodies, traces = list[str](), list[Traceback]()
    for name in names:
        called = {"*": "<module>", "+": "main"}.get(name[-1], "save")
        bodies += ["Traceback", f'  File "/site/fit.py", line 9, in {called}', f"{name.strip('*+')}: 7", "step 9"]
        raised = len(bodies) - 2
        frames = (bodies[raised - 1].strip(),)
        traces.append(Traceback(-1, (raised - 2, raised - 1, raised), frames, name.strip("*+"), "7", raised))
    return log(*bodies, tracebacks=tuple(traces))


def test_an_exception_that_left_its_program_is_not_survived_by_others() -> None:
    """The steps below a line that names no process, where others do, are those of others; not after another launch."""
    evidence, left = _raised("KeyError*"), one(2, trace=0, raised=True)
    assert decide(left, evidence=evidence, after=(2,)).root is None
    peer = replace(evidence.lines[-1], rank=3, label="r3")
    beside = replace(evidence, lines=(*evidence.lines, peer))
    assert decide(left, evidence=beside, after=(2,)).root == left
    assert decide(left, evidence=beside, after=(2,), begins=(3,)).root is None
    caught = _raised("KeyError")
    assert decide(left, evidence=replace(caught, lines=(*caught.lines, peer)), after=(2,)).root is None


def test_of_what_was_survived_the_exception_that_came_furthest_out_explains_a_bad_end() -> None:
    """A later one that a helper function caught does not."""
    evidence = _raised("OSError+", "KeyError")
    main, helper = one(2, T.OS_ERROR, trace=0, raised=True), one(6, trace=1, raised=True)
    report = one(7, T.RUNTIME_ERROR, Role.WRAPPER, exit=True)
    root = decide(main, helper, report, evidence=evidence, after=(2, 6)).root
    assert root is not None and root.line == 2


def test_nobody_evicts_a_run_because_a_process_caught_an_exception() -> None:
    """Where the process spoke on; one that said nothing more may have stopped before."""
    evidence, caught = _raised("OSError"), one(2, T.OS_ERROR, trace=0, raised=True)
    of_rank = [replace(line, rank=1) for line in evidence.lines]
    order = one(3, T.PREEMPTED, explains=frozenset({"all"}))
    for lines, root in ((of_rank, order), ([*of_rank[:3], replace(of_rank[3], rank=2)], caught)):
        assert decide(caught, order, evidence=replace(evidence, lines=tuple(lines))).root == root


def test_a_caught_exception_gives_way_to_one_that_left_its_program() -> None:
    """Its process went on, whatever it prints; what a rule knows by its message may be why the other one followed."""
    evidence = _raised("OSError", "KeyError*")
    caught, left = one(2, T.OS_ERROR, trace=0, raised=True), one(6, trace=1, raised=True)
    story = decide(caught, left, evidence=evidence)
    assert story.root == left
    assert why(story, 2) is RejectionReason.RECOVERED
    known = one(2, T.DISK_FULL, trace=0, raised=True, specificity=Specificity.MESSAGE)
    assert decide(known, left, evidence=evidence).root == known


def test_a_failed_child_process_gives_way_to_the_exception_that_ended_it() -> None:
    """Python says of a child only that it failed: the program that it ran says why, if it says anything."""
    evidence = _raised("IndexError*", "CalledProcessError*")
    ended = one(2, T.INDEX_ERROR, trace=0, raised=True, specificity=Specificity.CLASS)
    child = one(6, T.CALLED_PROCESS_ERROR, trace=1, raised=True)
    story = decide(ended, child, evidence=evidence)
    assert story.root == ended
    assert why(story, 6) is RejectionReason.WRAPPER
    assert decide(child, evidence=evidence).root == child
