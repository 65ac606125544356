"""Launchers and shippers of the second generation, in two parts that have nothing in common."""

import json
from collections.abc import Sequence

from tools.real_runs.carriers import Line
from tools.real_runs.launchers import End, Launcher, at_of, zulu_of

SIGNALS = {-9: "SIGKILL", -11: "SIGSEGV", -6: "SIGABRT", -15: "SIGTERM", -8: "SIGFPE", -2: "SIGINT"}


def _failed(ends: Sequence[End]) -> End | None:
    return next((end for end in ends if end.code), None)


def _pod(line: Line, node: str) -> str:
    return f"[pod/bert-large-worker-{line.process}/main] {zulu_of(line)} {line.text}"


def _actions(line: Line, node: str) -> str:
    return f"{zulu_of(line, 7)} {line.text}"


def _actions_before(ends: Sequence[End], nodes: Sequence[str]) -> Sequence[str]:
    stamp = f"{at_of(ends[0]):%Y-%m-%dT%H:%M:%S}.0318821Z"
    return [f"{stamp} ##[group]Run python -u train", f"{stamp} shell: /usr/bin/bash -e {{0}}", f"{stamp} ##[endgroup]"]


def _actions_end(ends: Sequence[End], nodes: Sequence[str]) -> Sequence[str]:
    stamp, failed = f"{at_of(ends[-1]):%Y-%m-%dT%H:%M:%S}.9021174Z", _failed(ends)
    error = [f"{stamp} ##[error]Process completed with exit code {failed.shell_code}."] if failed else []
    return [*error, f"{stamp} Post job cleanup.", f"{stamp} Cleaning up orphan processes"]


def _lsf_before(ends: Sequence[End], nodes: Sequence[str]) -> Sequence[str]:
    failed, stamp = _failed(ends), f"{at_of(ends[-1]):%a %b %d %H:%M:%S %Y}"
    return [
        "Sender: LSF System <lsfadmin@" + nodes[0] + ">",
        f"Subject: Job 481133: <train> in cluster <aihpc> {'Exited' if failed else 'Done'}",
        "",
        "Job <train> was submitted from host <login2> by user <mara> in cluster <aihpc> at " + stamp,
        f"Job was executed on host(s) <{nodes[0]}>, in queue <gpu_long>, as user <mara> in cluster <aihpc> at " + stamp,
        "</home/mara> was used as the home directory.",
        f"Terminated at {stamp}",
        "Results reported at " + stamp,
        "",
        "Your job looked like:",
        "",
        "------------------------------------------------------------",
        "# LSBATCH: User input",
        "./train.sh",
        "------------------------------------------------------------",
        "",
        "Successfully completed." if failed is None else _lsf_reason(failed),
        "",
        "Resource usage summary:",
        "",
        "    CPU time :                                   311.04 sec.",
        "    Max Memory :                                 1892 MB",
        "    Max Processes :                              4",
        "    Run time :                                   97 sec.",
        "",
        "The output (if any) follows:",
        "",
    ]


def _lsf_reason(end: End) -> str:
    if end.code < 0:
        return f"Exited by signal {-end.code}."
    return f"Exited with exit code {end.code}."


def _sky(line: Line, node: str) -> str:
    rank = line.process
    if rank == 0:
        return f"(head, rank=0, pid=3120) {line.text}"
    return f"(worker{rank}, rank={rank}, pid={3120 + rank}, ip=10.164.0.{10 + rank}) {line.text}"


def _sky_end(ends: Sequence[End], nodes: Sequence[str]) -> Sequence[str]:
    if _failed(ends) is None:
        return ["✓ Job finished (status: SUCCEEDED)."]
    codes = [end.shell_code for end in sorted(ends, key=lambda end: end.process)]
    return [f"ERROR: Job 7 failed with return code list: {codes}", "✗ Job finished (status: FAILED)."]


def _vertex_name(process: int) -> str:
    return "workerpool0-0" if process == 0 else f"workerpool1-{process - 1}"


def _vertex(line: Line, node: str) -> str:
    severity = "ERROR" if line.stream == "stderr" else "INFO"
    return f"{severity}\t{at_of(line):%Y-%m-%d %H:%M:%S} +0000\t{_vertex_name(line.process)}\t\t{line.text}"


def _vertex_end(ends: Sequence[End], nodes: Sequence[str]) -> Sequence[str]:
    failed, stamp = _failed(ends), f"{at_of(ends[-1]):%Y-%m-%d %H:%M:%S} +0000"
    if failed is None:
        return [f"INFO\t{stamp}\tservice\t\tJob completed successfully."]
    name = SIGNALS.get(failed.code)
    status = f"{-failed.code}({name})" if name else str(failed.code)
    text = f"The replica {_vertex_name(failed.process)} exited with a non-zero status of {status}."
    return [f"ERROR\t{stamp}\tservice\t\t{text}"]


