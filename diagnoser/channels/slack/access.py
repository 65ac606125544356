"""Who speaks at the addresses that Slack calls: Slack itself, by its v0 signature, for one of the listed people."""

from dataclasses import dataclass

from fastapi import Request

from diagnoser.model.errors import Denied, NotFound
from diagnoser.ports import Clock as Now


@dataclass(frozen=True, slots=True)
class SlackAccess:
    """secret: signing secret of the app, "" for none. operators: ids of the users who may press buttons and ask."""

    secret: str = ""
    operators: frozenset[str] = frozenset()

    def check_signature(self, request: Request, body: bytes, now: Now) -> None:
        """Raises NotFound where no Slack app is configured, Denied."""
        if not self.secret:
            raise NotFound("no Slack app is configured: set DIAGNOSER_SLACK_SIGNING_SECRET")
        from slack_sdk.signature import Clock, SignatureVerifier  # loads for a while, and most sites have no Slack app

        clock = Clock()
        clock.now = now  # type: ignore[method-assign]
        verifier = SignatureVerifier(self.secret, clock)
        try:
            is_signed = verifier.is_valid_request(body, dict(request.headers))
        except ValueError:  # a time that is no number, a body that is no text
            is_signed = False
        if not is_signed:
            raise Denied("this was not signed by Slack, or more than five minutes ago")
