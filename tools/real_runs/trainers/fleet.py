"""Processes of the sixth generation that rank 0 calls, or that a driver starts, as in job_backends.py."""

import json
import os
import socket
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import job_backends
from job import Job, run

_PATIENCE_S = 8


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
