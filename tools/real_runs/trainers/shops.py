"""Small programs of the seventh generation: each function trains with a framework as its own documents show it.

``shops.py FRAMEWORK``; the code of a fault changes what a program was given, or goes wrong itself.
"""

import functools
import json
import logging
import os
import random
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
RUN = SimpleNamespace(**json.load(open(os.environ["RUN_FILE"])))
WORDS = re.findall(r"\w+", "the model reads a shard of tokens and learns to write the next one after each of them")
HF = {"output_dir": "out", "max_steps": RUN.steps, "per_device_train_batch_size": 4, "logging_steps": 2,
      "save_steps": RUN.steps // 2, "report_to": [], "use_cpu": True, "ddp_timeout": 15}  # fmt: skip


def at(place, rank=RANK, **given):
    """Let the fault see and change what is given; returns it."""
    names = SimpleNamespace(**given, rank=rank, message=RUN.message)
    if place == RUN.place and rank in RUN.struck:
        for line in RUN.lines:
            print(line.format(node=socket.gethostname(), rank=rank), file=sys.stderr, flush=True)
        exec(
            compile(RUN.code, "/workspace/train/mixture.py", "exec"), defined := {}
        )  # a file of which no line is printed
        defined["on_event"](names)
    return names


def step(number, rank=RANK, **given):
    time.sleep(RUN.pause)
    return at("step" if number == RUN.strike else "", rank, **given)


def say(text, **fields):
    """With the logger of the run."""
    if RUN.logger == "loguru":
        from loguru import logger

        return logger.bind(**fields).info(" ".join([text, *(f"{name}={value}" for name, value in fields.items())]))
    if RUN.logger == "structlog":
        import structlog

        return structlog.get_logger().info(text, rank=RANK, **fields)
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s - %(levelname)s - %(name)s - %(message)s")
    return logging.getLogger("train").info("%s %s", text, fields or "")


def _rows(count=64):
    chance = random.Random(3)
    return [{"text": " ".join(chance.choices(WORDS, k=12)), "label": n % 2} for n in range(count)]


def _tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.train_from_iterator(WORDS, trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>", "</s>", "[MASK]"]))
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def _watch():
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def on_step_end(self, arguments, state, control, **more):
            step(state.global_step, model=more["model"], trainer=state, optimizer=more.get("optimizer"))

        def on_save(self, arguments, state, control, **more):
            at("save", model=more["model"], folder=f"out/checkpoint-{state.global_step}")

    return Watch()


def trl():
    import transformers as hf
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 64}
    got = at("config", settings={**HF, "max_length": 32, "bf16": False}, shape=shape, resume=None)
    data = at("data", rows=[{"text": row["text"]} for row in _rows()], tokenizer=_tokenizer())
    model = at("model", model=hf.GPT2LMHeadModel(hf.GPT2Config(**got.shape))).model
    given = {"args": SFTConfig(**got.settings), "processing_class": data.tokenizer, "callbacks": [_watch()]}
    trainer = SFTTrainer(model=model, train_dataset=Dataset.from_list(data.rows), **given)
    trainer.train(resume_from_checkpoint=got.resume)
    trainer.save_model(at("end", model=model, folder="out/final").folder)


def train_part(part, lr=0.1):
    """One member of a pool trains on its part of the rows: regression in plain Python."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(processName)s %(message)s")
    got = at("config", part, lr=lr, rows=_rows())
    rows, weight = at("data", part, rows=got.rows).rows[part::4], 0.0
    for number in range(1, RUN.steps + 1):
        seen = step(number, part, weight=weight, rows=rows)
        row = seen.rows[number % len(seen.rows)]
        weight = seen.weight - got.lr * (seen.weight * len(row["text"]) / 64 - row["label"])
        if number % 10 == 0:
            logging.info("part %d step %d weight %.4f", part, number, weight)
    at("save", part, folder=".")
    return at("end", part, weight=weight).weight


def submitit():
    import submitit

    logging.getLogger("submitit").setLevel(logging.INFO)
    executor = submitit.AutoExecutor(folder="jobs", cluster="local")
    executor.update_parameters(timeout_min=RUN.minutes, tasks_per_node=1, name="train")
    jobs = executor.map_array(train_part, range(4))
    files = [str(path) for job in jobs for path in (job.paths.stdout, job.paths.stderr)]
    follow = subprocess.Popen(["tail", "-qF", *files])
    say("submitted", jobs=[job.job_id for job in jobs])
    try:
        say("sum", total=sum(job.result() for job in jobs))
    finally:
        time.sleep(1)
        follow.kill()


def prefect():
    import prefect
    from prefect.task_runners import ThreadPoolTaskRunner

    @prefect.task(retries=RUN.seed % 2, retry_delay_seconds=1, task_run_name="part-{part}")
    def part_of(part):
        prefect.get_run_logger().info("training part %s", part)
        return train_part(part)

    @prefect.flow(name="pretrain", task_runner=ThreadPoolTaskRunner(max_workers=4))
    def pretrain(epochs: int):
        return sum(future.result() for future in part_of.map(range(4)))

    say("sum", total=pretrain(**at("boot", ask={"epochs": 1}).ask))


def _total(*weights):
    return sum(weights)


def kedro():
    from kedro.io import DataCatalog, MemoryDataset
    from kedro.pipeline import node, pipeline
    from kedro.runner import SequentialRunner, ThreadRunner

    logging.getLogger("kedro").setLevel(logging.INFO)
    got, names = at("boot", inputs=["params:lr"], catalog={"params:lr": 0.1}), [f"weight_{part}" for part in range(4)]
    parts = [functools.update_wrapper(functools.partial(train_part, part), train_part) for part in range(4)]
    nodes = [node(parts[part], got.inputs, names[part], name=f"train_{part}") for part in range(4)]
    runner = (SequentialRunner(), ThreadRunner(max_workers=4))[RUN.seed % 2]
    catalog = DataCatalog({name: MemoryDataset(value) for name, value in got.catalog.items()})
    say("total", value=str(runner.run(pipeline([*nodes, node(_total, names, "total", name="average")]), catalog)))


def hydra():
    import hydra

    Path("conf").mkdir(exist_ok=True)
    open("conf/config.yaml", "w").write(at("boot", text="lr: 0.1\npart: 0\nmodel:\n  width: 8\n").text)
    sys.argv[1:] = at("boot2", words=["-m", "part=0,1,2,3", "hydra/launcher=joblib", "hydra.launcher.n_jobs=4"]).words
    hydra.main(str(Path("conf").resolve()), "config", None)(lambda settings: train_part(settings.part, settings.lr))()


def datasets():
    from datasets import Dataset

    words, seen = _tokenizer(), []

    def encode(batch, part):
        seen.append(part)
        got = step(len(seen), part, batch=batch, words=words)
        return got.words(got.batch["text"], truncation=True, max_length=16)

    got = at("config", map={"batched": True, "batch_size": 25, "num_proc": 4, "with_rank": True})
    done = Dataset.from_list(_rows(4000)).map(encode, **got.map)
    done = done.filter(lambda row: len(row["input_ids"]) > 2, num_proc=4)
    done.save_to_disk("encoded", num_proc=4)
    say("encoded", rows=len(done), columns=done.column_names)


if __name__ == "__main__":
    import shops  # members of a pool load this file by its name

    shops.at("boot")
    shops.say("starting", framework=sys.argv[1], world=WORLD)
    getattr(shops, sys.argv[1])()
    shops.say("done", steps=RUN.steps)
