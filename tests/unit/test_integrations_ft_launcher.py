"""The endpoint that ft_launcher asks: what it reads, what it refuses, what it recommends."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from diagnoser.adapters.log_root import log_root
from diagnoser.integrations import ft_launcher
from diagnoser.integrations.ft_launcher import LogAttribution, Recommendation, recommend
from diagnoser.model import Advice, DecisionBasis, Diagnosis, Facts
from diagnoser.model.access import Scope, Token
from diagnoser.model.errors import BadInput
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome
from tests.contract.records import diagnosis
from tests.rule_files import ANALYZER
from tests.serving import Web, serving

SCRIPT = b"step 1 loss 2.3\nTraceback (most recent call last):\nKeyError: 'input_ids'\n"
HARDWARE = b"step 1 loss 2.3\n5: [rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
CLEAN = b"iteration 10/ 10 | lm loss: 2.31E+00 |\nTraining completed\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, data in (("script.log", SCRIPT), ("hardware.log", HARDWARE), ("clean.log", CLEAN), ("empty.log", b"")):
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
async def web(root: Path, tmp_path: Path) -> AsyncIterator[Web]:
    attribution = LogAttribution(
        log_root(root).open, lambda log: ANALYZER.diagnose_with_node_logs(ANALYZER.read(log).evidence, Facts())
    )
    async with serving(tmp_path, attribution=attribution) as found:
        yield found
    await attribution.close()


async def ask(web: Web, path: Path | str, **query: Any) -> Any:
    answer = await web.client.get("/logs", params={"log_path": str(path), **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_log_that_takes_too_long_is_given_up(web: Web, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The asker may come again; the seat is free for other logs."""
    monkeypatch.setattr(ft_launcher, "READ_SECONDS", -1.0)
    for _ in range(3):
        answer = await web.client.get("/logs", params={"log_path": str(root / "script.log")})
        assert answer.status_code == 503
        assert "could not be read" in answer.json()["detail"]
    monkeypatch.undo()
    assert (await ask(web, root / "script.log"))["recommendation"]["action"] == "STOP"


