"""Drop-in for NVIDIA's attribution service: ``ft_launcher --ft-attribution-endpoint http://host:port``.

Requests, answers and errors have the shapes of nvidia-resiliency-ext, not those of the rest of the API.
"""

from typing import Annotated, Any, Literal

from fastapi import Query
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, field_validator

from diagnoser.integrations.ft_launcher import AnalysisProgress, LogAttribution, Recommendation, recommend
from diagnoser.model import Diagnosis, cited_place
from diagnoser.model.errors import LogRefusal, LogRefused, NotFound
from diagnoser.model.record_json import fields_of
from diagnoser.web.api.params import IS_NUMBER
from diagnoser.web.http.authentication import READ
from diagnoser.web.http.dependencies import Attribution
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Router, Schema

SOURCE = "diagnoser"
_STATUS = {
    LogRefusal.NOT_FOUND: 404,
    LogRefusal.OUTSIDE_ROOT: 403,
    LogRefusal.NOT_READABLE: 403,
    LogRefusal.INVALID_PATH: 400,
    LogRefusal.NOT_REGULAR: 400,
    LogRefusal.EMPTY_FILE: 400,
}
_RESUME = {
    Recommendation.STOP: "STOP - DONT RESTART IMMEDIATE",
    Recommendation.RESTART: "RESTART IMMEDIATE",
    Recommendation.CONTINUE: "ERRORS NOT FOUND",
    Recommendation.UNKNOWN: "UNKNOWN",
}

router = Router(tags=["ft_launcher"])


class Refusal(Schema):
    """A log file that is not read."""

    error_code: LogRefusal
    message: str


ANSWERS: dict[int | str, dict[str, Any]] = {
    status: {**about, "model": Refusal} for status, about in answers(400, 403, 404).items()
}

LogPath = Annotated[str, Field(min_length=1, max_length=4096)]


class Submission(Schema):
    """Names of users, jobs and cycles are accepted and not used. Unknown fields of later versions are ignored."""

    model_config = ConfigDict(extra="ignore")

    log_path: LogPath
    user: str | None = None
    job_id: str | None = None
    cycle_id: Annotated[int, IS_NUMBER] | None = None
    analysis_intent: Literal["track_only", "progressive", "terminal"] = "track_only"

    @field_validator("analysis_intent", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.strip().lower() if isinstance(value, str) else value


class Submitted(Schema):
    submitted: bool = True
    normalized_path: str
    mode: str = "SINGLE"
    logs_dir: str | None = None
    sched_restarts: int = 0
    files_analyzed: int = 0


class Recommended(Schema):
    action: str
    reason: str
    source: str


class Result(Schema):
    """One log, one cycle. ``result`` is empty until ``status`` is completed."""

    result: dict[str, Any]
    status: str
    wl_restart: int = 0
    wl_restart_count: int | None = None
    recommendation: Recommended


@router.post(
    "/logs", dependencies=READ, response_model=Submitted, responses=ANSWERS, summary="ft_launcher: submit a log file"
)
async def submit(body: Submission, attribution: Attribution) -> Submitted | JSONResponse:
    """With `analysis_intent: terminal` the job has failed, and its log is analysed now."""
    try:
        _of(attribution).submit(body.log_path, terminal=body.analysis_intent == "terminal")
    except LogRefused as refused:
        return _refusal(refused)
    return Submitted(normalized_path=body.log_path)


@router.get(
    "/logs",
    dependencies=READ,
    response_model=Result,
    responses=ANSWERS,
    summary="ft_launcher: whether to restart the job",
)
async def result(
    attribution: Attribution, log_path: Annotated[LogPath, Query()], wait: bool = True
) -> Result | JSONResponse:
    """`recommendation.action`: STOP, RESTART, CONTINUE or UNKNOWN. `wait=false` answers at once; ask again until
    `status` is `completed`."""
    try:
        progress, diagnosis = await _of(attribution).result(log_path, wait=wait)
    except LogRefused as refused:
        return _refusal(refused)
    if diagnosis is None:
        pending = Recommended(action=Recommendation.UNKNOWN, reason="", source=SOURCE)
        return Result(result={}, status=progress, recommendation=pending)
    return _result(diagnosis)


@router.get("/healthz", summary="ft_launcher: liveness")
async def healthz() -> dict[str, str]:
    return {"status": "ok"}


def _of(attribution: LogAttribution | None) -> LogAttribution:
    if attribution is None:
        raise NotFound("No folder of logs is set: DIAGNOSER_FT_LAUNCHER_LOG_ROOT.")
    return attribution


def _refusal(refused: LogRefused) -> JSONResponse:
    return JSONResponse({"error_code": refused.code, "message": str(refused)}, _STATUS[refused.code])


def _result(diagnosis: Diagnosis) -> Result:
    action, why = recommend(diagnosis), _why(diagnosis)
    item = {
        "raw_text": "\n".join((_RESUME[action], why, diagnosis.mitigation)),
        "auto_resume": _RESUME[action],
        "auto_resume_explanation": why,
        "attribution_text": diagnosis.mitigation,
        "checkpoint_saved_flag": 0,
        "action": action,
        "primary_issues": [diagnosis.type] if diagnosis.root_cause else [],
        "secondary_issues": list(dict.fromkeys(symptom.type for symptom in diagnosis.symptoms)),
    }
    state = Recommendation.STOP if action is Recommendation.STOP else Recommendation.CONTINUE
    return Result(
        result={"module": "log_analyzer", "state": state, "result": [item], "diagnosis": _verdict(diagnosis)},
        status=AnalysisProgress.COMPLETED,
        wl_restart_count=1,
        recommendation=Recommended(action=action, reason=why, source=SOURCE),
    )


def _why(diagnosis: Diagnosis) -> str:
    root = diagnosis.root_cause
    if root is None:
        return f"the run {diagnosis.outcome}"
    return f"{diagnosis.type}: {cited_place(root.source, root.line)}: {root.text[:500]}"


def _verdict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The verdict in this service's own fields, which the launcher ignores."""
    root = diagnosis.root_cause
    return {
        **fields_of(diagnosis, ("outcome", "category", "type", "confidence", "decided_by")),
        "line": getattr(root, "line", None),
        "rank": getattr(root, "rank", None),
        "node": getattr(root, "node", None),
        "action": diagnosis.recovery.action,
        "notes": list(diagnosis.notes),
    }
