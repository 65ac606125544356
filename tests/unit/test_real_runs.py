"""The generator of labelled runs: every fault has its truth, every case its root line, and the committed cases hold."""

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from diagnoser.accuracy.scoring import label_of
from diagnoser.model.taxonomy import Action, Category, FailureType, Outcome, category_of
from tools.real_runs import environments, measure, runner
from tools.real_runs.__main__ import one_case
from tools.real_runs.carriers import CARRIERS, LAUNCHED, ONE_PROCESS, SEVERAL, Line, carry
from tools.real_runs.cases import Case, NoRootLine, make_case, read_labels, root_lines_of
from tools.real_runs.frameworks import FRAMEWORKS, NODES, Framework
from tools.real_runs.scenarios import FAULTS, HEALTHY, SCENARIOS, Scenario, Truth, write_inputs

SAMPLES = measure.SAMPLES
FRAMEWORK = {framework.name: framework for framework in FRAMEWORKS}
ONE = Framework("python", "mpi", "plain_trainer.py")
TWO = Framework("jax.distributed", "jax", "jax_trainer.py", "processes", ranks=2)
KEY = Truth("key_error", "an unknown source", r"^KeyError: 'wiki'", where="one")
LINES = [
    Line("step 1/12 loss 1.2", 1795344000.0, 0),
    Line("KeyError: 'wiki'", 1795344001.5, 1, "stderr"),
    Line("KeyError: 'wiki'", 1795344002.5, 0, "stderr"),
]


def scenario(name: str) -> Scenario:
    return next(one for one in SCENARIOS if one.name == name)


def labels() -> list[dict[str, object]]:
    return read_labels(SAMPLES)


def test_names_are_unique() -> None:
    """No two scenarios and no two frameworks share a name: ids of cases are made of both."""
    assert len({one.name for one in SCENARIOS}) == len(SCENARIOS)
    assert len(FRAMEWORK) == len(FRAMEWORKS)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_every_framework_goes_through_enough(framework: Framework) -> None:
    """Each framework has at least 25 faults and 10 healthy ends."""
    healthy = [truth.healthy for _, truth in framework.scenarios()]
    assert healthy.count(False) >= 25
    assert healthy.count(True) >= 10


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_changed_truths_are_of_known_scenarios(framework: Framework) -> None:
    """A framework changes no truth of a scenario that there is not."""
    assert set(framework.truths) <= {one.name for one in SCENARIOS}


def test_every_fault_has_a_truth() -> None:
    """A fault names a type that is a fault or an end, a reason, and a marker that finds its line."""
    for framework in FRAMEWORKS:
        for one, truth in framework.scenarios():
            assert truth.why, one.name
            assert truth.outcome in {str(outcome) for outcome in Outcome}
            assert truth.where in ("all", "one", "first")
            assert category_of(FailureType(truth.type)) is not Category.UNKNOWN
            assert bool(truth.marker) != truth.healthy, one.name
            re.compile(truth.marker)


def test_faults_cover_all_three_categories() -> None:
    """Faults of script, framework and infrastructure are among them, and ends that are none."""
    categories = {category_of(FailureType(one.truth.type)) for one in FAULTS}
    assert categories == {Category.SCRIPT, Category.FRAMEWORK, Category.INFRASTRUCTURE, Category.NONE}
    assert all(one.truth.healthy for one in HEALTHY)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_carrier_keeps_lines_and_words(carrier: str) -> None:
    """Every line stays one line and what it says can still be read in it."""
    carried = carry(LINES, carrier, NODES)
    assert len(carried) == len(LINES)
    for line, original in zip(carried, LINES, strict=True):
        assert original.text in line
        assert "\n" not in line


def test_carriers_in_turn_are_carriers() -> None:
    """The lists that are gone through in turn name carriers that exist, and all of them are used."""
    assert {*ONE_PROCESS, *SEVERAL, *LAUNCHED} == set(CARRIERS)


def test_docker_lines_are_json() -> None:
    """A line of Docker's json-file driver gives the text, its line end and the stream back."""
    entry = json.loads(carry(LINES, "docker", NODES)[1])
    assert (entry["log"], entry["stream"]) == ("KeyError: 'wiki'\n", "stderr")
    assert entry["time"].startswith("2026-11-22T")


def test_the_root_line_is_that_of_the_faulty_process() -> None:
    """Where processes are told apart, the same words of another one are not the root."""
    assert root_lines_of(TWO, KEY, LINES) == [2]
    assert root_lines_of(ONE, KEY, LINES) == [2, 3]


