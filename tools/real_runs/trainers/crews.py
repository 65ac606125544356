"""How the processes of the sixth generation work together: each function is a backend of ``job.py``.

Groups of torch, hubs, files in a shared folder, pools on each host, programs under programs, sweeps and supervisors.
"""

import datetime
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Client, Listener
from pathlib import Path

import fleet
from job_backends import _connected, alone

_PATIENCE_S = 8
_NEVER = 10**9
_HERE = Path(__file__).parent


def _group(job, size=None):
    """The group of torch, of the first ``size`` ranks."""
    import torch
    import torch.distributed as group

    torch.set_num_threads(1)
    world = {"rank": job.rank, "world_size": size, "init_method": f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"}
    group.init_process_group("gloo", timeout=datetime.timedelta(seconds=_PATIENCE_S), **(world if size else {}))
    return torch, group


def experts(job):
    """A barrier that knows who is missing, then tokens go to all ranks."""
    torch, group = _group(job)
    loss = alone(job)

    def step(number):
        tokens, received = torch.randn(4 * job.world), torch.empty(4 * job.world)
        group.monitored_barrier(timeout=datetime.timedelta(seconds=_PATIENCE_S - 2))
        group.all_to_all_single(received, tokens)
        return loss(number)

    return step


def hop(job):
    """Activations go from rank to rank, the last one tells the loss."""
    torch, group = _group(job)
    loss = alone(job)

    def step(number):
        values = torch.full((16,), loss(number))
        if job.rank:
            group.recv(values, job.rank - 1)
        if job.rank < job.world - 1:
            group.send(values, job.rank + 1)
        group.broadcast(values, job.world - 1)
        return values[0].item()

    return step


def checkpointed(job):
    """Each rank writes its part of a checkpoint of torch; what fails there reaches all ranks."""
    torch, group = _group(job)
    from torch.distributed import checkpoint

    loss, weights = alone(job), torch.nn.Linear(8, 8)

    class Writer(checkpoint.FileSystemWriter):
        def write_data(self, plan, planner):
            job.strike("save")
            return super().write_data(plan, planner)

    def step(number):
        mean = torch.tensor([loss(number)])
        group.all_reduce(mean)
        if number % 15 == 0:
            parts = {f"{name}.{job.rank}": value for name, value in weights.state_dict().items()}
            checkpoint.save(parts, storage_writer=Writer(f"ckpt/{number}"))
        return mean.item() / job.world

    return step


def grpo(job):
    """The first half of the ranks are a group that learns from what the others have generated."""
    learners, ports, loss = max(1, job.world // 2), job.settings["ports"], alone(job)
    if job.rank >= learners:
        learner = Listener(("127.0.0.1", ports[job.rank - 1])).accept()
        return lambda number: learner.send((learner.recv(), loss(number))) or loss(number)
    torch, group = _group(job, learners)
    ranks = range(job.rank + learners, job.world, learners)
    others = {rank: _connected(lambda rank=rank: Client(("127.0.0.1", ports[rank - 1]))) for rank in ranks}

    def generated(rank, number):
        others[rank].send(number)
        if not others[rank].poll(_PATIENCE_S):
            raise TimeoutError(job.settings["words"]["missing"].format(step=number, missing=rank))
        return others[rank].recv()[1]

    def step(number):
        mean = torch.tensor([sum((generated(rank, number) for rank in others), loss(number))])
        group.all_reduce(mean)
        return mean.item() / job.world

    return step


def hub(job):
    """Rank 0 has a plain socket to each of the others: a line goes there, one comes back."""
    port, loss, words = job.settings["ports"][0], alone(job), job.settings["words"]
    if job.rank:
        own = _connected(lambda: socket.create_connection(("127.0.0.1", port), 3 * _PATIENCE_S))
        lines = own.makefile("rw")
        lines.write(f"{job.rank}\n")
        lines.flush()

        def answer(number):
            asked = lines.readline()
            if not asked:
                raise ConnectionError(words["closed"].format(step=number))
            lines.write(json.dumps({"n": int(asked), "v": loss(number)}) + "\n")
            lines.flush()
            return loss(number)

        return answer
    server, others = socket.create_server(("127.0.0.1", port)), {}
    while len(others) < job.world - 1:
        other, _ = server.accept()
        other.settimeout(_PATIENCE_S)
        lines = other.makefile("rw")
        others[int(lines.readline())] = lines

    def asked(rank, number):
        try:
            others[rank].write(f"{number}\n")
            others[rank].flush()
            return json.loads(others[rank].readline() or "")["v"]
        except TimeoutError as error:
            raise TimeoutError(words["missing"].format(step=number, missing=rank)) from error
        except ValueError:
            raise ConnectionError(words["lost"].format(step=number, rank=rank)) from None

    return lambda number: loss(number) + 0.01 * sum(asked(rank, number) for rank in sorted(others))


def beats(job):
    """Everybody works alone and sends a sign of life to rank 0, which misses it before long."""
    loss, own, address = alone(job), socket.socket(type=socket.SOCK_DGRAM), ("127.0.0.1", job.settings["ports"][0])
    if job.rank:
        return lambda number: own.sendto(b"%d" % job.rank, address) and loss(number)
    own.bind(address)
    own.setblocking(False)
    seen = dict.fromkeys(range(1, job.world), 0.0)

    def step(number):
        for _ in range(4 * job.world):
            try:
                seen[int(own.recv(9))] = time.monotonic()
            except BlockingIOError:
                break
        for rank, at in seen.items():
            silent = time.monotonic() - at if at and number < job.steps - 20 else 0.0
            if silent > _PATIENCE_S - 2:
                raise TimeoutError(job.settings["words"]["missing"].format(step=number, missing=rank))
            if silent > 2 and number % 8 == 0:
                job.log.warning(job.settings["words"]["late"].format(rank=rank, late=silent))
        return loss(number)

    return step


def _met(job, number):
    """Wait in the shared folder for the others."""
    Path(f"met_{number}_{job.rank}").touch()
    deadline = time.monotonic() + _PATIENCE_S
    while missing := [rank for rank in range(job.world) if not Path(f"met_{number}_{rank}").exists()]:
        if time.monotonic() > deadline:
            raise TimeoutError(job.settings["words"]["missing"].format(step=number, missing=missing[0]))
        time.sleep(0.05)


def files(job):
    """They meet by files after every tenth step."""
    loss = alone(job)

    def step(number):
        if number % 10 == 0:
            _met(job, number)
        return loss(number)

    return step


def _shard(job, number, hit, part):
    if number == hit and part == 1:
        job.strike("step")
    return 2.0 / number + part


def pooled(job):
    """Each host maps its steps over children of its own; what goes wrong goes wrong in a child."""
    hit, job.settings["strike"] = job.settings["strike"], _NEVER
    pool, meet = ProcessPoolExecutor(3, mp_context=get_context("fork")), files(job)

    def step(number):
        meet(number)
        return sum(pool.map(_shard, [job] * 3, [number] * 3, [hit] * 3, range(3))) / 9

    step.close = pool.shutdown
    return step


def pool_map(job):
    """A driver takes the results of its workers as they come."""
    with get_context("spawn").Pool(job.world) as pool:
        for rank in pool.imap_unordered(fleet._work, range(job.world)):
            job.log.info(job.settings["words"]["back"].format(rank=rank))


def _program(**variables):
    return {"args": [sys.executable, str(_HERE / "job.py")], "env": {**os.environ, **variables}}


def nested(job):
    """The work is done by a program that this one starts under a shell and waits for."""
    if "CHILD" in os.environ:
        return files(job)
    job.log.info(job.settings["words"]["begins"].format(rank=job.rank, node=job.node))
    program = _program(CHILD="1")
    subprocess.run(["bash", "-c", " ".join(program["args"])], env=program["env"], check=True)
    job.log.info(job.settings["words"]["back"].format(rank=job.rank))
    return None


def sweep(job):
    """Programs, all at a time; one that fails does not stop the others, a table says at the end which it was."""
    if "RANK" in os.environ:
        return alone(job)
    tagged = "{} 2>&1 | sed -u 's/^/\x01{}\x01/'; exit ${{PIPESTATUS[0]}}"

    def evaluate(rank):
        program = _program(RANK=str(rank))
        words = ["bash", "-c", tagged.format(" ".join(program["args"]), rank)]
        return subprocess.run(words, env=program["env"], check=False).returncode

    with ThreadPoolExecutor(job.world) as pool:
        codes = list(pool.map(evaluate, range(job.world)))
    for rank, code in enumerate(codes):
        place = {"rank": rank, "node": job.settings["nodes"][rank // job.settings["per_node"]], "code": code}
        job.log.info(job.settings["words"]["row"].format(state="failed" if code else "ok", **place))
    if any(codes):
        sys.exit(job.settings["words"]["bad"].format(bad=sum(map(bool, codes)), all=len(codes)))
    return None


def supervised(job):
    """A supervisor a rank starts its trainer again after a failure, twice; one trainer fails at first by chance."""
    if "CHILD" in os.environ:
        step, unlucky = files(job), job.rank == job.settings["seed"] % job.world and os.environ["CHILD"] == "1"
        if unlucky:
            job.settings["strike"] = _NEVER

        def tried(number):
            if unlucky and number == 9:
                raise ConnectionAbortedError("[Errno 103] stream of the mixture server was closed")
            return step(number)

        return tried
    words = job.settings["words"]
    for attempt in (1, 2, 3):
        code = subprocess.run(**_program(CHILD=str(attempt)), check=False).returncode
        if not code:
            return None
        ended = {"attempt": attempt, "rank": job.rank, "node": job.node, "code": code}
        job.log.warning(words["again" if attempt < 3 else "no_more"].format(**ended))
        time.sleep(0.5)
    sys.exit(code if code > 0 else 128 - code)
