"""The check of phrases finds what readers stumbled over, and lets plain sentences pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import plain_words

BAD = [
    "Nobody else's press does anything.",
    "That is cheaper, not more right.",
    "Which node an alert is about say its labels.",
    "Nothing is to be repaired.",
    "1 bytes were painted over.",
    "Nobody is told of this incident.",
    "Each job has an environment of its own.",
    "It keeps going, whatever happens.",
    "The output passes through as it comes.",
    "The page tells of it.",
]
PLAIN = "The labels of an alert name its node. The service alerts the owner. Exit code 0, whatever the verdict.\n"


@pytest.mark.parametrize("sentence", BAD)
def test_a_bad_phrase_is_found(sentence: str, tmp_path: Path) -> None:
    """In a document, and in a help text of the command line alike."""
    document, program = tmp_path / "page.md", tmp_path / "command.py"
    document.write_text(f"{PLAIN}{sentence}\n")
    program.write_text(f'Option(help="{sentence}")\n')
    assert next(plain_words.findings(document)).startswith(f"{document}:2: ")
    assert list(plain_words.findings(program))


def test_plain_sentences_pass(tmp_path: Path) -> None:
    """Also words of a program that is no text for readers."""
    (tmp_path / "page.md").write_text(PLAIN)
    (tmp_path / "program.py").write_text("whatever = told(of_its_own)  # whatever\n")
    assert [*plain_words.findings(tmp_path / "page.md"), *plain_words.findings(tmp_path / "program.py")] == []


def test_the_project_has_none() -> None:
    """As `make lint` runs it."""
    done = subprocess.run([sys.executable, "-m", "tools.plain_words"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