def test_a_marker_is_found_behind_a_head_of_rank() -> None:
    """The heads of torch, mpirun and Ray do not hide a line from its marker."""
    heads = ("[rank1]: ", "[1,1]<stderr>:", "(Worker pid=41, ip=192.0.2.2) ", "\x1b[36m(RayTrainWorker pid=41)\x1b[0m ")
    tagged = [replace(LINES[1], text=head + LINES[1].text) for head in heads]
    assert root_lines_of(ONE, KEY, tagged) == [1, 2, 3, 4]


def test_a_rank_that_no_launcher_tells_is_not_labelled() -> None:
    """Ray Train says which worker has which rank; plain actors have no rank, so none is asked for."""
    ranks = {
        name: make_case(FRAMEWORK[name], scenario("source"), KEY, LINES, "plain").label["rank"]
        for name in ("ray train", "ray actors")
    }
    assert ranks == {"ray train": 1, "ray actors": None}


@pytest.mark.parametrize(
    ("carrier", "rank", "node"),
    [
        ("plain", None, None),
        ("srun", 1, None),
        ("pod", 1, None),
        ("pdsh", None, "gpu-027"),
        ("syslog", None, "gpu-027"),
    ],
)
def test_a_label_states_what_the_carrier_tells(carrier: str, rank: int | None, node: str | None) -> None:
    """Rank and node are labelled where the head of the line names them, and nowhere else."""
    label = make_case(TWO, scenario("source"), KEY, LINES, carrier).label
    assert (label["rank"], label["node"]) == (rank, node)
    assert label["root_lines"] == [2]
    assert label["type"] == "key_error"
    assert label["recovery"] == "notify_user"


def test_a_node_that_is_named_is_cordoned_for_its_disk() -> None:
    """A full disk on a node that the log names takes that node out; without a name it must first be found."""
    full = Truth("disk_full", "the disk is full", r"KeyError", where="one")
    named, nameless = (make_case(TWO, scenario("disk"), full, LINES, carrier).label for carrier in ("pdsh", "plain"))
    assert named["recovery"] == "cordon_and_resubmit"
    assert nameless["recovery"] == "check_and_resubmit"


def test_the_only_node_is_named_by_its_syslog() -> None:
    """A disk that fills up under a run of one process is that of the host in the line's head; a bad record is not."""
    full = Truth("disk_full", "the disk is full", r"KeyError")
    assert make_case(ONE, scenario("disk"), full, LINES, "syslog").label["node"] == "gpu-014"
    assert make_case(ONE, scenario("source"), KEY, LINES, "syslog").label["node"] is None


def test_a_run_that_failed_otherwise_gives_no_case() -> None:
    """Without the marker there is no label: the fault did not happen as it should have."""
    with pytest.raises(NoRootLine, match="no line matches"):
        make_case(ONE, scenario("source"), replace(KEY, marker="IndexError"), LINES, "plain")


def test_a_healthy_run_that_died_gives_no_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends with another exit code than 0 is not labelled as completed."""
    monkeypatch.setattr(runner, "run", lambda *_: runner.Run(LINES[:1], [0, 1]))
    with pytest.raises(NoRootLine, match="a healthy run ended with"):
        one_case(ONE, scenario("ok"), scenario("ok").truth, 0)


def test_writing_replaces_the_older_case(tmp_path: Path) -> None:
    """A case that is made again takes the place of the older one, and the others stay."""
    for case_id, why in (("b", "old"), ("a", "other"), ("b", "new")):
        Case(["line"], {"id": case_id, "why": why}).write(tmp_path)
    assert [(label["id"], label["why"]) for label in read_labels(tmp_path)] == [("a", "other"), ("b", "new")]
    assert (tmp_path / "b.log").read_text() == "line\n"


def test_no_place_of_this_machine_is_shown(tmp_path: Path) -> None:
    """Folders of the run, the environment and the interpreter are replaced, one line for one line."""
    text = f"File {tmp_path}/config.yaml, {environments.FOLDER}/jax/lib/x.py, {runner.TRAINERS}/support.py"
    shown = runner.shown([Line(text, 0.0, 1, "stderr")], tmp_path, "python-03", "gpu-014")
    expected = "File /data/runs/python-03/config.yaml, /opt/envs/jax/lib/x.py, /workspace/train/support.py"
    assert shown == [Line(expected, 0.0, 1, "stderr")]
    cut = runner.shown([Line(f'  File "{str(runner.TRAINERS)[:-4]}...', 0.0)], tmp_path, "x", "gpu-014")
    assert cut == [Line('  File "/workspace...', 0.0)]
    tip = runner.shown([Line("Tip: try [it](https://shop.example.com/it/)", 0.0)], tmp_path, "x", "gpu-014")
    assert tip == [Line("Tip: try [it](https://example.org/it/)", 0.0)]


def test_held_out_frameworks_speak_other_words() -> None:
    """Every language of a run has another one for frameworks that are held out, and the trainers know all of them."""
    source = (runner.TRAINERS / "support.py").read_text()
    spoken = {*runner.LANGUAGES, *(str(one.settings["language"]) for one in SCENARIOS if "language" in one.settings)}
    assert spoken == set(runner.HELD_OUT_LANGUAGES)
    assert not spoken & set(runner.HELD_OUT_LANGUAGES.values())
    for language in (*runner.HELD_OUT_LANGUAGES, *runner.HELD_OUT_LANGUAGES.values()):
        assert f'"{language}": {{' in source


def test_inputs_differ_between_ranks(tmp_path: Path) -> None:
    """Each rank has a shard of its own, with records that name their length."""
    write_inputs(tmp_path, 2)
    shards = [(tmp_path / f"data/shard_{rank:05d}.jsonl").read_text().splitlines() for rank in (0, 1)]
    assert shards[0] != shards[1]
    assert all(len(record["x"]) == record["length"] for record in map(json.loads, shards[0]))


def test_what_a_framework_compiles_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment that is there gets its extension once, in its own folder, and then nothing more is started."""
    started: list[dict[str, str]] = []
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda command, env, **more: started.append(env))
    (tmp_path / "deepspeed").mkdir()
    pins = (environments.REQUIREMENTS / "deepspeed.txt").read_bytes()
    (tmp_path / "deepspeed/.installed").write_text(hashlib.sha256(pins).hexdigest())
    environments.install("deepspeed")
    environments.install("deepspeed")
    assert [env["TORCH_EXTENSIONS_DIR"] for env in started] == [str(tmp_path / "deepspeed/extensions")]