async def test_the_end_of_a_long_log_decides(web: Web, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading begins with a whole line, and the verdict says that the rest was left out."""
    monkeypatch.setattr(ft_launcher, "READ_BYTES", len(SCRIPT) + 10)
    (root / "long.log").write_bytes(HARDWARE * 1000 + SCRIPT)
    body = await ask(web, root / "long.log")
    assert body["recommendation"]["action"] == "STOP"
    assert body["result"]["diagnosis"]["line"] == 3
    assert "Line numbers count from there" in body["result"]["diagnosis"]["notes"][-1]


async def test_a_script_fault_says_stop(web: Web, root: Path) -> None:
    """The shape of the answer is that of the service whose place it takes."""
    body = await ask(web, root / "script.log")
    assert (body["status"], body["wl_restart"], body["recommendation"]["action"]) == ("completed", 0, "STOP")
    assert "line 3: KeyError: 'input_ids'" in body["recommendation"]["reason"]
    assert (body["result"]["module"], body["result"]["state"]) == ("log_analyzer", "STOP")
    (item,) = body["result"]["result"]
    fields = {"raw_text", "auto_resume", "auto_resume_explanation", "attribution_text", "checkpoint_saved_flag"}
    assert set(item) == fields | {"action", "primary_issues", "secondary_issues"}
    assert (item["auto_resume"], item["primary_issues"]) == ("STOP - DONT RESTART IMMEDIATE", ["key_error"])
    assert body["result"]["diagnosis"]["type"] == "key_error"


async def test_what_another_start_can_help_says_restart(web: Web, root: Path) -> None:
    """Broken hardware is not the script's fault, and a clean run has nothing to stop for."""
    told = {name: await ask(web, root / f"{name}.log") for name in ("hardware", "clean")}
    assert {name: body["recommendation"]["action"] for name, body in told.items()} == {
        "hardware": "RESTART",
        "clean": "CONTINUE",
    }
    assert {body["result"]["state"] for body in told.values()} == {"CONTINUE"}


async def test_the_launchers_own_order_of_requests(web: Web, root: Path) -> None:
    """Submitted at the start of a cycle, again when it failed, then asked for until there is a verdict."""
    path = str(root / "script.log")
    body = {"log_path": path, "user": "ida", "job_id": "7", "analysis_intent": "progressive", "new_field": 1}
    answer = await web.client.post("/logs", json=body)
    assert (answer.status_code, answer.json()["submitted"], answer.json()["normalized_path"]) == (200, True, path)
    assert (await ask(web, path, wait=False))["status"] == "pending"
    assert (await web.client.post("/logs", json={**body, "analysis_intent": "Terminal"})).status_code == 200
    while (found := await ask(web, path, wait=False))["status"] != "completed":
        assert found["recommendation"]["action"] == "UNKNOWN"
        await asyncio.sleep(0.01)
    assert found["recommendation"]["action"] == "STOP"


async def test_a_log_that_has_grown_is_read_again(web: Web, root: Path) -> None:
    """The same file again is not; a later cycle in it is."""
    path = root / "clean.log"
    assert (await ask(web, path))["recommendation"]["action"] == "CONTINUE"
    with path.open("ab") as log:
        log.write(SCRIPT)
    assert (await ask(web, path))["recommendation"]["action"] == "STOP"


async def test_no_path_leads_out_of_the_folder(web: Web, root: Path, tmp_path: Path) -> None:
    """Neither a path elsewhere, nor dots, nor a link on the way or at the end."""
    outside = tmp_path / "secret.log"
    outside.write_bytes(SCRIPT)
    (root / "link.log").symlink_to(outside)
    (root / "out").symlink_to(tmp_path)
    (root / "folder").mkdir()
    refused = {
        str(outside): (403, "outside_root"),
        f"{root}/../secret.log": (403, "outside_root"),
        f"{root}/folder/../../secret.log": (403, "outside_root"),
        f"{root}x/secret.log": (403, "outside_root"),
        "/proc/self/environ": (403, "outside_root"),
        str(root): (403, "outside_root"),
        f"{root}/link.log": (400, "not_regular"),
        f"{root}/out/secret.log": (400, "not_regular"),
        f"{root}/folder": (400, "not_regular"),
        f"{root}/script.log/x": (400, "not_regular"),
        f"{root}/none.log": (404, "not_found"),
        f"{root}/empty.log": (400, "empty_file"),
        "script.log": (400, "invalid_path"),
        f"{root}/a\0b": (400, "invalid_path"),
    }
    for path, expected in refused.items():
        for answer in (
            await web.client.get("/logs", params={"log_path": path}),
            await web.client.post("/logs", json={"log_path": path}),
        ):
            assert (answer.status_code, answer.json()["error_code"]) == expected, path
            assert answer.json()["message"]


async def test_a_folder_behind_a_link_may_be_named_either_way(root: Path, tmp_path: Path) -> None:
    """File systems of clusters are mounted under names of convenience; launchers resolve them or not."""
    (tmp_path / "scratch").symlink_to(root)
    analyzer = log_root(tmp_path / "scratch")
    for base in (tmp_path / "scratch", root):
        with analyzer.open(f"{base}/script.log") as log:
            assert log.read() == SCRIPT
    with pytest.raises(BadInput):
        log_root(tmp_path / "nowhere")


async def test_without_a_folder_there_is_nothing(tmp_path: Path) -> None:
    """The endpoint is off by default."""
    async with serving(tmp_path) as web:
        assert (await web.client.get("/logs", params={"log_path": "/var/log/syslog"})).status_code == 404
        assert (await web.client.post("/logs", json={"log_path": "/var/log/syslog"})).status_code == 404
        assert (await web.client.get("/healthz")).json() == {"status": "ok"}


async def test_a_token_may_stand_in_the_address(web: Web, root: Path, tmp_path: Path) -> None:
    """The launcher sends no header of its own, but the user and password of its endpoint's address."""
    tokens = (Token("launcher", "t" * 16, Scope.READ),)
    async with serving(tmp_path, attribution=web.services.attribution, tokens=tokens) as closed:
        query = {"log_path": str(root / "clean.log")}
        assert (await closed.client.get("/logs", params=query)).status_code == 401
        assert (await closed.client.get("/logs", params=query, auth=("ft", "t" * 16))).status_code == 200


async def test_few_logs_are_read_at_a_time(root: Path) -> None:
    """Who asks about many logs at once does not take every core."""
    busy, most, gate, lock, begun = 0, 0, threading.Event(), threading.Lock(), threading.Semaphore(0)

    def analyse(log: BinaryIO) -> Diagnosis:
        nonlocal busy, most
        with lock:
            busy += 1
            most = max(most, busy)
        begun.release()
        gate.wait(60)
        with lock:
            busy -= 1
        return diagnosis()

    paths = [root / f"many-{number}.log" for number in range(6)]
    for path in paths:
        path.write_bytes(CLEAN)
    attribution = LogAttribution(log_root(root).open, analyse)
    asked = [asyncio.create_task(attribution.result(str(path), wait=True)) for path in paths]
    for _ in range(2):
        assert await asyncio.to_thread(begun.acquire, timeout=60)
    await asyncio.sleep(0.1)  # a third one would begin now
    gate.set()
    await asyncio.gather(*asked)
    assert most == 2


async def test_a_reading_that_failed_is_tried_again(root: Path) -> None:
    """A fault of one reading is not the log's verdict."""
    faults = [ValueError("a fault of the engine")]

    def analyse(log: BinaryIO) -> Diagnosis:
        if faults:
            raise faults.pop()
        return diagnosis()

    attribution = LogAttribution(log_root(root).open, analyse)
    with pytest.raises(ValueError, match="engine"):
        await attribution.result(str(root / "clean.log"), wait=True)
    assert (await attribution.result(str(root / "clean.log"), wait=True))[1] == diagnosis()


def judged(category: Category, action: Action, *, stable: bool = True, outcome: Outcome = Outcome.FAILED) -> Diagnosis:
    found = Diagnosis(outcome, category, FailureType.KEY_ERROR, 0.9, "rule:x", recovery=Advice(action, "row"))
    return replace(found, grounds=DecisionBasis(stable=stable))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (judged(Category.SCRIPT, Action.NOTIFY_USER), Recommendation.STOP),
        (judged(Category.SCRIPT, Action.NOTIFY_USER, stable=False), Recommendation.UNKNOWN),
        (judged(Category.SCRIPT, Action.ROLLBACK_AND_RESUBMIT), Recommendation.STOP),
        (judged(Category.INFRASTRUCTURE, Action.CORDON_AND_RESUBMIT), Recommendation.RESTART),
        (judged(Category.INFRASTRUCTURE, Action.RESUBMIT, stable=False), Recommendation.RESTART),
        (judged(Category.UNKNOWN, Action.NOTIFY_USER), Recommendation.UNKNOWN),
        (judged(Category.NONE, Action.NONE, outcome=Outcome.COMPLETED), Recommendation.CONTINUE),
        (judged(Category.NONE, Action.NONE, outcome=Outcome.CANCELLED), Recommendation.UNKNOWN),
    ],
)
def test_only_a_stable_rule_stops_a_job(found: Diagnosis, expected: Recommendation) -> None:
    """A wrong STOP ends a job that would have gone on, so doubt never stops."""
    assert recommend(found) is expected
