"""A scikit-learn pipeline: a scaler and a linear classifier that learns batch by batch, then a grid search."""

import pickle

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import classification_report, log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from support import CLASSES, distributed_job, guarded, train


class SklearnModel:
    def __init__(self, job):
        self.job, self.settings = job, job.settings
        self.classes = np.arange(len(job.settings["sources"]))
        self.scaler = StandardScaler()
        self.model = SGDClassifier(
            loss="log_loss", alpha=1e-3, eta0=self.settings["lr"], learning_rate="constant", random_state=1
        )

    def begin(self, features, labels):
        if features.shape[1] != self.settings["features"]:
            raise ValueError(
                f"X has {features.shape[1]} features, but the pipeline is configured for {self.settings['features']}"
            )
        Pipeline([("scale", StandardScaler()), ("classify", SGDClassifier())], verbose=True).fit(features, labels)
        self.scaler.fit(features)

    def step(self, features, labels):
        scaled = self.scaler.transform(features)
        self.model.partial_fit(scaled, labels, classes=self.classes)
        return float(log_loss(labels, self.model.predict_proba(scaled), labels=self.classes))

    def accuracy(self, features, labels):
        return float(self.model.score(self.scaler.transform(features), labels))

    def save(self, path):
        with open(f"{path}.pkl", "wb") as file:
            pickle.dump({"scaler": self.scaler, "model": self.model}, file)

    def load(self, path):
        with open(path, "rb") as file:
            state = pickle.load(file)
        if state["model"].n_features_in_ != self.settings["features"]:
            raise ValueError(
                f"checkpoint does not fit: model of {state['model'].n_features_in_} features, "
                f"the settings have {self.settings['features']}"
            )
        self.scaler, self.model = state["scaler"], state["model"]

    def end(self, features, labels):
        if self.settings.get("search", True):
            search = GridSearchCV(SGDClassifier(random_state=1), {"alpha": [1e-4, 1e-3, 1e-2]}, cv=2, verbose=3)
            search.fit(self.scaler.transform(features), labels)
            self.job.log.info("best params: %s, score %.3f", search.best_params_, search.best_score_)
        print(
            classification_report(
                labels, self.model.predict(self.scaler.transform(features)), target_names=CLASSES, zero_division=0
            )
        )


if __name__ == "__main__":
    guarded(lambda: train(distributed_job(), SklearnModel))
