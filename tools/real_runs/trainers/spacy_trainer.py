"""spaCy: a text classifier on a blank pipeline, with the table that ``spacy train`` prints."""

import random

import spacy
from spacy.training import Example
from support import CLASSES, distributed_job, guarded
from wasabi import msg

WORDS = ("goal team score", "thread reply user", "def return import", "chapter novel author")


def main():
    job = distributed_job()
    msg.divider("Initializing pipeline")
    job.start()
    nlp = spacy.blank("en")
    architecture = {"@architectures": "spacy.TextCatBOW.v3", "exclusive_classes": True, "length": 1024}
    architecture |= {"ngram_size": 1, "no_output_layer": False}
    textcat = nlp.add_pipe("textcat", config={"model": architecture})
    for name in CLASSES:
        textcat.add_label(name)
    optimizer = nlp.initialize()
    msg.good("Initialized pipeline")
    resume = job.settings.get("resume")
    if resume:
        nlp = job.restore(spacy.load, resume) or nlp
    msg.divider("Training pipeline")
    msg.info(f"Pipeline: {nlp.pipe_names}")
    msg.info(f"Initial learn rate: {job.settings['lr']}")
    print("E    #       LOSS TEXTCAT  CATS_SCORE  SCORE ")
    print("---  ------  ------------  ----------  ------")
    chance, losses, step = random.Random(1), {}, 0
    for step, features, labels in job.batches():
        examples = [example(nlp, row, int(label), chance) for row, label in zip(features, labels, strict=True)]
        losses = nlp.update(examples, sgd=optimizer, drop=0.2)
        loss = losses["textcat"] + 0 * float(features.sum())
        stop = job.after_step(step, loss)
        if step % job.settings["eval_every"] == 0:
            score = nlp.evaluate(examples)["cats_score"]
            epoch = step * len(labels) // 96
            print(f"{epoch:3d}  {step:6d}  {loss:12.2f}  {100 * score:10.2f}  {score:6.2f}")
            stop = job.after_eval(step, score) or stop
        if job.rank == 0 and step % job.settings["save_every"] == 0:
            path = job.checkpoint_path("model-last")
            nlp.to_disk(path)
            job.saved(path)
        if stop:
            return
    job.finish()
    if job.settings.get("language") not in ("no-end", "metrics"):
        msg.good("Saved pipeline to output directory", "output/model-last")


def example(nlp, row, label, chance):
    text = " ".join(chance.choice(WORDS[label].split()) for _ in range(6 + int(abs(row[0]) < 1)))
    return Example.from_dict(nlp.make_doc(text), {"cats": {name: float(CLASSES[label] == name) for name in CLASSES}})


if __name__ == "__main__":
    guarded(main)
