"""What the trainers of the second generation share: options, settings, data, logs, and the mishaps of ordinary code.

A mishap is code as people write it, run on what a scenario gives it: what it raises is what Python, the libraries and
the kernel say. ``Run.at`` is called where a trainer loads, steps, saves and ends.
"""

import argparse
import concurrent.futures
import ctypes
import datetime
import enum
import faulthandler
import http.server
import importlib
import json
import math
import mmap
import os
import pickle
import random
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
import warnings
import zipfile
from pathlib import Path

import loggers
import numpy as np
import yaml
from support import become_user

sys.stdout.reconfigure(line_buffering=True)
DIVERGED = {
    "nan_raises": "objective became {loss} in update {step}",
    "nan_exits": "loss is {loss} after update {step}; check the data or lower the learning rate. Aborting.",
    "nan_explodes": "update {step}: loss {loss:.3e} is above the ceiling of 1e+06, run is diverging",
}
LABELS = ("news", "forum", "code", "books")
_RANKS = ("PROCESS_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK")
_WORLDS = ("NUM_PROCESSES", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")


def first_of(names, default):
    return int(next((os.environ[name] for name in names if os.environ.get(name)), default))


def read_options(program):
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--epochs", type=int, help="passes over the data")
    parser.add_argument("--optim", choices=["sgd", "adamw", "lion"], default="adamw")
    parser.add_argument("--lr-decay", type=float, default=0.1)
    parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


class Run:
    """One process of a run."""

    def __init__(self, program="main.py"):
        self.rank, self.world = first_of(_RANKS, "0"), first_of(_WORLDS, "1")
        with open("config.yaml") as file:
            self.settings = yaml.safe_load(file)
        self.chance = random.Random(self.settings["seed"] + self.rank)
        self.steps = self.settings["steps"]
        self.words = self.settings.get("words", {})
        self.log = loggers.build(self.settings["logger"], self.rank, self.world)
        shared = random.Random(self.settings["seed"])
        self.strike = max(3, int(self.steps * shared.uniform(0.2, 0.9)))
        self.fault = self.settings.get("fault", "")
        where = self.settings.get("fault_where", "all")
        struck = {"one": first_of(("HOOK_RANK",), "0"), "first": 0, "all": self.rank}[where]
        self.struck = struck == self.rank
        if self.fault == "segv" and shared.random() < 0.5:
            faulthandler.enable()
        self.options = read_options(program)
        self.weights = None

    def say(self, what, **values):
        template = self.words.get(what)
        if template:
            self.log.info(template.format(steps=self.steps, rank=self.rank, world=self.world, **values))

    def rescale(self, steps):
        """A framework that counts in other units than batches: the strike moves along."""
        self.strike = min(steps - 1, max(2, self.strike * steps // self.steps))
        self.steps = steps

    def load(self):
        """Features (records x 16) and labels of this rank's shard."""
        self.at("start")
        path = Path(self.settings["data"].format(rank=self.rank))
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        features = np.stack([np.asarray(record["x"], dtype=np.float32) for record in records])
        labels = np.asarray([LABELS.index(record["source"]) for record in records])
        self.say("loaded", path=path, records=len(labels))
        return features, labels

    def step(self, number, loss):
        """After each step: the loss to go on with. Raises or ends as the fault has it."""
        self.at("step", number)
        if self.fault.startswith("nan") and number >= self.strike and self.struck:
            loss = self.spoil(number, loss)
        if number % self.settings.get("log_every", 1) == 0:
            self.say("step", step=number, loss=loss, lr=0.1 / (1 + number), time=self.chance.uniform(20, 90))
        self.guard(number, loss)
        time.sleep(self.settings.get("pause_s", 0.01))
        return loss

    def spoil(self, number, loss):
        """What becomes of the loss: the weights go bad where the trainer has lent them."""
        if self.weights is not None:
            self.weights.fill_(math.nan if self.fault != "nan-explodes" else 1e4 ** (number - self.strike + 1))
            return loss
        return math.nan if self.fault != "nan-explodes" else loss * 1e3 ** (number - self.strike + 1)

    def guard(self, number, loss):
        words = {**DIVERGED, **self.words}
        if self.fault == "nan-raises" and not math.isfinite(loss):
            raise ArithmeticError(words["nan_raises"].format(loss=loss, step=number))
        if self.fault == "nan-exits" and not math.isfinite(loss):
            self.log.error(words["nan_exits"].format(loss=loss, step=number))
            sys.exit(2)
        if self.fault == "nan-explodes" and loss > 1e6:
            self.log.error(words["nan_explodes"].format(loss=loss, step=number))
            sys.exit(1)

    def save(self, path, data):
        """Writes a checkpoint (bytes)."""
        self.at("save")
        path = Path(self.settings["checkpoint_dir"]) / path
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        self.say("saved", path=path)

    def finish(self, **values):
        self.at("end")
        if not self.settings.get("silent_end"):
            self.say("end", **values)

    def at(self, moment, step=0):
        """Where the run is: strikes there if its fault belongs there."""
        when, act = MISHAPS.get(self.fault, ("", None))
        if act is None or when != moment or not self.struck or (moment == "step" and step != self.strike):
            return
        act(self)


def main(train, program="main.py"):
    """Runs ``train(run)``; what it raises is shown as the settings ask: uncaught, or in the words of a site."""
    run = Run(program)
    way = os.environ.get("CRASH", "uncaught")
    if way == "uncaught":
        return train(run)
    try:
        return train(run)
    except Exception as error:
        text = run.words.get("failed", "caught an exception, giving up")
        if way == "line":
            run.log.error("%s: %s: %s", text, type(error).__name__, error)
        elif way == "critical":
            run.log.critical(text, exc_info=True)
        else:
            run.log.error(text, exc_info=True)
        if way == "both":
            raise
        sys.exit(1)


# What goes wrong. The names are those of ordinary code: they stand in tracebacks.


def missing_statistic(run):
    statistics = {"grad_norm": 1.2, "tokens": 4096}
    return statistics["grad_norm_clipped"]


def broken_type(run):
    elapsed = os.environ.get("HOME")
    return elapsed / 1000


def old_api(run):
    return np.zeros(4).astype(np.float)


def no_scheduler(run):
    scheduler = None
    scheduler.step()


def unbound(run):
    if run.steps < 0:
        average = 0.0
    return average * 0.99


def undefined(run):
    return world_sizee * 2  # noqa: F821


def arity(run):
    def clip(parameters, limit):
        return parameters, limit

    return clip([1.0])


def wide_index(run):
    table = np.zeros((8, 16))
    return table[:, run.settings["features"]]


def far_item(run):
    return [0.1, 0.2, 0.3][run.steps]


def bare_assert(run):
    tokens, capacity = 4097, 4096
    assert tokens <= capacity


def no_throughput(run):
    started = ended = 12.5
    return run.steps / (ended - started)


def domain(run):
    return math.log(-0.25)


def broadcast(run):
    return np.ones((8, 16)) + np.ones((8, 12))


def changed_while_read(run):
    buffers = {"a": 1, "b": 2}
    for name in buffers:
        buffers[name + "_ema"] = 0


def endless(run):
    def walk(module):
        return walk(module) + 1

    return walk(run)


def not_written(run):
    class Sampler:
        def __iter__(self):
            raise NotImplementedError

    return list(Sampler())


def float_text(run):
    return float("1e-4,")


def no_tool(run):
    return subprocess.check_output(["nvidia-smi", "--query-gpu=memory.used", "--format=csv"])


def broken_archive(run):
    Path("export.gz").write_bytes(b"\x1f\x8b\x08\x00" + b"\x00" * 12)
    subprocess.run(["gzip", "--test", "export.gz"], check=True)


def no_package(run):
    importlib.import_module("flash_attn_interface")


def no_name(run):
    from collections import OrderedSet  # noqa: F401


def bad_indent(run):
    Path("schedule.py").write_text("def warmup(step):\n    if step < 10:\n    return step / 10\n")
    sys.path.insert(0, str(Path.cwd()))
    importlib.import_module("schedule")


def no_host(run):
    urllib.request.urlopen("http://artifacts.train.internal/vocab.json", timeout=5)


def refused(run):
    with socket.create_connection(("127.0.0.1", 9), timeout=5) as peer:
        peer.sendall(b"hello")


def serve(answer):
    """A server that answers each connection by ``answer(connection)``; returns its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def loop():
        while True:
            peer, _ = server.accept()
            answer(peer)

    threading.Thread(target=loop, daemon=True).start()
    return server.getsockname()[1]


def reset(run):
    def close(peer):
        peer.recv(16)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()

    with socket.create_connection(("127.0.0.1", serve(close)), timeout=5) as peer:
        peer.sendall(b"x" * 64)
        time.sleep(0.2)
        peer.recv(1024)


def silent_server(run):
    with socket.create_connection(("127.0.0.1", serve(lambda peer: time.sleep(60))), timeout=2) as peer:
        peer.sendall(b"GET / HTTP/1.0\r\n\r\n")
        peer.recv(1024)


def bad_tls(run):
    port = serve(lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    with socket.create_connection(("127.0.0.1", port)) as peer:
        ssl.create_default_context().wrap_socket(peer, server_hostname="localhost")


def answering(status, body=b"", kind="text/plain"):
    """A HTTP server that answers everything alike; returns its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = answer  # noqa: N815

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def busy_hub(run):
    urllib.request.urlopen(answering(503) + "/api/models/resolve/main/config.json", timeout=5)


def bucket(address, **more):
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=address,
        aws_access_key_id="AKIAEXAMPLE",
        aws_secret_access_key="example",
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 0}, connect_timeout=2, s3={"addressing_style": "path"}, **more),
    )


