"""Small programs of the eighth generation, as ``shops.py`` has those of the seventh: ``labs.py FRAMEWORK``;
those of eight further families (first_sight.csv) are no more."""

import json
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
    at("save", model=model)


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


if __name__ == "__main__":
    import labs  # members of a pool load this file by its name

    at("boot")
    say("starting", framework=sys.argv[1], world=WORLD)
    getattr(labs, sys.argv[1])()
    say("done", steps=RUN.steps)
