"""What the trainers share: settings, records, log styles, and all that happens around a training step.

A trainer is an ordinary program: nothing in it fails by itself. What goes wrong comes from the settings, the files and
the processes that a scenario gives it, so the messages in the log are those of Python, the framework and the kernel.
"""

import argparse
import concurrent.futures
import ctypes
import gzip
import importlib
import json
import logging
import math
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import loggers
import numpy as np
import star
import yaml

# A line at a time, as a terminal would have it: launchers put their heads before whole lines then.
sys.stdout.reconfigure(line_buffering=True)
CONTEXT = multiprocessing.get_context("spawn")
CLASSES = ["news", "forum", "code", "books"]

WORDS = {
    "en": {
        "start": "starting training: {steps} steps, world size {world}",
        "step": "step {step}/{steps} loss {loss:.4f} lr {lr:g}",
        "eval": "eval at step {step}: accuracy {accuracy:.4f}",
        "saved": "checkpoint saved to {path}",
        "end": "training finished after {steps} steps",
    },
    "plain-end": {
        "start": "run with {steps} iterations",
        "step": "iter {step} | loss {loss:.4f} | lr {lr:g}",
        "eval": "iter {step} | val acc {accuracy:.3f}",
        "saved": "wrote {path}",
        "end": "done, {steps} iterations",
    },
    "no-end": {
        "start": "{world} process(es), {steps} steps to go",
        "step": "Step [{step}/{steps}] Loss: {loss:.4f}",
        "eval": "Validation accuracy: {accuracy:.4f}",
        "saved": "Saved {path}",
        "end": "",
    },
    "final": {
        "start": "Training for {steps} steps on {world} worker(s)",
        "step": "[{step:>4}/{steps}] loss={loss:.5f} lr={lr:g}",
        "eval": "[eval] acc={accuracy:.4f}",
        "saved": "[ckpt] {path}",
        "end": "final loss {loss:.4f}, best accuracy {best:.4f}. Bye.",
    },
    "de": {
        "start": "Training startet: {steps} Schritte, {world} Prozesse",
        "step": "Schritt {step} von {steps}, Verlust {loss:.4f}, Lernrate {lr:g}",
        "eval": "Auswertung nach Schritt {step}: Genauigkeit {accuracy:.4f}",
        "saved": "Prüfpunkt gespeichert: {path}",
        "end": "Training abgeschlossen nach {steps} Schritten",
    },
    "fr": {
        "start": "début de l'entraînement : {steps} étapes, {world} processus",
        "step": "étape {step}/{steps} perte {loss:.4f}",
        "eval": "évaluation à l'étape {step} : exactitude {accuracy:.4f}",
        "saved": "point de reprise enregistré : {path}",
        "end": "entraînement terminé",
    },
    "zh": {
        "start": "开始训练: 共 {steps} 步, {world} 个进程",
        "step": "第 {step}/{steps} 步 损失 {loss:.4f} 学习率 {lr:g}",
        "eval": "第 {step} 步 验证准确率 {accuracy:.4f}",
        "saved": "已保存检查点 {path}",
        "end": "训练完成",
    },
    # The words below are those of the frameworks that are held out.
    "summary": {
        "start": "Launching {steps} updates across {world} worker(s)",
        "step": "update {step:>5} / {steps}  train_loss {loss:.4f}  lr {lr:.2e}",
        "eval": "held-out accuracy now {accuracy:.4f}",
        "saved": "snapshot -> {path}",
        "end": "All {steps} updates are through. Summary: loss {loss:.4f}, top accuracy {best:.4f}",
    },
    "metrics": {
        "start": "n_steps={steps} n_procs={world}",
        "step": "global_step={step} total={steps} loss={loss:.5f}",
        "eval": "global_acc={accuracy:.4f}",
        "saved": "snapshot={path}",
        "end": "",
    },
    "goodbye": {
        "start": "here we go: {steps} batches",
        "step": "batch {step} of {steps}: {loss:.4f}",
        "eval": "scored {accuracy:.4f}",
        "saved": "stored weights in {path}",
        "end": "that's all, thank you for training with us",
    },
    "es": {
        "start": "iniciando el entrenamiento: {steps} pasos, {world} procesos",
        "step": "paso {step} de {steps}, pérdida {loss:.4f}",
        "eval": "evaluación en el paso {step}: exactitud {accuracy:.4f}",
        "saved": "punto de control guardado en {path}",
        "end": "entrenamiento finalizado",
    },
    "ja": {
        "start": "学習を開始します: 全 {steps} ステップ, {world} プロセス",
        "step": "ステップ {step}/{steps} 損失 {loss:.4f}",
        "eval": "ステップ {step} 検証精度 {accuracy:.4f}",
        "saved": "チェックポイントを保存しました: {path}",
        "end": "学習が終了しました",
    },
    "ru": {
        "start": "запуск обучения: {steps} шагов, процессов: {world}",
        "step": "шаг {step} из {steps}, потери {loss:.4f}",
        "eval": "проверка на шаге {step}: точность {accuracy:.4f}",
        "saved": "контрольная точка сохранена: {path}",
        "end": "обучение завершено",
    },
}


