"""Messages that name ranks and nodes: whoever prints them, they tell whom the line is about."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from diagnoser.dialects.launchers import ADDRESS, NUMBERED_HOST
from diagnoser.dialects.rank_tables import MACHINE

_NAME = r"[A-Za-z][\w.-]*"


class Tells(StrEnum):
    RANK = "rank"  # whom the line is about
    NODE = "node"  # the same
    HOST = "host"  # where the message around the line was printed
    COPIED = "copied"  # the rank whose message is copied below the line
    SELF = "self"  # the rank that the process which prints the line says it is
    FAILED = "failed"  # the rank of which the line says that it failed


@dataclass(frozen=True, slots=True)
class Mention:
    """pattern: group 1 is the name or number. examples: (line, what it tells)."""

    tells: Tells
    pattern: re.Pattern[str]
    examples: tuple[tuple[str, str], ...]


def _mention(tells: Tells, pattern: str, *examples: tuple[str, str]) -> Mention:
    return Mention(tells, re.compile(pattern), examples)


_rank, _node, _host = (partial(_mention, tells) for tells in (Tells.RANK, Tells.NODE, Tells.HOST))
_copied, _self, _failed = (partial(_mention, tells) for tells in (Tells.COPIED, Tells.SELF, Tells.FAILED))

_PROCESS_NOUN = r"(?<!local )(?:rank|process(?: rank)?|worker|trainer|task|learner)"
"""What launchers call one process of a job that they number."""
_FAILS = (
    r"\b(?:failed|fails|died|dies|dead|crashed|raised|aborted|terminated|exited|exit|killed|encountered|threw"
    r"|caught (?:an? )?(?:exception|error|signal)|caused|lost"
    r"|(?:finished|ended|returned|completed) with(?= (?:an? )?(?:exit |return )?(?:status|code|signal)))\b"
)
"""A watchdog that caught a timeout tells of a rank that waits, not of one that failed."""
_NOT_WELL = r"(?!.{0,40}(?:(?:code|status)[ :=]{1,2}(?:0|143|-15)\b|success|SIGTERM|signal 15|gracefully|retry))"

MENTIONS = (
    _rank(r"^\S*?\[\d+,(\d+)\]<std(?:out|err)>", ("[1,12]<stdout>:gpu fault", "12")),
    _rank(r"\[[Rr]ank[ :=]?(\d{1,6})\]", ("[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught", "3")),
    _rank(r"(?i)\b(?:on|for|of|by) (?:global )?rank[ :=]?(\d{1,6})\b", ("unused parameters for rank 3: a, b", "3")),
    _rank(r"(?i)(?:^|: )rank[ :=]?(\d{1,6})[,:]", ("Rank 3, node n58, device 3: rerun gives nan", "3")),
    _rank(
        r"\b(?:(?:world|global)_)?rank=(\d{1,6})\b",
        ("worker rank=5 failed", "5"),
        ("distributed_context=DistributedContext(world_rank=1, world_size=2, local_rank=0)", "1"),
    ),
    _rank(r"\[(\d+)\] is setting up NCCL communicator", ("[7] is setting up NCCL communicator", "7")),
    _rank(r"\bRankID[:=] ?(\d{1,6})", ("RankID: 4", "4")),
    _rank(r"__rank__'?: \W*(\d{1,6})", ("{'__rank__': 6}", "6")),
    _rank(
        r"/job:\w{1,60}/(?:replica:\d{1,5}/)?task:(\d{1,6})",
        ("UNAVAILABLE: /job:jax_worker/replica:0/task:37 heartbeat timeout", "37"),
    ),
    _self(
        r"(?i)\b(?:initiali[sz]ed|initiali[sz]ing|started|starting|joined|ready|i am|this is|hello from|running) "
        r"(?:as |on |in |the )?(?:(?:global|world|mpi) )?(?:rank|process)[ :=#]{1,2}(\d{1,6})\b",
        ("initialized rank 3", "3"),
        ("Initializing process 2 of 8", "2"),
    ),
    _self(
        r"(?i)\b(?:process|rank|worker|trainer)[ :=#]{1,2}(\d{1,6}) ?(?:of|/) ?\d{1,6}\b",
        ("JAX process: 3 / 8", "3"),
        ("worker 3 of 8 is ready", "3"),
        ("Hello world from processor n1, rank 2 of 4", "2"),
    ),
    _self(r"(?i)(?<!local[_ ])\bprocess[_ ]index[ :=]{1,3}(\d{1,6})\b", ("process_index=3, local devices: 4", "3")),
    _self(r"(?i)\b(?:global|world)[ _]rank[\"' :=]{1,4}(\d{1,6})\b", ("Global rank: 3, local device cuda:0", "3")),
    _self(
        r"(?i)\brank[ :=]{1,2}(\d{1,6})\b.{0,24}\b(?:world[_ ]?size|nranks)\b",
        ("process group up: rank=3 world_size=8", "3"),
    ),
    _self(
        r"(?i)\brank[ :=]{1,2}(\d{1,6}) (?:is )?(?:runs|running|started|initiali[sz]ed|ready|online|up)\b",
        ("rank 3 runs on host gpu-07", "3"),
    ),
    _self(
        r"^(?:export )?(?:RANK|SLURM_PROCID|PMI_RANK|PMIX_RANK|OMPI_COMM_WORLD_RANK|MV2_COMM_WORLD_RANK)=(\d{1,6})$",
        ("SLURM_PROCID=3", "3"),
    ),
    _failed(
        rf"(?i)\b(?<!loader ){_PROCESS_NOUN}[ :=#]{{1,2}}(\d{{1,6}})\b(?! ?(?:of|/))"
        rf"[^.;\n]{{0,40}}?{_FAILS}{_NOT_WELL}",
        ("Worker 3 raised an exception:", "3"),
        ("[launcher] trainer 2 exited with code 1", "2"),
        ("rank 3 in job 1  cn0004_41234   caused collective abort of all ranks", "3"),
        ("task 1 on gpu-07 failed:", "1"),
        ("[launch] worker 1 on gpu-07 finished with status 139", "1"),
    ),
    _failed(
        rf"(?i)\b(?:failed|failure|error|exception|crash(?:ed)?|abort(?:ed)?|died|invoked|raised|fault)\b"
        rf"[^.;\n]{{0,30}}?(?:\b(?:on|in|from|by|of|at)|:) (?:the )?(?:mpi |global |tpu )?{_PROCESS_NOUN}"
        rf"[ :=#]{{1,2}}(\d{{1,6}})\b{_NOT_WELL}",
        ("MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD", "3"),
        ("ERROR: exception on rank 5", "5"),
        ("Failed to execute command on TPU worker 3:", "3"),
        ("Barrier timed out. The first task at fault: task 6", "6"),
    ),
    _failed(
        rf"\bmake(?:\[\d+\])?: \*\*\* \[(?:[^\]\n]{{0,100}}[ :/])?{_PROCESS_NOUN}[-_.]?(\d{{1,6}})\] "
        rf"(?!.*\(ignored\)){_NOT_WELL}",
        ("make: *** [Makefile:10: rank-2] Error 1", "2"),
    ),
    _failed(
        r"called MPI_Abort\(.{0,60}, -?\d{1,6}\) - process (\d{1,6})",
        ("application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3", "3"),
    ),
    _failed(
        r"\bProcess name: (?:\[(?:\[\d+,\d+\]|\S{1,90}@\d+),)?(\d{1,6})\]?\s*$",
        ("  Process name: [[41234,1],3]", "3"),
        ("   Process name: [prterun-gpu-07-4411@1,2]", "2"),
        ("Process name: 1", "1"),
    ),
    _copied(r"\[[Rr]ank (\d{1,6}) [A-Za-z][\w ]{1,40}\]:?$", ("[Rank 1 Error Snippet]:", "1")),
    _copied(
        r"Traceback \(most recent call last\): \(RANK (\d{1,6})\)$",
        ("Traceback (most recent call last): (RANK 3)", "3"),
    ),
    _copied(
        r"-- Process (\d{1,6}) terminated with the following error",
        ("-- Process 2 terminated with the following error:", "2"),
    ),
    _node(rf"(?:^|[>\s])({_NAME}):\d+:\d+ \[\d+\]", ("n05:10:11 [0] NCCL INFO x", "n05")),
    _node(
        rf"^\w{{3}} +\d+ \d\d:\d\d:\d\d ({_NAME}) (?:kernel|systemd|slurm|nvidia|dockerd|kubelet)",
        ("Jan  2 03:04:05 gpu-7 kernel: NVRM: Xid", "gpu-7"),
    ),
    _node(rf"\*\*\* (?:JOB|STEP) \S+ ON ({_NAME}) CANCELLED", ("*** JOB 9 ON n3 CANCELLED AT x ***", "n3")),
    _node(
        rf"(?:update_node: node|Prolog failure on node|Epilog failure on node) ({_NAME})",
        ("Prolog failure on node n4", "n4"),
    ),
    _node(rf"srun: error: ({_NAME}): tasks? [\d,-]+: ", ("srun: error: n6: task 3: Killed", "n6")),
    _node(
        rf"(?i)\b(?<!loader ){_PROCESS_NOUN}[ :=#]{{1,2}}\d{{1,6}} (?:on|at) (?:(?:the )?(?:node|host|machine) )?"
        rf"((?-i:{MACHINE}))\b[^.;\n]{{0,20}}?{_FAILS}{_NOT_WELL}",
        ("task 1 on cn0004 failed:", "cn0004"),
        ("[launch] worker 1 on gpu-07 finished with status 139", "gpu-07"),
    ),
    _node(r"^([\w.-]+): kern: \w+: ", ("n9: kern: err: [1.2] x", "n9")),
    _node(rf"^({_NAME}) kernel: ", ("gpu-07 kernel: nfs: server fs1 not responding, timed out", "gpu-07")),
    _node(rf"\b(?:kubelet|[a-z]{{2,20}}-monitor), ({_NAME})\s", ("Failed  pod/llm-0  kubelet, gpu-07  x", "gpu-07")),
    _node(
        r"\bip: ([\w.:-]{1,80}) has been marked dead",
        ("The node with node id: 7c9e and ip: gpu-026 has been marked dead because", "gpu-026"),
    ),
    _node(r"\bnode(?:info)?_{0,2}'?[:=]? [\"'(]*([A-Za-z][\w-]*\d[\w.-]*)", ("lost contact with node gpu-3", "gpu-3")),
    _host(rf"^\[\w+@({_NAME}) [^\]]*\][#$] ", ("[ada@n22 run]$ python a.py", "n22")),
    _host(rf"\b[Ee]xec(?:ution)? host: *<?({_NAME})", ("Exec host:  n22/5+n22/6", "n22")),
    _host(
        r"\bnode \(ID: [0-9a-f]+, IP: ([\w.:-]+)\)",
        ("killed due to memory pressure (OOM) at node (ID: 64642ccb6a, IP: 10.3.0.7)", "10.3.0.7"),
    ),
    _host(
        r"\b[Nn]ode (?:\()?IP: ([\w.:-]{1,80}), (?:node )?ID:",
        ("Memory on the node (IP: 10.3.0.9, ID: 7c9e) where the task ran was 63 GB", "10.3.0.9"),
        ("Task failed because the node is dead. Node IP: 10.3.0.8, node ID: 7c9e.", "10.3.0.8"),
    ),
    _host(
        rf"^\s*Remote daemon *: \[\[\d+,\d+\],\d+\] on node ({_NAME})",
        ("  Remote daemon: [[23414,0],1] on node gpu-07", "gpu-07"),
    ),
    _host(rf"__nodeinfo__'?: \W*({_NAME})", ("{'__nodeinfo__': 'n7'}", "n7")),
    _host(
        rf"^\s*(?:Local host|[Hh]ostname) *: +({_NAME})\s*$",
        ("  Local host:   gpu-027", "gpu-027"),
        ("hostname: gpu-027", "gpu-027"),
    ),
    _host(  # banners, batch systems, kubectl, environments
        r"(?i)^\s{0,8}(?:(?:exec(?:ution)?|compute|job|batch|this|current|host|local|slurmd)[ _-]?)?"
        r"(?:hosts?(?:[ _]?name)?|nodes?(?:[ _]?name)?|machine(?:[ _]?name)?|exec_v?host)"
        rf"\s{{0,24}}[:=]{{1,2}}\s{{0,24}}[\"'<(]{{0,2}}((?-i:{MACHINE}))(?![\w,+[-])",
        ("Nodes: gpu-07", "gpu-07"),
        ("Node:         gpu-07/10.1.2.3", "gpu-07"),
        ("HOSTNAME=cn0004", "cn0004"),
        (" Host             = n22", "n22"),
        ("exec_vhost = (n22:ncpus=64:ngpus=4)", "n22"),
    ),
    _host(
        r"(?i)\b(?:running|started|starting|executed|executing|launched|job) on (?:the )?"
        rf"(?:(?:compute )?(?:host|node|machine)(?:s|\(s\))? )?<?(?:\d{{1,4}}\*)?((?-i:{MACHINE}))(?![\w,[-])",
        ("Running on gpu-07", "gpu-07"),
        ("Job was executed on host(s) <8*n22>, in queue <gpu>, as user <ada>", "n22"),
    ),
    _host(rf"\bQueue\s{{0,20}}= ?[\w.-]{{1,40}}@({MACHINE})", (" Queue            = gpu.q@n22", "n22")),
    _host(
        rf"^(?:\([\w.-]{{1,40}}\) ?)?[\w.-]{{1,40}}@(?!login|head|mgmt|bastion|submit)({MACHINE}):[^\s$#]{{0,80}}[$#] "
        r"(?!.*\b(?:srun|sbatch|salloc|mpirun|mpiexec|pdsh|clush|ssh|kubectl|bsub|qsub|gcloud)\b)",
        ("(base) ada@gpu-07:~/run$ python train.py", "gpu-07"),
    ),
    _host(rf"^Linux ({MACHINE}) \d+\.\d+", ("Linux cn0004 5.15.0-105-generic #115-Ubuntu SMP x86_64", "cn0004")),
    _host(
        rf"\bSuccessfully assigned \S{{1,200}} to ({_NAME})",
        ("Normal  Scheduled  30s  default-scheduler  Successfully assigned ml/llm-0 to gpu-07", "gpu-07"),
    ),
    _host(
        r"\(pid=\d{1,8}, ip=([\w.:-]{1,80})[,)]",
        ("ray.exceptions.RayTaskError(KeyError): ray::T.step() (pid=811, ip=10.0.0.3, actor_id=77aa)", "10.0.0.3"),
    ),
    _host(r"^\s{0,9}ip: ((?:\d{1,3}\.){3}\d{1,3})\s*$", ("\tip: 10.0.0.3", "10.0.0.3")),
    _host(
        r"\b[Ww]orker '?(?:tcp|tls|ucx)://([\w.-]{1,80}):\d{2,5}",
        ("distributed.worker - ERROR - Worker tcp://10.0.0.3:40331 failed", "10.0.0.3"),
    ),
    _host(
        r"\bLost task \S{1,20} in stage \S{1,20} \(TID \d{1,12}\) \(([\w.-]{1,100}) executor",
        (
            "Lost task 3.0 in stage 2.0 (TID 17) (cn0004.example.org executor 4): java.io.IOException",
            "cn0004.example.org",
        ),
    ),
    _host(rf"^({MACHINE}) slots=\d{{1,4}}\b", ("gpu-07 slots=8", "gpu-07")),
)
_BY_KIND = {tells: tuple(mention.pattern for mention in MENTIONS if mention.tells is tells) for tells in Tells}
_ENDS_BADLY = re.compile(
    rf"(?i)(?:{_FAILS}|\b(?:returned|exit|rc|status|code|with)[ :=(]{{1,3}}(?!0\b|143\b|-15\b)-?\d{{1,3}}\b){_NOT_WELL}"
)
_DEVICE = re.compile(
    r"(?:mlx|bnxt|efa|irdma|hfi|cxi|eth|bond|hsn|rdma|roce|ib[ops]?|en[ops])_?\d[\w.]*|std(?:out|err)|error|localhost"
)
_WHERE = re.compile(r"(?i)host|node|machine|rank|process|procid|running on|@|^linux |assigned|worker|executor|slots=")
"""Words of lines that say where a run runs."""
SURE = 1 << 30
"""Weight of a line that says outright on which node a rank runs."""
_COMMUNICATOR = re.compile(
    r"(?:^|[ >])([A-Za-z][\w.-]{1,80}):\d+:\d+ \[\d+\].*\bcomm 0x[0-9a-f]+ rank (\d+) nranks (\d+)", re.ASCII
)
_ON_NODE = re.compile(
    r"(?i)\brank[ =:]+(\d+)\b.{0,40}\b(?:node|host(?:name)?|on)[ =:]+"
    r"([A-Za-z][\w.-]*(?:\d[\w.-]*|[_-][a-z]\b))",
    re.ASCII,
)
NCCL_HOST = _BY_KIND[Tells.NODE][0]
STEP_DAEMON = re.compile(rf"\bslurmstepd-(?P<node>{_NAME}?): ")
PARALLEL_SHELL = re.compile(rf"({NUMBERED_HOST}|{ADDRESS}): ")
SYSLOG = re.compile(
    r"^(?:<\d+>)?(?:[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) (?P<host>\S+) [\w./-]+(?:\[\d+\])?: "
)
"""What the system log of a node puts in front: time, host, program."""
_WORLD_SIZE = re.compile(
    r"(?i)(?<![a-z])(?<!local_)(?:world[ _]?size|n_?ranks|num_processes|world(?=[\"']?[:=]))\b[\"' :=]{1,4}(\d{1,6})\b"
)
_NODE_COUNT = re.compile(
    r"(?i)(?<![a-z])(?:slurm_|pet_)?(?:n_?nodes|num_(?:nodes|machines|hosts))\b[\"' :=]{1,4}(\d{1,5})\b(?!:)"
)
_STATED_HOST = re.compile(
    rf"(?i)(?:(?<![\w.-])(?:host|node)(?:_?name)?[\"']? ?[=:] ?[\"']?|, host )((?-i:{MACHINE}))(?![\w:])"
)
_HEADING_NAME = re.compile(
    r"^(?:\[?[\d:., TZ/+-]{4,40}\]?[ |-]{0,3})?(?:\[ {0,3}[A-Z]{4,8} {0,3}\] )?"
    rf"(?:\[({MACHINE})\]|[|] ?({MACHINE}) [|]|({MACHINE}) [|]|[|][A-Z]{{4,8}} {{0,3}}[|]({MACHINE}):\d+[|])"
)
_PROCESS = re.compile(r"(?i)\bpid[ =:]{1,2}(\d{1,8})\b")
_RANK_OF_PROCESS = re.compile(r"(?i)\b(?:world|global)[_ ]rank[ =:]{1,2}(\d{1,6})\b")
_PLACED_ADDRESSES = (
    re.compile(r"(?P<node>[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] NCCL INFO .*\[\d+\]\w+:(?P<ip>\d+\.\d+\.\d+\.\d+)<"),
    re.compile(r"\b(?P<node>[A-Za-z][\w-]*\d[\w.-]*) \(?(?P<ip>\d+\.\d+\.\d+\.\d+)\)?"),
    re.compile(r"\b(?P<ip>\d+\.\d+\.\d+\.\d+)\s+(?P<node>[A-Za-z][\w-]*\d[\w.-]*)\s*$"),
)
_ASSIGNED = re.compile(rf"\bSuccessfully assigned (?:[\w.-]{{1,100}}/)?([\w.-]{{1,100}}) to ({_NAME})")


def named(tells: Tells, text: str) -> Iterator[str]:
    """What a line tells, by the first patterns first."""
    return (match[1] for pattern in _BY_KIND[tells] if (match := pattern.search(text)))


def says_failed(text: str) -> bool:
    """Whether a line says of a process that it ended badly."""
    return _ENDS_BADLY.search(text) is not None


def says_where(text: str) -> bool:
    """Whether a line says on which machine, or as which rank, the run around it runs."""
    if not _WHERE.search(text):
        return False
    return any(True for tells in (Tells.HOST, Tells.SELF) for _ in named(tells, text))


def assigned_pod(text: str) -> tuple[str, str] | None:
    """(pod, node) of what the scheduler of Kubernetes reports: ``Successfully assigned default/llm-0 to gpu-3``."""
    if "Successfully assigned" not in text:
        return None
    match = _ASSIGNED.search(text)
    return (match[1], match[2]) if match else None


def node_counts(text: str) -> list[int]:
    """Numbers of nodes that a line states: ``--nnodes 2``, ``SLURM_NNODES=2``, ``num_machines: 2``."""
    return list(map(int, _NODE_COUNT.findall(text)))


def world_sizes(text: str) -> list[int]:
    """Numbers of ranks that a line states."""
    return list(map(int, _WORLD_SIZE.findall(text)))


def stated_hosts(text: str) -> list[str]:
    """Hosts in fields of a message: ``host=gpu-07``, ``hostname: gpu-07``."""
    return _STATED_HOST.findall(text)


def heading_names(text: str) -> list[str]:
    """The name in brackets or between bars that a message begins with, behind no more than a time and a level."""
    match = _HEADING_NAME.match(text)
    return list(filter(None, match.groups())) if match else []


def process_ids(text: str) -> list[int]:
    """Processes that a line names: ``Worker PID: 771``, ``pid=771``."""
    return list(map(int, _PROCESS.findall(text)))


def process_rank(text: str) -> tuple[int, int] | None:
    """(pid, rank) of a line that says which rank a process runs: ``- (ip=10.1.2.3, pid=812) world_rank=1``."""
    rank = _RANK_OF_PROCESS.search(text)
    if rank is None:
        return None
    ids = process_ids(text)
    return (ids[0], int(rank[1])) if len(ids) == 1 else None


def node_addresses(text: str) -> list[tuple[str, str]]:
    """(address, node) pairs of a line that shows both, as NCCL and tables of hosts do."""
    return [(match["ip"], match["node"]) for place in _PLACED_ADDRESSES if (match := place.search(text))]


def is_device(name: str) -> bool:
    """Some lines name a network device, or a stream, where others name a host."""
    return _DEVICE.fullmatch(name) is not None


def placed(text: str) -> tuple[int, int, str] | None:
    """(rank, weight, node) of a line that says on which node a rank runs: ``rank 3 on node n7``, or NCCL's line about a
    communicator. NCCL numbers the ranks of each anew: the weight is its size, the larger one weighs more."""
    if match := _COMMUNICATOR.search(text):
        return int(match[2]), int(match[3]), match[1]
    if (match := _ON_NODE.search(text)) and not is_device(match[2]):
        return int(match[1]), SURE, match[2]
    return None
