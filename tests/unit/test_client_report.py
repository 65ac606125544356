"""The diagnosis as a terminal shows it."""

import re
from pathlib import Path
from typing import Any

import pytest

from diagnoser.client.report import page_of, printable, rendered
from tests.serving import HOSTILE, Web, fill, serving


async def answered(web: Web, name: str) -> dict[str, Any]:
    """A stored diagnosis, as the API gives it."""
    records = await fill(web.store)
    body: dict[str, Any] = (await web.client.get(f"/api/v1/diagnoses/{records[name].id}")).json()
    return body


async def test_it_says_what_where_and_what_to_do(tmp_path: Path) -> None:
    """The cause with its line, rank, node and GPU; how many lines it explains; the action; the page."""
    async with serving(tmp_path) as web:
        diagnosis = await answered(web, "ecc")
    text = rendered(diagnosis, page_of("http://d:8321", diagnosis), 100, colour=False)
    for part in (
        "Diagnosis: ecc error  (infrastructure, failed, 97% sure)",
        "rank        12",
        "node        hgx-04",
        "gpu         0000:1b:00",
        "suspect     hgx-11 (0.20)",
        "explains    2 later symptoms",
        "action      cordon and resubmit (a named node has a hardware fault)",
        "log         21,408 lines read, 412 kept",
        f"page        http://d:8321/diagnoses/{diagnosis['id']}",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100


async def test_a_guess_is_told_as_such(tmp_path: Path) -> None:
    """An answer below even odds, in the words of the pages."""
    async with serving(tmp_path) as web:
        diagnosis = await answered(web, "ecc")
    diagnosis |= {"confidence": 0.4, "rivals": [{"type": "gpu_lost", "line": 7, "confidence": 0.3}]}
    text = rendered(diagnosis, "http://d/x", 100, colour=False)
    assert "Diagnosis: unknown, most likely ecc error (40%) or gpu lost (30%)  (infrastructure" in text


async def test_hostile_text_is_shown_as_what_it_is(tmp_path: Path) -> None:
    """Control characters and marks that turn the direction of text reach no terminal, with colours or without."""
    async with serving(tmp_path) as web:
        diagnosis = await answered(web, "unsure")
    assert HOSTILE in diagnosis["root_cause"]["text"]
    text = rendered(diagnosis, "http://d/x", 80, colour=False)
    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text) is None
    assert r"\x1b[31m" in " ".join(text.split())
    assert r"\u202e" in text
    coloured = rendered(diagnosis, "http://d/x", 80, colour=True)
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == text


async def test_every_kind_of_diagnosis_can_be_shown(tmp_path: Path) -> None:
    """Without a root cause, without nodes, with a model; whatever the width."""
    async with serving(tmp_path) as web:
        for record in (await fill(web.store)).values():
            body = (await web.client.get(f"/api/v1/diagnoses/{record.id}")).json()
            for width in (1, 40, 500):
                assert "Diagnosis: " in rendered(body, "http://d/x", width, colour=True)


@pytest.mark.parametrize(
    "character", ["\0", "\n", "\r", "\x1b", "\x7f", "\x9b", "\u2028", "\u202e", "\u2066", "\ufeff"]
)
def test_no_character_moves_the_terminal(character: str) -> None:
    """Each is written as its number; letters of any script stay."""
    assert printable(f"a{character}ä漢") in (f"a\\x{ord(character):02x}ä漢", f"a\\u{ord(character):04x}ä漢")
