"""What a start loads."""

import subprocess
import sys

SELDOM = {"alembic", "google", "openai", "redis", "slack_sdk"}


def test_what_most_sites_do_not_use_is_not_loaded() -> None:
    """The clients of a model server, of Redis and of Slack, protobuf, and what migrates a schema, wait
    until they are needed: each takes up to a tenth of the whole start."""
    code = "import sys, diagnoser.cli, diagnoser.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fastapi" in done.stdout.split()
    assert SELDOM.isdisjoint(name.partition(".")[0] for name in done.stdout.split())
