"""One process of a job of several nodes: ``job.json`` says what it trains, how it logs and what goes wrong in it.

What goes wrong is code of a site: ``hooks.py`` beside it, called at its moment on the ranks that it strikes.
"""

import builtins
import contextlib
import datetime
import importlib
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.stdout.reconfigure(line_buffering=True)


class Form(logging.Formatter):
    """A line as a template over the record; a template with ``{exc}`` keeps the traceback in that field."""

    def __init__(self, template, job):
        super().__init__()
        self.template, self.job = template, job

    def format(self, record):
        text, exc = record.getMessage(), ""
        if record.exc_info:
            exc = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        level = "WARN" if record.levelno == logging.WARNING else record.levelname
        fields = {
            "at": datetime.datetime.fromtimestamp(record.created, datetime.UTC), "level": level, "low": level.lower(),
            "letter": level[0], "name": record.name, "pid": record.process, "file": record.filename,
            "line": record.lineno, "text": text, "json": json.dumps(text), "exc": json.dumps(exc), **self.job.place,
        }  # fmt: skip
        line = self.template.format_map(fields)
        return line if "{exc}" in self.template or not exc else f"{line}\n{exc}"


def make_log(job):
    """A logger with a template; "print" before it means the standard output."""
    form = job.settings["logger"]
    handler = logging.StreamHandler(sys.stdout if form.startswith("print") else sys.stderr)
    handler.setFormatter(Form(form.removeprefix("print "), job))
    log = logging.getLogger(job.settings["program"])
    log.handlers[:] = [handler]  # a forked process has its parent's
    log.setLevel(logging.INFO)
    log.propagate = False
    return log


