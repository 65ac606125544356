"""What a process printed last is the root, not the report of somebody else that it has ended."""

import pytest

from diagnoser.model import Diagnosis
from diagnoser.model.taxonomy import FailureType
from tests.rule_files import verdict

T = FailureType


def shown(diagnosis: Diagnosis) -> tuple[int, str]:
    """Line and type of the root."""
    root = diagnosis.root_cause
    return (root.line if root else 0), str(diagnosis.type)


ROWS = tuple(f"fold {fold}: 400 rows, best depth {fold + 3}" for fold in range(4))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # make tells no name of a process, and its other jobs go on
        (
            (*ROWS, "open shards/b.csv: no such file or directory", *ROWS, "make: *** [fit.mk:8: b] Error 1", *ROWS),
            (5, T.FILE_NOT_FOUND_ERROR),
        ),
        # the report tells which process it was
        (
            (
                *(f"fit-{fold % 2}  | {row}" for fold, row in enumerate(ROWS * 3)),
                "fit-1  | cannot read shards/b.csv: permission denied",
                *(f"fit-0  | {row}" for row in ROWS),
                "fit-1 exited with code 2",
            ),
            (13, T.PERMISSION_ERROR),
        ),
        # an exception that only says that a child ended
        (
            (
                "Traceback (most recent call last):",
                '  File "/srv/fit/child.py", line 9, in main',
                "    rows = table['depth']",
                "KeyError: 'depth'",
                "Traceback (most recent call last):",
                '  File "/srv/fit/start.py", line 31, in wait',
                '    raise RuntimeError(f"worker {number} ended with {code}")',
                "RuntimeError: worker 3 ended with 1",
            ),
            (4, T.KEY_ERROR),
        ),
        # it printed nothing but what all print: the report is all that there is
        (
            (*(f"fit-{fold % 2}  | {row}" for fold, row in enumerate(ROWS * 3)), "fit-1 exited with code 2"),
            (13, T.RUNTIME_ERROR),
        ),
    ],
    ids=["nobody named", "named", "raised", "silent"],
)
def test_the_last_words_of_a_reported_process_are_the_root(lines: tuple[str, ...], expected: tuple[int, T]) -> None:
    """The report points back at the process, and what it printed last says why it ended."""
    assert shown(verdict(*lines)) == (expected[0], str(expected[1]))


def test_a_killed_process_has_no_last_words() -> None:
    """Nothing that a process printed explains a signal from outside."""
    diagnosis = verdict(*ROWS, "wrong cache entry", "make: *** [fit.mk:8: b] Killed")
    assert shown(diagnosis) == (6, str(T.HOST_OUT_OF_MEMORY))
