"""Workflow engines that run jobs of a training, and what goes wrong in them."""

from tools.real_runs.frameworks import Framework
from tools.real_runs.imitations import truth_of
from tools.real_runs.scenarios import Scenario, Truth

_SNAKEMAKE = {
    "key": truth_of("key_error", r"^KeyError: 'rmse'", "a fold asks for a metric that there is not"),
    "import": truth_of("import_error", r"^ModuleNotFoundError", "a module is not installed"),
    "kill": truth_of(
        "host_out_of_memory",
        r"\bKilled\b|exit code 137|returned? .*-9|SIGKILL|non-zero exit status 137",
        "a fold's process is killed",
        also=("called_process_error",),
    ),
    "refused": truth_of("connection_error", r"^ConnectionRefusedError", "a server refuses the connection"),
    "nan": truth_of(
        "loss_divergence",
        r"^FloatingPointError: loss of fold",
        "the loss of a fold is no number",
        recovery="rollback_and_resubmit",
    ),
    "value": truth_of("value_error", r"^ValueError: ", "the root of a negative number"),
    "call": truth_of(
        "called_process_error",
        r"tar: exports: Cannot stat|^subprocess\.CalledProcessError",
        "tar is given a folder that is missing",
    ),
    "silent-output": truth_of(
        "file_not_found_error",
        r"MissingOutputException|missing after",
        "a fold ends well and writes no model",
        also=("called_process_error", "runtime_error", "filesystem_error"),
    ),
    "syntax": truth_of("syntax_error", r"SyntaxError", "the workflow does not parse"),
    "missing-input": truth_of(
        "file_not_found_error",
        r"MissingInputException|Missing input files",
        "a rule's input is not there",
        also=("configuration_error",),
    ),
}


def _snakemake() -> Framework:
    """Run for real: its jobs are small scripts."""
    scenarios = [Scenario(fault, Truth(**truth), arguments=("--fault", fault)) for fault, truth in _SNAKEMAKE.items()]
    done = Truth("completed", "clean run", outcome="completed")
    ends = [
        Scenario("ok", done),
        Scenario("ok-long", done, arguments=("--folds", "30")),
        Scenario("ok-short", done, arguments=("--folds", "4")),
    ]
    return Framework(
        "snakemake",
        "workflow",
        "snakemake_trainer.py",
        "python",
        single=True,
        faults=(*scenarios, *ends),
        settings={"logger": ""},
    )


WORKFLOWS: tuple[Framework, ...] = (_snakemake(),)
