"""A demo that is ended leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.service import until
from tests.e2e.test_readme_commands import ROOT
from tests.ports import free_port
from tests.thorough import THOROUGH


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT][: None if THOROUGH else 1])
def test_a_demo_that_is_ended_leaves_no_service(tmp_path: Path, number: signal.Signals) -> None:
    """Whether by SIGTERM or by Ctrl-C (in thorough runs), the port is free afterwards."""
    demo = [sys.executable, str(ROOT / "deploy" / "demo" / "demo.py"), "--port", str(free_port())]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("DIAGNOSER_", "DISPLAY"))}
    printed = tmp_path / "printed"
    with printed.open("wb") as output:
        process = subprocess.Popen(demo, cwd=tmp_path, env=plain, stdout=output, stderr=output)
    try:
        until(lambda: "until Ctrl-C" in printed.read_text(), "the demo serves")
        url = re.findall(r"http://[\d.:]+", printed.read_text())[-1]
        assert httpx.get(f"{url}/readyz").status_code == 200
        process.send_signal(number)
        process.wait(timeout=180)
    finally:
        process.kill()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/readyz")
