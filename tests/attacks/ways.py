"""Every way in, each for the lies that it can carry: how what a job controls reaches the service."""

import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cramjam

from diagnoser.commands.consume import refused
from diagnoser.ingest.batch import RecordDefaults
from diagnoser.ingest.job_access import JobAccess
from diagnoser.ingest.mapping import DEFAULT
from diagnoser.ingest.messages import MessageFormat, MessageReader
from diagnoser.model.logs import Partition
from diagnoser.model.queries import DiagnosisFilter
from diagnoser.ports import Message
from tests.attacks import records
from tests.attacks.lies import CUDA, WATCHDOG, Lie, Surface
from tests.attacks.records import BULK, JSON, LOGS, LOKI, NDJSON, OTLP, PROTOBUF, SYSLOG, TEXT, Post
from tests.attacks.site import API, CREDENTIALS, SLACK_SECRET, Lab, Site
from tests.loki_messages import PushRequest

TOPIC = Partition("brokers", "diagnoser", "logs", 0)
STEPS = ("step 1 loss 11.2", "step 2 loss 10.9")
FULL = "OSError: [Errno 28] No space left on device: '/local/x'"
READ_ONLY = "OSError: [Errno 30] Read-only file system: '/local/x'"


@dataclass
class Attempted:
    """An attack under way. target: the node to be blamed. answers: what nodes say to queries."""

    site: Site
    lab: Lab
    lie: Lie
    target: str
    failure: str = CUDA
    answers: Mapping[str, str] = field(default_factory=dict)

    @property
    def payload(self) -> Any:
        """The lie, about this lab."""
        names = {
            "%TARGET%": self.target,
            "%FOREIGN%": self.lab.foreign,
            "%SHARED%": self.lab.shared,
            "%CLUSTER%": self.lab.cluster,
            "%JOB%": self.lab.liar,
            "%VICTIM%": self.lab.victim,
        }
        return _filled(self.lie.payload, names)


def _filled(payload: Any, names: Mapping[str, str]) -> Any:
    if isinstance(payload, dict):
        return {_filled(key, names): _filled(value, names) for key, value in payload.items()}
    if isinstance(payload, str):
        for name, value in names.items():
            payload = payload.replace(name, value)
    return payload


Tell = Callable[[Attempted], Awaitable[None]]
Form = Callable[[Attempted, str], Post]
"""Lines of the liar's job as one protocol carries them."""


@dataclass(frozen=True, slots=True)
class Way:
    """tell: the whole course of an attack, from the registration on. route: what it goes through, "" for none of HTTP.

    by_token: only a token tells who speaks. Without tokens everybody speaks as everybody, and it is no attack.
    """

    name: str
    surface: Surface
    tell: Tell
    route: str = LOGS
    by_token: bool = False


# Lines and records of the liar's job


def _text(attempted: Attempted, text: str, **query: str) -> Post:
    return Post(LOGS, f"{text}\n".encode(), TEXT, {"job": attempted.lab.liar, **query})


def _of_rank(attempted: Attempted, text: str) -> Post:
    return _text(attempted, text, rank="1", node=attempted.lab.shared, attempt="1")


def _client(attempted: Attempted, text: str) -> Post:
    """As client.pyz numbers its lines: after the steps that came before."""
    return _text(attempted, text, rank="0", source="stderr", attempt="1", offset="0")


def _as_kernel(source: str, attempted: Attempted, text: str) -> Post:
    return _text(attempted, text, source=source, node=attempted.target)


def _ndjson(attempted: Attempted, text: str) -> Post:
    return Post(LOGS, json.dumps({"message": text, "job": attempted.lab.liar}).encode(), NDJSON)


def _array(attempted: Attempted, text: str) -> Post:
    return Post(LOGS, json.dumps([{"message": text, "job": attempted.lab.liar}, text]).encode(), JSON, _job(attempted))


def _fluent_bit(attempted: Attempted, text: str) -> Post:
    record = {"time": "2026-11-22T01:00:00Z", "log": text, "log.file.path": "/var/log/training/a/rank-1.log"}
    record |= {"host.name": attempted.lab.shared, "job": attempted.lab.liar}
    return Post(LOGS, json.dumps([record]).encode(), JSON)