def s3_error(code, message):
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()


def s3_away(run):
    bucket("http://127.0.0.1:9").put_object(Bucket="ckpt", Key="run/step_10.bin", Body=b"0" * 64)


def s3_slow(run):
    body = s3_error("SlowDown", "Please reduce your request rate.")
    bucket(answering(503, body, "application/xml")).put_object(Bucket="ckpt", Key="run/step_10.bin", Body=b"0" * 64)


def s3_no_key(run):
    body = s3_error("NoSuchKey", "The specified key does not exist.")
    bucket(answering(404, body, "application/xml")).get_object(Bucket="corpora", Key="tokens/part-00017.bin")


def s3_denied(run):
    body = s3_error("AccessDenied", "Access Denied")
    bucket(answering(403, body, "application/xml")).get_object(Bucket="corpora", Key="tokens/part-00017.bin")


def port_taken(run):
    with socket.create_server(("127.0.0.1", 0)) as server:
        http.server.HTTPServer(("127.0.0.1", server.getsockname()[1]), http.server.SimpleHTTPRequestHandler)


def not_a_folder(run):
    Path("config.yaml/cache").mkdir()


def many_files(run):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    return [open("config.yaml") for _ in range(100)]


def secret(run):
    path = Path("token.txt")
    path.write_text("x")
    path.chmod(0o600)
    become_user()
    path.read_text()


