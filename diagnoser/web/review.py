"""Pages to confirm or correct a verdict and to search the log of an attempt."""

from fastapi import APIRouter, Depends
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse, Response
from pydantic import ValidationError

from diagnoser.model import AttemptKey
from diagnoser.web.api.diagnoses import DiagnosisId
from diagnoser.web.api.feedback import FOUND, AttemptPath, NewFeedback, find_lines, store_feedback
from diagnoser.web.api.params import JobPath, Search
from diagnoser.web.authentication import Provided, may_read
from diagnoser.web.forms import Form, Pressed
from diagnoser.web.ui import Drawn

FIELDS = ("verdict", "type", "root_line", "node", "comment")

router = APIRouter(include_in_schema=False)


@router.post("/diagnoses/{id}/feedback")
async def say(id: DiagnosisId, form: Pressed, services: Provided) -> Response:
    """Stores the feedback, then redirects to the diagnosis, so that a reload does not repeat it."""
    await store_feedback(services, form.caller, id, _read(form))
    return RedirectResponse(f"/diagnoses/{id}#feedback", status_code=303)


@router.get("/jobs/{id}/attempts/{number}/search", dependencies=[Depends(may_read)])
async def search(id: JobPath, number: AttemptPath, services: Provided, pages: Drawn, q: Search = "") -> Response:
    results = await find_lines(services, AttemptKey(id, number), q, FOUND) if q.strip() else []
    return pages.draw("search.html", job=id, number=number, q=q, found=results)


def _read(form: Form) -> NewFeedback:
    """Reads a form; empty fields count as absent. Raises RequestValidationError."""
    fields = {name: form.text(name) for name in FIELDS if form.text(name)}
    try:
        return NewFeedback.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
