"""Which labels name the job, attempt, rank, node, cluster and source of a line."""

from pathlib import Path

import pytest

from diagnoser.ingest import RecordDefaults, Target
from diagnoser.ingest.batch import Place, Unattributed
from diagnoser.ingest.mapping import DEFAULT, Decision, FieldMapping, load, preset
from diagnoser.ingest.presets import PRESETS
from diagnoser.model import Provenance, Stream, UnplacedReason
from diagnoser.model.errors import RuleFaults

NOTHING = RecordDefaults()
AGENT = RecordDefaults(vouched=True)


def place(
    labels: dict[str, str], defaults: RecordDefaults = NOTHING, mapping: FieldMapping = DEFAULT
) -> Place | Unattributed:
    return mapping.attribute(tuple(labels.items()), defaults)


def placed(labels: dict[str, str], defaults: RecordDefaults = NOTHING, mapping: FieldMapping = DEFAULT) -> Place:
    where = place(labels, defaults, mapping)
    assert isinstance(where, Place), where
    return where


@pytest.mark.parametrize(
    ("labels", "job", "attempt", "stream"),
    [
        (
            {"SLURM_JOB_ID": "77", "SLURM_CLUSTER_NAME": "east", "SLURM_RESTART_COUNT": "2", "SLURM_PROCID": "5"},
            "slurm-east-77",
            3,
            Stream(rank=5),
        ),
        ({"slurm_job_id": "77"}, "slurm-77", None, Stream()),
        ({"filename": "/home/a/slurm-77.err", "cluster": "east"}, "slurm-east-77", None, Stream("stderr")),
        (
            {
                "k8s.cluster.name": "east",
                "k8s.namespace.name": "team",
                "k8s.job.name": "llm",
                "k8s.pod.name": "llm-0-b4x2k",
                "k8s.node.name": "gpu-1",
                "log.iostream": "stderr",
            },
            "k8s:east:job:team:llm",
            None,
            Stream("llm-0-b4x2k", "gpu-1"),
        ),
        (
            {
                "kubernetes.namespace_name": "team",
                "kubernetes.pod_name": "llm-worker-1",
                "kubernetes.host": "gpu-1",
                "kubernetes.labels.training.kubeflow.org/job-name": "llm",
                "kubernetes.annotations.diagnoser.io/rank": "9",
                "stream": "stderr",
            },
            "k8s:pytorchjob:team:llm",
            None,
            Stream("stderr", "gpu-1", 9),
        ),
        (
            {"namespace": "team", "pod": "a-0", "jobset_sigs_k8s_io_jobset_name": "a", "job_name": "a-w-0"},
            "k8s:jobset:team:a",
            None,
            Stream("a-0"),
        ),
        (
            {
                "kubernetes.pod_namespace": "team",
                "kubernetes.pod_labels.ray.io/originated-from-crd": "RayJob",
                "kubernetes.pod_labels.ray.io/originated-from-cr-name": "tune",
                "kubernetes.pod_node_name": "gpu-1",
            },
            "k8s:rayjob:team:tune",
            None,
            Stream(node="gpu-1"),
        ),
        ({"TORCHELASTIC_RUN_ID": "run-7", "RANK": "3"}, "run-7", None, Stream(rank=3)),
        (
            {"log.file.path": "/logs/run-7_x1y2z3a4/attempt_0/3/stderr.log", "host.name": "gpu-1"},
            "run-7",
            None,
            Stream("stderr-0-3", "gpu-1"),
        ),
        ({"ray_submission_id": "raysubmit_a1", "world_rank": "0"}, "raysubmit_a1", None, Stream(rank=0)),
        (
            {"aws.log.stream.names": "llm-2026-01-05/algo-3-1767600000"},
            "llm-2026-01-05",
            None,
            Stream(node="algo-3"),
        ),
        ({"job": "llm", "rank": "1", "hostname": "gpu-1", "attempt": "2"}, "llm", 2, Stream("stdout", "gpu-1", 1)),
    ],
)
def test_labels_of_each_kind_of_cluster_are_read(
    labels: dict[str, str], job: str, attempt: int | None, stream: Stream
) -> None:
    """The shipped presets need no configuration, and name jobs as the agents do."""
    assert placed(labels) == (Target(job, attempt), stream)


def test_a_run_that_torchrun_calls_none_has_no_name() -> None:
    """`none` is the id of every run that nobody named: two of them are not one job."""
    assert isinstance(place({"TORCHELASTIC_RUN_ID": "none"}), Unattributed)