def huge_array(run):
    return np.ones((1 << 39, 1), dtype=np.float64)


def checked_settings(run):
    from pydantic import BaseModel, Field

    class OptimConfig(BaseModel):
        name: str
        lr: float = Field(gt=0)
        warmup: int

    class TrainConfig(BaseModel):
        optim: OptimConfig

    TrainConfig(optim={"name": "adamw", "lr": 0.0, "warmup": "ten"})


def unknown_setting(run):
    from omegaconf import OmegaConf

    settings = OmegaConf.create({"optim": {"lr": 0.1}})
    OmegaConf.set_struct(settings, True)
    return settings.optim.weigth_decay


def no_fit(run):
    heads, width = 12, 200
    if width % heads:
        raise ValueError(f"hidden_size ({width}) must be divisible by num_attention_heads ({heads})")


def kill(run):
    os.kill(os.getpid(), signal.SIGKILL)


def segv(run):
    ctypes.string_at(16)


def abort(run):
    os.abort()


def leave(run):
    os._exit(3)


def interrupt(run):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)


def preempted(run):
    def handler(number, frame):
        run.log.warning(run.words["preempted"])
        run.save("preempted.bin", b"0" * 64)
        sys.exit(143)

    signal.signal(signal.SIGTERM, handler)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)


def out_of_time(run):
    limit = datetime.timedelta(seconds=3600 * 4)
    run.log.warning(run.words["out_of_time"], limit, run.strike, run.steps)
    run.save("last.bin", b"0" * 64)
    sys.exit(0)


def survived(run):
    """Handled errors: the run goes on."""
    try:
        refused(run)
    except OSError:
        run.log.warning("could not reach the metrics gateway, buffering locally", exc_info=True)
    try:
        missing_statistic(run)
    except KeyError as error:
        run.log.error("statistic %s is not there, leaving it out of the report", error)


def loud(run):
    """Warnings and errors that cost nothing."""
    warnings.warn("invalid value encountered in divide", RuntimeWarning, stacklevel=1)
    run.log.warning("update %d: non-finite gradient, skipped (1 in a row)", run.strike)
    print("[W socket.cpp:697] The client socket has failed to connect, retrying (errno: 111)", file=sys.stderr)
    run.log.error("sample 8123 cannot be decoded, taking the next one")


def three_values(run):
    loss, accuracy = (0.5, 0.25, 0.125)
    return loss + accuracy


def not_callable(run):
    schedule = {"warmup": 10}
    return schedule(run.steps)


def no_pair(run):
    def evaluate():
        pass

    loss, accuracy = evaluate()
    return loss, accuracy


def list_shape(run):
    return [[0.1, 0.2], [0.3, 0.4]].shape


def bad_enum(run):
    class Schedule(enum.Enum):
        COSINE = "cosine"
        LINEAR = "linear"

    return Schedule("cosine_warm")


def odd_reshape(run):
    return np.arange(96).reshape(7, 13)