def _program(attempted: Attempted, text: str) -> Post:
    """A syslog message of the job: a daemon makes one line of it."""
    head = f'<11>1 2026-11-22T01:00:00Z {attempted.lab.shared} train 4711 - [diagnoser@0 job="{attempted.lab.liar}"] '
    return Post(LOGS, f"{head}{' '.join(text.splitlines())}\n".encode(), SYSLOG)


def _raw_program(attempted: Attempted, text: str) -> Post:
    """The same, where the sender leaves newlines in: what follows may look like a message of the kernel."""
    post = _program(attempted, "x")
    return Post(post.path, post.body + f"{text}\n".encode(), post.kind, _job(attempted))


def _loki_proto(attempted: Attempted, text: str) -> Post:
    request = PushRequest()
    stream = request.streams.add(labels=f'{{job="{attempted.lab.liar}", node="{attempted.lab.shared}"}}')
    stream.entries.add(line=text).timestamp.seconds = int(time.time())
    return Post(LOKI, bytes(cramjam.snappy.compress_raw(request.SerializeToString())), PROTOBUF)


def _loki_json(attempted: Attempted, text: str) -> Post:
    return records.loki({"job": attempted.lab.liar}, text, _place(attempted))


def _otlp(attempted: Attempted, text: str) -> Post:
    return records.otlp({"diagnoser.job": attempted.lab.liar}, text, _place(attempted))


def _otlp_json(attempted: Attempted, text: str) -> Post:
    job = {"key": "job", "value": {"stringValue": attempted.lab.liar}}
    scope = {"logRecords": [{"body": {"stringValue": text}, "timeUnixNano": str(int(time.time() * 1e9))}]}
    body = {"resourceLogs": [{"resource": {"attributes": [job]}, "scopeLogs": [scope]}]}
    return Post(OTLP, json.dumps(body).encode(), JSON)


def _bulk(attempted: Attempted, text: str) -> Post:
    return records.bulk({"message": text, "job": attempted.lab.liar}, _place(attempted))


FORMS: Mapping[str, Form] = {
    "text": _text,
    "text-of-rank": _of_rank,
    "client": _client,
    "ndjson": _ndjson,
    "json": _array,
    "fluent-bit": _fluent_bit,
    "syslog": _program,
    "loki": _loki_proto,
    "loki-json": _loki_json,
    "otlp": _otlp,
    "otlp-json": _otlp_json,
    "bulk": _bulk,
}
LYING_FORMS: Mapping[str, Form] = {
    "text-as-kernel": partial(_as_kernel, "kernel"),
    "text-as-scheduler": partial(_as_kernel, "scheduler"),
    "syslog-raw": _raw_program,
}
"""Where the shipper itself is the liar's."""

# Records whose fields the job chose: the shipper takes JSON that the job prints apart, or labels that its pod carries


def _merged(kind: str, attempted: Attempted) -> Post:
    record = json.dumps(attempted.payload)
    return Post(LOGS, f"[{record}]".encode() if kind == JSON else f"{record}\n".encode(), kind, _job(attempted))


def _labelled(attempted: Attempted) -> tuple[dict[str, str], str]:
    fields = {"job": attempted.lab.liar, **attempted.payload}
    text = str(fields.pop("message"))
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}, text


def _loki_labels(attempted: Attempted) -> Post:
    labels, text = _labelled(attempted)
    return records.loki(labels, text, _place(attempted))


def _otlp_attributes(attempted: Attempted) -> Post:
    attributes, text = _labelled(attempted)
    return records.otlp(attributes, text, _place(attempted))


def _bulk_document(attempted: Attempted) -> Post:
    return records.bulk({"job": attempted.lab.liar, **attempted.payload}, _place(attempted))


MERGED: Mapping[str, Callable[[Attempted], Post]] = {
    "ndjson-fields": partial(_merged, NDJSON),
    "json-fields": partial(_merged, JSON),
    "loki-labels": _loki_labels,
    "otlp-attributes": _otlp_attributes,
    "bulk-fields": _bulk_document,
}


def _job(attempted: Attempted) -> dict[str, str]:
    return {"job": attempted.lab.liar}


def _place(attempted: Attempted) -> records.Place:
    return attempted.site.place(attempted.lab, attempted.lab.shared)


# The course of an attack


