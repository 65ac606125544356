"""Families of trainers in Python: they go through the scenarios of the frameworks, in longer runs and own words."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tools.real_runs.frameworks import Framework
from tools.real_runs.scenarios import SCENARIOS, Scenario, Truth, write_plugin

Words = Mapping[str, str]
SHAPE = {"shape": {"marker": r"^ValueError: "}}
_DEFAULT: Words = {
    "start": "starting: {steps} steps, {world} process(es)",
    "part": "loaded part {number}/{parts} with {records} records",
    "step": "step {step}/{steps} loss {loss:.4f} lr {lr:g}",
    "eval": "eval at step {step}: accuracy {accuracy:.4f}",
    "saved": "saved {path}",
    "end": "finished after {steps} steps, best accuracy {best:.4f}",
}
_SETTINGS: Mapping[str, Any] = {
    "steps": 120,
    "batch_size": 24,
    "eval_every": 12,
    "save_every": 30,
    "parts": 3,
    "pause_s": 0.01,
    "log_every": 1,
}
_PLUGIN_TRUTHS: Mapping[str, Mapping[str, Any] | None] = {
    "cancel": None,
    "no-resume": {"marker": r"step_900000"},
    "pool": None,
}
_GBM = {
    "no-key": None,
    "nan": None,
    "nan-exit": None,
    "shape": None,
    "lr-text": {"marker": r"TypeError: '<=' not supported"},
    "interrupt": {"marker": r"^KeyboardInterrupt"},
}


_NOT_WRITABLE = {"marker": r"not available for writes|Errno", "visible": False}
"""LightGBM does not say why."""


def _words(**words: str) -> dict[str, str]:
    return {**_DEFAULT, **words}


def _trainer(name: str, environment: str, file: str, words: Words, truths: Mapping[str, Any], **more: Any) -> Framework:
    settings = {**_SETTINGS, "words": dict(words), **more.pop("settings", {})}
    return Framework(
        name, environment, file, settings=settings, truths={**_PLUGIN_TRUTHS, **truths}, faults=PYTHON_FAULTS, **more
    )


def _scaled(scenario: Scenario) -> Scenario:
    """A fault of a short run, later in a longer one."""
    settings = dict(scenario.settings)
    for name in ("profile_step", "warmup_steps"):
        if name in settings:
            settings[name] = 9 * settings[name]
    if "kernel" in settings:
        settings["kernel"] = {**settings["kernel"], "step": 9 * settings["kernel"]["step"]}
    if settings.get("pause_s"):
        settings["pause_s"] = 0.03
    settings.pop("language", None)
    settings.pop("log_style", None)
    settings.pop("log_every", None)
    return replace(scenario, settings=settings)


_SCARY = """import logging
import sys
import warnings


def on_step(step, loss):
    if step % 23 == 5:
        warnings.warn("overflow encountered in exp", RuntimeWarning)
    if step % 31 == 7:
        print(f"WARNING: gradient norm {40 + step} exceeds 40, clipping (step {step})", file=sys.stderr)
    if step in (37, 74):
        try:
            raise ConnectionResetError(104, "Connection reset by peer")
        except OSError as error:
            print(f"ERROR feature cache: {error}; retrying (attempt 1/3)", file=sys.stderr)
            print("feature cache: reconnected", file=sys.stderr)
    if step == 55:
        logging.getLogger("prefetch").error("worker 2 failed to decode sample 4711: invalid header, skipping it")