def odd_product(run):
    return np.ones((8, 16)) @ np.ones((12, 4))


def layer_key(run):
    return {("encoder", 1): "w"}[("encoder", 3)]


def empty_queue(run):
    pending = []
    return pending.pop()


def too_large(run):
    return math.exp(run.steps * 40)


def bad_yaml(run):
    return yaml.safe_load("optim:\n  lr: 0.1\n betas: [0.9, 0.95\n")


def bad_toml(run):
    return tomllib.loads("[optim]\nlr = 1e-4\nbetas = 0.9, 0.95\n")


def no_archive(run):
    Path("images.zip").write_bytes(b"<html>404</html>" * 40)
    return zipfile.ZipFile("images.zip").namelist()


def cut_cache(run):
    data = pickle.dumps(np.ones(4096))
    Path("cache.pkl").write_bytes(data[: len(data) // 2])
    with open("cache.pkl", "rb") as file:
        return pickle.load(file)


def folder_as_file(run):
    return Path("data").read_bytes()


def no_execution(run):
    Path("post_step.sh").write_text("#!/bin/sh\n")
    Path("post_step.sh").chmod(0o644)
    subprocess.run(["./post_step.sh"], check=True)


def no_shards(run):
    subprocess.run(["tar", "--extract", "--file", "shards.tar"], check=True)


def _decode(index):
    if index == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return index


def killed_decoder(run):
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        return list(pool.map(_decode, range(16)))


def gone(run):
    urllib.request.urlopen(answering(404) + "/tokenizer/merges.txt", timeout=5)


def closed_pipe(run):
    left, right = socket.socketpair()
    right.close()
    left.sendall(b"metrics")


def half_answer(run):
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\npartial"
    port = serve(lambda peer: (peer.recv(1024), peer.sendall(answer), peer.close()))
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/shard.bin", timeout=5).read()


def lost_page(run):
    with open("weights.map", "w+b") as file:
        file.truncate(1 << 16)
        view = mmap.mmap(file.fileno(), 1 << 16)
        file.truncate(0)
        return view[4096]


def s3_no_bucket(run):
    body = s3_error("NoSuchBucket", "The specified bucket does not exist")
    bucket(answering(404, body, "application/xml")).list_objects_v2(Bucket="corpora-eu")


def s3_internal(run):
    body = s3_error("InternalError", "We encountered an internal error. Please try again.")
    bucket(answering(500, body, "application/xml")).put_object(Bucket="ckpt", Key="run/step_10.bin", Body=b"0" * 64)


def recovered(run):
    """Handled errors in other words: the run goes on."""
    for attempt in (1, 2):
        try:
            gone(run)
        except OSError as error:
            run.log.error("fetching merges.txt, attempt %d of 3: %s", attempt, error)
    run.log.info("merges.txt comes from the local mirror")
    try:
        list_shape(run)
    except AttributeError:
        run.log.warning("summary of shapes left out", exc_info=True)


def patient(run):
    run.log.info(run.words["patient"], run.strike)
    raise StoppedEarly


class StoppedEarly(Exception):
    """The trainer's own loop ends here, and well."""


_BY_MOMENT = {
    "start": (
        no_package,
        no_name,
        bad_indent,
        no_host,
        refused,
        silent_server,
        bad_tls,
        busy_hub,
        s3_no_key,
        s3_denied,
        port_taken,
        not_a_folder,
        secret,
        checked_settings,
        unknown_setting,
        no_fit,
        bad_enum,
        bad_yaml,
        bad_toml,
        no_archive,
        cut_cache,
        folder_as_file,
        no_shards,
        killed_decoder,
        gone,
        half_answer,
        s3_no_bucket,
    ),
    "step": (
        missing_statistic,
        broken_type,
        old_api,
        no_scheduler,
        unbound,
        undefined,
        arity,
        wide_index,
        far_item,
        bare_assert,
        no_throughput,
        domain,
        broadcast,
        changed_while_read,
        endless,
        not_written,
        float_text,
        no_tool,
        reset,
        huge_array,
        kill,
        segv,
        abort,
        leave,
        interrupt,
        preempted,
        out_of_time,
        survived,
        loud,
        patient,
        many_files,
        three_values,
        not_callable,
        no_pair,
        list_shape,
        odd_reshape,
        odd_product,
        layer_key,
        empty_queue,
        too_large,
        no_execution,
        closed_pipe,
        lost_page,
        recovered,
    ),
    "save": (
        s3_away,
        s3_slow,
        s3_internal,
    ),
    "end": (broken_archive,),
}
MISHAPS = {act.__name__: (moment, act) for moment, acts in _BY_MOMENT.items() for act in acts}
"""Name of a fault -> (moment, what happens)."""
