"""The score is the outside scorer's, and what it adds is right."""

from dataclasses import replace

import pytest

from diagnoser.accuracy import scoring
from diagnoser.accuracy.scoring import Label, ScoredVerdict
from diagnoser.accuracy.triggers import totals, trigger_yields
from diagnoser.model import Advice, Diagnosis, EvidenceLine, Rejected, RootCause, Suspect
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from tests import accuracy_bars

LABEL = Label("a", "infrastructure", "ecc_error", (7,), "Xid 48 here", "cordon_and_resubmit", node="n1", rank=3)
RIGHT = Diagnosis(
    outcome=Outcome.FAILED,
    category=Category.INFRASTRUCTURE,
    type=FailureType.ECC_ERROR,
    confidence=0.9,
    decided_by="rule:x",
    root_cause=RootCause(7, "Xid 48 here", rank=3, node="n1"),
    nodes=(Suspect("n1", 0.9, ""),),
    recovery=Advice(Action.CORDON_AND_RESUBMIT, ""),
)


def changed(**fields: object) -> Diagnosis:
    return Diagnosis(**({name: getattr(RIGHT, name) for name in RIGHT.__dataclass_fields__} | fields))


def test_a_right_diagnosis_is_right_everywhere() -> None:
    """Every measure that applies holds and no fault is counted."""
    found = scoring.score_case(LABEL, RIGHT)
    assert all((found.category, found.type, found.action, found.root, found.root_top3, found.rank, found.node))
    assert not any((found.false_cordon, found.wrong_node_cordon, found.false_alarm, found.false_stop))


def test_root_line_counts_by_number_or_text() -> None:
    """The number may be shifted by a healthy log before it; the same words on another line are as good."""
    assert scoring.score_case(LABEL, changed(root_cause=RootCause(107, "other")), shift=100).root
    assert scoring.score_case(LABEL, changed(root_cause=RootCause(9, "  Xid  48 here"))).root
    assert not scoring.score_case(LABEL, changed(root_cause=RootCause(8, "other"))).root


def test_any_print_of_the_event_is_its_root_line() -> None:
    """A label may list other prints of the event that its root lines show; a line of another event stays wrong."""
    label = replace(LABEL, event_lines=(12,))
    assert scoring.score_case(label, changed(root_cause=RootCause(12, "printed again"))).root
    assert not scoring.score_case(label, changed(root_cause=RootCause(13, "another event"))).root


def test_a_second_right_type_counts_beside_the_strict_share() -> None:
    """Where a label takes a second type, that type is wrong strictly and right in ``type_also`` and ``ece_also``."""
    case = scoring.score_case(replace(LABEL, also=("gpu_lost",)), changed(type=FailureType.GPU_LOST, confidence=0.95))
    report = scoring.report([case], {})
    assert (report.shares["type"], report.shares["type_also"]) == (0.0, 1.0)
    assert report.shares["ece"] == pytest.approx(0.95)
    assert report.shares["ece_also"] == pytest.approx(0.05)
    assert (report.counts["wrong"], report.counts["wrong_above_0.9"]) == (1, 1)


def test_top3_looks_at_evidence_and_rejected() -> None:
    """A right line among the first three that the diagnosis points at counts for top-3 only."""
    near = changed(
        root_cause=RootCause(1, "x"),
        evidence=(EvidenceLine(2, "y", ""),),
        rejected=(Rejected(7, "z", FailureType.ECC_ERROR, ""),),
    )
    found = scoring.score_case(LABEL, near)
    assert (found.root, found.root_top3) == (False, True)


def test_abstaining_is_right_where_the_log_cannot_show_it() -> None:
    """With an invisible type ``unknown`` is right, and wrong otherwise."""
    unknown = changed(type=FailureType.UNKNOWN, category=Category.UNKNOWN)
    hidden = Label("a", "infrastructure", "network_error", (), "", "resubmit", type_visible=False)
    assert scoring.score_case(hidden, unknown).type
    assert not scoring.score_case(LABEL, unknown).type


def test_harm_is_counted() -> None:
    """Cordons without cause, alarms on sound runs and wrong stops each have their count."""
    script = Label("a", "script", "key_error", (), "", "notify_user")
    sound = Label("a", "none", "completed", (), "", "none")
    other = changed(nodes=(Suspect("n9", 0.9, ""),), root_cause=None)
    stop = changed(recovery=Advice(Action.NOTIFY_USER, ""))
    assert scoring.score_case(script, RIGHT).false_cordon
    assert scoring.score_case(sound, RIGHT).false_alarm
    assert scoring.score_case(LABEL, other).wrong_node_cordon
    assert scoring.score_case(LABEL, stop).false_stop


def test_a_cordon_is_false_where_the_right_action_takes_no_node() -> None:
    """Whatever its category: after a network error that only asks for a resubmit, a healthy node would be lost."""
    assert scoring.score_case(replace(LABEL, recovery="resubmit"), RIGHT).false_cordon
    assert not scoring.score_case(replace(LABEL, recovery="check_and_resubmit"), RIGHT).false_cordon


