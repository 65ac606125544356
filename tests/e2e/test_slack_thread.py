"""A question in the thread of an alert, from the real service to what stands in the thread."""

import json
import time
from pathlib import Path
from typing import Any

from slack_sdk.signature import SignatureVerifier

from tests.e2e.service import diagnosis_of, service, until
from tests.e2e.test_node_logs import end, run
from tests.integration.test_alert_receivers import Slack
from tests.receiver import running

SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


def asked(thread: str, text: str) -> tuple[bytes, dict[str, str]]:
    """A mention as Slack sends it, signed now."""
    event = {"type": "app_mention", "user": "U1", "text": text, "ts": "1790000000.000200", "channel": "C1"}
    call = {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event | {"thread_ts": thread}}
    body, now = json.dumps(call), str(int(time.time()))
    signature = SignatureVerifier(SECRET).generate_signature(timestamp=now, body=body)
    return body.encode(), {"x-slack-request-timestamp": now, "x-slack-signature": signature or ""}


def test_a_question_in_the_thread_is_answered_there(tmp_path: Path) -> None:
    """The alert begins the thread; a mention in it is answered from the log below the alert, once."""
    with running(slack := Slack()):
        settings = {
            "DIAGNOSER_SLACK_TOKEN": "xoxb-1",
            "DIAGNOSER_SLACK_CHANNEL": "#gpu-oncall",
            "DIAGNOSER_SLACK_SIGNING_SECRET": SECRET,
            "DIAGNOSER_SLACK_OPERATORS": "U1",
            "DIAGNOSER_SLACK_API_URL": f"http://127.0.0.1:{slack.server_port}/api/",
            "DIAGNOSER_BASE_URL": "https://diagnoser.example",
        }
        with service(tmp_path, **settings) as process:
            client = process.start()
            run(client, "j", "n44")
            end(client, "j")
            diagnosis_of(client)
            (head,) = until(lambda: slack.posts[:1], "the alert has begun a thread")
            assert "thread_ts" not in head
            body, headers = asked("17.1", "<@U0BOT> what did the watchdog say?")
            for _ in range(2):  # Slack sends it again
                assert client.post("/slack/events", content=body, headers=headers).status_code == 200

            def answers() -> list[dict[str, Any]]:
                return [post for post in slack.posts if "No language model" in post["text"]]

            (answer,) = until(answers, "the answer stands in the thread")
    assert (answer["channel"], answer["thread_ts"]) == ("C1", "17.1")
    assert "https://diagnoser.example/jobs/j/attempts/1/" in json.dumps(answer)
    assert len(answers()) == 1
