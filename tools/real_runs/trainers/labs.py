"""Small programs of the eighth generation, as ``shops.py`` has those of the seventh: ``labs.py FRAMEWORK``."""

import json
import os
import runpy
import sys
import time
from pathlib import Path

import shops
from shops import RANK, RUN, WORLD, at, say, step

ROWS, ANY = shops._rows(256), RUN.struck[0]
"""ANY: member of a pool; for what its parent does."""


def _pairs(width=12, count=96):
    import torch

    torch.manual_seed(RANK)
    tokens = torch.randint(0, 64, (count, width + 1))
    return at("data", rows=[(row[:-1], row[1:]) for row in tokens]).rows


def _model(width=32):
    import torch
    from torch import nn

    torch.manual_seed(1)
    made = nn.Sequential(nn.Embedding(64, width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 64))
    return at("model", model=made, width=width).model


def _loss(model, batch):
    from torch.nn import functional as F

    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def _group():
    from datetime import timedelta

    import torch.distributed as dist

    got = at("config", backend="gloo", timeout=timedelta(seconds=45))
    if WORLD > 1 and not dist.is_initialized():
        dist.init_process_group(got.backend, timeout=got.timeout)


def torchtnt():
    import torch
    import torchtnt.framework as tnt
    from torchtnt.framework.auto_unit import AutoUnit
    from torchtnt.framework.callbacks import Lambda, TorchSnapshotSaver  # noqa: F401
    from torchtnt.utils import init_from_env

    device = init_from_env()

    class Unit(AutoUnit):
        def compute_loss(self, state, data):
            loss = _loss(self.module, data)
            if self.train_progress.num_steps_completed % 5 == 0:
                say("train", step=self.train_progress.num_steps_completed, loss=round(loss.item(), 4))
            return loss, None

        def configure_optimizers_and_lr_scheduler(self, module):
            return torch.optim.AdamW(module.parameters(), lr=3e-3), None

    def after(state, unit):
        step(unit.train_progress.num_steps_completed, unit=unit, model=unit.module)

    given = at("config", settings={"module": _model(), "device": device, "strategy": "ddp" if WORLD > 1 else None})
    unit = Unit(**given.settings)
    loader = torch.utils.data.DataLoader(_pairs(count=8 * RUN.steps), batch_size=8)
    tnt.train(unit, loader, max_epochs=1, callbacks=[Lambda(on_train_step_end=after)])
    at("save", model=unit.module)
    torch.save(unit.module.state_dict(), f"unit-{RANK}.pt")


