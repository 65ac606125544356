"""Processes that meet through software of their own: each function is a backend of ``job.py``, as in job_backends.

In some every rank pushes to rank 0, in some rank 0 calls the others, in some a driver starts them all.
"""

import base64
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import connection, get_context
from multiprocessing.managers import BaseManager
from pathlib import Path
from xmlrpc.client import ServerProxy
from xmlrpc.server import SimpleXMLRPCServer

import job_backends
from job import Job, run

_PATIENCE_S = 8


class Rounds:
    """A value of every rank for each step, and their mean; who waits too long learns who is missing."""

    def __init__(self, job):
        self.world, self.words = job.world, job.settings["words"]["missing"]
        self.changed, self.values = threading.Condition(), {}

    def push(self, rank, number, value):
        with self.changed:
            values = self.values.setdefault(number, {})
            values[rank] = value
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: len(values) == self.world, _PATIENCE_S):
                missing = min(set(range(self.world)) - set(values))
                raise TimeoutError(self.words.format(step=number, missing=missing))
            return sum(values.values()) / self.world


def _pushed(job, push):
    loss = job_backends.alone(job)
    return lambda number: push(job.rank, number, loss(number))


def manager(job):
    class Board(BaseManager):
        pass

    rounds, address = Rounds(job), ("127.0.0.1", job.settings["ports"][0])
    Board.register("rounds", callable=lambda: rounds)
    board = Board(address, authkey=b"board")
    if job.rank == 0:
        threading.Thread(target=board.get_server().serve_forever, daemon=True).start()
        return _pushed(job, rounds.push)
    job_backends._connected(board.connect)
    return _pushed(job, board.rounds().push)


def zmq_server(job):
    """Rank 0 answers each of the others at a port of its own."""
    import zmq

    def channel(kind, rank):
        made = zmq.Context.instance().socket(kind)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.RCVTIMEO, 1000 * _PATIENCE_S + 2000)
        (made.bind if kind == zmq.REP else made.connect)(f"tcp://127.0.0.1:{job.settings['ports'][rank]}")
        return made

    if job.rank:
        asker = channel(zmq.REQ, job.rank)
        return _pushed(job, lambda *values: asker.send_pyobj(values) or asker.recv_pyobj())
    rounds = Rounds(job)

    def answer(rank):
        own = channel(zmq.REP, rank)
        while True:
            own.send_pyobj(rounds.push(*own.recv_pyobj()))

    for rank in range(1, job.world):
        threading.Thread(target=answer, args=(rank,), daemon=True).start()
    return _pushed(job, rounds.push)


def grpc_server(job):
    import grpc

    rounds, address = Rounds(job), f"127.0.0.1:{job.settings['ports'][0]}"
    if job.rank == 0:

        def answer(raw, context):
            return json.dumps(rounds.push(*json.loads(raw))).encode()

        method = grpc.unary_unary_rpc_method_handler(answer)
        server = grpc.server(ThreadPoolExecutor(32))
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("fleet.Rounds", {"Push": method})])
        server.add_insecure_port(address)
        server.start()
        step = _pushed(job, rounds.push)
        step.close = lambda: server.stop(3).wait()
        return step
    call = grpc.insecure_channel(address).unary_unary("/fleet.Rounds/Push")

    def push(*values):
        return json.loads(call(json.dumps(values).encode(), timeout=2 * _PATIENCE_S, wait_for_ready=True))

    return _pushed(job, push)


def etcd(job):
    """The members meet by keys of a real etcd; a member that has died loses its lease."""
    port = job.settings["ports"][0]
    address, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{job.settings['ports'][-1]}"
    if job.rank == 0:
        words = ["etcd", "--data-dir", "etcd", "--log-level", "warn", "--initial-cluster", f"default={peers}"]
        own = {"listen-client-urls": address, "advertise-client-urls": address, "listen-peer-urls": peers}
        own["initial-advertise-peer-urls"] = peers
        subprocess.Popen([*words, *(f"--{name}={value}" for name, value in own.items())])
    job_backends._connected(lambda: socket.create_connection(("127.0.0.1", port), 5).close())
    time.sleep(1.5)

    def ask(path, **values):
        request = urllib.request.Request(f"{address}/v3/{path}", json.dumps(values).encode())
        return json.load(urllib.request.urlopen(request, timeout=_PATIENCE_S))

    def key(name):
        return base64.b64encode(name.encode()).decode()

    lease = ask("lease/grant", TTL=3)["ID"]
    ask("kv/put", key=key(f"member/{job.rank:02d}"), value=key(job.node), lease=lease)

    def keep():
        while True:
            time.sleep(1)
            ask("lease/keepalive", ID=lease)

    threading.Thread(target=keep, daemon=True).start()

    def push(rank, number, value):
        ask("kv/put", key=key(f"{number}/{rank:02d}"), value=key(str(value)))
        for _ in range(20 * _PATIENCE_S):
            found = ask("kv/range", key=key(f"{number}/"), range_end=key(f"{number}0"))["kvs"]
            if len(found) == job.world:
                return sum(float(base64.b64decode(entry["value"])) for entry in found) / job.world
            time.sleep(0.05)
        there = {int(base64.b64decode(entry["key"]).split(b"/")[1]) for entry in found}
        missing = min(set(range(job.world)) - there)
        alive = ask("kv/range", key=key(f"member/{missing:02d}")).get("kvs")
        state = "its lease is alive" if alive else "its lease has expired"
        raise TimeoutError(job.settings["words"]["missing"].format(step=number, missing=missing) + f" ({state})")

    return _pushed(job, push)