"""
_UNUSED = {
    "ok-done",
    "ok-last-step",
    "ok-final",
    "ok-german",
    "ok-french",
    "ok-chinese",
    "ok-json",
    "ok-bar",
    "ok-caught-json",
    "cancel",
}
_SILENT = Truth("completed", "clean run that says nothing after its last step", outcome="completed")
PYTHON_FAULTS: tuple[Scenario, ...] = (
    *(_scaled(scenario) for scenario in SCENARIOS if scenario.name not in _UNUSED),
    Scenario("ok-silent", _SILENT, {"end": ""}),
    Scenario(
        "ok-scary",
        Truth("completed", "warnings and errors that are survived are logged through the run", outcome="completed"),
        {"plugin": "site_hooks"},
        prepare=write_plugin(_SCARY),
    ),
    Scenario(
        "vanished",
        Truth("host_out_of_memory", "SIGKILL, and nothing says so", r"\bKilled\b", where="one"),
        {"kernel": {"step": 71, "call": "kill"}},
    ),
)

PYTHON: tuple[Framework, ...] = (
    _trainer(
        "scikit-learn",
        "tabular",
        "sklearn_trainer.py",
        _words(
            start="Fitting pipeline: {steps} partial fits",
            part="Loaded fold {number} of {parts}: X.shape=({records}, 16)",
            step="partial_fit {step}/{steps} log_loss={loss:.4f}",
            eval="validation score {accuracy:.3f}",
            saved="Model persisted to {path}",
            end="Pipeline fitted. Best validation score: {best:.3f}",
        ),
        {
            "shape": {"marker": r"^ValueError: X has 16 features"},
            "nan": {"type": "value_error", "marker": r"^ValueError: Input (X )?contains infinity"},
            "nan-exit": None,
            "other-checkpoint": None,
            "no-key": None,
        },
    ),
    _trainer(
        "xgboost",
        "tabular",
        "xgboost_trainer.py",
        _words(
            start="xgboost: {steps} rounds",
            step="round {step} mlogloss {loss:.5f}",
            eval="validation accuracy {accuracy:.4f}",
            saved="booster saved as {path}",
            end="Best round accuracy {best:.4f}; training took {steps} rounds",
        ),
        {
            **_GBM,
            "nan": {"type": "value_error", "marker": r"XGBoostError"},
            "cut-checkpoint": {"marker": r"XGBoostError"},
            "other-checkpoint": None,
            "no-resume": {"marker": r"XGBoostError|FileNotFoundError"},
        },
    ),
    _trainer(
        "lightgbm",
        "tabular",
        "lightgbm_trainer.py",
        _words(
            start="Training GBDT with {steps} iterations",
            step="",
            eval="acc@{step}: {accuracy:.4f}",
            saved="Dumped model to {path}",
            end="Done. best acc {best:.4f}",
        ),
        {
            **_GBM,
            "disk": None,  # LightGBM does not notice
            "read-only": _NOT_WRITABLE,
            "write-denied": _NOT_WRITABLE,
            "cut-checkpoint": {"marker": r"LightGBMError"},
            "other-checkpoint": None,
            "no-resume": {"marker": r"LightGBMError|FileNotFoundError"},
        },
    ),
    _trainer(
        "optuna",
        "tabular",
        "optuna_trainer.py",
        _words(
            start="study with {steps} steps in all",
            step="",
            eval="intermediate accuracy {accuracy:.4f}",
            saved="wrote {path}",
            end="Study finished, best value {best:.4f}",
        ),
        {"other-checkpoint": {}},
    ),
    _trainer(
        "spacy",
        "spacy",
        "spacy_trainer.py",
        _words(start="", step="", part="ℹ corpus part {number}: {records} docs", eval="", saved="", end=""),
        {
            "shape": None,
            "no-key": None,
            "cut-checkpoint": None,
            "other-checkpoint": None,
            "no-resume": {"marker": r"^OSError: \[E050\]"},
        },
        settings={"eval_every": 6},
    ),
    _trainer(
        "stable-baselines3",
        "gym",
        "sb3_trainer.py",
        _words(
            start="PPO on Guess-v0, {steps} updates",
            step="",
            eval="Eval num_timesteps={step}00, episode_reward={accuracy:.2f}",
            saved="Saving model checkpoint to {path}.zip",
            end="Training complete, best mean reward {best:.2f}",
        ),
        {
            "ok-silent": {"visible": False},
            "shape": None,
            "no-key": None,
            "nan": {"marker": r"ValueError: Expected parameter|FloatingPointError", "also": ("value_error",)},
            "nan-exit": None,
            "other-checkpoint": None,
            "cut-checkpoint": None,
            "no-resume": {"marker": r"^FileNotFoundError"},
        },
        settings={"eval_every": 20},
    ),
    _trainer(
        "pymc",
        "bayes",
        "pymc_trainer.py",
        _words(
            start="sampling posterior, {steps} draws",
            step="draw {step} energy {loss:.2f}",
            eval="accept {accuracy:.3f}",
            saved="trace chunk {path}",
            end="posterior written, {steps} draws",
        ),
        {
            "shape": None,
            "no-key": None,
            "lr-text": {},
            "other-checkpoint": None,
            "nan": None,
            "nan-exit": None,
            "interrupt": None,
            "deadline": None,
            "ok-early": None,
        },
    ),
)
