"""Post-mortems as files: of a failure, and of an incident. They leave the service, so that secrets are masked."""

from urllib.parse import quote

from fastapi.responses import Response

from diagnoser.model.errors import NotFound
from diagnoser.model.work import DiagnosisRecord
from diagnoser.web.api.diagnoses import DiagnosisId
from diagnoser.web.api.diagnoses import find as find_diagnosis
from diagnoser.web.api.incidents import IncidentId
from diagnoser.web.api.incidents import find as find_incident
from diagnoser.web.http.dependencies import Core
from diagnoser.web.pages.rendering import reading_pages
from diagnoser.wording.post_mortem import FAILURES, FailureStory, failure_post_mortem, incident_post_mortem

router = reading_pages()


@router.get("/diagnoses/{id}/post-mortem.md")
async def of_diagnosis(id: DiagnosisId, core: Core) -> Response:
    """Of the failure that a diagnosis is of."""
    story = await _story(core, await find_diagnosis(core.store, id))
    if story is None:
        raise NotFound("the launch of this diagnosis is not stored any more")
    text = failure_post_mortem(story, core.clock(), f"{core.config.base_url}/diagnoses/{id}", core.redact)
    return _file(f"post-mortem-{id}.md", text)


@router.get("/incidents/{id}/post-mortem.md")
async def of_incident(id: IncidentId, core: Core) -> Response:
    """Of an incident, by its newest failures."""
    incident = await find_incident(core.store, id)
    records = await core.store.incidents.failures(id, "", FAILURES)
    stories = [story for record in records if (story := await _story(core, record))]
    link = f"{core.config.base_url}/incidents/{id}"
    return _file(f"post-mortem-{id}.md", incident_post_mortem(incident, stories, core.clock(), link, core.redact))


async def _story(core: Core, record: DiagnosisRecord) -> FailureStory | None:
    """None where the launch is not stored any more."""
    job, attempts = await core.store.jobs.find(record.attempt.job), await core.store.jobs.attempts(record.attempt.job)
    attempt = next((attempt for attempt in attempts if attempt.key == record.attempt), None)
    if attempt is None:
        return None
    later = [other for other in attempts if other.key.number > attempt.key.number]
    return FailureStory(record, job, attempt, min(later, key=lambda other: other.key.number, default=None))


def _file(name: str, text: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{quote(name)}"', "Cache-Control": "no-store"}
    return Response(text, media_type="text/markdown; charset=utf-8", headers=headers)
