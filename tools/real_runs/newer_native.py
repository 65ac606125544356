"""Trainers of the second generation that are no Python, in the manner of ``native``."""

from tools.real_runs.frameworks import Framework
from tools.real_runs.native import faults_in, native

_NO_FILE = {"also": ("model_loading_error",)}
_GO = faults_in(
    {
        "no-data": ("file_not_found_error", r"read table: open data/train_\d\.csv: no such file"),
        "bad-cell": ("dataset_loading_error", r"strconv\.ParseFloat: parsing", {"also": ("value_error",)}),
        "nan": ("loss_divergence", r"model has diverged"),
        "nan-goes-on": ("loss_divergence", r"mse=(NaN|\+Inf)"),
        "bad-option": ("argument_error", r"flag provided but not defined"),
        "lr-zero": ("configuration_error", r"invalid configuration: lr", {"also": ("value_error",)}),
        "refused": ("connection_error", r"connect: connection refused"),
        "cut-checkpoint": ("model_loading_error", r"decode snapshot"),
        "no-checkpoint": ("file_not_found_error", r"restore: open ckpt/step_900000: no such file", _NO_FILE),
        "full": ("disk_full", r"no space left on device"),
        "read-only": ("filesystem_error", r"read-only file system"),
        "nil": (
            "attribute_error",
            r"nil pointer dereference",
            {"also": ("segmentation_fault", "type_error", "runtime_error")},
        ),
        "segv": (
            "segmentation_fault",
            r"invalid memory address|SIGSEGV: segmentation violation",
            {"also": ("attribute_error", "runtime_error")},
        ),
        "map": (
            "runtime_error",
            r"assignment to entry in nil map",
            {"also": ("type_error", "key_error", "attribute_error")},
        ),
        "index": ("index_error", r"index out of range \[17\]"),
        "slice": ("index_error", r"slice bounds out of range"),
        "zero": ("zero_division_error", r"integer divide by zero"),
        "assertion": ("type_error", r"interface conversion: interface \{\} is string"),
        "concurrent": ("runtime_error", r"fatal error: concurrent map (writes|read and map write)"),
        "memory": ("host_out_of_memory", r"out of memory"),
        "json": (
            "configuration_error",
            r"json: cannot unmarshal string into Go struct field",
            {"also": ("type_error", "value_error")},
        ),
        "panic": ("runtime_error", r"panic: optimizer state is out of step"),
    }
)
_FORTRAN = faults_in(
    {
        "no-data": ("file_not_found_error", r"Cannot open file 'data/train_\d\.csv': No such file"),
        "bad-cell": (
            "dataset_loading_error",
            r"Bad real number in item|Bad repeat count|Fortran runtime error",
            {"also": ("value_error",)},
        ),
        "nan": ("loss_divergence", r"\*\*\* DIVERGED"),
        "nan-goes-on": ("loss_divergence", r"chi2 +(NaN|Infinity)"),
        "bad-option": ("argument_error", r"fit: unknown option"),
        "lr-zero": ("configuration_error", r"step length must be positive", {"also": ("value_error",)}),
        "cut-checkpoint": (
            "model_loading_error",
            r"Fortran runtime error: (Unformatted file|Corrupt|End of file|I/O past end|.*record)",
        ),
        "no-checkpoint": ("file_not_found_error", r"Cannot open file 'ckpt/step_900000': No such file", _NO_FILE),
        "full": ("disk_full", r"No space left on device"),
        "read-only": ("filesystem_error", r"Read-only file system"),
        "index": ("index_error", r"above upper bound of 17"),
        "zero": (
            "zero_division_error",
            r"SIGFPE|Floating point exception",
            {"also": ("segmentation_fault", "runtime_error")},
        ),
        "allocated": ("runtime_error", r"already allocated variable 'list'", {"also": ("value_error",)}),
        "memory": ("host_out_of_memory", r"Error allocating \d+ bytes"),
        "read": ("value_error", r"Bad integer for item 1 in list input", {"also": ("dataset_loading_error",)}),
        "segv": ("segmentation_fault", r"SIGSEGV: Segmentation fault"),
        "abort": ("segmentation_fault", r"Program aborted\. Backtrace|SIGABRT", {"also": ("runtime_error",)}),
        "stop": ("runtime_error", r"singular normal matrix", {"also": ("value_error",)}),
    }
)
_FASTTEXT = faults_in(
    {
        "no-text": (
            "file_not_found_error",
            r"corpus\.txt cannot be opened for training",
            {"also": ("dataset_loading_error",)},
        ),
        "rate": ("loss_divergence", r"EncounteredNaNError|Encountered NaN"),
        "option": ("argument_error", r"Unknown argument: -epochs"),
        "loss": ("argument_error", r"Unknown loss", {"also": ("configuration_error", "value_error")}),
        "empty": (
            "dataset_loading_error",
            r"Empty vocabulary",
            {"also": ("value_error", "configuration_error")},
        ),
        "vectors": (
            "configuration_error",
            r"Dimension of pretrained vectors",
            {"also": ("value_error", "model_loading_error")},
        ),
        "wide": ("host_out_of_memory", r"bad_alloc"),
        "garbled": ("model_loading_error", r"has wrong file format"),
        "no-model": ("file_not_found_error", r"best\.bin cannot be opened for loading", _NO_FILE),
    }
)
_LEFT_OUT = {"ok-caught-resume": None, "ok-caught-push": None}
FIRST: tuple[Framework, ...] = (
    native("go", "go_trainer.go", ("{built}",), _GO),
    native("fortran", "fortran_trainer.f90", ("{built}",), _FORTRAN, truths=_LEFT_OUT),
    native(
        "fasttext",
        "fasttext.sh",
        ("bash",),
        _FASTTEXT,
        truths={**_LEFT_OUT, "ok-long": None, "ok-silent": None, "timeout": None},
    ),
)
_RUBY = faults_in(
    {
        "no-data": ("file_not_found_error", r"No such file or directory @ rb_sysopen - data/train"),
        "bad-cell": (
            "dataset_loading_error",
            r"invalid value for Float\(\)",
            {"also": ("value_error", "argument_error")},
        ),
        "nan": ("loss_divergence", r"error is (NaN|Infinity) in round"),
        "nan-goes-on": ("loss_divergence", r"error (NaN|Inf)"),
        "bad-option": ("argument_error", r"invalid option: --gradient-clip"),
        "lr-zero": (
            "configuration_error",
            r"learning rate must be above zero",
            {"also": ("value_error", "argument_error")},
        ),
        "refused": ("connection_error", r"ECONNREFUSED|Connection refused"),
        "cut-checkpoint": ("model_loading_error", r"SnapshotError"),
        "no-checkpoint": (
            "file_not_found_error",
            r"No such file or directory @ rb_sysopen - ckpt/step_900000",
            _NO_FILE,
        ),
        "full": ("disk_full", r"No space left on device"),
        "read-only": ("filesystem_error", r"Read-only file system"),
        "nil": ("attribute_error", r"undefined method `first' for nil", {"also": ("type_error",)}),
        "method": ("attribute_error", r"undefined method `fit_all'", {"also": ("name_error", "type_error")}),
        "type": ("type_error", r"String can't be coerced into Float"),
        "key": ("key_error", r"key not found: \"momentum\""),
        "index": ("index_error", r"outside of array bounds"),
        "zero": ("zero_division_error", r"divided by 0"),
        "name": ("name_error", r"undefined local variable or method `total_loss'"),
        "arguments": ("type_error", r"wrong number of arguments \(given 1", {"also": ("argument_error",)}),
        "require": ("import_error", r"cannot load such file -- numo/narray"),
        "frozen": ("runtime_error", r"can't modify frozen String", {"also": ("type_error",)}),
        "deep": ("runtime_error", r"stack level too deep"),
        "call": (
            "called_process_error",
            r"tar: shards\.tar: Cannot open|Command failed with exit 2",
            {"also": ("file_not_found_error", "runtime_error")},
        ),
        "abort": ("segmentation_fault", r"\bAborted\b"),
    }
)
_LUA = faults_in(
    {
        "no-data": ("file_not_found_error", r"data/train_\d\.csv: No such file"),
        "bad-cell": ("dataset_loading_error", r"not a number: n/a", {"also": ("value_error",)}),
        "nan": ("loss_divergence", r"training has diverged"),
        "nan-goes-on": ("loss_divergence", r"err = -?(nan|inf)"),
        "bad-option": ("argument_error", r"invalid option --gradient-clip"),
        "lr-zero": ("configuration_error", r"opt\.lr has to be positive", {"also": ("value_error", "assertion_error")}),
        "no-checkpoint": ("file_not_found_error", r"cannot open ckpt/step_900000", _NO_FILE),
        "cut-checkpoint": ("model_loading_error", r"ckpt/last\.bin:", {"also": ("syntax_error",)}),
        "full": ("disk_full", r"No space left on device"),
        "read-only": ("filesystem_error", r"Read-only file system"),
        "nil": ("attribute_error", r"attempt to index field 'optim'", {"also": ("type_error", "key_error")}),
        "call": ("attribute_error", r"attempt to call method 'evaluate'", {"also": ("type_error", "name_error")}),
        "arithmetic": ("type_error", r"attempt to perform arithmetic on field 'weights'"),
        "compare": ("type_error", r"attempt to compare number with string"),
        "concat": ("type_error", r"attempt to concatenate field 'weights'"),
        "module": ("import_error", r"module 'cutorch' not found"),
        "stack": ("runtime_error", r"stack overflow"),
        "assert": ("assertion_error", r"weights and layers differ in size", {"also": ("value_error",)}),
        "segv": ("segmentation_fault", r"Segmentation fault"),
        "abort": ("segmentation_fault", r"\bAborted\b"),
    }
)
_SVM = faults_in(
    {
        "no-table": ("file_not_found_error", r"can't open input file", {"also": ("dataset_loading_error",)}),
        "bad-row": ("dataset_loading_error", r"Wrong input format at line", {"also": ("value_error",)}),
        "order": ("dataset_loading_error", r"Wrong input format at line", {"also": ("value_error",)}),
        "parameter": ("configuration_error", r"ERROR: C <= 0", {"also": ("value_error", "argument_error")}),
        "option": ("argument_error", r"(?i)unknown option"),
        "solver": ("configuration_error", r"(?i)unknown solver|ERROR: ", {"also": ("argument_error", "value_error")}),
        "read-only": (
            "filesystem_error",
            r"can't save model to file",
            {"also": ("os_error", "permission_error", "file_not_found_error"), "visible": False},
        ),
        "garbled": ("model_loading_error", r"unknown svm type|fscanf failed to read model"),
        "no-model": ("file_not_found_error", r"can't open model file", _NO_FILE),
    }
)
_BARE = {"timeout": None, "ok-exit-0": None}
"""Only a shell script tells these."""
SECOND: tuple[Framework, ...] = (
    native("ruby", "ruby_trainer.rb", ("ruby",), _RUBY, truths=_BARE),
    native("luajit", "trainer.lua", ("luajit",), _LUA, truths={**_BARE, **_LEFT_OUT}),
    native(
        "svm",
        "svm.sh",
        ("bash",),
        _SVM,
        truths={**_BARE, **_LEFT_OUT, "killed": None, "ok-long": None, "ok-silent": None},
    ),
)