def test_a_schedulers_label_wins_over_what_was_scraped() -> None:
    """The label `job` of Prometheus-like label sets names the scrape; it is the last to be asked."""
    assert placed({"job": "varlogs", "slurm_job_id": "7"}).target.job == "slurm-7"


def test_the_query_wins_over_presets_and_our_own_names_over_both() -> None:
    """What an operator says outright beats what is read out of labels made for something else."""
    query = RecordDefaults("mine", 4, Stream("stdout", "gpu-9"), cluster="west")
    labels = {"slurm_job_id": "7", "cluster": "east", "host": "gpu-1", "rank": "2"}
    assert placed(labels, query) == (Target("mine", 4), Stream("stdout", "gpu-9", 2))
    assert placed({**labels, "diagnoser.job": "ours"}, query).target.job == "ours"


def test_an_unusable_label_of_somebody_else_is_passed_over() -> None:
    """A rank that is none costs nothing; one under our own name is told."""
    assert placed({"job": "j", "rank": "first"}).stream.rank == -1
    fault = place({"job": "j", "diagnoser.rank": "first"})
    assert isinstance(fault, Unattributed)
    assert (fault.reason, fault.detail) == (UnplacedReason.BAD_RANK, "rank is not a whole number: 'first'")


def test_what_cannot_be_placed_says_why_and_what_was_received() -> None:
    """The reason is of a closed list, and the labels are there to be shown."""
    assert place({"app": "web"}) == Unattributed(
        UnplacedReason.NO_JOB, "no job: none of app names one", (("app", "web"),)
    )
    fault = place({"job": "team/web"})
    assert isinstance(fault, Unattributed)
    assert fault.reason is UnplacedReason.NOT_A_JOB_ID


@pytest.mark.parametrize("defaults", [NOTHING, AGENT])
def test_a_journal_goes_to_its_node(defaults: RecordDefaults) -> None:
    """Kernel lines without a job are their node's own log; whose word they are follows from the credential."""
    entry = {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "_HOSTNAME": "gpu-1.example", "cluster": "east"}
    target, stream = placed(entry, defaults)
    assert target == Target("~node/east/gpu-1", None)
    assert stream.provenance is (Provenance.NODE if defaults.vouched else Provenance.JOB)


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "kernel"}, "kernel"),
        ({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": 0}, "kernel"),
        ({"source": "kernel", "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"}, "kernel"),
        ({"source": "dmesg"}, "dmesg"),
        # root writes to /dev/kmsg, and any process names itself
        ({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "1", "SYSLOG_IDENTIFIER": "kernel"}, "syslog"),
        ({"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel"}, "syslog"),
        ({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "logger"}, "syslog"),
        ({"_TRANSPORT": "syslog", "SYSLOG_FACILITY": "0", "SYSLOG_IDENTIFIER": "kernel"}, "syslog"),
        ({"appname": "kernel", "facility": "kern"}, "syslog"),
        ({"source": "kernel", "_TRANSPORT": "syslog", "SYSLOG_FACILITY": "0"}, "syslog"),
        ({"source": "kernel", "SYSLOG_FACILITY": "3"}, "syslog"),
        ({"diagnoser.source": "kernel", "appname": "train"}, "syslog"),
        # a daemon that journald names
        ({"_TRANSPORT": "syslog", "_UID": "0", "_SYSTEMD_UNIT": "nvidia-fabricmanager.service"}, "daemon"),
        ({"_TRANSPORT": "syslog", "_UID": "1000", "_SYSTEMD_UNIT": "nvidia-fabricmanager.service"}, "syslog"),
        ({"source": "daemon", "_UID": "0", "_SYSTEMD_UNIT": "user@1000.service"}, "syslog"),
        ({"_SYSTEMD_UNIT": "nvidia-fabricmanager.service"}, "syslog"),
    ],
)
def test_who_is_the_kernel(fields: dict[str, object], source: str) -> None:
    """Only what journald itself says of a record, all of it, or the shipper's plain word where the record is silent."""
    stream = placed({"host.name": "gpu-1", **{name: str(value) for name, value in fields.items()}}, AGENT).stream
    assert (stream.source, stream.provenance) == (source, Provenance.NODE)


