"""What each stage of `eval --model` counts, on a few made-up failures."""

from diagnoser.accuracy.llm_ablation import AblationCase, AblationResult
from diagnoser.accuracy.scoring import Label
from diagnoser.config import llm_factory
from diagnoser.config.settings import Settings
from diagnoser.model import Mark
from tests.integration.consulting import UNDECIDED, line, subject
from tests.integration.model_server import model_server
from tests.integration.scripted import answer, question
from tests.rule_files import ANALYZER

LOST = "feeder: snapshot 12 differs from the quilt manifest, giving up"
ODD = "zx81: lane degraded beyond repair on the left side"


def case(id: str, kind: str, text: str) -> AblationCase:
    label = Label(id, "framework", kind, (12,), text, "notify_user")
    return AblationCase(label, UNDECIDED, subject(line(text, mark=Mark.SEVERITY)))


async def tried(*cases: AblationCase) -> tuple[dict[str, AblationResult], list[str]]:
    """With a model that calls everything a broken bridge."""
    with model_server(lambda asked: answer("nvlink_error", question(asked).lines)) as server:
        settings = Settings(llm_url=server.url, llm_model="scripted")
        outcomes = await llm_factory.run_ablation(settings, cases, ANALYZER.knowledge.policy)
    return {one.name: one for one in outcomes}, [asked["messages"][1]["content"] for asked in server.asked]


async def test_each_stage_is_counted_apart() -> None:
    """Retrieval decides what another case shows without a call; the model is asked about the rest only."""
    kind = "dataset_loading_error"
    found, asked = await tried(case("a", kind, LOST), case("b", kind, LOST), case("c", "nvlink_error", ODD))
    assert list(found) == ["rules only", "+ retrieval", "+ model", "- tools", "- vote", "- evidence check"]
    assert [one.counts["recalled"] for one in found.values()] == [0, 2, 2, 2, 2, 2]
    assert [one.counts["calls"] for one in found.values()] == [0, 0, 2, 2, 1, 2]
    assert [one.report.shares["type"] for one in found.values()] == [0, 2 / 3, 1, 1, 1, 1]
    assert all(len(one.seconds) == 3 and one.counts["actions_moved"] == 1 for one in list(found.values())[2:])
    assert all(ODD in text for text in asked)


async def test_no_case_remembers_itself() -> None:
    """One failure alone is recalled by nothing, and a model is not told of it."""
    found, asked = await tried(case("a", "dataset_loading_error", LOST))
    assert found["+ retrieval"].counts["recalled"] == 0
    assert not any("a person said" in text for text in asked)


async def test_a_model_is_told_what_other_cases_were() -> None:
    """A failure that is alike, but not the same, is shown with the type that its label names."""
    near = LOST.replace("giving up", "retrying in vain until the very end")
    _, asked = await tried(case("a", "dataset_loading_error", near), case("b", "key_error", LOST))
    assert any("a person said dataset_loading_error" in text for text in asked)