async def _begin(attempted: Attempted, *, victim: bool = True) -> None:
    """The agent reports for work; both jobs are registered, and train."""
    site, lab = attempted.site, attempted.lab
    await site.call(lab, "agent", f"{API}/plans/claim", sound=True, json={"executor": "double", "cluster": lab.cluster})
    await site.register(lab, lab.liar, "red", lab.own)
    await site.prints(lab, "red", lab.liar, *STEPS)
    if victim:
        await site.register(lab, lab.victim, "blue", lab.theirs)
        await site.prints(lab, "blue", lab.victim, *STEPS)


async def _prints(form: Form, who: str, attempted: Attempted) -> None:
    await _begin(attempted)
    await attempted.site.send(attempted.lab, who, form(attempted, attempted.payload))
    await attempted.site.ends(attempted.lab, attempted.lab.liar)


async def _merges(form: Callable[[Attempted], Post], who: str, attempted: Attempted) -> None:
    await _begin(attempted)
    await attempted.site.send(attempted.lab, who, form(attempted))
    await attempted.site.prints(attempted.lab, "red", attempted.lab.liar, attempted.failure)
    await attempted.site.ends(attempted.lab, attempted.lab.liar)


async def _consumes(format: MessageFormat, attempted: Attempted) -> None:
    """A topic that jobs may write to, read as `diagnoser consume` does it."""
    site, lab, lie = attempted.site, attempted.lab, attempted.lie
    await _begin(attempted)
    sender = CREDENTIALS["ingest"]
    payload = attempted.payload
    value = payload if format == "text" else json.dumps(payload if lie.surface is Surface.RECORD else {"log": payload})
    message = Message(TOPIC, 1, lab.liar.encode(), value.encode(), (), time.time())
    reader = MessageReader(DEFAULT, format, RecordDefaults(sender=sender.name))
    batch = reader.read([message], time.time())
    access = JobAccess(site.store.jobs, time.time)
    batch.drop(batch.of_jobs(await refused(access, sender, {target.job for target in batch.blocks})))
    lab.done.append(f"{sender.name} consumes {message.value!r}")
    await site.services.intake.ingest.store(batch, time.time(), ())
    await site.ends(lab, lab.liar)


async def _both_fail(attempted: Attempted) -> None:
    """An ordinary failure of both jobs, which a fault of their node would explain."""
    site, lab = attempted.site, attempted.lab
    for who, job, rank in (("red", lab.liar, 1), ("blue", lab.victim, 0)):  # on the shared node, both of them
        await site.prints(lab, who, job, f"[rank{rank}]: {attempted.failure}")
        await site.ends(lab, job)


async def _in_node_log(record: records.Record, attempted: Attempted) -> None:
    """A true record of the kernel of the shared node, with a name that the liar chose."""
    await _begin(attempted)
    post = record(_place(attempted), attempted.payload)
    await attempted.site.send(attempted.lab, "agent", post)
    await _both_fail(attempted)


async def _logs(record: records.LoggerRecord, who: records.Logger, attempted: Attempted) -> None:
    """What a program of the liar's writes to the system's log of the shared node."""
    await _begin(attempted)
    post = record(_place(attempted), who, attempted.payload)
    await attempted.site.send(attempted.lab, "agent", post)
    await _both_fail(attempted)


async def _scheduler_says(where: str, attempted: Attempted) -> None:
    """A line of the scheduler's own log, with a name or comment of the liar's in it."""
    await _begin(attempted)
    site, lab = attempted.site, attempted.lab
    text = f"{attempted.payload}\n".encode()
    attempted.failure = WATCHDOG
    if where == "job":
        post = Post(LOGS, text, TEXT, {"job": lab.liar, "source": "scheduler"})
    elif where == "node":
        post = Post(LOGS, text, TEXT, _place(attempted).query("scheduler"))
    else:
        post = records.logger_syslog(_place(attempted), records.Logger(records.DAEMON, "slurmd"), attempted.payload)
    await site.send(lab, "agent", post)
    await _both_fail(attempted)


async def _reports(who: str, attempted: Attempted) -> None:
    """Of somebody else's registered job, which runs."""
    await _begin(attempted)
    await _speak_for_victim(who, attempted)


async def _speaks_first(who: str, attempted: Attempted) -> None:
    """Of a job that its owner registers later, and once more then."""
    site, lab = attempted.site, attempted.lab
    await _begin(attempted, victim=False)
    await _speak_for_victim(who, attempted)
    await site.register(lab, lab.victim, "blue", lab.theirs)
    await site.prints(lab, "blue", lab.victim, *STEPS, sound=False)
    await _speak_for_victim(who, attempted)