def _filebeat(line: Line, node: str) -> str:
    entry = {
        "@timestamp": zulu_of(line, 6)[:-4] + "Z",
        "@metadata": {"beat": "filebeat", "type": "_doc", "version": "8.15.2"},
        "log": {"offset": int(line.at * 100) % 1000000, "file": {"path": f"/var/log/train/rank_{line.process}.log"}},
        "message": line.text,
        "input": {"type": "filestream"},
        "host": {"name": node},
        "agent": {"type": "filebeat", "version": "8.15.2", "name": node},
        "ecs": {"version": "8.0.0"},
    }
    return json.dumps(entry, ensure_ascii=False)


_PROCFILE = """rm -f Procfile; for r in {numbers}; do echo "rank$r: env PROCESS_ID=$r {quoted}" >> Procfile; done
exec {tools}/honcho start"""
_MAKE = """printf 'all: %s\\n' "$(for r in {numbers}; do printf 'rank%s ' $r; done)" > Makefile
for r in {numbers}; do printf 'rank%s:\\n\\t@PROCESS_ID=%s %s\\n' $r $r '{quoted}' >> Makefile; done
exec make -j {ranks}"""

FIRST: tuple[Launcher, ...] = (
    Launcher("plain", alone=True, several=False, imitation=False),
    Launcher(
        "mpiexec -prepend-rank",
        ("mpiexec.hydra", "-prepend-rank", "-n", "{ranks}"),
        names_rank=True,
        head=r"^\[(\d+)\] ",
        imitation=False,
    ),
    Launcher(
        "torchrun --tee",
        ("{bin}/torchrun", "--standalone", "--tee", "3", "--nproc-per-node", "{ranks}"),
        names_rank=True,
        head=r"^\[default(\d+)\]:",
        imitation=False,
        only_python=True,
        environment="neural",
    ),
    Launcher(
        "honcho",
        ("bash", "-c", _PROCFILE, "launch.sh"),
        names_rank=True,
        cuts=True,
        head=r"^(?:\x1b\[[\d;]*m)?\d\d:\d\d:\d\d rank(\d+)\.\d+ *\| (?:\x1b\[0m)?",
        imitation=False,
    ),
    Launcher(
        "clush",
        ("{tools}/clush", "-S", "-L", "--worker=exec", "-w", "{nodes}", "PROCESS_ID=%n NODE_NAME=%h {quoted}"),
        names_node=True,
        head=r"^gpu-\d+: ",
        imitation=False,
    ),
    Launcher("make -j", ("bash", "-c", _MAKE, "launch.sh"), imitation=False),
    Launcher("kubectl --prefix --timestamps", write=_pod, names_rank=True, alone=True),
    Launcher("ci job", write=_actions, before=_actions_before, summary=_actions_end, alone=True, several=False),
    Launcher("lsf", before=_lsf_before, alone=True, several=False),
    Launcher("skypilot", write=_sky, summary=_sky_end, names_rank=True, halts=True),
    Launcher("vertex", write=_vertex, summary=_vertex_end, alone=True, halts=True),
    Launcher("filebeat", write=_filebeat, names_rank=True, names_node=True, alone=True),
)


def _jenkins(line: Line, node: str) -> str:
    return f"[{zulu_of(line, 6)[:-4]}Z] {line.text}"


def _jenkins_end(ends: Sequence[End], nodes: Sequence[str]) -> Sequence[str]:
    failed, stamp = _failed(ends), f"[{at_of(ends[-1]):%Y-%m-%dT%H:%M:%S}.731Z]"
    closing = [f"{stamp} [Pipeline] }}", f"{stamp} [Pipeline] // stage", f"{stamp} [Pipeline] End of Pipeline"]
    if failed is None:
        return [*closing, "Finished: SUCCESS"]
    return [*closing, f"ERROR: script returned exit code {failed.shell_code}", "Finished: FAILURE"]


def _batch(line: Line, node: str) -> str:
    return f"{at_of(line):%Y-%m-%dT%H:%M:%S.%f}+00:00 train/default/9d1c{7 * line.process + 11:02x}e0b5 {line.text}"


def _syslog(line: Line, node: str) -> str:
    priority = 11 if line.stream == "stderr" else 14
    return f"<{priority}>1 {at_of(line):%Y-%m-%dT%H:%M:%S.%f}+00:00 {node} train {4410 + line.process} - - {line.text}"


