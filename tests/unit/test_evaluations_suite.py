"""The file of a suite, its faults by line and field, and the command lines of its engine."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagnoser.evaluations.engines import inspect_engine
from diagnoser.evaluations.model_server import filled
from diagnoser.evaluations.suite import read_suite
from diagnoser.model.errors import RuleFaults
from diagnoser.model.evaluations import Server

DOCUMENT = Path(__file__).parents[2] / "docs" / "evaluation.md"
GOOD = """\
name: nightly
checkpoints: [/ckpt/step-1000, /ckpt/step-2000]
gpus: 2
size: 7B
weights: 14GB
hardware: A100
scorers: 16
engine:
  infer: [python3, infer.py, "{checkpoint}", "{task}", "{first}", "{last}", "{samples}", --shots, 5]
  score: [python3, score.py, "{samples}", "{scores}"]
tasks:
  - {name: gsm8k, samples: 1319, sample_seconds: 0.4, score_seconds: 30}
  - {name: bbh, samples: 6511, splits: false, infer: [bbh, "{samples}"], score: [sh, -c, 'x "$0"', "{samples}{scores}"]}
"""
INSPECT = """\
name: nightly
checkpoints: [/ckpt/step-1000]
engine:
  inspect_ai: {model: "vllm/{checkpoint}", eval: [--max-connections, 64], score: [--stream, 10]}
tasks: [{name: gsm8k, samples: 10, inspect_task: inspect_evals/gsm8k}]
"""
LM_EVAL = re.sub(
    r"  inspect_ai: .*",
    '  lm_eval: {model_args: "pretrained={checkpoint},dtype=float32", include: tasks, run: [--num_fewshot, 5]}',
    INSPECT,
).replace(", inspect_task: inspect_evals/gsm8k", "")
OPENCOMPASS = re.sub(r"  lm_eval: .*", '  opencompass: {run: [--hf-path, "{checkpoint}"]}', LM_EVAL)


def faults(text: str) -> list[str]:
    with pytest.raises(RuleFaults) as caught:
        read_suite("SUITE.yaml", text)
    return [str(fault) for fault in caught.value.faults]


def test_a_suite_is_read() -> None:
    """All of its fields; a task's own commands come before the engine's, and numbers become words."""
    suite = read_suite("SUITE.yaml", GOOD)
    assert (suite.name, suite.gpus, suite.size, suite.weights, suite.scorers) == ("nightly", 2, "7B", 14 * 10**9, 16)
    assert suite.checkpoints == ("/ckpt/step-1000", "/ckpt/step-2000")
    gsm8k, bbh = suite.tasks
    assert (gsm8k.samples, gsm8k.sample_seconds, gsm8k.score_seconds, gsm8k.splits) == (1319, 0.4, 30, True)
    assert gsm8k.infer[-2:] == ("--shots", "5")
    assert (bbh.infer, bbh.splits, bbh.sample_seconds) == (("bbh", "{samples}"), False, None)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gpus: 2", "gpu: 2", "SUITE.yaml:3: gpu: unknown key"),
        ("gpus: 2", "gpus: 0", "SUITE.yaml:3: gpus: Input should be greater than or equal to 1"),
        ("size: 7B", "size: seven", "SUITE.yaml:4: size: must be a number with a unit, such as 7B"),
        ("name: nightly", "name: ../x", "SUITE.yaml:1: name: must be up to 100 letters, digits"),
        ("/ckpt/step-2000", "--help", "SUITE.yaml:2: checkpoints.1: must be up to 1,000 characters on a line, and not"),
        ("/ckpt/step-2000", "/ckpt/step-1000", "SUITE.yaml:2: checkpoints.1: /ckpt/step-1000 is there twice"),
        ("name: bbh", "name: gsm8k", "SUITE.yaml:13: tasks.1: gsm8k is there twice"),
        ("samples: 1319", "samples: many", "SUITE.yaml:12: tasks.0.samples: Input should be a valid integer"),
        ("sample_seconds: 0.4", "sample_seconds: .inf", "SUITE.yaml:12: tasks.0.sample_seconds: Input should be a fin"),
        ("[python3, score.py, ", '"python3 score.py" #', "SUITE.yaml:10: engine.score: must be a list of words"),
        ('"{task}"', '"{tasks}"', "SUITE.yaml:9: engine.infer.3: no placeholder {tasks}; there are checkpoint, first"),
        ('"{first}", ', "", "SUITE.yaml:9: engine.infer: needs the placeholder {first}"),
        (', "{scores}"]\n', "]\n", "SUITE.yaml:10: engine.score: needs the placeholder {scores}"),
        ('[bbh, "{samples}"]', '[bash, -ec, "x {samples}"]', "SUITE.yaml:13: tasks.1.infer.2: give placeholders to a"),
        ("splits: false", "inspect_task: b", "SUITE.yaml:13: tasks.1.inspect_task: is for the engine inspect_ai"),
        ("name: nightly", "name: a: b", "SUITE.yaml:1: not YAML:"),
    ],
)
def test_a_fault_says_line_and_field(old: str, new: str, expected: str) -> None:
    """Each with what is wrong, and what would be right."""
    assert old in GOOD
    assert any(fault.startswith(expected) for fault in faults(GOOD.replace(old, new, 1)))


JUDGED = """\
name: nightly
checkpoints: [/ckpt/step-1000]
size: 7B
engine: {infer: [a, "{first}", "{last}", "{samples}"], score: [b, "{samples}", "{scores}"]}
models:
  judge: {checkpoint: /models/judge, size: 70B, server: {command: [serve, "{checkpoint}", "{port}"]}}