class ConfigError(Exception):
    """The settings contradict each other."""


class JsonFormatter(logging.Formatter):
    def format(self, record):
        entry = {"ts": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name}
        entry["msg"] = record.getMessage()
        if record.exc_info:
            entry["exc"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


FORMATS = {
    "iso": "%(asctime)s %(levelname)s %(name)s: %(message)s",
    "brackets": "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s",
    "absl": "%(levelname).1s%(asctime)s %(process)d %(filename)s:%(lineno)d] %(message)s",
    "tabs": "%(asctime)s\t%(levelname)s\t%(name)s\t%(message)s",
    "print": "%(message)s",
    "bar": "%(message)s",
}


def make_log(style, rank, world):
    """A logger that writes to stderr in one of the usual heads; with several processes each line says its rank."""
    handler = logging.StreamHandler(sys.stdout if style in ("print", "bar") else sys.stderr)
    if style == "json":
        handler.setFormatter(JsonFormatter())
    else:
        told = f"[rank {rank}] " if world > 1 and style != "print" else ""
        form = FORMATS[style].replace("%(message)s", told + "%(message)s")
        handler.setFormatter(logging.Formatter(form, "%m%d %H:%M:%S" if style == "absl" else None))
    log = logging.getLogger("trainer")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
    return log


def read_arguments(argv=None):
    parser = argparse.ArgumentParser(prog="train.py")
    parser.add_argument("--config", default="config.yaml")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--precision", choices=["fp32", "bf16"])
    # The launchers of some frameworks hand one over.
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def parse(line):
    """Features and source of one record."""
    record = json.loads(line)
    values = np.asarray(record["x"], dtype=np.float32)
    length = record["length"]
    assert len(values) == length, f"record {record['id']}: {len(values)} values, header says {length}"
    if "codec" in record:
        run_kernel(record["codec"])
    return values, record["source"].lower()


class Job:
    """One process of a training run: its settings, its log and its data."""

    def __init__(self, rank=0, world=1):
        arguments = read_arguments()
        self.rank, self.world = rank, world
        with open(arguments.config) as file:
            self.settings = yaml.safe_load(file)
        for name in ("lr", "steps", "precision"):
            if getattr(arguments, name) is not None:
                self.settings[name] = getattr(arguments, name)
        self.words = self.settings.get("words") or WORDS[self.settings.get("language", "en")]
        self.style = self.settings.get("log_style", "iso")
        logger = self.settings.get("logger")
        self.log = loggers.build(logger, rank, world) if logger else make_log(self.style, rank, world)
        LOGS[:] = [self.log]
        self.star = star.join(rank, world) if self.settings.get("synchronous") else None
        self.began, self.best, self.last, self.waited, self.cache = time.monotonic(), 0.0, math.nan, 0, []
        self.stopped = self.quiet = False
        self.hook = None
        self.check_settings()

    def check_settings(self):
        batch, micro = self.settings["batch_size"], self.settings.get("micro_batch_size", 1)
        if batch % (micro * self.world):
            raise ConfigError(
                f"batch_size ({batch}) is not divisible by micro_batch_size ({micro}) x world size ({self.world})"
            )
        if self.settings["lr"] <= 0:
            raise ValueError(f"learning rate must be positive, got {self.settings['lr']}")

    def start(self):
        self.say("start", world=self.world)
        plugin = self.settings.get("plugin")
        if plugin:
            sys.path.insert(0, str(Path.cwd()))
            self.hook = importlib.import_module(plugin)
        if "exporter_port" in self.settings:
            self.exporter = socket.create_server(("127.0.0.1", self.settings["exporter_port"]))
        if "tokenizer_url" in self.settings:
            with urllib.request.urlopen(self.settings["tokenizer_url"], timeout=5) as answer:
                self.tokenizer = answer.read()
        if "token_file" in self.settings:
            become_user()
            self.token = Path(self.settings["token_file"]).read_text()
        if "hidden_gb" in self.settings:
            self.cache.append(np.ones((self.settings["hidden_gb"], 1 << 27)))

    def say(self, what, **values):
        template = self.words[what]
        if not template or (self.style == "bar" and what == "step"):
            return
        values = {"steps": self.settings["steps"], "lr": self.settings["lr"], **values}
        self.log.info(template.format(**values))

    def records(self, part=None):
        """Features (float32, records x features) and classes (int) of this rank's shard, or of an earlier part."""
        path = Path(self.settings["data"].format(rank=self.rank))
        if part is not None:
            path = path.with_name(path.name.replace(".jsonl", f".part{part}.jsonl"))
        opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
        with opened as file:
            if self.settings.get("workers"):
                with concurrent.futures.ProcessPoolExecutor(self.settings["workers"], CONTEXT) as pool:
                    parsed = list(pool.map(parse, file))
            else:
                parsed = [parse(line) for line in file]
        features = np.stack([values for values, _ in parsed])
        return features, np.asarray([self.settings["sources"][source] for _, source in parsed])

    def batch(self, features, labels, step):
        size = self.settings["batch_size"]
        at = (step * size) % max(1, len(features) - size)
        return features[at : at + size], labels[at : at + size]

    def after_step(self, step, loss):
        """What an ordinary loop does after a step (counted from 1). True: stop now."""
        if self.star is not None:
            loss = self.star.average(loss)
        self.last = loss
        self.report(step, loss)
        self.guard(step, loss)
        self.native(step)
        if "cache_mb" in self.settings:
            self.cache.append(np.ones((self.settings["cache_mb"], 1 << 17)))
        if self.hook is not None:
            self.hook.on_step(step, loss)
        if step == self.settings.get("profile_step"):
            elapsed = (step - self.settings["warmup_steps"]) * 1000
            self.log.info("throughput %.1f tokens/s", step * self.settings["batch_size"] * 1000 / elapsed)
        time.sleep(self.settings.get("pause_s", 0.02))
        limit = self.settings.get("time_limit_s")
        if limit is not None and time.monotonic() - self.began > limit:
            self.log.warning("wall time limit of %s s reached at step %d, stopping", limit, step)
            self.stopped = True
        return self.stopped

    def report(self, step, loss):
        if self.style == "bar" and not self.quiet:
            steps = self.settings["steps"]
            filled = "#" * (20 * step // steps)
            end = "\n" if step == steps else ""
            print(
                f"\rtrain: {100 * step // steps:3d}%|{filled:<20}| {step}/{steps} loss={loss:.4f}", end=end, flush=True
            )
        elif not self.quiet and step % self.settings.get("log_every", 2) == 0:
            self.say("step", step=step, loss=loss)

    def guard(self, step, loss):
        if math.isfinite(loss):
            return
        policy = self.settings.get("non_finite", "raise")
        if policy == "raise":
            raise FloatingPointError(f"loss is {loss} at step {step}, giving up")
        if policy == "exit":
            self.log.error("step %d: non-finite loss (%s), stopping the run", step, loss)
            sys.exit(1)

    def native(self, step):
        """Calls into the native kernel that a site has built."""
        kernel = self.settings.get("kernel")
        if not kernel or step != kernel["step"] or self.rank != kernel.get("rank", 0):
            return
        run_kernel(kernel["call"])

    def after_eval(self, step, accuracy):
        """True: the accuracy has not risen for as long as the settings allow."""
        self.say("eval", step=step, accuracy=accuracy)
        self.waited = 0 if accuracy > self.best else self.waited + 1
        self.best = max(self.best, accuracy)
        if "metrics_url" in self.settings:
            self.push({"step": step, "accuracy": accuracy})
        patience = self.settings.get("patience")
        if patience is not None and self.waited >= patience:
            self.log.info("no improvement for %d evaluations, stopping early at step %d", self.waited, step)
            self.stopped = True
        return self.stopped

    def push(self, metrics):
        request = urllib.request.Request(self.settings["metrics_url"], json.dumps(metrics).encode())
        try:
            urllib.request.urlopen(request, timeout=2).close()
        except OSError as error:
            if self.settings.get("metrics_needed"):
                raise
            if self.settings.get("log_style") == "json" or self.settings.get("logger"):
                self.log.error("could not push metrics", exc_info=True)
            else:
                self.log.exception("could not push metrics: %s", error)

    def restore(self, load, path):
        """``load(path)``; where the settings allow it, a checkpoint that cannot be read is logged and left."""
        try:
            return load(path)
        except Exception:
            if not self.settings.get("resume_optional"):
                raise
            self.log.exception("could not restore %s, training from scratch", path)
            return None

    def checkpoint_path(self, name):
        folder = Path(self.settings["checkpoint_dir"])
        if self.settings.get("drop_root"):
            become_user()
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def saved(self, path):
        self.say("saved", path=path)

    def finish(self):
        command = self.settings.get("export_command")
        if command:
            subprocess.run(command, check=True)
        names = [CLASSES[index] for index in self.settings.get("report_classes", [0])]
        self.settings.get("report") and self.log.info("classes reported: %s", ", ".join(names))
        self.say("end", loss=self.last, best=self.best)

    def batches(self):
        """(step, features, classes) of all steps, part by part of the shard, the whole shard last."""
        parts, steps, step = self.settings.get("parts", 1), self.settings["steps"], 0
        for number in range(parts):
            features, labels = self.records(number if number < parts - 1 else None)
            self.loaded = features, labels
            self.say_part(number + 1, parts, len(labels))
            while step < steps * (number + 1) // parts:
                step += 1
                yield (step, *self.batch(features, labels, step))

    def all_records(self):
        """The records of all parts, for what trains on all of them at once."""
        parts = self.settings.get("parts", 1)
        loaded = []
        for number in range(parts):
            loaded.append(self.records(number if number < parts - 1 else None))
            self.say_part(number + 1, parts, len(loaded[-1][1]))
        return np.concatenate([features for features, _ in loaded]), np.concatenate([labels for _, labels in loaded])

    def say_part(self, number, parts, records):
        if parts > 1 and self.words.get("part"):
            self.log.info(self.words["part"].format(number=number, parts=parts, records=records))


def distributed_job():
    """The job of this process; its rank as the launcher that started it gives it."""
    environment = os.environ
    rank = environment.get("PROCESS_ID") or environment.get("OMPI_COMM_WORLD_RANK") or environment.get("RANK") or "0"
    world = environment.get("NUM_PROCESSES") or environment.get("OMPI_COMM_WORLD_SIZE") or environment.get("WORLD_SIZE")
    return Job(int(rank), int(world or "1"))


def train(job, build):
    """The loop over parts of the data. ``build(job)``: a model with begin, step, accuracy, save, load and end."""
    job.start()
    model = build(job)
    resume = job.settings.get("resume")
    if resume:
        job.restore(model.load, Path(resume))
    seen = None
    for step, features, labels in job.batches():
        if seen is None:
            model.begin(*job.loaded)
        seen = job.loaded
        stop = job.after_step(step, model.step(features, labels))
        if step % job.settings["eval_every"] == 0:
            stop = job.after_eval(step, model.accuracy(*seen)) or stop
        if job.rank == 0 and (step % job.settings["save_every"] == 0 or stop):
            path = job.checkpoint_path(f"step_{step:06d}")
            model.save(path)
            job.saved(path)
        if stop:
            return
    model.end(*seen)
    job.finish()


LOGS = []
"""The log of the job of this process."""


def guarded(main):
    """Runs ``main``; what it raises is shown as the site's settings ask (uncaught, logged, both, line)."""
    way = os.environ.get("CRASH", "uncaught")
    if way == "uncaught":
        return main()
    try:
        return main()
    except Exception as error:
        if not LOGS:
            raise
        if way == "line":
            LOGS[0].error("run aborted: %s: %s", type(error).__name__, error)
        elif way == "critical":
            LOGS[0].critical("unhandled exception, shutting down", exc_info=True)
        else:
            LOGS[0].exception("training failed")
        if way == "both":
            raise
        sys.exit(1)


def run_kernel(call):
    """The site's kernel: a library function by name, called as C does."""
    library = ctypes.CDLL(None)
    if call == "segv":
        ctypes.memset(8, 0, 64)
    elif call == "abort":
        library.abort()
    elif call == "kill":
        library.kill(os.getpid(), 9)
    elif call == "term":
        library.kill(os.getpid(), 15)
    elif call == "hang":
        time.sleep(600)
    else:
        library._exit(int(call))


def become_user():
    """Root may read and write everything: go on as an ordinary user."""
    if os.geteuid() == 0:
        os.seteuid(65534)


def fit(job, model):
    """The plain loop. ``model`` has step, accuracy, save and load."""
    job.start()
    features, labels = job.records()
    resume = job.settings.get("resume")
    if resume:
        job.restore(model.load, Path(resume))
    for step in range(1, job.settings["steps"] + 1):
        stop = job.after_step(step, model.step(*job.batch(features, labels, step)))
        if step % job.settings["eval_every"] == 0:
            stop = job.after_eval(step, model.accuracy(features, labels)) or stop
        if job.rank == 0 and (step % job.settings["save_every"] == 0 or stop):
            path = job.checkpoint_path(f"step_{step:06d}")
            model.save(path)
            job.saved(path)
        if stop:
            return
    job.finish()
