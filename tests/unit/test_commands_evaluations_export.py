"""`evaluations export`: rows of scores."""

from diagnoser.commands.evaluations_export import _as_csv, _as_markdown, _mlflow_name, _rows
from diagnoser.model.evaluations import EvaluationRun, RunProgress, Suite, Task, TrialRecord, TrialState

TASK = Task("sums", 7, (), ())
RUN = EvaluationRun("r1", Suite("small", ("/ckpt/step-100",), (TASK,)), "local", "/r1", "/", 0.0)
SCORED = TrialRecord("/ckpt/step-100", "sums", TrialState.SCORED, {"acc,none": 0.25, "a | b\n": 1.0, "=1+1": 0.5})
ROWS = _rows(RunProgress(RUN, (SCORED,), (), ()))


def test_a_table_has_a_row_a_metric() -> None:
    """With the step; a comma is quoted, and what a scorer calls a metric cannot break the table."""
    assert _as_csv(ROWS).splitlines()[:2] == [
        "checkpoint,step,task,metric,value",
        '/ckpt/step-100,100,sums,"acc,none",0.25',
    ]
    assert _as_csv(ROWS).splitlines()[-1] == "/ckpt/step-100,100,sums,'=1+1,0.5"
    assert _as_markdown(ROWS).splitlines()[2:] == [
        "| /ckpt/step-100 | 100 | sums | acc,none | 0.25 |",
        "| /ckpt/step-100 | 100 | sums | a \\| b | 1 |",
        "| /ckpt/step-100 | 100 | sums | =1+1 | 0.5 |",
    ]


def test_a_metric_gets_a_name_that_mlflow_takes() -> None:
    assert _mlflow_name("sums/acc,none") == "sums/acc_none"