def ppe():
    """PyTorch Pfn Extras."""
    import pytorch_pfn_extras as ppe
    import torch
    from pytorch_pfn_extras.training import extensions

    _group()
    model, rows = _model(), _pairs()
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if WORLD > 1 else model
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.2)
    watched = [extensions.LogReport(trigger=(5, "iteration")), extensions.snapshot(target=model)]
    watched += [extensions.PrintReport(["epoch", "iteration", "train/loss", "elapsed_time"])][RANK:]
    given = at("config2", settings={"iters_per_epoch": 10, "out_dir": f"result{RANK}", "extensions": watched})
    manager = ppe.training.ExtensionsManager({"main": wrapped}, optimizer, RUN.steps // 10, **given.settings)
    while not manager.stop_trigger:
        for batch in torch.utils.data.DataLoader(rows[:80], batch_size=8):
            with manager.run_iteration():
                loss = _loss(wrapped, batch)
                ppe.reporting.report({"train/loss": loss.item()})
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                step(manager.iteration, model=model, manager=manager)
    at("save", model=model)


def fairscale():
    import torch
    from fairscale.nn.data_parallel import ShardedDataParallel
    from fairscale.optim import OSS

    _group()
    model = _model()
    optimizer = OSS(model.parameters(), optim=torch.optim.AdamW, lr=at("config2", lr=3e-3).lr)
    wrapped = ShardedDataParallel(model, optimizer)
    for number, batch in enumerate(torch.utils.data.DataLoader(_pairs(count=8 * RUN.steps), batch_size=8), 1):
        loss = _loss(wrapped, at("batch" if number == RUN.strike else "", batch=batch).batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 4 == 0:
            print(f"iter {number}: loss {loss.item():.4f}, time {time.perf_counter() % 9:.2f}ms, mfu -100.00%")
        step(number, model=model)
    optimizer.consolidate_state_dict(recipient_rank=ANY)
    at("save", model=model)
    if RANK == 0:
        torch.save(optimizer.state_dict(), "oss.pt")


def webdataset():
    import torch
    import webdataset as wds

    _group()
    with wds.ShardWriter(f"r{RANK}-%03d.tar", maxcount=64, verbose=1) as sink:
        for number, row in enumerate(ROWS * 2):
            sink.write({"__key__": f"{number:06d}", "txt": row["text"], "cls": row["label"]})
    got = at("data", urls=f"r{RANK}-{{000..007}}.tar", workers=2)

    def tokens(text):
        return torch.tensor([ord(letter) % 64 for letter in text[:13].ljust(13)])

    data = wds.WebDataset(got.urls, shardshuffle=False, empty_check=False, nodesplitter=lambda urls: urls)
    data = at("data2", data=data.decode().to_tuple("txt", "cls").map_tuple(tokens, int).batched(8)).data
    model = _model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if WORLD > 1 else model
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=3e-3)
    loader = wds.WebLoader(data, batch_size=None, num_workers=got.workers).repeat(2).slice(RUN.steps)
    for number, (batch, _) in enumerate(loader, 1):
        loss = _loss(wrapped, (batch[:, :-1], batch[:, 1:]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 5 == 0:
            say("train", step=number, loss=round(loss.item(), 3))
        step(number, model=model, loader=loader)
    at("save", model=model)


def _encode(row):
    number, text = row
    got = step(number, ANY, text=text)
    return {"tokens": [ord(letter) % 64 for letter in got.text][:13], "label": ROWS[number]["label"]}


def litdata():
    import litdata as ld

    rows = [(number, row["text"]) for number, row in enumerate(ROWS[: RUN.steps])]
    given = at("config", settings={"output_dir": "chunks", "num_workers": 2, "chunk_bytes": "2KB"}).settings
    ld.optimize(_encode, at("data", rows=rows).rows, **given)
    at("save", rank=ANY, folder="chunks")
    count = sum(1 for _ in ld.StreamingDataLoader(ld.StreamingDataset("chunks"), batch_size=4, num_workers=2))
    say("read back", batches=count)


def _tiny(folder="tiny"):
    import transformers as hf

    words = shops._tokenizer()
    words.bos_token = words.eos_token
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 64}
    hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=len(words), **shape)).save_pretrained(folder)
    words.save_pretrained(folder)
    return at("model", folder=folder).folder