def test_folds_are_the_sources_of_cases() -> None:
    """Spellings of one source are one fold, the largest first; small ones and cases without a source are the others."""

    def cases(framework: str, count: int) -> list[ScoredVerdict]:
        label = replace(LABEL, origin={"framework": framework} if framework else {})
        return [scoring.score_case(label, RIGHT)] * count

    verdicts = [*cases("Ray", 4), *cases("ray (Train)", 2), *cases("JAX", 7), *cases("Paddle", 1), *cases("", 6)]
    folds = scoring.folds(verdicts, "framework")
    assert [(name, len(members)) for name, members in folds.items()] == [("jax", 7), ("ray", 6), ("others", 7)]
    assert list(scoring.folds(verdicts, "launcher")) == ["others"]


def test_calibration_error_is_zero_only_when_confidence_is_earned() -> None:
    """Three of four right at 0.75 is calibrated; all right at 0.75 is off by a quarter."""
    assert scoring.calibration_error([(0.75, True)] * 3 + [(0.75, False)]) == pytest.approx(0.0)
    assert scoring.calibration_error([(0.75, True)] * 4) == pytest.approx(0.25)
    assert scoring.calibration_error([]) == 0.0


def test_report_counts_and_repeats() -> None:
    """Shares, confusion and per-type counts agree, and the same seed gives the same interval."""
    wrong = scoring.score_case(LABEL, changed(type=FailureType.GPU_LOST))
    right = scoring.score_case(LABEL, RIGHT)
    report = scoring.report([right, right, wrong], {"ecc_error": 10.0}, seed=3)
    assert report.shares["type"] == pytest.approx(2 / 3)
    assert report.by_type == {"ecc_error": (2, 3)}
    assert report.confusion == {("ecc_error", "gpu_lost"): 1}
    low, high = report.intervals["type"]
    assert low <= 2 / 3 <= high
    assert scoring.report([right, right, wrong], {}, seed=3).intervals == report.intervals


def test_nodes_are_scored_over_all_and_over_those_that_a_log_can_show() -> None:
    """A case in which no line shows the cause counts for all, and not for the attributable ones."""
    hidden = scoring.score_case(replace(LABEL, silent=True), changed(nodes=(), root_cause=None))
    report = scoring.report([scoring.score_case(LABEL, RIGHT), hidden], {})
    assert (report.shares["node"], report.shares["node_attributable"]) == (0.5, 1.0)


def test_figures_may_fall_by_two_points_or_one_case() -> None:
    """What is lost behind a healthy log is named when it is more than that."""
    right, wrong = scoring.score_case(LABEL, RIGHT), scoring.score_case(LABEL, changed(type=FailureType.GPU_LOST))
    alone = scoring.report([right] * 20, {})
    assert accuracy_bars.lost(alone, scoring.report([right] * 19 + [wrong], {})) == []
    (fall,) = accuracy_bars.lost(alone, scoring.report([right] * 18 + [wrong] * 2, {}))
    assert fall.startswith("type fell from 1.000 to 0.900")


def test_bars_name_what_is_below() -> None:
    """A figure below its bar is named with its folder; a measure without cases holds."""
    report = scoring.report([scoring.score_case(LABEL, changed(type=FailureType.GPU_LOST))], {})
    assert any("dev: type is not at least 0.92" in line for line in accuracy_bars.below({"dev": report.shares}))
    assert accuracy_bars.Bar("rank", 0.95).holds(scoring.report([], {}).shares)


def test_labels_are_read() -> None:
    """A label line without optional fields is a label that can be shown; those that leave a choice are read as well."""
    label = scoring.label_of(
        {"id": "a", "category": "script", "type": "key_error", "root_lines": [3], "recovery": "notify_user"}
    )
    assert label == Label("a", "script", "key_error", (3,), "", "notify_user")
    data = {"id": "a", "category": "script", "type": "key_error", "root_lines": [3], "recovery": "notify_user"}
    both = scoring.label_of({**data, "also": ["value_error"], "event_lines": [9]})
    assert (both.also, both.event_lines) == (("value_error",), (9,))
    assert isinstance(scoring.score_case(label, RIGHT), ScoredVerdict)


def test_asking_is_worth_the_wrong_verdicts_that_it_picks() -> None:
    """Each kind of verdict with what is asked of it and what is wrong, but for kinds that have neither; and all."""
    right = replace(scoring.score_case(LABEL, RIGHT), asked=("unsure",), review_kind="words")
    wrong = replace(right, type=False)
    missed = replace(wrong, asked=(), review_kind="rule")
    spared = replace(right, asked=(), review_kind="code")
    rows = [row.figures() for row in trigger_yields([right, wrong, missed, missed, spared])]
    picks = [(row["kind"], row["cases"], row["wrong"], row["asked"], row["yield"]) for row in rows]
    assert picks == [("rule", 2, 2, 0, None), ("words", 2, 1, 2, 0.5), ("any", 5, 3, 2, 0.5)]
    assert rows[-1]["asked_share"] == 0.4
    assert rows[-1]["of_all_wrong"] == pytest.approx(1 / 3)
    [source] = totals({"ray": [right]})
    assert (source.kind, source.asked, source.figures()["of_all_wrong"]) == ("ray", 1, None)
