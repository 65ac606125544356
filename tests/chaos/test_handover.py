"""What a service does when it is ended in the middle of its work: nobody waits long for what it held."""

import time
from pathlib import Path

import pytest

from tests.chaos.handover import busy, kill, leases, settings, stuck_receiver
from tests.e2e.service import diagnosis_of, service, until

FREE_SECONDS = 10.0
"""After kill -9, until another process may take over all that was held."""


@pytest.mark.parametrize("killed", [False, True], ids=["SIGTERM", "SIGKILL"])
def test_work_under_way_is_taken_over(tmp_path: Path, killed: bool) -> None:
    """Jobs fail without a pause, and a webhook gets no answer. After SIGTERM all of it is free at once, and the service
    has ended in order; after kill -9 it is free within ten seconds. The next start does it: each failure that was
    acknowledged is diagnosed, and the webhook comes again under its id."""
    url = f"sqlite:///{tmp_path}/test.db"
    with stuck_receiver() as hook, service(tmp_path, **settings(hook)) as running:
        with busy(running, url, hook) as jobs:
            if killed:
                ended = kill(running)
            else:
                assert running.stop() == 0
                ended = time.time()
        free = ended + (FREE_SECONDS if killed else 0.0)
        assert {key: lease - ended for key, lease in leases(url).items() if lease > free} == {}
        sent = hook.ids[0]
        hook.released.set()
        client = running.start()
        until(lambda: hook.ids.count(sent) > 1, "the webhook is sent again")
        for job in ("planned", *jobs.acknowledged):
            assert diagnosis_of(client, job, lines=1)["type"] not in ("", "unknown")
        assert "Traceback" not in running.log()
