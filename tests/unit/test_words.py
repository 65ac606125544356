"""How values read for a person."""

import pytest

from diagnoser.adapters.files import bundled, text
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from diagnoser.recovery.policy import load
from diagnoser.wording import words
from diagnoser.wording.summaries import summary
from tests.serving import verdict


@pytest.mark.parametrize(
    ("kind", "reads"),
    [
        (FailureType.ECC_ERROR, "ECC error"),
        (FailureType.OUT_OF_MEMORY_ERROR, "Out of memory error"),
        (FailureType.NVLINK_ERROR, "NVLink error"),
        (FailureType.S3_STORAGE_ERROR, "S3 storage error"),
        (FailureType.DATALOADER_KILLED, "DataLoader killed"),
        (FailureType.UNKNOWN, "Unknown cause"),
    ],
)
def test_types_in_words(kind: FailureType, reads: str) -> None:
    """A type reads as its users write it."""
    assert words.cause(kind) == reads


def test_every_value_of_the_closed_lists_has_words() -> None:
    """No type, action or outcome can meet a page without words for it."""
    for kind in FailureType:
        for outcome in Outcome:
            assert words.cause(kind)
            assert summary(verdict(kind, outcome=outcome)).endswith(".")
    for action in Action:
        assert words.ACTIONS[action]
        assert words.ACTIONS_SHORT[action]
    for category in Category:
        assert words.category(category)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "2026-11-18T03:24:31Z [rank2]: OSError: [Errno 116] Stale file handle",
            "OSError: [Errno 116] Stale file handle",
        ),
        ("5: [rank5]: torch.AcceleratorError: CUDA error", "torch.AcceleratorError: CUDA error"),
        ("Killed", "Killed"),
        ("[rank2]: ", "[rank2]: "),
    ],
)
def test_a_narrow_column_shows_the_message(line: str, shown: str) -> None:
    """Stamps and ranks in front of it would be all that there is; a line that is nothing else stays."""
    assert words.message(line) == shown
    assert words.message("2026-11-18T03:24:31Z " + "x" * 1000).endswith("x" * 1000)


def test_nothing_in_a_line_stays_hidden() -> None:
    """Terminal codes, carriage returns, NULs, C1 codes and changes of direction show themselves; tabs and text stay."""
    shown = words.visible("a\tb\x1b[2Kc\rd\x00e\x9bf\u202eg\u2028h\x7fi é 漢")
    assert shown.replace("\u2039", "<").replace("\u203a", ">") == (
        "a\tb<1B>[2Kc<0D>d<00>e<9B>f<U+202E>g<U+2028>h<7F>i é 漢"
    )


@pytest.mark.parametrize(
    ("passed", "reads"),
    [
        (0, "just now"),
        (4.9, "just now"),
        (59, "59\u00a0s ago"),
        (60, "1\u00a0min ago"),
        (3_599, "59\u00a0min ago"),
        (7_200, "2\u00a0h ago"),
        (200_000, "2\u00a0d ago"),
        (-90, "in 1\u00a0min"),
    ],
)
def test_relative_times(passed: float, reads: str) -> None:
    """The largest unit that fits, also for times ahead."""
    assert words.ago(1e9 - passed, 1e9) == reads


@pytest.mark.parametrize(
    ("seconds", "reads"),
    [
        (0, "0\u00a0s"),
        (-5, "0\u00a0s"),
        (59.9, "59\u00a0s"),
        (3_600, "1\u00a0h"),
        (7_480, "2\u00a0h 4\u00a0min"),
        (86_405, "1\u00a0d"),
    ],
)
def test_durations(seconds: float, reads: str) -> None:
    """At most the two largest neighbouring units, without empty ones."""
    assert words.lasting(seconds) == reads


@pytest.mark.parametrize(
    ("count", "reads"), [(0, "0 bytes"), (1_023, "1023 bytes"), (61_220, "59.8 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(count: int, reads: str) -> None:
    """Sizes in the largest binary unit."""
    assert words.size(count) == reads


@pytest.mark.parametrize(("share", "reads"), [(0.0, "0 %"), (0.966, "97 %"), (0.999, "99 %"), (1.0, "100 %")])
def test_only_what_is_certain_reads_as_such(share: float, reads: str) -> None:
    """Rounding never makes a verdict certain."""
    assert words.percent(share) == reads.replace(" ", "\u2009")


@pytest.mark.parametrize(
    ("by", "reads"),
    [
        ("rule:xid_79", ("rule", "xid_79")),
        ("llm:qwen3:32b", ("language model", "qwen3:32b")),
        ("heuristic", ("heuristic", "")),
        ("oracle:x", ("oracle", "x")),
    ],
)
def test_who_decided(by: str, reads: tuple[str, str]) -> None:
    """The kind of judge in words, and which one."""
    assert words.decider(by) == reads


@pytest.mark.parametrize(
    ("given", "reads"),
    [
        ("only_a_person_can_fix_it", "Only a person can fix it"),
        ("the node is named", "the node is named"),
        ("", ""),
    ],
)
def test_reasons_in_words(given: str, reads: str) -> None:
    """The reasons of closed lists read as sentences; free text stays as it is."""
    assert words.reason(given) == reads


def test_every_row_of_the_shipped_policy_has_words() -> None:
    """No page shows the id of a row that we ship; a site's own row is shown by its name."""
    policy = load("policy.yaml", text(bundled("rules") / "policy.yaml"))
    assert {row.id for row in policy.table.rows} <= words.REASONS.keys()
    assert words.reason("our_own_row") == "Our own row"
