"""Routes for feedback on a diagnosis, similar confirmed failures, and search in the log of an attempt."""

from typing import Annotated, Self

from fastapi import Path, Query
from pydantic import AliasPath, Field

from diagnoser.logview.log_index import LogIndex
from diagnoser.model import AttemptKey, Feedback, FeedbackVerdict, RootCause, Similar, Stream
from diagnoser.model.access import Credential
from diagnoser.model.errors import BadInput, NotFound, existing
from diagnoser.model.taxonomy import Category, FailureType, category_of
from diagnoser.model.work import DiagnosisRecord
from diagnoser.retrieval.search import SearchResult
from diagnoser.web.api.attempt_log import LineName
from diagnoser.web.api.diagnoses import DiagnosisId, find
from diagnoser.web.api.params import IS_NUMBER, LARGEST, JobPath, KnownRank, Node
from diagnoser.web.api.plans import Comment, Ignored
from diagnoser.web.api.schemas import DiagnosisShape
from diagnoser.web.http.authentication import OPERATE, READ, Caller
from diagnoser.web.http.dependencies import Logs, Scoped
from diagnoser.web.http.problems import answers
from diagnoser.web.http.routing import Answer, ApiRouter, Schema, StrictSchema

SHOWN, SHOWN_LIMIT = 5, 50
FOUND, FOUND_LIMIT = 20, 200
ID_SECONDS = 0.01
"""More than the time that an id tells apart."""

router = ApiRouter("feedback")

FeedbackId = Annotated[str, Field(max_length=100)]


class NewFeedback(StrictSchema):
    """``confirmed``: the verdict is right. ``corrected``: at least one of type, root_line, node, rank is given."""

    verdict: FeedbackVerdict
    type: FailureType | None = None
    root_line: Annotated[int, Field(ge=1, le=LARGEST), IS_NUMBER] | None = Field(
        None, description="1-based, as in the diagnosis"
    )
    root_id: LineName = Field("", description="The row of that line in the log, which also tells its stream")
    node: Node | None = None
    rank: Annotated[int, Field(ge=0, lt=1 << 31), IS_NUMBER] | None = Field(None, description="That failed first")
    comment: Comment = ""
    after: FeedbackId | None = Field(
        None, description="Id of the newest feedback that you know, empty for none: with a newer one the answer is 409"
    )
    by: Ignored = None


class TakenBack(StrictSchema):
    """feedback: id of the newest feedback on the diagnosis."""

    feedback: FeedbackId
    by: Ignored = None


class SimilarShape(Answer):
    """A confirmed failure. score: 1 is the same. done: what was done about it, as far as the service knows."""

    id: str
    url: str
    job: str
    attempt: int
    score: float
    type: FailureType
    category: Category
    verdict: FeedbackVerdict
    by: str
    line: str
    done: str
    comment: str

    @classmethod
    def from_match(cls, match: Similar, base_url: str) -> Self:
        confirmed = match.confirmed
        return cls.filled_from(
            confirmed,
            id=confirmed.diagnosis,
            url=f"{base_url}/diagnoses/{confirmed.diagnosis}",
            job=confirmed.attempt.job,
            attempt=confirmed.attempt.number,
            score=match.score,
            category=category_of(confirmed.type),
        )


class SimilarList(Schema):
    """The most similar first."""

    items: list[SimilarShape]


class FoundShape(Answer):
    """A kept line, or (count > 1) a template of routine lines with its first occurrence. score: 0 to 1."""

    source: str = Field(validation_alias=AliasPath("stream", "source"))
    node: str = Field(validation_alias=AliasPath("stream", "node"))
    rank: KnownRank
    line: int
    text: str
    count: int
    is_template: bool
    score: float


class FoundList(Schema):
    """The best match first."""

    items: list[FoundShape]


AttemptPath = Annotated[int, Path(ge=1, lt=1 << 31, description="Number of the attempt")]
Words = Annotated[str, Query(min_length=1, max_length=200, description="Words to search for; they need not be exact")]


@router.post(
    "/diagnoses/{id}/feedback",
    dependencies=OPERATE,
    responses=answers(404, 409),
    summary="Confirm or correct a diagnosis",
)
async def say(id: DiagnosisId, body: NewFeedback, scope: Scoped, caller: Caller) -> DiagnosisShape:
    """The newest feedback counts; earlier feedback is kept. The original verdict does not change. The next failure of
    the job family that looks the same is decided by it. The same feedback sent twice is stored once."""
    return DiagnosisShape.from_record(await store_feedback(scope, caller, id, body), scope.core.config.base_url)


@router.post(
    "/diagnoses/{id}/feedback/take-back",
    dependencies=OPERATE,
    responses=answers(404, 409),
    summary="Take back feedback on a diagnosis",
)
async def take_back(id: DiagnosisId, body: TakenBack, scope: Scoped, caller: Caller) -> DiagnosisShape:
    """What was said before counts again, rules learned from it are retired, and failures that it decided (`GET
    /api/v1/diagnoses?decided_by=incident:<id>`) are diagnosed again. The audit log keeps it."""
    record = await take_back_feedback(scope, caller, id, body.feedback)
    return DiagnosisShape.from_record(record, scope.core.config.base_url)


