"""Mishaps of the third generation: what people's code does, and what Python, numpy and the kernel say of it.

Each is called with the run at the moment under which it stands in ``kit.MISHAPS``; its name stands in tracebacks.
"""

import array
import asyncio
import configparser
import csv
import ctypes
import dataclasses
import decimal
import hashlib
import http.client
import importlib
import importlib.metadata
import json
import lzma
import os
import queue
import resource
import signal
import sqlite3
import struct
import subprocess
import sys
import tarfile
import threading
import time
import types
import urllib.request
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import kit
import numpy as np


def circular(run):
    Path("sampler.py").write_text("import curriculum\n\n\ndef weights(step):\n    return [1.0]\n")
    Path("curriculum.py").write_text("from sampler import weights\n\n\ndef plan():\n    return weights(0)\n")
    sys.path.insert(0, str(Path.cwd()))
    importlib.import_module("sampler")


def no_distribution(run):
    importlib.metadata.version("transformer-engine")


def no_shared_object(run):
    ctypes.CDLL("libfused_rope.so.2")


def tab_and_space(run):
    Path("losses.py").write_text("def focal(p):\n\tif p > 0.5:\n        return p\n\treturn 1 - p\n")
    sys.path.insert(0, str(Path.cwd()))
    importlib.import_module("losses")


def open_bracket(run):
    Path("recipe.py").write_text("RECIPE = {\n    'lr': 3e-4,\n    'betas': (0.9, 0.95,\n}\n")
    sys.path.insert(0, str(Path.cwd()))
    importlib.import_module("recipe")


def no_section(run):
    configparser.ConfigParser().read_string("lr = 0.1\nwarmup = 10\n")


def no_variable(run):
    return os.environ["CORPUS_ROOT_URI"]


def twice_in_json(run):
    Path("ds_config.json").write_text('{"zero_optimization": {"stage": 2,}}')
    return json.loads(Path("ds_config.json").read_text())


def uneven_batch(run):
    tokens, micro = 4096, 24
    if tokens % micro:
        raise SystemExit(
            f"fatal: global_batch_tokens={tokens} is no multiple of micro_batch_tokens={micro}; fix the recipe"
        )


def no_database(run):
    Path("index.db").write_bytes(b"PAR1" + b"\x00" * 4096)
    return sqlite3.connect("index.db").execute("select count(*) from samples").fetchone()


def no_table(run):
    return sqlite3.connect(":memory:").execute("select path from samples").fetchall()


