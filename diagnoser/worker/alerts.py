"""Alerts on their last steps to people: whether now is the time, and through which channel.

Each alert that is not sent says why: the reason stands with it in the outbox.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from diagnoser.adapters.sql.alerts import AlertRepository
from diagnoser.adapters.sql.incidents import IncidentRepository
from diagnoser.model import OutboxMessage
from diagnoser.model.alerts import ON_ITS_WAY, Alert, AlertKind, AlertThread, decode
from diagnoser.model.errors import Deferred, DeliveryError, Withheld
from diagnoser.notifications.alert import with_place
from diagnoser.notifications.routing import AlertRouting
from diagnoser.ports import AlertChannel, Clock, Sender
from diagnoser.wording.phrases import plural
from diagnoser.wording.words import minute

CAUSE_SECONDS = 10.0
"""How long a decision waits for the failure that it follows from: a thread begins with the cause."""
RETRY_SECONDS = 1.0
AGAIN_SECONDS = 20.0
"""Between two looks at whether a job runs again that a plan launched."""
HEAD_SECONDS = 60.0
"""After which a thread that somebody began and never posted may be begun by another."""


@dataclass(eq=False)
class AlertSender:
    """A Sender. channels: by the name of the receiver; the target of a message may add a place, as in
    ``slack:#gpu-oncall``."""

    channels: Mapping[str, AlertChannel]
    store: AlertRepository
    incidents: IncidentRepository
    routing: AlertRouting
    clock: Clock

    async def send(self, message: OutboxMessage) -> None:
        """Raises Withheld, Deferred, DeliveryError."""
        alert, receiver, now = decode(message.body), message.target, self.clock()
        channel = self.channels.get(receiver.partition(":")[0])
        if channel is None:
            raise Withheld(f"no receiver {receiver!r} is configured any more")
        if alert.diagnosis:
            alert = await self._of_its_incident(alert)
        await self._check_silence(alert, now)
        self._check_quiet_hours(receiver, alert, now)
        if alert.kind is AlertKind.RECOVERED:
            await self._check_running(channel, alert, now)
        thread = await self.store.thread(receiver, alert.incident)
        if thread is None or not _is_begun(thread, channel):
            _check_cause_first(alert, message, now)
            handle = await self._begin_thread(channel, alert, receiver, now)
        else:
            if not channel.threaded:
                await self._check_repeat(alert, thread, now)
                alert = _with_held_back(alert, thread)
            handle = await channel.post(alert, thread, receiver.partition(":")[2])
        await self.store.save_thread(AlertThread(receiver, alert.incident, handle, now))

    async def _of_its_incident(self, alert: Alert) -> Alert:
        """A failure may belong to another incident by now: that of its place, where more of its nodes failed."""
        incident = await self.incidents.of_diagnosis(alert.diagnosis)
        if incident is None:
            return alert
        return with_place(replace(alert, incident=incident.id), incident)

    async def _begin_thread(self, channel: AlertChannel, alert: Alert, receiver: str, now: float) -> str:
        """Post the first alert of an incident, once, however many of them go out at the same moment. Raises Deferred
        for all but one."""
        if not await self.store.claim_head(receiver, alert.incident, now, HEAD_SECONDS):
            raise Deferred("the first alert of this incident is on its way", now + RETRY_SECONDS)
        try:
            return await channel.post(alert, None, receiver.partition(":")[2])
        except DeliveryError:
            await self.store.release_head(receiver, alert.incident)
            raise

    async def _check_running(self, channel: AlertChannel, alert: Alert, now: float) -> None:
        """A job is recovered when it prints again; an incident, where a channel ends it, when all of its jobs do."""
        down = await self.store.jobs_down(alert.incident)
        if alert.job in down:
            raise Deferred("the job that was launched again has not printed yet", now + AGAIN_SECONDS)
        if down and channel.resolves:
            raise Deferred(f"{plural(len(down), 'job')} of the incident not running again", now + AGAIN_SECONDS)

    async def _check_silence(self, alert: Alert, now: float) -> None:
        silence = await self.store.silence(alert.incident)
        if silence and now < silence.until:
            raise Withheld(f"silenced until {minute(silence.until)} by {silence.by}")

    def _check_quiet_hours(self, receiver: str, alert: Alert, now: float) -> None:
        quiet_until = self.routing.quiet_until(receiver, alert.severity, now)
        if quiet_until is not None:
            raise Deferred(f"quiet hours until {minute(quiet_until)}", quiet_until)

    async def _check_repeat(self, alert: Alert, thread: AlertThread, now: float) -> None:
        """Decisions and recoveries are news, but for those about one more node of a place that fails."""
        repeat = 60.0 * self.routing.table.repeat_minutes
        is_near = abs(now - thread.told) < repeat  # told further ahead, the clock was set back since
        if (alert.kind is AlertKind.FAILURE or alert.repeats) and is_near:
            await self.store.save_thread(replace(thread, held_back=thread.held_back + 1))
            raise Withheld(f"the same incident was told at {minute(thread.told)}")


def _is_begun(thread: AlertThread, channel: AlertChannel) -> bool:
    """Whether its first alert was posted. A channel without threads has no note of it."""
    if channel.threaded and not thread.handle:
        return False
    return thread.handle != ON_ITS_WAY


def _check_cause_first(alert: Alert, message: OutboxMessage, now: float) -> None:
    """A thread begins with the failure, and not with what was decided about it."""
    if _follows(alert) and 0 <= now - message.created < CAUSE_SECONDS:
        raise Deferred("the failure that it follows from goes first", now + RETRY_SECONDS)


def _with_held_back(alert: Alert, thread: AlertThread) -> Alert:
    """The alert with how many failures of its incident nobody was alerted to."""
    if not thread.held_back or alert.kind is not AlertKind.FAILURE:
        return alert
    more = f"{thread.held_back} more failures of this incident since {minute(thread.told)}"
    return replace(alert, notes=(more, *alert.notes))


def _follows(alert: Alert) -> bool:
    """Whether the alert is about what to do about a failure that has an alert of its own."""
    return alert.kind is AlertKind.DECISION and bool(alert.diagnosis)


class AnswerSender:
    """A Sender of what people are answered who pressed a button. senders: by the channel in which they did."""

    def __init__(self, senders: Mapping[str, Sender]) -> None:
        self._senders = senders

    async def send(self, message: OutboxMessage) -> None:
        """Raises Withheld, DeliveryError."""
        sender = self._senders.get(message.target)
        if sender is None:
            raise Withheld(f"nobody can be answered in {message.target!r} any more")
        await sender.send(message)