@router.get("/diagnoses/{id}/similar", dependencies=READ, responses=answers(404), summary="Similar confirmed failures")
async def similar(
    id: DiagnosisId,
    scope: Scoped,
    limit: Annotated[int, Query(ge=1, le=SHOWN_LIMIT)] = SHOWN,
) -> SimilarList:
    """The most similar failures of other attempts whose cause is confirmed."""
    matches = await scope.confirmed_failures.similar(await find(scope.core.store, id), limit)
    return SimilarList(items=[SimilarShape.from_match(match, scope.core.config.base_url) for match in matches])


@router.get(
    "/jobs/{id}/attempts/{number}/search",
    dependencies=READ,
    responses=answers(404),
    summary="Search the log of an attempt",
)
async def search(
    id: JobPath,
    number: AttemptPath,
    q: Words,
    scope: Scoped,
    limit: Annotated[int, Query(ge=1, le=FOUND_LIMIT)] = FOUND,
) -> FoundList:
    """Kept lines and templates of routine lines that match the words of ``q``."""
    return FoundList(items=FoundShape.list_of(await find_lines(scope, AttemptKey(id, number), q, limit)))


async def store_feedback(scope: Scoped, caller: Credential, id: str, body: NewFeedback) -> DiagnosisRecord:
    """The diagnosis with the new feedback. Raises NotFound, BadInput, Conflict."""
    record = await find(scope.core.store, id)
    _check(body, record)
    # The newest counts, by its id: also where the clock was set back since the one before.
    now = max((scope.core.clock(), *(given.created + ID_SECONDS for given in record.feedback)))
    number, stream = await _root_of(scope.logs, record, body)
    feedback = Feedback(
        id=scope.core.make_id(now),
        diagnosis=id,
        created=now,
        by=caller.name,
        comment=body.comment,
        root_line=number,
        root_stream=stream,
        **body.model_dump(include={"verdict", "type", "node", "rank"}),
    )
    await scope.confirmed_failures.learn(record, feedback, body.after)
    return await find(scope.core.store, id)


async def take_back_feedback(scope: Scoped, caller: Credential, id: str, feedback: str) -> DiagnosisRecord:
    """The diagnosis without that feedback. Raises NotFound, Conflict where it is not the newest."""
    record = await find(scope.core.store, id)
    await scope.confirmed_failures.take_back(record, feedback, caller.name, scope.core.clock())
    return await find(scope.core.store, id)


async def _root_of(logs: Logs, record: DiagnosisRecord, body: NewFeedback) -> tuple[int | None, Stream | None]:
    """The chosen line: its number, and the stream where that is known. Raises BadInput."""
    if not body.root_line and not body.root_id:
        return None, None
    try:
        index = (await logs.indexes.load(record.attempt)).index
    except NotFound:  # the log is not stored any more
        return body.root_line, None
    if body.root_id:
        key, _, number = body.root_id.rpartition("-")
        stream = index.stream_named(key)
        if stream and number.isdecimal():
            line = int(number[:20])
            if body.root_line in (None, line):
                return line, stream
        raise BadInput(f"root_id {body.root_id!r} names no line of this log, or another one than root_line")
    assert body.root_line, "checked above"
    return body.root_line, likely_stream(index, record.diagnosis.root_cause, body.root_line)


def likely_stream(index: LogIndex, root: RootCause | None, number: int) -> Stream | None:
    """The only stream with a line of that number, else the one that the verdict's root line is of; None where neither
    tells."""
    streams = index.streams_with(number)
    if len(streams) == 1:
        return streams[0]
    if root is None:
        return None
    position = index.position(root.source, root.line, root.text)
    if position < 0:
        return None
    of_root = index.row(position).stream
    return of_root if of_root in streams else None


async def find_lines(scope: Scoped, attempt: AttemptKey, words: str, limit: int) -> list[SearchResult]:
    """Raises NotFound."""
    existing(await scope.core.store.jobs.attempt(attempt), f"job {attempt.job!r} has no attempt {attempt.number}")
    return await scope.confirmed_failures.search(attempt, words, limit)


def _check(body: NewFeedback, record: DiagnosisRecord) -> None:
    """Raises BadInput where the parts contradict each other."""
    correction = any((body.type, body.root_line, body.root_id, body.node, body.rank is not None))
    if body.verdict is FeedbackVerdict.CORRECTED and not correction:
        raise BadInput("a correction needs at least one of type, root_line, node and rank")
    if body.verdict is FeedbackVerdict.CONFIRMED and body.type not in (None, record.diagnosis.type):
        raise BadInput(f"the verdict is {record.diagnosis.type}: to name another type, send verdict 'corrected'")
