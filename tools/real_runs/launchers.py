"""Launchers and shippers of the families: how processes are started, what stands before their lines, and what is said
when they end. Programs that are on the machine are run; of the others, lines and ends are written as they write them.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tools.real_runs.carriers import Line


@dataclass(frozen=True, slots=True)
class End:
    """A process that ended: its number, its exit code (negative for a signal) and when."""

    process: int
    code: int
    at: float

    @property
    def shell_code(self) -> int:
        return 128 - self.code if self.code < 0 else self.code


Write = Callable[[Line, str], str]
"""(line, node of its process) -> what the launcher prints."""
Ended = Callable[[End, str, int], Sequence[str]]
"""(end, node, number of processes) -> what is printed of it."""
Around = Callable[[Sequence[End], Sequence[str]], Sequence[str]]
"""(ends of the processes, nodes) -> what is printed before or after all their lines."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """command: words before the trainer's, where a real program starts the processes ("{ranks}", "{python}" and
    "{here}" are filled in). write, ended: what is written around lines and ends of processes that are started one
    by one. names_rank, names_node: what a line's head shows. halts: the others are ended after the first failure.
    head: what a real program puts before a line (taken off to find the root line); its group, else its last number,
    is the rank. cuts: the others are ended after the first end, also a good one. before, summary: what stands
    around the whole log. alone: also for one process; several: also for more.
    """

    name: str
    command: tuple[str, ...] = ()
    write: Write = lambda line, node: line.text
    ended: Ended = lambda end, node, processes: ()
    before: Around = lambda ends, nodes: ()
    summary: Around = lambda ends, nodes: ()
    names_rank: bool = False
    names_node: bool = False
    halts: bool = False
    head: str = ""
    alone: bool = False
    several: bool = True
    imitation: bool = True
    only_python: bool = False
    environment: str = ""
    cuts: bool = False


def at_of(line: Line | End) -> datetime:
    return datetime.fromtimestamp(line.at, UTC)


def zulu_of(line: Line, digits: int = 9) -> str:
    return f"{at_of(line):%Y-%m-%dT%H:%M:%S.%f}" + "000"[: digits - 6] + "Z"


def _compose(line: Line, node: str) -> str:
    return f"trainer-{line.process + 1}  | {line.text}"


def _compose_end(end: End, node: str, processes: int) -> Sequence[str]:
    return [f"trainer-{end.process + 1} exited with code {end.shell_code}"]


def _stern(line: Line, node: str) -> str:
    return f"train-worker-{line.process} trainer {line.text}"


def _kubectl(line: Line, node: str) -> str:
    return f"[pod/train-7d9f-worker-{line.process}/pytorch] {line.text}"


def _sagemaker(line: Line, node: str) -> str:
    return f"[1,mpirank:{line.process},algo-{line.process + 1}]<{line.stream}>:{line.text}"


def _sagemaker_end(end: End, node: str, processes: int) -> Sequence[str]:
    stamp = f"{at_of(end):%Y-%m-%d %H:%M:%S,%f}"[:-3]
    if end.code == 0:
        done = f"{stamp} sagemaker-training-toolkit INFO     Reporting training SUCCESS"
        return [done] if end.process == processes - 1 else []
    return [
        f"{stamp} sagemaker-training-toolkit ERROR    Reporting training FAILURE",
        f"{stamp} sagemaker-training-toolkit ERROR    ExecuteUserScriptError:",
        f"ExitCode {end.shell_code}",
        'ErrorMessage ""',
    ]


def _pdsh(line: Line, node: str) -> str:
    return f"{node}: {line.text}"


def _pdsh_end(end: End, node: str, processes: int) -> Sequence[str]:
    return [f"pdsh@login-1: {node}: ssh exited with exit code {end.shell_code}"] if end.code else []


def _srun(line: Line, node: str) -> str:
    return f"{line.process}: {line.text}"


def _srun_end(end: End, node: str, processes: int) -> Sequence[str]:
    signals = {-9: "Killed", -11: "Segmentation fault", -6: "Aborted", -15: "Terminated"}
    if end.code in signals:
        return [f"srun: error: {node}: task {end.process}: {signals[end.code]}"]
    return [f"srun: error: {node}: task {end.process}: Exited with exit code {end.code}"] if end.code else []


def _journal(line: Line, node: str) -> str:
    return f"{at_of(line):%b %d %H:%M:%S} {node} train[{2311 + line.process}]: {line.text}"


_SIGNALS = {-9: "9/KILL", -11: "11/SEGV", -6: "6/ABRT", -15: "15/TERM"}


def _journal_end(end: End, node: str, processes: int) -> Sequence[str]:
    head = f"{at_of(end):%b %d %H:%M:%S} {node} systemd[1]: train.service: "
    if end.code == 0:
        return [head + "Deactivated successfully.", head + "Consumed 41.211s CPU time."]
    how = f"code=killed, status={_SIGNALS[end.code]}" if end.code in _SIGNALS else f"code=exited, status={end.code}"
    result = "signal" if end.code in _SIGNALS else "exit-code"
    return [
        f"{head}Main process exited, {how}/FAILURE"[: None if end.code == 1 else -8],
        f"{head}Failed with result '{result}'.",
    ]


def _journal_json(line: Line, node: str) -> str:
    entry = {
        "__REALTIME_TIMESTAMP": str(int(line.at * 1e6)),
        "PRIORITY": "6",
        "_HOSTNAME": node,
        "SYSLOG_IDENTIFIER": "train",
        "_PID": str(2311 + line.process),
        "_SYSTEMD_UNIT": f"train@{line.process}.service",
        "MESSAGE": line.text,
    }
    return json.dumps(entry, ensure_ascii=False)


def _fluent(line: Line, node: str) -> str:
    entry = {
        "@timestamp": zulu_of(line),
        "log": line.text,
        "stream": line.stream,
        "kubernetes": {
            "pod_name": f"train-worker-{line.process}",
            "namespace_name": "ml",
            "host": node,
            "container_name": "trainer",
        },
    }
    return json.dumps(entry, ensure_ascii=False)


def _docker(line: Line, node: str) -> str:
    entry = {"log": line.text + "\n", "stream": line.stream, "time": zulu_of(line)}
    return json.dumps(entry, ensure_ascii=False)


def _cri(line: Line, node: str) -> str:
    return f"{zulu_of(line)} {line.stream} F {line.text}"


def _cloudwatch(line: Line, node: str) -> str:
    return f"{zulu_of(line, 6)[:-4]}Z {node}/worker-{line.process} {line.text}"


def _supervisor(line: Line, node: str) -> str:
    return line.text


def _supervisor_end(end: End, node: str, processes: int) -> Sequence[str]:
    stamp = f"{at_of(end):%Y-%m-%d %H:%M:%S,%f}"[:-3]
    if end.code < 0:
        names = {-9: "SIGKILL", -11: "SIGSEGV", -6: "SIGABRT", -15: "SIGTERM"}
        return [f"{stamp} WARN exited: train (terminated by {names.get(end.code, end.code)}; not expected)"]
    if end.code == 0:
        return [f"{stamp} INFO exited: train (exit status 0; expected)"]
    return [f"{stamp} WARN exited: train (exit status {end.code}; not expected)"]


def _bracket_node(line: Line, node: str) -> str:
    return f"[{node}/{line.process}] {line.text}"


def _bracket_end(end: End, node: str, processes: int) -> Sequence[str]:
    return [f"[launch] worker {end.process} on {node} finished with status {end.shell_code}"]


def _azure(line: Line, node: str) -> str:
    return f"{zulu_of(line, 9)[:-3]}Z [{node}] [rank-{line.process:02d}] {line.text}"


def _worker_arrow(line: Line, node: str) -> str:
    return f"w{line.process}> {line.text}"


def _gpuhost(line: Line, node: str) -> str:
    return f"{node} | {line.text}"


_MPI_HEAD = r"^\[1,\d+\]<std(?:out|err)>: ?"
_MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--tag-output", "--mca", "mpi_yield_when_idle", "1")
_LOOP = """pids=(); for r in $(seq 0 $(({ranks} - 1))); do
  (set -o pipefail; PROCESS_ID=$r "$@" 2>&1 | sed -u "s/^/worker-$r: /") & pids+=($!)