def _loki(line: Line, node: str) -> str:
    return f'{at_of(line):%Y-%m-%dT%H:%M:%SZ} {{host="{node}", job="train", rank="{line.process}"}} {line.text}'


def _argo(line: Line, node: str) -> str:
    return f"train-gx7kq-{1803 + 7 * line.process}: {line.text}"


def _argo_end(end: End, node: str, processes: int) -> Sequence[str]:
    head = f"train-gx7kq-{1803 + 7 * end.process}: "
    exited = (
        f'{head}time="{at_of(end):%Y-%m-%dT%H:%M:%S.%f}Z" level=info msg="sub-process exited" argo=true error="<nil>"'
    )
    return [exited, f"{head}Error: exit status {end.shell_code}"] if end.code else [exited]


def _pbs_end(ends: Sequence[End], nodes: Sequence[str]) -> Sequence[str]:
    failed = _failed(ends)
    status = 0 if failed is None else 256 - failed.code if failed.code < 0 else failed.code
    return [
        "",
        "-" * 64,
        "Job ID:         90412.pbs01",
        "Job name:       train",
        f"Exec host:      {nodes[0]}/0*8",
        "Requested:      ncpus=8,mem=64gb,ngpus=1,walltime=12:00:00",
        "Used:           cpupct=411,cput=00:06:12,mem=1874212kb,walltime=00:01:41",
        f"Exit status:    {status}",
        "-" * 64,
    ]


def _otel(line: Line, node: str) -> str:
    entry = {
        "timestamp": zulu_of(line),
        "body": line.text,
        "attributes": {"log.iostream": line.stream, "logtag": "F"},
        "resource": {
            "k8s.namespace.name": "research",
            "k8s.pod.name": f"pretrain-worker-{line.process}",
            "k8s.node.name": node,
            "k8s.container.name": "main",
        },
    }
    return json.dumps(entry, ensure_ascii=False)


_SCRIPTS = """for r in {numbers}; do printf '#!/bin/bash\nPROCESS_ID=%s exec %s\n' $r '{quoted}' > worker$r.sh; done
chmod +x worker*.sh
names=$(echo {numbers} | sed 's/[0-9][0-9]*/rank&/g; s/ /,/g')
programs=$(for r in {numbers}; do echo ./worker$r.sh; done)
exec {npm}/concurrently --kill-others-on-fail --raw=false --no-color --names "$names" $programs"""
SECOND: tuple[Launcher, ...] = (
    Launcher(
        "mpirun --timestamp-output",
        (
            "mpirun",
            "--allow-run-as-root",
            "--oversubscribe",
            "--tag-output",
            "--timestamp-output",
            "--mca",
            "mpi_yield_when_idle",
            "1",
            "-np",
            "{ranks}",
        ),
        names_rank=True,
        head=r"^\w{3} \w{3} +\d+ [\d:]{8} \d{4}\[1,(\d+)\]<std(?:out|err)>:\s?",
        imitation=False,
    ),
    Launcher(
        "concurrently",
        ("bash", "-c", _SCRIPTS, "launch.sh"),
        names_rank=True,
        head=r"^\[rank(\d+)\] (?!\S*worker\d+\.sh exited)",
        imitation=False,
    ),
    Launcher(
        "metaflow",
        (
            "env",
            "USERNAME=mara",
            "TRAIN={quoted}",
            "{tools}/python",
            "{here}/metaflow_launcher.py",
            "--no-pylint",
            "run",
        ),
        head=r"^\d{4}-\d\d-\d\d [\d:.]+ \[\S+/train/\d+ \(pid \d+\)\] ",
        imitation=False,
    ),
    Launcher(
        "ts",
        ("bash", "-c", 'set -o pipefail; "$@" 2>&1 | ts "%Y-%m-%dT%H:%M:%.S"', "run.sh"),
        head=r"^[\dT:.-]{26} ",
        alone=True,
        several=False,
        imitation=False,
    ),
    Launcher(
        "tai64n",
        ("bash", "-c", 'set -o pipefail; "$@" 2>&1 | tai64n', "run.sh"),
        head=r"^@[0-9a-f]{24} ",
        alone=True,
        several=False,
        imitation=False,
    ),
    Launcher("jenkins", write=_jenkins, summary=_jenkins_end, alone=True, several=False),
    Launcher("aws batch", write=_batch, alone=True),
    Launcher("syslog rfc5424", write=_syslog, names_node=True, alone=True),
    Launcher("loki", write=_loki, names_rank=True, names_node=True, alone=True),
    Launcher("argo", write=_argo, ended=_argo_end, alone=True),
    Launcher("pbs", summary=_pbs_end, alone=True, several=False),
    Launcher("otel collector json", write=_otel, names_rank=True, names_node=True, alone=True),
)