def pickled_array(run):
    np.save("cache.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return np.load("cache.npy")


def cut_array(run):
    np.save("tokens.npy", np.ones(4096))
    os.truncate("tokens.npy", 9000)
    return np.load("tokens.npy")


def cut_archive(run):
    data = lzma.compress(os.urandom(4096))
    return lzma.decompress(data[:200] + b"\xff" * 200)


def cut_tar(run):
    Path("shard-000031.tar").write_bytes(os.urandom(900))
    return tarfile.open("shard-000031.tar").getnames()


def cut_xml(run):
    return ElementTree.fromstring("<annotation><object><name>cat</name></annotation>")


def wide_cell(run):
    csv.field_size_limit(64)
    return list(csv.reader(["id,text", "1," + "a" * 100]))


def short_record(run):
    return struct.unpack("<4Q", b"\x00" * 20)


def other_digest(run):
    found = hashlib.sha256(b"part-00012").hexdigest()[:16]
    if found != "5b1c9d0e77aa0042":
        raise OSError(f"checksum mismatch for corpora/part-00012.bin: expected 5b1c9d0e77aa0042, got {found}")


def unauthorized(run):
    urllib.request.urlopen(kit.answering(401) + "/api/whoami-v2", timeout=5)


def many_requests(run):
    urllib.request.urlopen(kit.answering(429) + "/api/models/base/revision/main", timeout=5)


def hung_up(run):
    port = kit.serve(lambda peer: (peer.recv(1024), peer.close()))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/v1/lease")
    connection.getresponse()


def no_key_pair(run):
    text = "The AWS Access Key Id you provided does not exist in our records."
    body = kit.s3_error("InvalidAccessKeyId", text)
    kit.bucket(kit.answering(403, body, "application/xml")).list_objects_v2(Bucket="corpora-v3")


def wrong_signature(run):
    text = "The request signature we calculated does not match the signature you provided."
    body = kit.s3_error("SignatureDoesNotMatch", text)
    kit.bucket(kit.answering(403, body, "application/xml")).get_object(Bucket="corpora-v3", Key="manifest.json")


def bucket_waits(run):
    port = kit.serve(lambda peer: time.sleep(30))
    kit.bucket(f"http://127.0.0.1:{port}", read_timeout=1).put_object(
        Bucket="ckpt-v3", Key="run/latest.bin", Body=b"0" * 64
    )


def bucket_closed(run):
    body = kit.s3_error("ServiceUnavailable", "Service is unable to handle request.")
    kit.bucket(kit.answering(503, body, "application/xml")).put_object(
        Bucket="ckpt-v3", Key="run/latest.bin", Body=b"0"
    )


def not_empty(run):
    Path("old/run").mkdir(parents=True)
    Path("old").rmdir()


def is_there(run):
    Path("lock").mkdir()
    Path("lock").mkdir()


def long_name(run):
    return open("-".join(["layer"] * 60) + ".txt")


def round_link(run):
    Path("latest").symlink_to("latest")
    return open("latest")


def no_binary(run):
    Path("preprocess").write_bytes(b"\x00\x01\x02garbage")
    Path("preprocess").chmod(0o755)
    subprocess.run(["./preprocess"], check=True)


def large_file(run):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    with open("state.bin", "wb") as file:
        file.write(b"0" * (1 << 18))


def not_owner(run):
    Path("locked").mkdir(mode=0o500)
    kit.become_user()
    (Path("locked") / "state.bin").write_bytes(b"0")


def dead_child(run):
    subprocess.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], check=True)


def bad_child(run):
    subprocess.run(
        ["git", "rev-parse", "HEAD", "--", "nothing"],
        check=True,
        cwd="/",
        env={"PATH": os.environ["PATH"], "GIT_DIR": "/nowhere"},
    )


def slow_child(run):
    subprocess.run(["sleep", "30"], check=True, timeout=1)


def empty_queue_waits(run):
    return queue.Queue().get(timeout=0.5)


def slow_task(run):
    async def gather():
        await asyncio.wait_for(asyncio.sleep(30), timeout=0.5)

    asyncio.run(gather())


def ended_generator(run):
    def batches():
        source = iter([1, 2])
        while True:
            yield next(source) + 1

    return list(batches())


def worn_loop(run):
    loop = asyncio.new_event_loop()
    loop.close()
    loop.run_until_complete(asyncio.sleep(0))


def dead_thread(run):
    def prefetch():
        raise LookupError("prefetch: no shard left")

    worker = threading.Thread(target=prefetch, name="prefetch-0")
    worker.start()
    worker.join()
    raise SystemExit(4)


def frozen_settings(run):
    @dataclasses.dataclass(frozen=True)
    class OptimSettings:
        lr: float = 0.1

    settings = OptimSettings()
    settings.lr = 0.2


def no_slot(run):
    return types.SimpleNamespace(loss=1.0).grad_norm


def wide_int(run):
    return array.array("i", [1 << 40])


def singular(run):
    return np.linalg.inv(np.zeros((4, 4)))


def ragged_rows(run):
    return np.array([[1, 2], [3]], dtype=np.float32)


def locked_array(run):
    weights = np.zeros(4)
    weights.flags.writeable = False
    weights += 1


def many_axes(run):
    return np.zeros(8)[0, 1]


def two_truths(run):
    return 1 if np.ones(3) > 0 else 0


