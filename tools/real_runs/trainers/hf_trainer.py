"""A small network under the Trainer of Hugging Face transformers; several processes through torchrun."""

import os

import torch
from support import Job
from torch_parts import Network, Shard
from transformers import Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)


class SiteCallback(TrainerCallback):
    """What the site does around each step."""

    def __init__(self, job):
        self.job, self.loss = job, 0.0

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.loss = float((logs or {}).get("loss", self.loss))
        self.job.guard(state.global_step, self.loss)

    def on_step_end(self, args, state, control, **kwargs):
        if self.job.after_step(state.global_step, self.loss):
            control.should_training_stop = True

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if self.job.after_eval(state.global_step, metrics["eval_accuracy"]):
            control.should_training_stop = True

    def on_save(self, args, state, control, **kwargs):
        self.job.saved(f"{args.output_dir}/checkpoint-{state.global_step}")


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(axis=-1) == prediction.label_ids).mean())}


def main():
    job = Job(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
    job.quiet = True
    settings = job.settings
    if settings.get("drop_root"):
        job.checkpoint_path("x")
    arguments = TrainingArguments(
        output_dir=settings["checkpoint_dir"],
        max_steps=settings["steps"],
        per_device_train_batch_size=settings["batch_size"] // job.world,
        learning_rate=settings["lr"],
        logging_steps=settings.get("log_every", 2),
        logging_nan_inf_filter=False,
        eval_strategy="steps",
        eval_steps=settings["eval_every"],
        save_steps=settings["save_every"],
        dataloader_num_workers=settings.get("workers", 0),
        disable_tqdm=settings.get("log_style") not in ("bar", "print"),
        remove_unused_columns=False,
        use_cpu=True,
        report_to=[],
    )
    job.start()
    shard = Shard(job)
    trainer = Trainer(
        model=Network(settings),
        args=arguments,
        train_dataset=shard,
        eval_dataset=shard,
        compute_metrics=accuracy,
        callbacks=[SiteCallback(job)],
    )
    if not job.restore(lambda path: trainer.train(resume_from_checkpoint=path), settings.get("resume")):
        trainer.train()
    if not job.stopped:
        job.finish()


if __name__ == "__main__":
    main()