def test_a_tenants_label_vouches_for_nothing() -> None:
    """A pod cannot make its lines a kernel log, nor put them into a job of another namespace, with its labels."""
    pod = {"kubernetes.namespace_name": "a", "kubernetes.host": "gpu-1", "kubernetes.pod_name": "p"}
    for name in ("source", "diagnoser.source", "diagnoser.io/source", "transport", "job", "diagnoser.job", "job_id"):
        for nest in ("kubernetes.labels.", "kubernetes.pod_annotations.", "k8s.pod.label.", "labels."):
            assert isinstance(place({**pod, nest + name: "kernel"}, AGENT), Unattributed), nest + name
    job = {**pod, "job-name": "train"}
    assert placed({**job, "source": "kernel"}, AGENT).stream.provenance is Provenance.JOB
    assert placed({**job, "diagnoser.source": "kernel"}, AGENT).stream.provenance is Provenance.NODE


SITE = r"""
presets: [slurm]
job:
  - name: app
    match: '^train-(\w+)$'
    value: 'site-{cluster}-{1}'
  - team.job
cluster: [region]
rank: [{name: worker, plus: -1}]
"""


def test_a_sites_names_come_first() -> None:
    """Names, patterns and templates of the operator's file are tried before the presets that it keeps."""
    mapping = load("mapping.yaml", SITE)
    labels = {"app": "train-x", "region": "eu", "worker": "1", "slurm_job_id": "4", "team_job": "t"}
    assert placed(labels, mapping=mapping) == (Target("site-eu-x", None), Stream(rank=0))
    assert placed({**labels, "app": "web"}, mapping=mapping).target.job == "t"
    assert placed({"slurm_job_id": "4"}, mapping=mapping).target.job == "slurm-4"
    assert isinstance(place({"ray_submission_id": "r"}, mapping=mapping), Unattributed)
    assert placed({"kubernetes.labels.team.job": "t"}, mapping=mapping).target.job == "t"


def test_all_faults_of_a_file_are_told_at_once() -> None:
    """Each with its line, so that a person can mend the file in one go."""
    text = "presets: [slurm, pbs]\njob:\n  - 'x-{'\n  - {name: a, match: '('}\n  - {match: b}\n  - {value: '{1}'}\n"
    with pytest.raises(RuleFaults) as told:
        load("mapping.yaml", text)
    assert [(fault.path, fault.line) for fault in told.value.faults] == [("mapping.yaml", n) for n in (1, 3, 4, 5, 6)]
    with pytest.raises(RuleFaults, match=r"mapping\.yaml:1: jobs: unknown key"):
        load("mapping.yaml", "jobs: [a]\n")


def test_a_label_set_is_looked_at_once() -> None:
    """A shipper repeats its labels: the answer to the same ones is the same object."""
    labels = {"slurm_job_id": "7"}
    assert place(labels) is place(dict(labels))
    assert place({"job": "x" * 20_000}) is not place({"job": "x" * 20_000})


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_alone_is_a_mapping(name: str) -> None:
    """Each preset knows our own names and the plain ones besides its own."""
    assert placed({"diagnoser.job": "j"}, mapping=preset(name)).target.job == "j"
    assert placed({"job": "j"}, mapping=preset(name)).target.job == "j"


def test_the_documented_file_is_one() -> None:
    """Whoever copies the example of docs/mapping.md starts with a file that loads, and does what its comments say."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "mapping.md").read_text("utf-8")
    site = load("mapping.md", text.partition("```yaml\n")[2].partition("```")[0])
    labels = {"team": "a", "run": "7", "worker_name": "llm-worker-3", "restart": "0"}
    assert placed(labels, mapping=site) == (Target("a-7", 1), Stream(rank=3))
    assert placed({"log.file.path": "/experiments/e1/out", "pod": "p-0"}, mapping=site) == (
        Target("e1", None),
        Stream("p-0"),
    )


def test_a_trace_says_who_decided() -> None:
    """For each field the value, whose word it is, and the labels that were read."""
    site = load("site.yaml", "node: [machine]\n")
    labels = {"slurm_job_id": "7", "machine": "gpu-1", "rank": "2", "diagnoser.attempt": "x"}
    trace = site.trace(tuple(labels.items()), RecordDefaults(cluster="east"))
    assert trace["cluster"] == Decision("east", "query", ())
    assert trace["node"] == Decision("gpu-1", "site.yaml", ("machine",))
    assert trace["rank"] == Decision("2", "plain name", ("rank",))
    assert trace["job"] == Decision("slurm-east-7", "preset slurm", ("slurm_job_id",))
    assert trace["attempt"] == Decision(
        "", "our own name", ("diagnoser.attempt",), "attempt is not a whole number: 'x'"
    )
    assert "source" not in trace
