"""Asks the agents for dumps of a run that may hang, before anything ends it."""

from collections.abc import Callable
from dataclasses import dataclass

from diagnoser.adapters.sql.evidence import EvidenceRepository
from diagnoser.diagnosis.context import nodes_of
from diagnoser.model import LOOKS_APART, Attempt, Diagnosis, EvidenceRequest, Job, RequestReason
from diagnoser.model.jobs import cluster_of
from diagnoser.model.taxonomy import FailureType
from diagnoser.model.work import Claim
from diagnoser.ports import Clock

_DUMPS_ARE_LEFT = frozenset({FailureType.NCCL_TIMEOUT_ERROR, FailureType.NCCL_REMOTE_ERROR})
"""Types of failures at which the ranks' watchdogs write their flight recorders."""

_SECOND_LOOK = 30.0
"""Seconds of silence from which on its ranks are looked at again before it is ended: few pauses last as long, and none
in which a process does nothing at all."""
_ASK_AGAIN = 60.0
"""Seconds of silence from which on its ranks are looked at again."""


@dataclass(frozen=True, slots=True)
class EvidenceCollection:
    """All that is asked for is quick, and idempotent for the same newest line. make_id: time -> an id that sorts by
    time."""

    store: EvidenceRepository
    clock: Clock
    make_id: Callable[[float], str]

    async def suspected(self, claim: Claim) -> bool:
        """The run is silent for longer than usual: its processes are to be asked, again whenever the silence has
        doubled, since a rank that was at work may be stuck by then. Whether dumps have come since."""
        attempt = claim.attempt
        await self._request(claim.job, claim.attempt, RequestReason.SILENCE, await self._since(claim))
        stored = await self.store.list_runtime_files(attempt.key)
        return any(file.received >= attempt.last_line for file in stored)

    async def look_again(self, claim: Claim) -> None:
        """A run was seen to hang once: whether it is to be ended without a person is for a second look to say."""
        now, silent = self.clock(), claim.attempt.last_line + _SECOND_LOOK
        await self._request(claim.job, claim.attempt, RequestReason.SILENCE, now, max(silent, now + LOOKS_APART))

    async def slow(self, job: Job, attempt: Attempt, since: float) -> None:
        """The run crawls: look at what its ranks do. Once for each ``since``."""
        await self._request(job, attempt, RequestReason.SLOWNESS, since)

    async def _since(self, claim: Claim) -> float:
        """From when on files count: with the attempt, the identity of a request, which is made once."""
        last_line, now = claim.attempt.last_line, self.clock()
        requests = await self.store.requests(claim.attempt.key)
        times = [request.created for request, _ in requests if request.created >= last_line]
        if not times:
            return last_line
        latest = max(times)
        if now - last_line < max(2 * (latest - last_line), _ASK_AGAIN):
            return max(request.since for request, _ in requests if request.created == latest)
        return latest

    async def failed(self, claim: Claim, diagnosis: Diagnosis) -> None:
        """A run has ended: where its watchdogs left dumps, these are to be fetched, once for each attempt."""
        if diagnosis.type in _DUMPS_ARE_LEFT and diagnosis.hang is None:
            await self._request(claim.job, claim.attempt, RequestReason.TIMEOUT, claim.attempt.opened)

    async def _request(
        self, job: Job, attempt: Attempt, reason: RequestReason, since: float, not_before: float = 0.0
    ) -> None:
        now = self.clock()
        request = EvidenceRequest(
            self.make_id(now),
            attempt.key,
            cluster_of(job),
            since,
            reason,
            now,
            nodes_of(attempt, job),
            dict(job.rank_nodes),
        )
        await self.store.request(request, not_before)