async def _speak_for_victim(who: str, attempted: Attempted) -> None:
    site, lab, payload = attempted.site, attempted.lab, attempted.payload
    if payload["line"]:
        await site.prints(lab, who, lab.victim, payload["line"], sound=False)
    if payload["event"] is not None:
        await site.call(lab, who, f"{API}/jobs/{lab.victim}/events", json=payload["event"])


async def _counts(form: str, who: str, attempted: Attempted) -> None:
    """Lines, and an end, of a launch that the scheduler never made."""
    site, lab, payload = attempted.site, attempted.lab, attempted.payload
    await _begin(attempted)
    job = lab.victim if form == "of-victim" else lab.liar
    if form == "field":
        record = {"message": payload["line"], "attempt": payload["attempt"], "job": job}
        await site.send(lab, who, Post(LOGS, json.dumps(record).encode(), NDJSON))
    else:
        query = {"job": job, "attempt": payload["attempt"]}
        await site.send(lab, who, Post(LOGS, payload["line"].encode(), TEXT, query))
    number = int(payload["attempt"]) if payload["attempt"].lstrip("-").isdecimal() else payload["attempt"]
    event = {"kind": "exit", "code": 1, "attempt": number}
    await site.call(lab, who, f"{API}/jobs/{job}/events", json=event)
    await site.ends(lab, lab.liar)


async def _dumps(who: str, of_victim: bool, attempted: Attempted) -> None:
    site, lab, payload = attempted.site, attempted.lab, attempted.payload
    await _begin(attempted)
    job = lab.victim if of_victim else lab.liar
    query = payload["query"] if who != "agent" else {**payload["query"], "node": lab.shared}
    body = payload["body"] if isinstance(payload["body"], bytes) else payload["body"].encode()
    path = f"{API}/jobs/{job}/attempts/1/evidence"
    await site.call(lab, who, path, content=body, params=query)
    await site.prints(lab, "red", lab.liar, WATCHDOG)
    await site.ends(lab, lab.liar)


async def _answers(attempted: Attempted) -> None:
    await _begin(attempted)
    attempted.answers = attempted.payload
    attempted.failure = {"free_space": FULL, "mounts": READ_ONLY}.get(next(iter(attempted.payload)), CUDA)
    await attempted.site.prints(attempted.lab, "red", attempted.lab.liar, f"[rank1]: {attempted.failure}")
    await attempted.site.ends(attempted.lab, attempted.lab.liar)


async def _alerts(attempted: Attempted) -> None:
    await _begin(attempted)
    alert = {"status": "firing", "startsAt": _place(attempted).iso, "fingerprint": "f", **attempted.payload}
    body = {"version": "4", "alerts": [alert]}
    await attempted.site.call(attempted.lab, "alerts", f"{API}/alertmanager", json=body)
    await _both_fail(attempted)


async def _presses(attempted: Attempted) -> None:
    """A button that approves the plan of the liar, which nobody in Slack pressed."""
    site, lab, payload = attempted.site, attempted.lab, attempted.payload
    await _begin(attempted)
    await site.prints(lab, "red", lab.liar, f"{lab.foreign}: CUDA error: uncorrectable ECC error encountered")
    await site.ends(lab, lab.liar)
    await site.settled()
    own = [plan.id for plan in await site.plans() if plan.job == lab.liar]
    press = {"action_id": "approve_plan", "value": own[0] if own else "none"}
    told = {"type": "block_actions", "user": {"id": "U1"}, "actions": [press], "response_url": "https://x.example/"}
    body = "payload=" + json.dumps(told).replace('"', "%22").replace(" ", "")
    stamp = str(int(time.time()) - int(payload.get("age", 0)))
    secret = payload.get("secret", SLACK_SECRET if payload else "")
    mac = hmac.new(secret.encode(), f"v0:{stamp}:{body}".encode(), hashlib.sha256).hexdigest()
    headers = {"content-type": "application/x-www-form-urlencoded"}
    headers |= {"x-slack-request-timestamp": stamp, "x-slack-signature": f"v0={mac}"} if secret else {}
    await site.call(lab, "", "/slack/actions", content=body, headers=headers)