class Trainee:
    """What rank 0 calls on the other ranks."""

    def __init__(self, job):
        self.job, self.loss, self.closed = job, job_backends.alone(job), threading.Event()

    def fit(self, number):
        try:
            return float(self.job.turn(number, self.loss))
        except Exception:
            if self.job.settings["crash"] in ("logged", "both"):
                self.job.log.exception(self.job.settings["words"]["failed"])
            raise

    def close(self):
        self.closed.set()


def _driven(job, serve, connect):
    """serve(trainee) starts to answer; connect(rank) returns what has ``fit`` and ``close`` of that rank."""
    if job.rank:
        trainee = Trainee(job)
        serve(trainee)
        trainee.closed.wait()
        time.sleep(0.3)
        return None
    socket.setdefaulttimeout(_PATIENCE_S)
    others, loss = {}, job_backends.alone(job)
    for rank in range(1, job.world):
        port = job.settings["ports"][rank]
        job_backends._connected(lambda port=port: socket.create_connection(("127.0.0.1", port), 5).close())
        others[rank] = connect(rank)

    def call(rank, number):
        try:
            return others[rank].fit(number)
        except Exception as error:
            words = job.settings["words"].get("lost")
            if words:
                node = job.settings["nodes"][rank // job.settings["per_node"]]
                job.log.error(words.format(rank=rank, node=node, step=number, name=type(error).__name__))
            raise

    def step(number):
        return loss(number) + 0.001 * sum(call(rank, number) for rank in others)

    step.close = lambda: [other.close() for other in others.values()]
    return step


def xmlrpc(job):
    def serve(trainee):
        server = SimpleXMLRPCServer(("127.0.0.1", job.settings["ports"][job.rank]), logRequests=False, allow_none=True)
        server.register_instance(trainee)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    return _driven(job, serve, lambda rank: ServerProxy(f"http://127.0.0.1:{job.settings['ports'][rank]}"))


def pyro(job):
    import Pyro5.api
    import Pyro5.errors

    sys.excepthook, Pyro5.config.COMMTIMEOUT = Pyro5.errors.excepthook, _PATIENCE_S

    def serve(trainee):
        daemon = Pyro5.api.Daemon(port=job.settings["ports"][job.rank])
        Pyro5.api.expose(Trainee)
        daemon.register(trainee, "trainee")
        threading.Thread(target=daemon.requestLoop, daemon=True).start()

    return _driven(job, serve, lambda rank: Pyro5.api.Proxy(f"PYRO:trainee@localhost:{job.settings['ports'][rank]}"))


def rpyc_workers(job):
    import rpyc
    from rpyc.utils.server import ThreadedServer

    def serve(trainee):
        class Service(rpyc.Service):
            exposed_fit, exposed_close = staticmethod(trainee.fit), staticmethod(trainee.close)

        server = ThreadedServer(Service(), port=job.settings["ports"][job.rank], hostname="127.0.0.1")
        threading.Thread(target=server.start, daemon=True).start()

    def connect(rank):
        return rpyc.connect("127.0.0.1", job.settings["ports"][rank], config={"sync_request_timeout": _PATIENCE_S}).root

    return _driven(job, serve, connect)


def _posted(job, address):
    for attempt in range(1, job.settings["tries"]):
        try:
            return json.load(urllib.request.urlopen(address, b"{}", timeout=_PATIENCE_S))
        except OSError as error:
            job.log.warning(f"POST {address} try {attempt}: {error}")
            time.sleep(0.7)
    return json.load(urllib.request.urlopen(address, b"{}", timeout=_PATIENCE_S))


def rollouts(job):
    """The other ranks are HTTP servers that generate; rank 0 trains on what they answer."""

    def serve(trainee):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                name, _, number = self.path.strip("/").partition("/")
                answer = trainee.fit(int(number)) if name == "generate" else trainee.close()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_request(self, code="-", size="-"):
                if str(code) != "200" or trainee.job.chance.random() < 0.1:
                    super().log_request(code, size)

        server = ThreadingHTTPServer(("127.0.0.1", job.settings["ports"][job.rank]), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    class Engine:
        def __init__(self, rank):
            node = job.settings["nodes"][rank // job.settings["per_node"]]
            self.address = f"http://{node}:{job.settings['ports'][rank]}"

        def post(self, path):
            return _posted(job, f"{self.address}/{path}")

        def fit(self, number):
            return self.post(f"generate/{number}")

        def close(self):
            self.post("close")

    return _driven(job, serve, Engine)


def _work(rank, backend="alone", tagged=True):
    """A rank whose driver is another process."""
    os.environ["RANK"] = str(rank)
    job = Job(rank)
    job.settings |= {"module": "job_backends", "backend": backend, "drives": False}
    if tagged:
        job.tag()
    try:
        run(job)
    except Exception:
        if job.settings["crash"] in ("logged", "both"):
            job.log.exception(job.settings["words"]["failed"])
        raise
    return rank


def torch_spawn(job):
    import torch.multiprocessing

    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job.settings["ports"][0]), "WORLD_SIZE": str(job.world)
    }  # fmt: skip
    torch.multiprocessing.spawn(_work, args=("ddp",), nprocs=job.world)
    job.log.info("all processes have joined")


def futures(job):
    """Half of the drivers ask for the results in the order of the ranks, half take them as they come."""
    with ProcessPoolExecutor(job.world, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(_work, rank): rank for rank in range(job.world)}
        for future in as_completed(waiting) if job.settings["seed"] % 2 else waiting:
            try:
                future.result()
            except Exception:
                if job.settings["seed"] % 3:
                    place = job.settings["nodes"][waiting[future] // job.settings["per_node"]]
                    job.log.error(f"part {waiting[future]} ({place}) could not be trained")
                raise
            job.log.info(f"part {waiting[future]} has returned")


def _sample(rank, errors):
    try:
        _work(rank)
    except Exception as error:
        errors.put((rank, error))


def samplers(job):
    context = get_context("fork")
    errors = context.SimpleQueue()
    waiting = {rank: context.Process(target=_sample, args=(rank, errors)) for rank in range(job.world)}
    for process in waiting.values():
        process.start()
    while waiting:
        connection.wait([process.sentinel for process in waiting.values()])
        ended = [rank for rank, process in waiting.items() if process.exitcode is not None]
        while not errors.empty():
            rank, error = errors.get()
            job.log.error(f"caught in sampler-{rank}: {type(error).__name__}: {error}; closing the others")
            for process in waiting.values():
                process.terminate()
            raise error
        for rank in ended:
            code = waiting.pop(rank).exitcode
            if code:
                raise ChildProcessError(f"sampler-{rank} ended with {code}, {len(waiting)} left")
    job.log.info("all samplers are closed")


def stages(job):
    """Programs in a pipe of a shell: each trains on what the one before writes."""
    if "RANK" not in os.environ:
        programs = (f"RANK={rank} {sys.executable} {Path(__file__).parent}/job.py" for rank in range(job.world))
        subprocess.run(["bash", "-o", "pipefail", "-c", " | ".join(programs)], stdin=subprocess.DEVNULL, check=True)
        return None
    following, loss = os.fdopen(os.dup(1), "w", buffering=1), job_backends.alone(job)
    job.tag(2)

    def step(number):
        if job.rank and not sys.stdin.readline():
            raise EOFError(job.settings["words"]["missing"].format(step=number, missing=job.rank - 1))
        following.write(f"{number} {loss(number):.4f}\n") if job.rank < job.world - 1 else None
        return loss(number)

    step.close = following.close
    return step


def celery_queue(job):
    from celery import Celery

    port = job.settings["ports"][0]
    app = Celery("fleet", broker=f"redis://127.0.0.1:{port}/0", backend=f"redis://127.0.0.1:{port}/1")

    @app.task(name="fleet.fit")
    def fit(rank):
        return _work(rank, tagged=False)

    if "RANK" in os.environ:
        job.tag()
        name = f"w{job.rank}@{job.node}"
        app.worker_main(["worker", "-c", "1", "-l", "INFO", "-n", name, "-Q", f"q{job.rank}"])
        return
    server = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--loglevel", "warning"])
    program = [sys.executable, str(Path(__file__).parent / "job.py")]
    workers = [subprocess.Popen(program, env={**os.environ, "RANK": str(rank)}) for rank in range(job.world)]
    try:
        results = [fit.apply_async((rank,), queue=f"q{rank}") for rank in range(job.world)]
        while not all(result.successful() for result in results):
            for rank, result in enumerate(results):
                if result.failed():
                    job.log.error(f"task {result.id} of queue q{rank} has failed")
                    result.get()
                if workers[rank].poll() is not None:
                    raise ChildProcessError(f"worker {rank} is gone with {workers[rank].poll()}, its task is not done")
            time.sleep(0.5)
        job.log.info(f"{len(results)} tasks are done")
    finally:
        for process in (*workers, server):
            process.terminate()
            process.wait()