tasks:
  - {name: chat, samples: 80}
  - name: chat-judged
    samples: 80
    after: chat
    model: judge
    infer: [judge, "{url}", "{answers}", "{first}", "{last}", "{samples}"]
    score: [mean, "{samples}", "{scores}"]
"""


def test_a_task_may_come_after_another_and_load_a_model_of_its_own() -> None:
    """Its part of the suite has the server and the size of the judge; the other part has neither."""
    suite = read_suite("SUITE.yaml", JUDGED)
    part = suite.part("judge")
    assert [task.name for task in part.tasks] == ["chat-judged"] and part.tasks[0].after == "chat"
    assert part.server == Server(("serve", "{checkpoint}", "{port}")) and part.size == "70B"
    assert [task.name for task in suite.part("").tasks] == ["chat"] and suite.part("").server is None
    assert suite.all_checkpoints == ("/ckpt/step-1000", "/models/judge")
    assert suite.loaded_by(suite.task("chat-judged"), "/ckpt/step-1000") == "/models/judge"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("after: chat", "after: chat-judged", "SUITE.yaml:11: tasks.1.after: there is no task chat-judged above it"),
        ("model: judge", "model: juge", "SUITE.yaml:12: tasks.1.model: there is no model juge"),
        ("    model: judge\n", "", "SUITE.yaml:9: tasks.1: must have both after and model, or neither"),
        ("    score:", "    splits: true #", "SUITE.yaml:9: tasks.1: must have infer and score of its own"),
        ('"{answers}", ', "", "SUITE.yaml:13: tasks.1.infer: needs the placeholder {answers}"),
        (
            ', server: {command: [serve, "{checkpoint}", "{port}"]}',
            "",
            "SUITE.yaml:13: tasks.1.infer.1: no placeholder",
        ),
        (', "{port}"', "", "SUITE.yaml:6: models.judge.server.command: needs the placeholder {port}"),
    ],
)
def test_a_fault_of_a_judge_says_line_and_field(old: str, new: str, expected: str) -> None:
    """As faults of other tasks."""
    assert old in JUDGED
    assert any(fault.startswith(expected) for fault in faults(JUDGED.replace(old, new, 1)))


def test_all_faults_come_at_once() -> None:
    """So that a person mends a file in one go."""
    text = GOOD.replace("gpus: 2", "gpus: x").replace("samples: 1319", "samples: 0").replace("size: 7B", "size: 7")
    assert [fault.split(" ")[0] for fault in faults(text)][:3] == ["SUITE.yaml:3:", "SUITE.yaml:4:", "SUITE.yaml:12:"]


@pytest.mark.parametrize(
    "engine", ["{}", "{infer: [a]}", "{infer: [a], score: [b], opencompass: {run: [a]}}", "{inspect_ai: {}}"]
)
def test_an_engine_is_a_pair_or_one_by_name(engine: str) -> None:
    """Not half of a pair, and not both."""
    text = f"name: a\ncheckpoints: [/c]\nengine: {engine}\ntasks: [{{name: t, samples: 1}}]\n"
    assert any(":3: engine" in fault for fault in faults(text))


def test_inspect_ai_becomes_two_command_lines() -> None:
    """Inference without scores over a range of samples that counts from 1, and the scoring of stored samples."""
    (task,) = read_suite("SUITE.yaml", INSPECT).tasks
    assert task.infer[:2] == task.score[:2] == ("python3", "{inspect_engine}")
    assert " ".join(task.infer[2:]) == (
        "infer {samples} inspect eval inspect_evals/gsm8k --model vllm/{checkpoint} --no-score --limit {start}-{last} "
        "--log-dir {samples} --log-format json --display plain --max-connections 64"
    )
    assert " ".join(task.score[2:]) == "score {samples} {scores} inspect score --display plain --stream 10"


def test_opencompass_becomes_two_command_lines() -> None:
    """Both with its own words, where what the other one alone knows is a fault."""
    (task,) = read_suite("SUITE.yaml", OPENCOMPASS).tasks
    script = "python3 {opencompass_engine}"
    words = "--hf-path {checkpoint}"
    assert " ".join(task.infer) == f"{script} infer {{samples}} {{checkpoint}} {{task}} {{first}} {{last}} {words}"
    assert " ".join(task.score) == f"{script} score {{samples}} {{checkpoint}} {{task}} {{scores}} {words}"
    (fault,) = faults(OPENCOMPASS.replace("{checkpoint}", "{first}"))
    assert fault.startswith("SUITE.yaml:4: engine.opencompass.run")


def test_lm_eval_serves_the_shards_of_a_batch() -> None:
    """A process with the model loaded, shards that ask it, and scores that lm_eval computes from the stored answers."""
    suite = read_suite("SUITE.yaml", LM_EVAL)
    (task,) = suite.tasks
    model = "--model hf --model_args pretrained={checkpoint},dtype=float32 --include_path tasks --num_fewshot 5"
    assert suite.server is not None
    assert " ".join(suite.server.command) == "python3 {lm_eval_engine} serve {port} tasks " + model
    assert " ".join(task.infer) == "python3 {lm_eval_engine} ask {url} {samples} {task} {first} {last}"
    assert task.score == ("python3", "{lm_eval_engine}", "score", "{samples}", "{scores}", "{task}", "tasks")


def test_lm_eval_only_asks_the_server_of_a_suite() -> None:
    """Each shard is a run of lm_eval then, which may know the address."""
    server = 'server: {command: [serve, "{checkpoint}", --port, "{port}"]}\n'
    suite = read_suite("SUITE.yaml", server + LM_EVAL.replace("dtype=float32", "base_url={url}"))
    assert suite.server is not None and suite.server.command[0] == "serve"
    assert " ".join(suite.tasks[0].infer).startswith(
        "python3 {lm_eval_engine} infer {samples} {task} {first} {last} --model hf "
        "--model_args pretrained={checkpoint},base_url={url} --include_path tasks"
    )
    assert any("no placeholder {url}" in fault for fault in faults(LM_EVAL.replace("dtype=float32", "base_url={url}")))


def test_a_server_is_read_and_its_address_can_be_given_to_commands() -> None:
    """Only with a server is there an address; its command needs the port."""
    server = 'server: {command: [serve, "{checkpoint}", --port, "{port}"], ready: /health}\n'
    asked = GOOD.replace("--shots, 5", '--url, "{url}"')
    suite = read_suite("SUITE.yaml", server + asked)
    assert suite.server == Server(("serve", "{checkpoint}", "--port", "{port}"), "/health", "/v1", 900)
    assert any("no placeholder {url}" in fault for fault in faults(asked))
    assert any("needs the placeholder {port}" in fault for fault in faults(server.replace("{port}", "80") + asked))
    assert any("server.ready" in fault for fault in faults(server.replace("/health", "http://elsewhere/") + asked))


def test_unknown_placeholders_of_inspect_ai_are_faults() -> None:
    """At the line of the engine."""
    assert faults(INSPECT.replace("{checkpoint}", "{ckpt}"))[0].startswith("SUITE.yaml:4: engine.inspect_ai.model")


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL))
def test_the_examples_of_the_document_are_read(block: str) -> None:
    """Those that show an engine alone get a name and a checkpoint."""
    head = "" if block.startswith("name:") else "name: example\ncheckpoints: [/ckpt]\n"
    assert read_suite("docs/evaluation.md", head + block).tasks


def log(numbers: list[int], status: str = "success") -> dict[str, Any]:
    return {
        "status": status,
        "error": {"message": "no GPU"} if status == "error" else None,
        "eval": {"dataset": {"sample_ids": numbers}, "config": {"limit": [numbers[0] - 1, numbers[-1]]}},
        "samples": [{"id": number, "epoch": 1} for number in numbers],
        "results": {"scores": []},
    }


def test_logs_of_shards_become_one() -> None:
    """All samples in order, and nothing that says that only a part had run."""
    joined = inspect_engine.joined_log([log([1, 2]), log([3])])
    assert [sample["id"] for sample in joined["samples"]] == [1, 2, 3]
    assert joined["eval"] == {"dataset": {"sample_ids": [1, 2, 3]}, "config": {"limit": None}}
    assert joined["results"] is None


def test_a_sample_in_two_logs_is_refused() -> None:
    """A task that shuffles its data set gives each shard other samples: no score rather than a wrong one."""
    with pytest.raises(SystemExit, match="shuffle"):
        inspect_engine.joined_log([log([1, 2]), log([2, 3])])


def engine(*arguments: str) -> "subprocess.CompletedProcess[str]":
    program = str(inspect_engine.__file__)
    return subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, check=False)


def write(file: Path, value: object) -> str:
    """A command that writes the value to the file."""
    return f"from pathlib import Path; Path({str(file)!r}).write_text({json.dumps(json.dumps(value))})"


@pytest.mark.parametrize(("status", "code"), [("success", 0), ("error", 1), ("cancelled", 1)])
def test_inference_fails_where_its_log_says_so(tmp_path: Path, status: str, code: int) -> None:
    """inspect ends with 0 whatever has happened."""
    ran = engine("infer", str(tmp_path), sys.executable, "-c", write(tmp_path / "a.json", log([1], status)))
    assert ran.returncode == code, ran.stderr
    assert ("no GPU" in ran.stderr) == (status == "error")


def test_inference_without_a_log_fails(tmp_path: Path) -> None:
    """Nothing was stored, so nothing is inferred."""
    assert engine("infer", str(tmp_path), sys.executable, "-c", "").returncode == 1


def test_scoring_gives_the_command_one_log_and_keeps_its_numbers(tmp_path: Path) -> None:
    """The command stands for inspect score: it gets all samples and a file to write."""
    for number in range(2):
        (tmp_path / f"{number}-log.json").write_text(json.dumps(log([2 * number + 1, 2 * number + 2])))
    score = (
        "import json, sys; log = json.load(open(sys.argv[1])); file = sys.argv[3]; count = len(log['samples']);"
        "metrics = {'accuracy': {'value': count / 8}, 'words': {'value': 'many'}};"
        "json.dump({'results': {'scores': [{'name': 'match', 'metrics': metrics}]}}, open(file, 'w'))"
    )
    scores = tmp_path / "out" / "scores.json"
    scores.parent.mkdir()
    ran = engine("score", str(tmp_path), str(scores), sys.executable, "-c", score)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(scores.read_text()) == {"match/accuracy": 0.5}
    assert [path.name for path in scores.parent.iterdir()] == ["scores.json"]


def test_an_engines_script_hides_no_module_of_its_model() -> None:
    """Python looks beside a script first, so that nothing else lies there."""
    folder = Path(filled(["{lm_eval_engine}"], {})[0]).parent
    assert {path.stem for path in folder.glob("*.py") if not path.stem.endswith("_engine")} == {"__init__"}
