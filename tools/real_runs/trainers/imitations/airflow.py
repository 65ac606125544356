"""The log of a task of Airflow that trains a model in a Python operator."""

_SITE = "/home/airflow/.local/lib/python3.11/site-packages"


def begin(draw):
    return [
        "[@ISO] {local_task_job_runner.py:123} INFO - ::group::Pre task execution logs",
        "[@ISO] {taskinstance.py:2613} INFO - Dependencies all met for dep_context=non-requeueable deps ti=<TaskInstance: retrain_churn.train scheduled__2026-11-26T18:00:00+00:00 [queued]>",
        "[@ISO] {taskinstance.py:2866} INFO - Starting attempt 1 of 1",
        "[@ISO] {taskinstance.py:2889} INFO - Executing <Task(PythonOperator): train> on 2026-11-26 18:00:00+00:00",
        "[@ISO] {standard_task_runner.py:72} INFO - Started process 3381 to run task",
        "[@ISO] {standard_task_runner.py:105} INFO - Job 5512: Subtask train",
        "[@ISO] {task_command.py:467} INFO - Running <TaskInstance: retrain_churn.train scheduled__2026-11-26T18:00:00+00:00 [running]> on host gpu-033",
        "[@ISO] {taskinstance.py:3132} INFO - Exporting env vars: AIRFLOW_CTX_DAG_OWNER='ml' AIRFLOW_CTX_DAG_ID='retrain_churn' AIRFLOW_CTX_TASK_ID='train'",
        "[@ISO] {taskinstance.py:731} INFO - ::endgroup::",
    ]


def step(draw, number, steps):
    lines = [
        f"[@ISO] {{logging_mixin.py:190}} INFO - epoch {number:03d} train_auc={0.6 + 0.3 * number / steps:.4f} valid_auc={0.6 + 0.25 * number / steps + draw.uniform(-0.01, 0.01):.4f}"
    ]
    if number % 15 == 0:
        lines.append("[@ISO] {base.py:84} INFO - Retrieving connection 'warehouse'")
        lines.append(f"[@ISO] {{churn.py:71}} INFO - wrote /data/models/churn/epoch_{number:03d}.joblib")
    return lines


def finish(draw):
    return [
        "[@ISO] {python.py:240} INFO - Done. Returned value was: 0.8421",
        "[@ISO] {taskinstance.py:340} INFO - ::group::Post task execution logs",
        "[@ISO] {taskinstance.py:352} INFO - Marking task as SUCCESS. dag_id=retrain_churn, task_id=train, run_id=scheduled__2026-11-26T18:00:00+00:00, execution_date=20261126T180000, start_date=20261126T203205, end_date=20261126T204811",
        "[@ISO] {local_task_job_runner.py:266} INFO - Task exited with return code 0",
    ]


def _failed(frames, error):
    return [
        "[@ISO] {taskinstance.py:3310} ERROR - Task failed with exception",
        "Traceback (most recent call last):",
        f'  File "{_SITE}/airflow/models/taskinstance.py", line 767, in _execute_task',
        "    result = _execute_callable(context=context, **execute_callable_kwargs)",
        f'  File "{_SITE}/airflow/operators/python.py", line 238, in execute',
        "    return_value = self.execute_callable()",
        *frames,
        error,
        "[@ISO] {taskinstance.py:1225} INFO - Marking task as FAILED. dag_id=retrain_churn, task_id=train, run_id=scheduled__2026-11-26T18:00:00+00:00, execution_date=20261126T180000, start_date=20261126T203205, end_date=20261126T204811",
        "[@ISO] {taskinstance.py:340} INFO - ::group::Post task execution logs",
        f"[@ISO] {{standard_task_runner.py:124}} ERROR - Failed to execute job 5512 for task train ({error}; 3381)",
        "[@ISO] {local_task_job_runner.py:266} INFO - Task exited with return code 1",
    ]


_DAG = ['  File "/opt/airflow/dags/churn.py", line 58, in train_model', "    model.fit(frame[FEATURES], frame.label)"]
FAULTS = {
    "type": (0.3, _failed(_DAG, "TypeError: unsupported operand type(s) for -: 'str' and 'float'"), 1),
    "nan-input": (
        0.1,
        _failed(
            [
                *_DAG,
                f'  File "{_SITE}/sklearn/utils/validation.py", line 122, in _assert_all_finite',
                "    _assert_all_finite_element_wise(",
            ],
            "ValueError: Input X contains NaN.",
        ),
        1,
    ),
    "database": (
        0.5,
        _failed(
            _DAG[:1],
            'psycopg2.OperationalError: connection to server at "warehouse" (10.1.0.70), port 5432 failed: Connection refused',
        ),
        1,
    ),
    "attribute": (0.9, _failed(_DAG[:1], "AttributeError: 'DataFrame' object has no attribute 'append'"), 1),
    "zombie": (
        0.6,
        [
            "[@ISO] {scheduler_job_runner.py:1737} ERROR - Detected zombie job: {'full_filepath': '/opt/airflow/dags/churn.py', 'processor_subdir': '/opt/airflow/dags', 'msg': \"{'DAG Id': 'retrain_churn', 'Task Id': 'train', 'Hostname': 'gpu-033'}\"}"
        ],
        1,
    ),
    "killed": (
        0.7,
        [
            "[@ISO] {local_task_job_runner.py:266} INFO - Task exited with return code -9",
            "[@ISO] {standard_task_runner.py:184} ERROR - ('Job 5512 was killed before it finished (likely due to running out of memory)', 'For more information, see the troubleshooting guide')",
        ],
        1,
    ),
    "externally-set": (
        0.5,
        [
            "[@ISO] {local_task_job_runner.py:346} WARNING - State of this instance has been externally set to failed. Terminating instance.",
            "[@ISO] {process_utils.py:132} INFO - Sending 15 to group 3381. PIDs of all processes in the group: [3381]",
            "[@ISO] {taskinstance.py:3093} ERROR - Received SIGTERM. Terminating subprocesses.",
            "[@ISO] {process_utils.py:80} INFO - Process psutil.Process(pid=3381, status='terminated', exitcode=1, started='20:32:05') (3381) terminated with exit code 1",
        ],
        1,
    ),
    "timeout": (
        0.8,
        [
            "[@ISO] {timeout.py:68} ERROR - Process timed out, PID: 3381",
            *_failed(_DAG[:1], "airflow.exceptions.AirflowTaskTimeout: Timeout, PID: 3381"),
        ],
        1,
    ),
    "ok-warned": (
        1.0,
        [
            "[@ISO] {warnings.py:110} WARNING - /opt/airflow/dags/churn.py:61: ConvergenceWarning: lbfgs failed to converge (status=1):",
            "STOP: TOTAL NO. of ITERATIONS REACHED LIMIT.",
            "Increase the number of iterations (max_iter) or scale the data.",
        ],
        0,
    ),
}
