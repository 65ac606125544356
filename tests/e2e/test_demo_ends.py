"""The demo prints what the README shows, and leaves nothing behind when it is ended."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.e2e.service import until
from tests.e2e.test_readme_commands import ROOT, page
from tests.ports import free_port
from tests.thorough import THOROUGH

DEMO = [sys.executable, str(ROOT / "deploy" / "demo" / "demo.py")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT][: None if THOROUGH else 1])
def test_a_demo_that_is_ended_leaves_no_service(tmp_path: Path, number: signal.Signals) -> None:
    """Whether by SIGTERM or by Ctrl-C (in thorough runs), the port is free afterwards. What it has printed is in the
    README, but for the address of the page."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("DIAGNOSER_", "DISPLAY"))}
    printed = tmp_path / "printed"
    with printed.open("wb") as output:
        command = [*DEMO, "--port", str(free_port())]
        process = subprocess.Popen(command, cwd=tmp_path, env=plain, stdout=output, stderr=output)
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
    assert _diagnosis(printed.read_text()) == _diagnosis(page("README.md"))


@pytest.mark.skipif(not THOROUGH, reason="as the one above, which is ended: THOROUGH=1")
def test_a_demo_that_shall_end_ends_after_printing(tmp_path: Path) -> None:
    """`make demo EXIT=1` prints the same diagnosis."""
    done = subprocess.run([*DEMO, "--exit"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert _diagnosis(done.stderr) == _diagnosis(page("README.md"))


def _diagnosis(text: str) -> list[str]:
    """The lines of the first one, without the address of its page."""
    found = re.search(r"^Diagnosis: .*?^  page .*?$", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return [line for line in found[0].splitlines() if not line.startswith("  page")]
