"""A small network under Keras; the records come through tf.data from a generator."""

import os

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import gzip
from pathlib import Path

import tensorflow as tf
from support import Job, parse

tf.config.threading.set_intra_op_parallelism_threads(1)


def dataset(job):
    """(features, class) batches without end."""
    settings = job.settings
    path = Path(settings["data"].format(rank=job.rank))

    def examples():
        opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
        with opened as file:
            for line in file:
                values, source = parse(line)
                yield values, settings["sources"][source]

    signature = (tf.TensorSpec((16,), tf.float32), tf.TensorSpec((), tf.int32))
    return tf.data.Dataset.from_generator(examples, output_signature=signature).repeat().batch(settings["batch_size"])


def build(settings):
    tf.keras.utils.set_random_seed(settings.get("seed", 1))
    model = tf.keras.Sequential(
        [
            tf.keras.Input((settings["features"],)),
            tf.keras.layers.Dense(settings["hidden"], "tanh", name="body"),
            tf.keras.layers.Dense(len(settings["sources"]), name="head"),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(settings["lr"]), loss, metrics=["accuracy"])
    return model


class SiteCallback(tf.keras.callbacks.Callback):
    """What the site does around each step."""

    def __init__(self, job):
        super().__init__()
        self.job, self.seen = job, 0

    def on_train_batch_end(self, batch, logs=None):
        self.seen += 1
        if self.job.after_step(self.seen, float(logs["loss"])):
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if self.job.after_eval(self.seen, float(logs["val_accuracy"])):
            self.model.stop_training = True
        path = self.job.checkpoint_path(f"step_{self.seen:06d}.weights.h5")
        self.model.save_weights(path)
        self.job.saved(path)


def main():
    job = Job()
    job.quiet = True
    job.start()
    settings = job.settings
    model = build(settings)
    batches = dataset(job)
    if settings.get("resume"):
        job.restore(lambda path: model.load_weights(path), settings["resume"])
    model.fit(
        batches,
        epochs=settings["steps"] // settings["eval_every"],
        steps_per_epoch=settings["eval_every"],
        validation_data=batches,
        validation_steps=2,
        verbose=1 if settings.get("log_style") in ("bar", "print") else 2,
        callbacks=[SiteCallback(job)],
    )
    if not job.stopped:
        job.finish()


if __name__ == "__main__":
    main()
