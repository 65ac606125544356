"""gensim: word vectors; the library logs its own progress."""

import contextlib
import logging

import kit
from gensim.models import Word2Vec
from gensim.models.callbacks import CallbackAny2Vec


class Site(CallbackAny2Vec):
    def __init__(self, run):
        self.run, self.epoch, self.before = run, 0, 0.0

    def on_epoch_end(self, model):
        self.epoch += 1
        loss = model.get_latest_training_loss()
        self.run.step(self.epoch, loss - self.before)
        self.before = loss


def train(run):
    features, _ = run.load()
    gensim_log = logging.getLogger("gensim")
    gensim_log.handlers[:] = getattr(run.log, "handlers", None) or [logging.StreamHandler()]
    gensim_log.setLevel(logging.INFO)
    gensim_log.propagate = False
    sentences = [[f"t{int(10 * value)}" for value in row] for row in features] * 8
    epochs = max(4, run.steps // 12)
    run.rescale(epochs)
    fault = run.fault if run.struck else ""
    if fault == "few_words":
        sentences = [["alpha", "beta"]]
    if fault == "text_sentences":
        sentences = 5
    if fault == "no_model":
        Word2Vec.load("ckpt/vectors_0400.model")
    if fault == "cut_model":
        with open("vectors.model", "wb") as file:
            file.write(b"\x80\x04\x95\x10\x27\x00\x00\x00\x00\x00\x00\x8c\x15gensim.models")
        Word2Vec.load("vectors.model")
    model = Word2Vec(vector_size=24, min_count=2, workers=1, seed=1)
    if fault != "no_vocabulary":
        model.build_vocab(sentences)
    with contextlib.suppress(kit.StoppedEarly):
        model.train(
            sentences,
            total_examples=len(sentences),
            epochs=epochs,
            compute_loss=True,
            callbacks=[Site(run)],
            report_delay=0.05,
        )
    if fault == "unknown_word":
        model.wv.most_similar("zebra")
    if run.rank == 0:
        model.save("vectors.model")
        with open("vectors.model", "rb") as file:
            run.save("vectors.model", file.read())
    run.finish(words=len(model.wv))


if __name__ == "__main__":
    kit.main(train, "embed.py")