async def _corrects(attempted: Attempted) -> None:
    """The liar's tenant says what its own failure was; the victim then fails in the same words."""
    site, lab = attempted.site, attempted.lab
    await _begin(attempted)
    await site.prints(lab, "red", lab.liar, attempted.failure)
    await site.ends(lab, lab.liar)
    await site.settled()
    for record in await site.store.diagnoses.page(DiagnosisFilter(job=lab.liar), "", 10):
        path = f"{API}/diagnoses/{record.id}/feedback"
        await site.call(lab, "red-operator", path, json=attempted.payload)
    await site.prints(lab, "blue", lab.victim, attempted.failure)
    await site.ends(lab, lab.victim)


EVENTS = f"{API}/jobs/{{id}}/events"
EVIDENCE = f"{API}/jobs/{{id}}/attempts/{{attempt}}/evidence"
SENDERS = ("red", "ingest")
"""The liar's tokens: its tenant's own, and one that is bound to no tenant."""


def ways() -> dict[str, Way]:
    """All of them, by name."""
    found = [*_of_jobs(), *_of_fields(), *_of_nodes(), *_of_events(), *_of_dumps(), *_of_others()]
    return {way.name: way for way in found}


def _of_jobs() -> Iterator[Way]:
    for name, form in FORMS.items():
        yield Way(f"output:{name}", Surface.OUTPUT, partial(_prints, form, "red"), _route(name))
    for name, form in LYING_FORMS.items():
        yield Way(f"output:{name}", Surface.OUTPUT, partial(_prints, form, "ingest"), by_token=True)
    yield Way("kafka:text", Surface.OUTPUT, partial(_consumes, "text"), "")
    yield Way("kafka:json", Surface.OUTPUT, partial(_consumes, "json"), "")


def _of_fields() -> Iterator[Way]:
    for name, form in MERGED.items():
        yield Way(f"fields:{name}:red", Surface.RECORD, partial(_merges, form, "red"), _route(name))
        yield Way(
            f"fields:{name}:ingest", Surface.RECORD, partial(_merges, form, "ingest"), _route(name), by_token=True
        )
    yield Way("kafka:fields", Surface.RECORD, partial(_consumes, "json"), "")


def _of_nodes() -> Iterator[Way]:
    for name, record in records.KERNEL.items():
        yield Way(f"kernel:{name}", Surface.NAME, partial(_in_node_log, record), _route(name))
    for form, logged in records.USER_SPACE.items():
        for name, who in records.LOGGERS.items():
            yield Way(f"logger:{form}:{name}", Surface.LOGGER, partial(_logs, logged, who), _route(form))
    for where in ("job", "node", "syslog"):
        yield Way(f"scheduler:{where}", Surface.SCHEDULER, partial(_scheduler_says, where))


def _of_events() -> Iterator[Way]:
    for who in SENDERS:
        yield Way(f"event:{who}", Surface.EVENT, partial(_reports, who), EVENTS, by_token=True)
        yield Way(f"early:{who}", Surface.EARLY, partial(_speaks_first, who), EVENTS, by_token=True)
        for form in ("query", "field", "of-victim"):
            by_token = who == "ingest" or form == "of-victim"
            yield Way(f"attempt:{form}:{who}", Surface.ATTEMPT, partial(_counts, form, who), by_token=by_token)


def _of_dumps() -> Iterator[Way]:
    yield Way("dump:red", Surface.DUMP, partial(_dumps, "red", False), EVIDENCE)
    yield Way("dump:agent", Surface.DUMP, partial(_dumps, "agent", False), EVIDENCE)
    yield Way("dump:of-victim", Surface.DUMP, partial(_dumps, "ingest", True), EVIDENCE, by_token=True)


def _of_others() -> Iterator[Way]:
    yield Way("query", Surface.ANSWER, _answers, f"{API}/plans/{{id}}/check/results")
    yield Way("alertmanager", Surface.ALERT, _alerts, f"{API}/alertmanager")
    yield Way("slack", Surface.BUTTON, _presses, "/slack/actions")
    yield Way("feedback", Surface.FEEDBACK, _corrects, f"{API}/diagnoses/{{id}}/feedback", by_token=True)


def _route(name: str) -> str:
    for word, route in (("loki", LOKI), ("otlp", OTLP), ("bulk", BULK)):
        if word in name:
            return route
    return LOGS