class Job:
    def __init__(self, rank=None, node=None):
        self.settings = json.loads(Path("job.json").read_text())
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.world, per_node = self.settings["world"], self.settings["per_node"]
        self.local, self.node = self.rank % per_node, node or self.settings["nodes"][self.rank // per_node]
        grid = {"tp": self.rank % 2, "pp": self.rank // 2 % 2, "dp": self.rank // 4}
        self.place = {"rank": self.rank, "world": self.world, "local": self.local, "node": self.node, "now": 0, **grid}
        self.steps, self.fault = self.settings["steps"], self.settings["fault"]
        self.struck = self.rank in self.settings["struck"]
        self.message = self.fault.get("message", "").format_map(self.place)
        self.chance = random.Random(self.settings["seed"] * 100 + self.rank)
        self.drives = bool(self.settings["drives"]) and self.settings["drives"] not in os.environ
        if self.drives and rank is None:
            self.settings["logger"] = self.settings["driver_logger"]
        self.log = make_log(self)

    def say(self, what, **values):
        template = self.settings["words"].get(what)
        if template:
            self.log.info(template.format_map({**self.place, "steps": self.steps, **values}))

    def kernel(self, *lines):
        """Lines of the node's kernel: they go to its journal, not to the process's output."""
        for line in lines if self.settings["kernel"] else ():
            print("\0" + line, flush=True)

    def strike(self, moment):
        """Runs the fault where it belongs: also what others print of it (``peers``), later."""
        if self.fault.get("at") != moment:
            return
        if self.struck:
            if self.fault.get("where") != "node" or self.rank == self.settings["struck"][0]:
                self.kernel(*(line.format_map(self.place) for line in self.fault.get("kernel", ())))
            for line in self.fault.get("lines", ()):
                print(line.format_map(self.place), file=sys.stderr, flush=True)
            importlib.import_module("hooks").on_event(self)
        elif self.settings["peers"]:
            time.sleep(0.3 + 0.1 * self.rank)
            for line in self.settings["peers"]:
                print(line.format_map(self.place), file=sys.stderr, flush=True)
            if self.settings["peers_wait"]:
                time.sleep(90)
            sys.exit(1)

    def noise(self, step):
        """A line past the logger begins with "!", an exception that is handled and logged with "?"."""
        for at, rank, line in self.settings["noise"]:
            if (at, rank) != (step, self.rank):
                continue
            text = line.lstrip("!?").format_map(self.place)
            if line[0] == "!":
                print(text, file=sys.stderr)
            elif line[0] == "?":
                self._log_handled(*text.split(" | "))
            else:
                self.log.warning(text)

    def _log_handled(self, name, message, words):
        try:
            raise getattr(builtins, name)(message)
        except Exception:
            self.log.exception(words)

    def train(self, step):
        """The loop: ``step(number)`` returns a loss."""
        for number in range(1, self.steps + 1):
            self.turn(number, step)

    def turn(self, number, step):
        hit, every = self.settings["strike"], self.settings["every"]
        self.place["now"] = number
        if number == hit:
            self.strike("step")
        loss = step(number)
        if number >= hit and self.fault.get("at") == "loss":
            loss = float("nan")
            self.strike("loss")
        if self.rank == 0 or number % every == 0:
            self.say("step", step=number, loss=loss, rate=self.chance.uniform(2.1, 2.6), lr=3e-4 / number)
        if self.settings["bar"] and self.rank == 0:
            done = 24 * number // self.steps
            bar = f"{100 * number // self.steps:3d}%|{'█' * done:<24}| {number}/{self.steps} [2.3it/s]"
            print(f"\r{self.settings['bar']}: {bar}", end="", file=sys.stderr, flush=True)
        self.noise(number)
        if number % 30 == 0:
            if self.rank == 0:
                self.say("saved", step=number)
            self.strike("save")
        time.sleep(self.settings["pause_s"])
        return loss

    def tag(self, stream=1):
        """Put its rank before each line that this process prints from now on: the runner takes it off."""
        words = ["sed", "-u", f"s/^/\x01{self.rank}\x01/"]
        tagger = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=os.dup(stream), start_new_session=True)
        for number in (1, 2):
            os.dup2(tagger.stdin.fileno(), number)
        tagger.stdin.close()


def run(job):
    backend = getattr(importlib.import_module(job.settings["module"]), job.settings["backend"])
    if job.drives:  # the workers that it starts do the rest
        backend(job)
        return
    job.strike("boot")
    if job.rank == 0 and "banner" in job.settings["words"]:
        print(job.settings["words"]["banner"].format_map({**job.place, "steps": job.steps}), flush=True)
    job.say("start", pid=os.getpid(), host=socket.gethostname())
    job.strike("start")
    step = backend(job)
    if step is not None:
        job.train(step)
        getattr(step, "close", str)()
    job.strike("end")
    if job.rank == 0 or job.settings["all_say_end"]:
        job.say("end")


def _hang_up():
    """Close what connects it to the others: they see that before this process has said a word."""
    for number in range(3, 200):
        with contextlib.suppress(OSError):
            socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)


def _ask_to_end(job):
    """What it does when a scheduler or launcher asks it to end: nothing, leave in order, or raise."""
    way = job.settings["on_term"]

    def end(number, frame):
        job.log.warning(job.settings["words"]["asked"].format(number=number))
        if way == "raise":
            raise InterruptedError(f"process {os.getpid()} got signal: {number}")
        sys.exit(143)

    if way:
        signal.signal(signal.SIGTERM, end)


def main(job):
    _ask_to_end(job)
    if job.settings["crash"] == "uncaught":
        run(job)
        return
    try:
        run(job)
    except Exception as error:
        if job.settings["crash"] == "late":
            _hang_up()
            time.sleep(2.5)
        if job.settings["crash"] in ("both", "late"):
            job.log.exception(job.settings["words"]["failed"])
            raise
        if job.settings["crash"] == "cleanup":
            raise RuntimeError(job.settings["words"]["unclean"])  # noqa: B904 - as cleanups fail, without a "from"
        if job.settings["crash"] == "line":
            job.log.error(f"{job.settings['words']['failed']}: {type(error).__name__}: {error}")
        else:
            job.log.exception(job.settings["words"]["failed"])
        sys.exit(1)


if __name__ == "__main__":
    sys.path[:0] = [str(Path.cwd())]
    main(Job())