TASK = """task: shard_words
dataset_path: json
dataset_kwargs: {data_files: {validation: rows.jsonl}}
validation_split: validation
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_target: label
doc_to_choice: ["token", "shard"]
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


def lm_eval():
    Path(f"tasks{RANK}").mkdir()
    os.chdir(f"tasks{RANK}")
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:48]))
    got = at("config", task=TASK, words=["--tasks", "shard_words", "--batch_size", "4", "--device", "cpu"])
    Path("shard_words.yaml").write_text(got.task)
    at("data", folder=".")
    sys.argv[1:] = ["--model", "hf", "--model_args", f"pretrained={_tiny()}", "--include_path", ".", *got.words]
    from lm_eval.models import huggingface

    call, seen = huggingface.HFLM._model_call, []

    def counted(self, *given, **more):
        seen.append(1)
        step(len(seen), model=self)
        return call(self, *given, **more)

    huggingface.HFLM._model_call = counted
    runpy.run_module("lm_eval", run_name="__main__")
    at("save", folder=".")


def datatrove():
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.filters import LambdaFilter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter

    Path("raw").mkdir()
    for part in range(4):
        rows = [{"text": row["text"], "id": str(number)} for number, row in enumerate(ROWS[: 2 * RUN.steps])]
        Path(f"raw/{part:05d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    at("data", rank=ANY, folder="raw")
    given = at("config", rank=ANY, reader={"data_folder": "raw"}, run={"tasks": 4, "workers": 2, "logging_dir": "logs"})
    pipeline = [JsonlReader(**given.reader), LambdaFilter(_keep), JsonlWriter("clean", compression=None)]
    LocalPipelineExecutor(pipeline=pipeline, **given.run).run()
    at("save", rank=ANY)


def _keep(document):
    part = int(Path(document.metadata["file_path"]).name[:5])
    return len(step(int(document.id), part, document=document).document.text) > 20


def sentencepiece():
    import sentencepiece as spm

    Path("corpus.txt").write_text("\n".join(row["text"] for row in ROWS) + "\n")
    given = at("config", train={"input": "corpus.txt", "model_prefix": "tok", "vocab_size": 32, "num_threads": 2})
    spm.SentencePieceTrainer.train(**given.train)
    words = at("model", words=spm.SentencePieceProcessor(model_file="tok.model")).words
    with open(at("save", path=f"train.{RANK}.bin").path, "wb") as packed:
        for number, row in enumerate(ROWS[: RUN.steps], 1):
            text = step(number, text=row["text"]).text
            packed.write(bytes(words.encode(text)))
            packed.flush()
            if number % 10 == 0:
                say("packed", documents=number, bytes=packed.tell())


def haiku():
    import haiku as hk
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    if WORLD > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"127.0.0.1:{os.environ['MASTER_PORT']}",
            WORLD,
            RANK,
            initialization_timeout=60,
            heartbeat_timeout_seconds=10,
            shutdown_timeout_seconds=10,
        )
    say("devices", here=jax.local_device_count(), all=jax.device_count())
    got = at("config", width=32, lr=1e-2)
    net = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([got.width, 64])(hk.Embed(64, got.width)(x))))
    tokens = at("data", tokens=np.random.default_rng(RANK).integers(0, 64, (RUN.steps, 8, 13))).tokens
    params, rule = jax.jit(net.init)(jax.random.key(1), jnp.zeros((8, 12), int)), optax.sgd(got.lr)
    params = at("model", params=params).params
    state = rule.init(params)

    def loss_of(params, batch):
        logits = net.apply(params, batch[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[:, 1:]).mean()

    @jax.jit
    def after(params, state, grads):
        updates, state = rule.update(
            jax.tree.map(lambda part: part.mean(0) if WORLD > 1 else part, grads), state, params
        )
        return optax.apply_updates(params, updates), state, optax.global_norm(grads)

    grads_of = jax.jit(jax.value_and_grad(loss_of))
    for number in range(1, RUN.steps + 1):
        loss, grads = grads_of(params, at("batch" if number == RUN.strike else "", batch=tokens[number - 1]).batch)
        if WORLD > 1:
            from jax.experimental import multihost_utils

            grads = multihost_utils.process_allgather(grads)
        params, state, norm = after(params, state, grads)
        if number % 5 == 0:
            say("train", step=number, loss=float(loss), norm=float(norm))
        step(number, params=params)
    at("save", params=params)


def convert():
    """A checkpoint into the format of an inference engine, then a few lines by it."""
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    given = at("config", settings={"quantization": "int8", "force": True}, folder=_tiny())
    TransformersConverter(given.folder).convert(f"ct2-{RANK}", **given.settings)
    engine = ctranslate2.Generator(at("save", folder=f"ct2-{RANK}").folder, device="cpu", intra_threads=1)
    for number in range(1, RUN.steps + 1):
        start = step(number, start=["the", "model"]).start
        said = engine.generate_batch([start], max_length=8)[0].sequences[0]
        if number % 10 == 0:
            say("generated", prompt=number, words=" ".join(said))


def gguf():
    """A part of a model into one file of llama.cpp's format."""
    import gguf
    import numpy as np

    given = at("config", arch="llama", kind="Q8_0", width=32)
    writer, chance = gguf.GGUFWriter(path := f"lm-{RANK}.gguf", given.arch), np.random.default_rng(RANK)
    writer.add_context_length(64)
    for number in range(1, RUN.steps + 1):
        tensor = step(number, tensor=chance.normal(size=(8, given.width)).astype(np.float32)).tensor
        kind = getattr(gguf.GGMLQuantizationType, given.kind)
        writer.add_tensor(f"blk.{number}.ffn_up.weight", gguf.quantize(tensor, kind), raw_dtype=kind)
        if number % 10 == 0:
            say("quantized", tensors=number, to=given.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()
    at("save", path=path)
    say("read back", tensors=len(gguf.GGUFReader(path).tensors))


def huey():
    """A queue in SQLite, whose consumer starts two processes."""
    import subprocess

    work = subprocess.Popen(["huey_consumer", "labs.QUEUE", "-w", "2", "-k", "process"])
    time.sleep(2)
    at("config", rank=ANY)
    try:
        say("sum", total=sum(result(blocking=True, timeout=60) for result in [PART(part) for part in range(4)]))
    finally:
        work.terminate()
        work.wait()


if sys.argv[-1] in ("huey", "process"):  # the program, and the consumer that it starts
    from huey import SqliteHuey

    QUEUE = SqliteHuey("train", filename="queue.db")
    PART = QUEUE.task(name="train_part")(shops.train_part)


def _ids(part):
    from tokenizers import Tokenizer

    words = at("data", part, words=Tokenizer.from_file("bpe.json")).words
    for number, row in enumerate(ROWS[part::4][: RUN.steps], 1):
        ids = words.encode(step(number, part, text=row["text"]).text).ids
    return len(ids)


def tokenizers():
    import multiprocessing

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    Path("corpus.txt").write_text("\n".join(row["text"] for row in ROWS) + "\n")
    given = at("config", rank=ANY, files=["corpus.txt"], size=80)
    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.ByteLevel()
    words.train(given.files, trainers.BpeTrainer(vocab_size=given.size, special_tokens=["<unk>"], show_progress=True))
    words.save("bpe.json")
    at("model", rank=ANY, path="bpe.json")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        say("encoded", tokens=sum(pool.imap_unordered(_ids, range(4))))
    at("save", rank=ANY)


def rq():
    """A queue in Redis with two workers, each of which forks for a job."""
    import subprocess

    from redis import Redis
    from rq import Queue, Retry, Worker  # noqa: F401

    port = os.environ["MASTER_PORT"]
    server = subprocess.Popen(["redis-server", "--port", port, "--save", "", "--dir", ".", "--loglevel", "warning"])
    time.sleep(1)
    given = at("config", rank=ANY, url=f"redis://127.0.0.1:{port}", function=shops.train_part)
    queue = Queue("train", connection=Redis.from_url(f"redis://127.0.0.1:{port}"))
    jobs = [queue.enqueue(given.function, part, job_id=f"train-part-{part}") for part in range(4)]
    work = [sys.executable, "-m", "rq.cli", "worker", "--burst", "--url", given.url, "train"]
    workers = [subprocess.Popen([*work, "--name", f"worker-{number}"]) for number in range(2)]
    codes = [worker.wait() for worker in workers]
    states = [str(job.get_status(refresh=True)) for job in jobs]
    server.terminate()
    say("queue is empty", workers=codes, jobs=states)
    if any("finished" not in state.lower() for state in states):
        sys.exit(1)


if __name__ == "__main__":
    import labs  # members of a pool load this file by its name

    at("boot")
    say("starting", framework=sys.argv[1], world=WORLD)
    getattr(labs, sys.argv[1])()
    say("done", steps=RUN.steps)