done
code=0; for r in "${{!pids[@]}}"; do
  wait "${{pids[$r]}}"; c=$?
  [ $c -ne 0 ] && {{ echo "worker-$r exited with $c" >&2; code=$c; }}
done
[ $code -eq 0 ] && echo "all workers finished"
exit $code"""
LAUNCHERS: tuple[Launcher, ...] = (
    Launcher("plain", alone=True, several=False, imitation=False),
    Launcher("mpirun --tag-output", (*_MPIRUN, "-np", "{ranks}"), names_rank=True, head=_MPI_HEAD, imitation=False),
    Launcher(
        "parallel --tag",
        (
            "parallel",
            "--will-cite",
            "--tag",
            "--line-buffer",
            "--halt",
            "soon,fail=1",
            "-j",
            "{ranks}",
            "PROCESS_ID={{}} {quoted}",
            ":::",
            "{numbers}",
        ),
        names_rank=True,
        head=r"^\d+\t",
        imitation=False,
    ),
    Launcher("shell loop", ("bash", "-c", _LOOP, "launch.sh"), names_rank=True, head=r"^worker-\d+: ", imitation=False),
    Launcher(
        "xargs",
        ("bash", "-c", 'seq 0 $(({ranks} - 1)) | xargs -P {ranks} -I@ env PROCESS_ID=@ "$@"', "launch.sh"),
        imitation=False,
    ),
    Launcher(
        "multiprocessing", ("{python}", "{here}/pool_launcher.py", "multiprocessing"), imitation=False, only_python=True
    ),
    Launcher(
        "joblib",
        ("{python}", "{here}/pool_launcher.py", "joblib"),
        imitation=False,
        only_python=True,
        environment="tabular",
    ),
    Launcher(
        "torchrun",
        ("{bin}/torchrun", "--standalone", "--nproc-per-node", "{ranks}"),
        imitation=False,
        only_python=True,
        environment="gym",
    ),
    Launcher("docker compose", write=_compose, ended=_compose_end, halts=True, alone=True),
    Launcher("stern", write=_stern, names_rank=True),
    Launcher("kubectl --prefix", write=_kubectl, names_rank=True, alone=True),
    Launcher("sagemaker", write=_sagemaker, ended=_sagemaker_end, names_rank=True, halts=True),
    Launcher("pdsh", write=_pdsh, ended=_pdsh_end, names_node=True),
    Launcher("srun --label", write=_srun, ended=_srun_end, names_rank=True, halts=True),
    Launcher("journald", write=_journal, ended=_journal_end, names_node=True, alone=True, several=False),
    Launcher("journald json", write=_journal_json, names_node=True, alone=True),
    Launcher("fluent-bit json", write=_fluent, names_rank=True, names_node=True, alone=True),
    Launcher("docker json", write=_docker, alone=True, several=False),
    Launcher("cri", write=_cri, alone=True, several=False),
    Launcher("cloud stream", write=_cloudwatch, names_rank=True, names_node=True),
    Launcher("supervisord", write=_supervisor, ended=_supervisor_end, alone=True, several=False),
    Launcher("node brackets", write=_bracket_node, ended=_bracket_end, names_rank=True, names_node=True, halts=True),
    Launcher("node and rank", write=_azure, names_rank=True, names_node=True),
    Launcher("arrows", write=_worker_arrow, names_rank=True),
    Launcher("host bar", write=_gpuhost, names_node=True, alone=True),
)


def strip_head(launcher: Launcher, text: str) -> str:
    return re.sub(launcher.head, "", text, count=1) if launcher.head else text


def rank_of_head(launcher: Launcher, text: str) -> int | None:
    """The rank that a real program's head shows."""
    match = re.match(launcher.head, text) if launcher.head and launcher.names_rank else None
    if match is None:
        return None
    digits = match.groups() or re.findall(r"\d+", match[0])
    return int(digits[-1])
