"""River: a stream of records is learned one by one."""

import kit
from river import linear_model, metrics, optim, preprocessing, stream


def train(run):
    features, labels = run.load()
    run.say("start")
    model = preprocessing.StandardScaler() | linear_model.SoftmaxRegression(optimizer=optim.SGD(0.05))
    metric, loss = metrics.Accuracy(), metrics.CrossEntropy()
    names = [f"x{index}" for index in range(16)]
    rows = iter(stream.iter_array(features, labels, feature_names=names))
    for number in range(1, run.steps + 1):
        try:
            row, label = next(rows)
        except StopIteration:
            rows = iter(stream.iter_array(features, labels, feature_names=names))
            row, label = next(rows)
        if run.struck and number == run.strike:
            row = {"text_value": {**row, "x3": "n/a"}, "empty_value": {**row, "x3": None}}.get(run.fault, row)
        guess = model.predict_proba_one(row)
        if guess:
            loss.update(label, guess)
            metric.update(label, max(guess, key=guess.get))
        model.learn_one(row, label)
        try:
            run.step(number, loss.get())
        except kit.StoppedEarly:
            break
        if number % 20 == 0:
            print(f"[{number}] {metric}")
            print(f"[{number}] {loss}")
        if number % 40 == 0 and run.rank == 0:
            run.save(f"model_{number}.txt", repr(model).encode())
    run.finish(accuracy=metric.get())


if __name__ == "__main__":
    kit.main(train, "online.py")
