"""A pipeline of Luigi: folds that are trained one after another, and a report that needs them all."""

import logging
import sys

import kit
import luigi
import numpy as np

RUN, DATA = [], []


class TrainFold(luigi.Task):
    fold = luigi.IntParameter()

    def output(self):
        return luigi.LocalTarget(f"folds/{self.fold}.txt")

    def run(self):
        run, (features, labels) = RUN[0], DATA[0]
        weights, count = np.zeros(features.shape[1]), run.steps // run.settings["folds"]
        for number in range(1 + count * self.fold, 1 + count * (self.fold + 1)):
            errors = features @ weights - labels
            weights -= 0.01 * features.T @ errors / len(labels)
            run.step(number, float((errors**2).mean()))
        with self.output().open("w") as file:
            file.write(" ".join(map(str, weights)))
        run.save(f"fold_{self.fold}.bin", weights.tobytes())


class Report(luigi.Task):
    folds = luigi.IntParameter()

    def requires(self):
        return [TrainFold(fold) for fold in range(self.folds)]

    def output(self):
        return luigi.LocalTarget("report.txt")

    def run(self):
        with self.output().open("w") as file:
            file.write(str(len(self.input())))
        RUN[0].finish()


def train(run):
    run.settings["folds"] = 5
    RUN[:], DATA[:] = [run], [run.load()]
    log = logging.getLogger("luigi-interface")
    log.handlers[:], log.propagate = logging.getLogger("train").handlers, False
    log.setLevel(logging.DEBUG)
    luigi.configuration.get_config().set("core", "no_configure_logging", "true")
    if not luigi.build([Report(run.settings["folds"])], local_scheduler=True):
        sys.exit(40)


if __name__ == "__main__":
    kit.main(train, "pipeline.py")