def odd_axes(run):
    return np.concatenate([np.ones((2, 3)), np.ones((2, 4, 1))])


def unhashable(run):
    return {["encoder", 1]: 0.1}


def keyword(run):
    def build_optimizer(lr, weight_decay):
        return lr, weight_decay

    return build_optimizer(lr=0.1, weight_decay=0.0, foreach=True)


def no_index(run):
    schedule = 0.1
    return schedule[3]


def no_loop(run):
    return [x + 1 for x in run.steps]


def text_plus(run):
    return "step " + run.steps


def percent(run):
    return f"{'0.1':.3f}"


def decimal_text(run):
    return decimal.Decimal("3e-4x")


def modulo(run):
    return 12.5 % 0.0


def enum_key(run):
    return signal.Signals["SIGPREEMPT"]


def no_parameter(run):
    return {"lr": 1}.pop("momentum")


def message_assert(run):
    seen, expected = 1023, 1024
    assert seen == expected, f"rank {run.rank} saw {seen} of {expected} samples this epoch"


def all_memory(run):
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    held = []
    while True:
        held.append(bytearray(1 << 28))


def bad_free(run):
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    block = ctypes.create_string_buffer(256)
    libc.free(ctypes.addressof(block) + 64)


def bad_instruction(run):
    os.kill(os.getpid(), signal.SIGILL)
    time.sleep(1)


def cpu_time(run):
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1, int(used) + 30))
    while True:
        pass


def hangup(run):
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(1)


def notice(run):
    """Slurm's warning before the end of the time: --signal=USR1@60."""

    def handler(number, frame):
        run.log.warning(run.words["notice"], run.strike, run.steps)
        run.save("before_the_end.bin", b"0" * 64)
        sys.exit(0)

    signal.signal(signal.SIGUSR1, handler)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(1)


def retried(run):
    """Handled errors: the run goes on."""
    for attempt in (1, 2):
        try:
            many_requests(run)
        except OSError as error:
            run.log.warning("hub answered %s, attempt %d of 5, waiting %d s", error, attempt, 2 * attempt)
    try:
        singular(run)
    except np.linalg.LinAlgError:
        run.log.error("preconditioner is singular, falling back to the diagonal", exc_info=True)


def noisy(run):
    """Warnings and errors that cost nothing."""
    run.log.warning("worker %d: clock is 214 ms ahead of the coordinator", run.rank)
    run.log.error("telemetry exporter: deadline exceeded, 112 spans dropped")
    print(
        "OMP: Info #276: omp_set_nested routine deprecated, please use omp_set_max_active_levels instead.",
        file=sys.stderr,
    )
    run.log.warning("gradient norm is inf in step %d, loss scale goes down to 32768, step is skipped", run.strike)


_BY_MOMENT = {
    "start": (
        circular, no_distribution, no_shared_object, tab_and_space, open_bracket, no_section, no_variable,
        twice_in_json, uneven_batch, no_database, no_table, pickled_array, cut_array, cut_archive, cut_tar, cut_xml,
        wide_cell, short_record, other_digest, unauthorized, many_requests, hung_up, no_key_pair, wrong_signature,
        not_empty, is_there, long_name, round_link, no_binary, bad_child,
    ),
    "step": (
        dead_child, slow_child, empty_queue_waits, slow_task, ended_generator, worn_loop, dead_thread, frozen_settings,
        no_slot, wide_int, singular, ragged_rows, locked_array, many_axes, two_truths, odd_axes, unhashable, keyword,
        no_index, no_loop, text_plus, percent, decimal_text, modulo, enum_key, no_parameter, message_assert, all_memory,
        bad_free, bad_instruction, cpu_time, hangup, notice, retried, noisy,
    ),
    "save": (bucket_waits, bucket_closed, large_file, not_owner),
}  # fmt: skip
kit.MISHAPS |= {act.__name__: (moment, act) for moment, acts in _BY_MOMENT.items() for act in acts}