def test_environments_are_pinned_by_name() -> None:
    """Every framework's environment has a requirements file with exact versions and no address in it."""
    assert {framework.environment for framework in FRAMEWORKS} <= set(environments.environments())
    for path in environments.REQUIREMENTS.glob("*.txt"):
        for line in path.read_text().splitlines():
            pin = r"[a-z0-9_.-]+(\[[a-z]+\])?==[0-9.]+((post|a|b|rc)[0-9]+)?(\+cpu)?( --hash=sha256:[0-9a-f]{64})?"
            assert re.fullmatch(pin, line), f"{path.name}: {line}"


@pytest.mark.parametrize(
    ("name", "type_", "root"),
    [
        ("source", "key_error", "KeyError: 'wiki'"),
        ("cut-checkpoint", "model_loading_error", "UnpicklingError"),
        ("ok-early", "completed", ""),
    ],
)
def test_the_plain_trainer_fails_as_it_should(
    monkeypatch: pytest.MonkeyPatch, name: str, type_: str, root: str
) -> None:
    """A run of the plain trainer in this very environment gives a labelled case."""
    monkeypatch.setattr(environments, "python_of", lambda environment: Path(sys.executable))
    one = scenario(name)
    case = one_case(ONE, one, one.truth, 0)
    assert case.label["type"] == type_
    if root:
        assert root in case.log[case.label["root_lines"][0] - 1]
    else:
        assert case.label["root_lines"] == []


def test_committed_labels_are_well_formed() -> None:
    """Each committed label is read by the scorer, fits the closed lists, and has its log beside it."""
    for data in labels():
        label = label_of(data)
        assert label.category == category_of(FailureType(label.type))
        assert label.recovery in {str(action) for action in Action}
        assert data["outcome"] in {str(outcome) for outcome in Outcome}
        assert data["framework"] in FRAMEWORK
        assert (SAMPLES / f"{label.id}.log").is_file()
    assert {f"{data['id']}.log" for data in labels()} == {path.name for path in SAMPLES.glob("*.log")}


def test_committed_root_lines_show_the_truth() -> None:
    """The text that gives a fault away stands in each labelled root line, at the place the label says."""
    for data in labels():
        log = (SAMPLES / f"{data['id']}.log").read_bytes().decode().split("\n")
        truths = {one.name: truth for one, truth in FRAMEWORK[str(data["framework"])].scenarios()}
        marker = truths[str(data["scenario"])].marker.lstrip("^")
        root_lines = label_of(data).root_lines
        assert bool(root_lines) == bool(marker)
        for number in root_lines:
            assert re.search(marker.replace("|^", "|"), log[number - 1]), data["id"]
        if root_lines:
            assert log[root_lines[0] - 1] == data["root_text"]


def test_committed_logs_are_small_and_of_no_machine() -> None:
    """No held-out framework, no large log and no path of a machine is committed."""
    assert 30 <= len(labels()) <= 70
    for data in labels():
        path = SAMPLES / f"{data['id']}.log"
        assert path.stat().st_size < 32 << 10
        assert not FRAMEWORK[str(data["framework"])].held_out
        assert not re.search(r"/root|/tmp/|pyenv|/home/(?!user)", path.read_text()), path.name
