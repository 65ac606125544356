"""Elasticsearch's protocol: bulk requests, at the root and below ``PREFIX``, and who answers them, below it.

A bulk request is a line with an action, a line with the document that it writes, and so on.

Each document is one record, and says where it belongs as those of NDJSON do. Only ``create`` and ``index`` write
anything; every action has its own item in the answer, in order, so that a bad one costs none of its neighbours.

Logstash and Elastic's clients send nothing before they have seen a version, a licence and the header of the product.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import orjson

from diagnoser.ingest.batch import (
    RECORDS_LIMIT,
    Batch,
    IngestReceipt,
    RecordDefaults,
    Target,
    Unattributed,
    check_count,
    check_json,
)
from diagnoser.ingest.encodings import decoder
from diagnoser.ingest.line_groups import SAMPLE_BYTES
from diagnoser.ingest.mapping import FieldMapping
from diagnoser.ingest.protocols.protocol import (
    JSON,
    Answer,
    BodyFormat,
    BodyReading,
    Description,
    Protocol,
    RequestHead,
)
from diagnoser.ingest.records import MESSAGE, RecordPlaces, epoch, text_of, time_of
from diagnoser.model.errors import BadInput, DiagnoserError, OutOfScope, Overloaded, Unavailable, Unsupported

NDJSON, PROBLEM = "application/x-ndjson", "application/problem+json"
PREFIX = "/elasticsearch"
INDEX_LENGTH = 255
PRODUCT = {"X-Elastic-Product": "Elasticsearch"}
VERSION = {
    "number": "8.17.0",
    "build_flavor": "default",
    "minimum_wire_compatibility_version": "7.17.0",
    "minimum_index_compatibility_version": "7.0.0",
}
"""Whose bulk requests are understood: those of all newer versions are the same."""

IDENTITY = {"name": "diagnoser", "cluster_name": "diagnoser", "cluster_uuid": "diagnoser", "version": VERSION}
LICENSE = {"license": {"uid": "diagnoser", "type": "basic", "status": "active", "mode": "basic"}}
WRITES = ("create", "index")
ACTIONS = (*WRITES, "update", "delete")
ILLEGAL, UNUSABLE = "illegal_argument_exception", "document_parsing_exception"
REFUSED = 400
"""With this status Filebeat, Logstash and Vector drop the document alone. With others some send it again for ever."""
AT_ONCE = 64
"""Documents that are read in one call. With many more alive, the garbage collector would look at all of them."""


class Action(NamedTuple):
    """verb: "" for a line that is no action. item: the item of the answer, up to its status."""

    verb: str
    item: bytes


class Refusal(NamedTuple):
    """Why an action was not carried out. kind: as Elasticsearch names such errors."""

    kind: str
    reason: str


@dataclass(slots=True)
class BulkBatch(Batch):
    """What a request writes, and what became of each of its actions.

    actions: in order. targets: where the document of each goes, None where it goes nowhere. refusals: by the index of
    the action. passed_over: indices of documents that belong to no job, which is no fault of theirs: a site may send
    everything that it has.
    """

    actions: list[Action] = field(default_factory=list)
    targets: list[Target | None] = field(default_factory=list)
    refusals: dict[int, Refusal] = field(default_factory=dict)
    passed_over: list[int] = field(default_factory=list)

    def refuse(self, action: Action, refusal: Refusal) -> None:
        self.refusals[len(self.actions)] = refusal
        self.actions.append(action)
        self.targets.append(None)
        self.reject(f"action {len(self.actions)}: {refusal.reason}")

    def pass_over(self, action: Action, unplaced: Unattributed, document: dict[str, Any]) -> None:
        sample = ""
        if unplaced not in self.unplaced:
            sample = orjson.dumps(document)[:SAMPLE_BYTES].decode("utf-8", "replace")
        self.leave_out(unplaced, 1, sample)
        self.passed_over.append(len(self.actions))
        self.actions.append(action)
        self.targets.append(None)

    def rename(self, names: Mapping[str, str]) -> None:
        for index, target in enumerate(self.targets):
            if target is not None:
                self.targets[index] = Target(names.get(target.job, target.job), target.attempt)
        Batch.rename(self, names)

    def drop(self, reasons: Mapping[Target, str]) -> bool:
        for index, target in enumerate(self.targets):
            if target is None:
                continue
            if target in reasons:
                self.refusals[index] = Refusal("security_exception", reasons[target])
                self.targets[index] = None
        return Batch.drop(self, reasons)

    def answer(self) -> bytes:
        others = {index: _failed(REFUSED, refusal) for index, refusal in self.refusals.items()}
        others |= dict.fromkeys(self.passed_over, b'"status":200,"result":"noop"}}')
        return self._answer(b'"status":201,"result":"created"}}', others, has_errors=bool(self.refusals))

    def answer_failed(self, status: int, reason: str) -> bytes:
        """The body of the answer when nothing is committed. Each action says that it may be sent again: rsyslog reads
        no other status."""
        outcome = _failed(status, Refusal("es_rejected_execution_exception", reason))
        return self._answer(outcome, {}, has_errors=True)

    def _answer(self, outcome: bytes, others: Mapping[int, bytes], *, has_errors: bool) -> bytes:
        whole = {action.item: action.item + outcome for action in set(self.actions)}
        items = [whole[action.item] for action in self.actions]
        for index, other in others.items():
            items[index] = self.actions[index].item + other
        # Fluent Bit looks for these very bytes where the answer is longer than its buffer.
        head = b'{"took":0,"errors":true,"items":[' if has_errors else b'{"took":0,"errors":false,"items":['
        return head + b",".join(items) + b"]}"


def _failed(status: int, refusal: Refusal) -> bytes:
    error = orjson.dumps({"type": refusal.kind, "reason": refusal.reason})
    return b'"status":%d,"error":%b}}' % (status, error)


def parse_bulk(
    body: bytes, defaults: RecordDefaults, received: float, mapping: FieldMapping, index: str = ""
) -> BulkBatch:
    """index: of the path, for actions that name none. Raises TooLarge for too many actions or lines in them."""
    check_count(body.count(b"\n"), 2 * RECORDS_LIMIT, "lines of actions and documents")
    check_json(body)
    batch, places = BulkBatch(), RecordPlaces(defaults, mapping)
    for action, document in _writes(body, index):
        if type(document) is not dict:
            batch.refuse(action, document)
            continue
        text = text_of(document)
        if text is None:
            batch.refuse(action, _unusable(f"no text: one of {', '.join(MESSAGE)} is needed"))
            continue
        placed = places.of(document)
        if isinstance(placed, Unattributed):
            batch.pass_over(action, placed, document)
            continue
        place, group = placed
        time = document.get("@timestamp")
        time = time_of(document) if time is None else epoch(time)
        group.texts.append(text.encode())
        group.times.append(math.nan if time == math.inf else time)
        batch.actions.append(action)
        batch.targets.append(place.target)
    places.groups.into(batch, received)
    return batch


def _writes(body: bytes, index: str) -> Iterator[tuple[Action, Any]]:
    """Each action with its document, or with why there is none."""
    actions = _Actions(index)
    rows = [row for row in body.split(b"\n") if row.strip()]
    # Whether every other row is an action that writes the document behind it.
    if len(rows) % 2 or not all(actions.of(row).verb in WRITES for row in set(rows[::2])):
        for action, row in _pairs(rows, actions):
            if action.verb in WRITES:
                yield action, _document(row)
            elif action.verb:
                yield action, Refusal(ILLEGAL, f"{action.verb!r} is not taken: logs are only added, by create or index")
            else:
                yield action, Refusal(ILLEGAL, "malformed action line: expected create or index")
        return
    for start in range(0, len(rows), 2 * AT_ONCE):
        documents = _documents(rows[start + 1 : start + 2 * AT_ONCE : 2])
        yield from zip(map(actions.of, rows[start : start + 2 * AT_ONCE : 2]), documents, strict=True)


def _documents(rows: Sequence[bytes]) -> Sequence[Any]:
    """Documents, each or why it is none. Read together: a call for each costs as much as reading a short one."""
    with suppress(orjson.JSONDecodeError):
        documents = orjson.loads(b"[" + b",".join(rows) + b"]")
        if len(documents) == len(rows) and all(type(document) is dict for document in documents):
            return documents  # type: ignore[no-any-return]
    return list(map(_document, rows))


def _document(row: bytes) -> Any:
    try:
        document = orjson.loads(row)
    except orjson.JSONDecodeError as error:
        return _unusable(f"it is not JSON: {error}")
    if type(document) is not dict:
        return _unusable("it is no object")
    return document


class _Actions:
    """Lines with actions, read once where they are alike."""

    def __init__(self, index: str) -> None:
        self._index = index
        self._known: dict[bytes, Action] = {}

    def of(self, row: bytes) -> Action:
        action = self._known.get(row)
        if action is None:
            action = self._known[row] = self._read(row)
        return action

    def _read(self, row: bytes) -> Action:
        try:
            action = orjson.loads(row)
        except orjson.JSONDecodeError:
            action = None
        if type(action) is not dict or len(action) != 1:
            return self._action("", {})
        ((verb, names),) = action.items()
        if verb not in ACTIONS or type(names) is not dict:
            return self._action("", {})
        return self._action(verb, names)

    def _action(self, verb: str, names: dict[str, Any]) -> Action:
        named = {"_index": names.get("_index") or self._index, "_id": names.get("_id")}
        return Action(verb, b'{"%b":%b,' % ((verb or "index").encode(), orjson.dumps(named)[:-1]))


def _pairs(lines: Sequence[bytes], actions: _Actions) -> Iterator[tuple[Action, bytes]]:
    """Actions with their documents. A line that is no action takes the next one with it, unless that is an action."""
    rows = iter(lines)
    row = next(rows, None)
    while row is not None:
        action, document = actions.of(row), b""
        row = next(rows, None)
        if row is not None and _has_document(action, row, actions):
            document, row = row, next(rows, None)
        yield action, document


def _has_document(action: Action, row: bytes, actions: _Actions) -> bool:
    if action.verb == "delete":
        return False
    if action.verb:
        return True
    return not actions.of(row).verb


def _unusable(reason: str) -> Refusal:
    return Refusal(UNUSABLE, f"the document cannot be used: {reason}")


BULK = BodyFormat(
    "bulk", parse_bulk, hint="Add a field: diagnoser.job: NAME (fields with fields_under_root in Filebeat)"
)


def _choose(head: RequestHead) -> BodyReading:
    """Takes whatever name of JSON a version of a client uses, and none that a page of another site can send."""
    name = head.content_type.partition(";")[0].strip().lower()
    if not (name.startswith(("application/", "text/")) and name.endswith("json")):
        raise Unsupported("a bulk request is application/x-ndjson or application/json")
    index = head.path_parts.get("index", "")
    if len(index) > INDEX_LENGTH:  # every item of the answer repeats it
        raise BadInput(f"the name of an index has at most {INDEX_LENGTH} characters")
    of_index = replace(BULK, parse=partial(parse_bulk, index=index))
    return BodyReading(of_index, decoder(head.encoding))


def _answer(batch: Batch, _receipt: IngestReceipt, _head: RequestHead) -> Answer:
    assert isinstance(batch, BulkBatch)
    return Answer(200, batch.answer(), JSON, PRODUCT)


def _refuse_batch(batch: Batch, error: DiagnoserError) -> Answer | None:
    assert isinstance(batch, BulkBatch)
    if isinstance(error, OutOfScope):  # nothing was left of it, and each item says why
        return Answer(200, batch.answer(), JSON, PRODUCT)
    if isinstance(error, Unavailable | Overloaded):
        return Answer(error.status, batch.answer_failed(error.status, str(error)), JSON, PRODUCT)
    return None


def _greeting(content: dict[str, Any]) -> Answer:
    return Answer(200, orjson.dumps(content), JSON, PRODUCT)


PROTOCOL = Protocol(
    name="elasticsearch",
    paths=("/_bulk", "/{index}/_bulk", PREFIX + "/_bulk", PREFIX + "/{index}/_bulk"),
    methods=("POST", "PUT"),
    formats={NDJSON: BULK},
    choose=_choose,
    answer=_answer,
    refuse_batch=_refuse_batch,
    ignores_parameters=True,
    greetings={
        PREFIX: _greeting(IDENTITY),
        PREFIX + "/": _greeting(IDENTITY),
        PREFIX + "/_license": _greeting(LICENSE),
    },
    description=Description(
        summary="Send lines as to Elasticsearch",
        text="A bulk request: an action and a document, line by line. Where an item says 201, its document is "
        "committed; 400 says why it never will be. On 429 and 503 none is, and every item says so: send them again.",
        body="Actions and documents. `Content-Encoding` may be gzip, deflate, zstd or snappy.",
        content={
            NDJSON: {
                "schema": {"type": "string"},
                "example": '{"create": {}}\n{"message": "step 1 loss 11.2", "job": "llm-7b", "rank": 0}\n',
            }
        },
        answers={
            200: {
                "description": "Every item says what became of it",
                "content": {
                    JSON: {
                        "schema": {
                            "type": "object",
                            "required": ["errors", "items"],
                            "properties": {
                                "took": {"type": "integer"},
                                "errors": {"type": "boolean"},
                                "items": {"type": "array", "items": {"type": "object"}},
                            },
                        }
                    }
                },
            }
        },
        errors={PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}, JSON: {"schema": {"type": "object"}}},
    ),
    samples=(
        b'{"create": {"_index": "i"}}\n'
        b'{"message": "a", "job": "j", "host": {"name": "n"}, "@timestamp": "2026-09-21"}\n'
        b'{"delete": {"_id": "1"}}\n{"index": {}}\n{"message": "", "job": "j", "log": {"offset": 7}}\n',
    ),
)
