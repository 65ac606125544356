"""A small network under Lightning."""

import faulthandler

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from support import Job
from torch_parts import Network, Shard

torch.set_num_threads(1)
faulthandler.enable()


class Classifier(L.LightningModule):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.network = Network(settings)

    def training_step(self, batch, index):
        loss = self.network(**batch)["loss"]
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        output = self.network(**batch)
        accuracy = (output["logits"].argmax(dim=-1) == batch["labels"]).float().mean()
        self.log("val_accuracy", accuracy, prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.settings["lr"])


class SiteCallback(Callback):
    """What the site does around each step."""

    def __init__(self, job):
        self.job = job

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if self.job.after_step(trainer.global_step, float(outputs["loss"])):
            trainer.should_stop = True

    def on_validation_end(self, trainer, module):
        accuracy = trainer.callback_metrics.get("val_accuracy")
        if not trainer.sanity_checking and self.job.after_eval(trainer.global_step, float(accuracy)):
            trainer.should_stop = True


def main():
    job = Job()
    settings = job.settings
    limit = settings.pop("time_limit_s", None)
    if settings.get("drop_root"):
        job.checkpoint_path("x")
    job.start()
    shard = Shard(job)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=settings["steps"],
        max_time={"seconds": limit} if limit else None,
        val_check_interval=settings["eval_every"],
        check_val_every_n_epoch=None,
        log_every_n_steps=1,
        logger=False,
        enable_progress_bar=settings.get("log_style") in ("bar", "print"),
        callbacks=[
            SiteCallback(job),
            ModelCheckpoint(settings["checkpoint_dir"], every_n_train_steps=settings["save_every"], save_top_k=-1),
        ],
    )
    workers = settings.get("workers", 0)
    loader = torch.utils.data.DataLoader(shard, settings["batch_size"], num_workers=workers)
    model = Classifier(settings)

    def fit(path):
        trainer.fit(model, loader, torch.utils.data.DataLoader(shard, settings["batch_size"]), ckpt_path=path)
        return True

    if not job.restore(fit, settings.get("resume")):
        fit(None)
    if not job.stopped:
        job.finish()


if __name__ == "__main__":
    main()
