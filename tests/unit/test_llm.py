"""Prompts, answers, the evidence check and redaction."""

import orjson
import pytest

from diagnoser.adapters.files import bundled, texts
from diagnoser.errors import ModelFailed, ModelFailure, RuleFaults
from diagnoser.llm import answer, evidence, prompt
from diagnoser.llm.redact import redact
from diagnoser.model import Line, Stream
from diagnoser.taxonomy import FailureType

FOLDER = "failure_agent/v1"
SOUND = {
    "type": "gpu_lost",
    "cited": [{"line": 7, "quote": "fallen off the bus"}],
    "node": "gpu-1",
    "rank": None,
    "confidence": 0.8,
    "mitigation": "Reseat it.",
    "alternative": "unknown",
}
BUS = Line(Stream(), 7, "NVRM: GPU has  fallen off the bus.", "NVRM: GPU has  fallen off the bus.")
VIEW = {7: [Line(Stream("stderr"), 7, "step 7", "step 7"), BUS]}


def parts() -> dict[str, str]:
    return texts(bundled("prompts") / FOLDER, "*")


def test_the_shipped_prompt_renders_with_its_variables() -> None:
    """The log stands between markers, in the user message only."""
    found = prompt.load(FOLDER, parts())
    system, user = found.render(
        {"types": ["gpu_lost"], "marker": "M-1", "facts": "j", "view": "7: <b>boom</b>", "candidates": []}
    )
    assert "gpu_lost" in system
    assert "boom" not in system
    assert user.index("M-1 log begins") < user.index("7: <b>boom</b>") < user.index("M-1 log ends")


def test_a_prompt_with_an_unlisted_variable_is_faulty() -> None:
    """Variables are strict: what meta.yaml does not list can not be used."""
    with pytest.raises(RuleFaults, match="uses 'secret'"):
        prompt.load(FOLDER, {**parts(), "user.j2": "{{ secret }}"})


def test_a_prompt_in_the_wrong_folder_is_faulty() -> None:
    """Name and version agree with the folder."""
    with pytest.raises(RuleFaults, match="belongs in failure_agent/v1"):
        prompt.load("failure_agent/v2", parts())


def test_a_missing_part_is_told() -> None:
    """All parts are needed."""
    with pytest.raises(RuleFaults, match=r"system\.j2: missing"):
        prompt.load(FOLDER, {name: text for name, text in parts().items() if name != "system.j2"})


def test_a_sound_answer_is_read() -> None:
    """Also out of a code fence, which some models add."""
    assert answer.parse(orjson.dumps(SOUND).decode()).type is FailureType.GPU_LOST
    assert answer.parse("```json\n" + orjson.dumps(SOUND).decode() + "\n```").confidence == 0.8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I think the GPU broke.",
        "{}",
        orjson.dumps({**SOUND, "type": "aliens"}).decode(),
        orjson.dumps({**SOUND, "confidence": 7}).decode(),
        orjson.dumps({**SOUND, "action": "cordon_and_resubmit"}).decode(),
        orjson.dumps({key: SOUND[key] for key in list(SOUND)[1:]}).decode(),
        " " * 100_000,
    ],
)
def test_any_other_answer_is_malformed(text: str) -> None:
    """Prose, missing and unknown fields, values off the list and endless answers are refused with the reason."""
    with pytest.raises(ModelFailed) as error:
        answer.parse(text)
    assert error.value.reason is ModelFailure.MALFORMED


def test_a_quote_must_stand_in_its_line() -> None:
    """White space may differ; words may not."""
    sound = answer.parse(orjson.dumps(SOUND).decode())
    assert evidence.check(sound, VIEW, ["gpu-1"]).lines == (BUS,)
    for cited in ([], [{"line": 8, "quote": "fallen off the bus"}], [{"line": 7, "quote": "melted"}]):
        lying = answer.parse(orjson.dumps({**SOUND, "cited": cited}).decode())
        with pytest.raises(ModelFailed) as error:
            evidence.check(lying, VIEW, ["gpu-1"])
        assert error.value.reason is ModelFailure.NO_EVIDENCE


def test_a_node_of_another_job_is_cut() -> None:
    """A node that the job does not have is taken out and told."""
    checked = evidence.check(answer.parse(orjson.dumps(SOUND).decode()), VIEW, ["gpu-2"])
    assert checked.answer.node is None
    assert checked.notes == ("the model named a node that is not of this job",)


def test_part_of_the_citations_may_hold() -> None:
    """What holds is kept, and the share says how much that is."""
    cited = [*SOUND["cited"], {"line": 9, "quote": "nothing of the kind"}]  # type: ignore[misc]
    checked = evidence.check(answer.parse(orjson.dumps({**SOUND, "cited": cited}).decode()), VIEW, ["gpu-1"])
    assert (len(checked.lines), checked.share) == (1, 0.5)


@pytest.mark.parametrize(
    ("secret", "line"),
    [
        ("hf_aBcDeFgHiJkLmNoPqRsTuVwX", "using token hf_aBcDeFgHiJkLmNoPqRsTuVwX to log in"),
        ("s3cretpassw0rd", "connecting to postgresql://train:s3cretpassw0rd@db-3:5432/runs"),
        ("abcdefghijklmnopqrstuv", "Authorization: Bearer abcdefghijklmnopqrstuv"),
        ("hunter2hunter2", 'config: {"wandb_api_key": "hunter2hunter2"}'),
        ("AKIAQ7XW2LMN5RST3UVY", "AWS_ACCESS_KEY_ID AKIAQ7XW2LMN5RST3UVY"),
        ("mia.k@lab.example", "mail sent to mia.k@lab.example"),
        ("miak", "loading /home/miak/data/shard-01"),
        ("MIIEpAIBAAKC", "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKC\n-----END RSA PRIVATE KEY-----"),
    ],
)
def test_secrets_are_masked(secret: str, line: str) -> None:
    """Each kind of secret is gone, and the rest of the line stays readable."""
    masked = redact(line)
    assert secret not in masked
    assert "<" in masked


@pytest.mark.parametrize(
    "line",
    [
        "iteration 100/ 500 | tokens: 123456789 | lm loss: 2.31E+00",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "tokenizer: padded vocab (size: 50257) with 431 dummy tokens (new size: 50688)",
    ],
)
def test_ordinary_lines_are_left_alone(line: str) -> None:
    """Words like token in a training log are no secrets."""
    assert redact(line) == line
