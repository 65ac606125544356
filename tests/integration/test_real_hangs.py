"""Real gloo jobs that hang: the rank that holds up the others is named from what the runtime of each left."""

from pathlib import Path

import pytest

from diagnoser.hang import flight_recorder
from tests.environments import TORCH
from tools.real_hangs import runs
from tools.real_hangs.runs import HangCase, HangKind
from tools.real_hangs.score import score

pytestmark = [
    pytest.mark.skipif(bool(TORCH.missing), reason=TORCH.missing),
    pytest.mark.xdist_group("real_hangs"),
]


@pytest.mark.parametrize(
    ("kind", "culprit", "found"),
    [
        (HangKind.ASLEEP, 2, "behind"),
        (HangKind.STOPPED, 1, "stack"),
        (HangKind.OTHER_ORDER, 3, "deadlock"),
        (HangKind.MISSED_BARRIER, 0, "mismatch"),
    ],
)
def test_the_rank_that_holds_up_the_others_is_the_only_suspect(
    kind: HangKind, culprit: int, found: str, tmp_path: Path
) -> None:
    """Four ranks; dumps are torch's own, stacks faulthandler's, of a stopped process py-spy's."""
    runs.run(HangCase(kind, ranks=4, culprit=culprit, seed=culprit), tmp_path / "run")
    result = score(tmp_path / "run").result
    assert [(suspect.rank, suspect.kind) for suspect in result.suspects] == [(culprit, found)]
    assert result.rejected == ()
    dumps = [path.read_bytes() for path in sorted((tmp_path / "run").glob("_dump_*"))]
    assert len(dumps) == (3 if kind is HangKind.STOPPED else 4)
    assert all(flight_recorder.DumpReader().read(data, 0).operations for data in dumps)
