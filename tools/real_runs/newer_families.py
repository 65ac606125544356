"""Trainers of the second generation, in two parts that have nothing in common, and what is true of their mishaps."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.real_runs.frameworks import Framework
from tools.real_runs.imitations import truth_of
from tools.real_runs.scenarios import Prepare, Scenario, Truth, change_record, cut_line, fill, no_shard

_Truths = Mapping[str, Mapping[str, Any]]
_NAMES = {"kill": "killed", "segv": "segv", "abort": "abort", "leave": "exit-3", "lost_page": "bus"}
"""Mishaps by the names under which ends of processes are known."""
_START: _Truths = {
    "no_package": truth_of(
        "import_error", r"ModuleNotFoundError: No module named 'flash_attn_interface'", "no such package"
    ),
    "no_name": truth_of("import_error", r"ImportError: cannot import name 'OrderedSet'", "a name that a module lacks"),
    "bad_indent": truth_of("syntax_error", r"IndentationError: ", "a module of the site is not indented"),
    "no_host": truth_of(
        "connection_error",
        r"URLError: <urlopen error \[Errno -\d\]|socket\.gaierror",
        "the name of a host is not known",
        also=("network_error",),
        recovery="resubmit",
    ),
    "refused": truth_of(
        "connection_error", r"ConnectionRefusedError: \[Errno 111\]", "a server refuses the connection"
    ),
    "silent_server": truth_of(
        "connection_error", r"TimeoutError: timed out", "a server does not answer", also=("network_error",)
    ),
    "bad_tls": truth_of(
        "connection_error",
        r"SSLError: \[SSL|ssl\.SSL\w*Error",
        "a server speaks no TLS",
        also=("network_error", "configuration_error"),
    ),
    "busy_hub": truth_of("connection_error", r"HTTPError: HTTP Error 503", "the hub is not available"),
    "s3_no_key": truth_of(
        "s3_storage_error",
        r"NoSuchKey: An error occurred|\(NoSuchKey\)",
        "an object of the corpus does not exist",
        also=("file_not_found_error", "dataset_loading_error"),
        recovery="notify_user",
    ),
    "s3_denied": truth_of(
        "s3_storage_error",
        r"\(AccessDenied\)",
        "an object of the corpus may not be read",
        also=("permission_error",),
        recovery="notify_user",
    ),
    "port_taken": truth_of(
        "connection_error", r"OSError: \[Errno 98\] Address already in use", "the port is taken", also=("os_error",)
    ),
    "not_a_folder": truth_of("os_error", r"NotADirectoryError: \[Errno 20\]", "a file stands where a folder should"),
    "secret": truth_of("permission_error", r"PermissionError: \[Errno 13\]", "the token may not be read"),
    "checked_settings": truth_of(
        "configuration_error", r"validation errors? for TrainConfig", "settings are refused", also=("value_error",)
    ),
    "unknown_setting": truth_of(
        "configuration_error",
        r"ConfigAttributeError: (Key|Missing key)",
        "a setting with a slip of the pen",
        also=("attribute_error", "key_error"),
    ),
    "no_fit": truth_of(
        "configuration_error",
        r"ValueError: hidden_size \(200\) must be divisible",
        "the heads do not fit the width",
        also=("value_error",),
    ),
}
_STEP: _Truths = {
    "missing_statistic": truth_of(
        "key_error", r"KeyError: 'grad_norm_clipped'|KeyError\('grad_norm_clipped'", "a key that there is not"
    ),
    "broken_type": truth_of("type_error", r"unsupported operand type\(s\) for /: 'str' and 'int'", "text is divided"),
    "old_api": truth_of(
        "attribute_error", r"module 'numpy' has no attribute 'float'", "a name that numpy no longer has"
    ),
    "no_scheduler": truth_of("attribute_error", r"'NoneType' object has no attribute 'step'", "there is no scheduler"),
    "unbound": truth_of("name_error", r"cannot access local variable 'average'", "a variable without a value"),
    "undefined": truth_of("name_error", r"name 'world_sizee' is not defined", "an undefined name"),
    "arity": truth_of("type_error", r"missing 1 required positional argument: 'limit'", "an argument is missing"),
    "wide_index": truth_of("index_error", r"index 16 is out of bounds for axis 1 with size 16", "a column too far"),
    "far_item": truth_of("index_error", r"list index out of range", "an item too far"),
    "bare_assert": truth_of(
        "assertion_error", r"AssertionError$|AssertionError(\(\)|\"|\\n)", "an assertion without a word"
    ),
    "no_throughput": truth_of("zero_division_error", r"division by zero", "the throughput over no time"),
    "domain": truth_of(
        "value_error",
        r"ValueError[:(]. ?(math domain error|expected a)|math domain error|expected a positive input",
        "the logarithm of a negative number",
    ),
    "broadcast": truth_of("value_error", r"operands could not be broadcast together", "shapes that do not fit"),
    "changed_while_read": truth_of(
        "runtime_error", r"dictionary changed size during iteration", "a dictionary changes while it is read"
    ),
    "endless": truth_of("runtime_error", r"maximum recursion depth exceeded", "a function calls itself for ever"),
    "not_written": truth_of(
        "runtime_error", r"(?<!raise )NotImplementedError", "a method that nobody wrote", also=("attribute_error",)
    ),
    "float_text": truth_of("value_error", r"could not convert string to float: '1e-4,'", "a number with a comma"),
    "no_tool": truth_of(
        "file_not_found_error",
        r"No such file or directory: 'nvidia-smi'",
        "a program is not installed",
        also=("called_process_error", "gpu_driver_error"),
    ),
    "reset": truth_of(
        "connection_error",
        r"ConnectionResetError: \[Errno 104\]|ConnectionResetError\(104",
        "a peer resets the connection",
        also=("network_error",),
    ),
    "huge_array": truth_of("host_out_of_memory", r"Unable to allocate 4\.00 TiB", "4 TB are asked for"),
    "many_files": truth_of("os_error", r"\[Errno 24\] Too many open files", "files are not closed"),
    "kill": truth_of("host_out_of_memory", r"\bKilled\b", "SIGKILL, as the kernel's OOM killer sends it"),
    "segv": truth_of("segmentation_fault", r"Segmentation fault", "native code reads address 16"),
    "abort": truth_of("segmentation_fault", r"\bAborted\b", "native code aborts"),
    "leave": truth_of("runtime_error", r"exit code: 3", "the process ends with code 3", visible=False),
    "nan-raises": truth_of("loss_divergence", r"ArithmeticError\W+objective became nan", "the loss is no number"),
    "nan-exits": truth_of(
        "loss_divergence", r"loss is nan after update", "the loss is no number, and the run ends with 2"
    ),
    "nan-explodes": truth_of("loss_divergence", r"is above the ceiling of", "the loss explodes"),
}
_ALL: _Truths = {
    "interrupt": truth_of("cancelled", r"KeyboardInterrupt", "Ctrl-C", outcome="cancelled", recovery="none"),
    "preempted": truth_of(
        "preempted",
        r"SIGTERM from the node's reclaim notice",
        "the node is reclaimed",
        outcome="preempted",
        recovery="none",
        also=("cancelled",),
    ),
    "out_of_time": truth_of(
        "time_limit", r"max_time 4:00:00 used up", "the trainer's own time limit", outcome="time_limit", recovery="none"
    ),
}
_SAVE: _Truths = {
    "s3_away": truth_of(
        "s3_storage_error",
        r"EndpointConnectionError",
        "the object store cannot be reached",
        also=("connection_error",),
        recovery="resubmit",
    ),
    "s3_slow": truth_of("s3_storage_error", r"\(SlowDown\)", "the object store asks for less", recovery="resubmit"),
}
_END: _Truths = {
    "broken_archive": truth_of(
        "called_process_error",
        r"gzip: export\.gz: |CalledProcessError",
        "a tool that the trainer calls finds a broken file",
    ),
}
_TORCH: _Truths = {
    "wide_input": truth_of("runtime_error", r"mat1 and mat2 shapes cannot be multiplied", "an input too wide"),
    "no_class": truth_of("index_error", r"Target 7 is out of bounds", "a class that there is not"),
    "far_token": truth_of("index_error", r"index out of range in self", "a token that there is not"),
    "twice_backward": truth_of(
        "runtime_error", r"Trying to backward through the graph a second time", "backward twice"
    ),
    "changed_in_place": truth_of("runtime_error", r"modified by an inplace operation", "a tensor is changed in place"),
    "mixed_types": truth_of("runtime_error", r"RuntimeError.*(same dtype|expected m1 and m2)", "two types of numbers"),
    "cuda_wanted": truth_of(
        "assertion_error",
        r"Torch not compiled with CUDA enabled",
        "a device that torch was not built for",
        also=("configuration_error", "gpu_driver_error", "runtime_error"),
    ),
    "huge_tensor": truth_of("host_out_of_memory", r"DefaultCPUAllocator: can't allocate memory", "2 TB are asked for"),
    "odd_sizes": truth_of("runtime_error", r"The size of tensor a \(16\) must match", "shapes that do not fit"),
    "no_gradient": truth_of(
        "runtime_error", r"does not require grad and does not have a grad_fn", "nothing to differentiate"
    ),
    "bad_device": truth_of(
        "runtime_error",
        r"Expected one of cpu, cuda",
        "a device that there is not",
        also=("value_error", "configuration_error"),
    ),
    "other_width": truth_of(
        "model_loading_error", r"Error\(s\) in loading state_dict", "weights of another width", where="all"
    ),
    "cut_weights": truth_of(
        "model_loading_error",
        r"PytorchStreamReader failed|failed finding central directory|UnpicklingError",
        "weights that were cut short",
        where="all",
    ),
    "no_weights": truth_of(
        "file_not_found_error",
        r"No such file or directory: 'ckpt/epoch_0012\.pt'",
        "weights that do not exist",
        also=("model_loading_error",),
        where="all",
    ),
}
_LOADER: _Truths = {
    "loader_killed": truth_of("dataloader_killed", r"DataLoader worker \(pid", "a worker of the loader is killed"),
    "loader_raises": truth_of("key_error", r"KeyError: 'labels'|KeyError\W+Caught KeyError", "a sample lacks a key"),
}


def _bad_bytes(folder: Path, rank: int) -> None:
    (folder / f"data/shard_{rank:05d}.jsonl").write_bytes(b'{"id": "\xff\xfe\x00"}\n')


def _empty(folder: Path, rank: int) -> None:
    (folder / f"data/shard_{rank:05d}.jsonl").write_text("")


_DATA: Mapping[str, tuple[Prepare, Mapping[str, Any]]] = {
    "no-shard": (
        no_shard,
        truth_of("file_not_found_error", r"No such file or directory: '.*shard_", "a shard is missing"),
    ),
    "cut-record": (
        cut_line,
        truth_of(
            "dataset_loading_error",
            r"JSONDecodeError|Unterminated string|Expecting ",
            "a record is cut short",
            also=("value_error",),
        ),
    ),
    "bad-bytes": (
        _bad_bytes,
        truth_of(
            "dataset_loading_error",
            r"'utf-8' codec can't decode byte 0xff",
            "the shard is no UTF-8",
            also=("value_error",),
        ),
    ),
    "empty-shard": (
        _empty,
        truth_of(
            "value_error", r"need at least one array to stack", "the shard is empty", also=("dataset_loading_error",)
        ),
    ),
    "unknown-label": (
        change_record(lambda record: record.update(source="wiki")),
        truth_of(
            "value_error",
            r"is not in tuple|tuple\.index\(x\): x not in tuple",
            "a label that there is not",
            also=("dataset_loading_error",),
        ),
    ),
    "no-features": (
        change_record(lambda record: record.pop("x")),
        truth_of(
            "key_error", r"KeyError: 'x'|KeyError\('x'", "a record lacks its features", also=("dataset_loading_error",)
        ),
    ),
    "ragged": (
        change_record(lambda record: record.update(x=record["x"][:-2])),
        truth_of(
            "value_error",
            r"ValueError: all input arrays must have the same shape",
            "a record is too short",
            also=("dataset_loading_error",),
        ),
    ),
}
_OPTIONS: _Truths = {
    "bad-option": truth_of(
        "argument_error", r"error: unrecognized arguments: --warmup-ratio", "an option that does not exist"
    ),
    "bad-choice": truth_of("argument_error", r"error: argument --optim: invalid choice", "a value that is no choice"),
    "bad-number": truth_of("argument_error", r"error: argument --lr-decay: invalid float", "a value that is no number"),
}
_ARGUMENTS = {
    "bad-option": ("--warmup-ratio", "0.1"),
    "bad-choice": ("--optim", "adam8bit"),
    "bad-number": ("--lr-decay", "0,1"),
}
_DONE = Truth("completed", "clean run", outcome="completed")


def _scenario(name: str, truth: Mapping[str, Any], where: str, **more: Any) -> Scenario:
    made = Truth(**{"where": where, **truth})
    settings = {"fault": name, "fault_where": made.where, **more.pop("settings", {})}
    return Scenario(_NAMES.get(name, name), made, settings, **more)


def _mishaps(truths: _Truths, where: str) -> list[Scenario]:
    return [_scenario(name, truth, where) for name, truth in truths.items()]


def _scenarios(own: _Truths, torch: bool, loader: bool, part: Sequence[_Truths]) -> tuple[Scenario, ...]:
    """All mishaps of a trainer in Python. own: those of its framework, of one rank."""
    start, steps, together, saves, ends, of_torch, of_loader = part
    disk = truth_of("disk_full", r"No space left on device", "the disk of the checkpoints is full")
    read_only = truth_of("filesystem_error", r"Read-only file system", "the disk of the checkpoints is read-only")
    return (
        *_mishaps(start, "all"),
        *_mishaps(steps, "one"),
        *_mishaps(together, "all"),
        *_mishaps(saves, "first"),
        *_mishaps(ends, "all"),
        *(_mishaps(of_torch, "one") if torch else ()),
        *(_mishaps(of_loader, "one") if loader else ()),
        *_mishaps(own, "one"),
        *(
            Scenario(name, Truth(**{"where": "one", **truth}), prepare=change)
            for name, (change, truth) in _DATA.items()
        ),
        *(Scenario(name, Truth(**truth), arguments=_ARGUMENTS[name]) for name, truth in _OPTIONS.items()),
        _scenario("disk", disk, "first", disk="size=64k", prepare=fill),
        _scenario("read-only", read_only, "first", disk="ro"),
        Scenario(
            "nan-goes-on",
            Truth("loss_divergence", "the loss is no number to the end", _NAN, where="one"),
            {"fault": "nan", "fault_where": "one"},
        ),
        Scenario("ok", _DONE),
        Scenario("ok-long", _DONE, {"steps": 240}),
        Scenario("ok-silent", replace(_DONE, why="clean run without a word at its end"), {"silent_end": True}),
        Scenario("ok-survived", replace(_DONE, why="handled errors"), {"fault": "survived"}),
        Scenario("ok-loud", replace(_DONE, why="warnings and errors that cost nothing"), {"fault": "loud"}),
        Scenario("ok-patient", replace(_DONE, why="early stopping"), {"fault": "patient"}),
    )


_PART_ONE: Sequence[_Truths] = (_START, _STEP, _ALL, _SAVE, _END, _TORCH, _LOADER)
_NAN = r"(?i)(loss|objective|cost|fitness)\W{0,4}-?nan\b"
_WORDS = {
    "start": "{steps} updates to do, world={world}",
    "loaded": "read {records} records from {path}",
    "step": "update {step} of {steps}: loss {loss:.4f}, lr {lr:.5f}, {time:.0f} ms",
    "eval": "epoch {epoch}: validation accuracy {accuracy:.3f}",
    "saved": "state written to {path}",
    "end": "run is over after {steps} updates",
    "failed": "caught an exception, giving up",
    "out_of_time": "max_time %s used up after %d of %d updates, stopping here",
    "preempted": "SIGTERM from the node's reclaim notice (spot capacity): saving state and leaving",
    "patient": "no better validation score for 3 evaluations: stopping early at update %d",
}


def _trainer(name: str, environment: str, own: _Truths | None = None, **more: Any) -> Framework:
    words = {**_WORDS, **more.pop("words", {})}
    torch, loader = more.pop("torch", False), more.pop("loader", False)
    settings = {"steps": 90, "pause_s": 0.01, "features": 16, "words": words, **more.pop("settings", {})}
    faults = _scenarios(own or {}, torch, loader, more.pop("part", _PART_ONE))
    left_out = dict.fromkeys(more.pop("left_out", ()))
    file = more.pop("file", f"{name.replace(' ', '_').lower()}_trainer.py")
    return Framework(
        name, environment, file, settings=settings, faults=faults, truths={**left_out, **more.pop("truths", {})}, **more
    )


_TOGETHER: _Truths = {name: {"where": "all"} for name in ("nan-raises", "nan-exits", "nan-explodes", "nan-goes-on")}
"""The ranks average their losses."""
_NO_NAN = tuple(_TOGETHER)
_CATBOOST: _Truths = {
    "one_class": truth_of(
        "value_error", r"Target contains only one unique value", "all labels are alike", also=("dataset_loading_error",)
    ),
    "short_labels": truth_of("value_error", r"Length of label=", "labels are missing", also=("dataset_loading_error",)),
    "text_column": truth_of(
        "value_error",
        r"Cannot convert|Bad value for num_feature",
        "text among numbers",
        also=("type_error", "dataset_loading_error"),
    ),
    "deep": truth_of(
        "configuration_error", r"Maximum tree depth is", "the trees are too deep", where="all", also=("value_error",)
    ),
    "unknown_loss": truth_of(
        "configuration_error",
        r"Invalid loss_function|Unsupported|unknown loss|Failed to parse",
        "a loss that there is not",
        where="all",
        also=("value_error",),
    ),
    "exclusive": truth_of(
        "configuration_error",
        r"only one of the parameters",
        "an option by two names",
        where="all",
        also=("value_error", "argument_error"),
    ),
    "cut_booster": truth_of("model_loading_error", r"CatBoostError", "a model that is cut short", where="all"),
    "no_booster": truth_of(
        "file_not_found_error",
        r"CatBoostError|No such file",
        "a model that does not exist",
        where="all",
        also=("model_loading_error",),
    ),
}
_NEAT: _Truths = {
    "missing_option": truth_of(
        "configuration_error",
        r"Missing parameter: pop_size",
        "the settings lack an option",
        where="all",
        also=("key_error", "runtime_error"),
    ),
    "unknown_option": truth_of(
        "configuration_error",
        r"UnknownConfigItemError",
        "an option that there is not",
        where="all",
        also=("name_error",),
    ),
    "bad_value": truth_of(
        "configuration_error",
        r"invalid literal for int|RuntimeError|ValueError",
        "an option that is no number",
        where="all",
        also=("value_error", "runtime_error"),
    ),
    "no_fitness": truth_of(
        "runtime_error",
        r"Fitness not assigned|RuntimeError|TypeError",
        "a genome without a fitness",
        also=("type_error", "value_error"),
    ),
}
_GENSIM: _Truths = {
    "few_words": truth_of(
        "runtime_error",
        r"you must first build vocabulary",
        "no word is frequent enough",
        also=("value_error", "dataset_loading_error"),
    ),
    "text_sentences": truth_of("type_error", r"TypeError", "sentences are a number"),
    "no_model": truth_of(
        "file_not_found_error",
        r"No such file or directory: 'ckpt/vectors_0400",
        "a model that does not exist",
        where="all",
        also=("model_loading_error",),
    ),
    "cut_model": truth_of("model_loading_error", r"UnpicklingError|EOFError", "a model that is cut short", where="all"),
    "no_vocabulary": truth_of("runtime_error", r"you must first build vocabulary", "no vocabulary"),
    "unknown_word": truth_of("key_error", r"Key 'zebra' not present", "a word that there is not"),
}
_GYM: _Truths = {
    "no_environment": truth_of(
        "configuration_error",
        r"gymnasium\.error\.|VersionNotFound",
        "an environment that does not exist",
        where="all",
        also=("import_error", "name_error", "value_error", "argument_error"),
    ),
    "bad_action": truth_of(
        "runtime_error",
        r"can(not)? be converted to (a )?(Python )?[Ss]calar",
        "two actions at a time",
        also=("value_error", "type_error"),
    ),
    "nan_policy": truth_of(
        "value_error", r"ValueError: Expected parameter logits", "the policy is no number", also=("loss_divergence",)
    ),
}
FIRST: tuple[Framework, ...] = (
    _trainer(
        "ignite",
        "neural",
        truths=_TOGETHER,
        torch=True,
        loader=True,
        words={
            "start": "",
            "step": "iteration {step}/{steps}: batch loss {loss:.5f}",
            "failed": "Engine run is terminating",
        },
    ),
    _trainer("skorch", "neural", torch=True, left_out=("ok-patient",), words={"step": ""}),
    _trainer(
        "catboost",
        "classic",
        _CATBOOST,
        left_out=_NO_NAN,
        words={"step": "", "saved": "model of {steps} trees: {path}"},
    ),
    _trainer(
        "nanogpt",
        "neural",
        truths=_TOGETHER,
        torch=True,
        words={"start": "", "step": "", "saved": "", "end": "done, perplexity {perplexity:.2f}"},
    ),
    _trainer(
        "cleanrl",
        "neural",
        _GYM,
        torch=True,
        words={"step": "", "saved": "model saved to {path}", "end": "{total} frames played, last return {returns}"},
    ),
    _trainer("neat", "classic", _NEAT, left_out=_NO_NAN, words={"step": "", "end": "best genome reached {best:.4f}"}),
    _trainer(
        "gensim",
        "classic",
        _GENSIM,
        left_out=_NO_NAN,
        words={"step": "epoch {step}: loss {loss:.1f}", "end": "vectors of {words} words are ready"},
    ),
    _trainer(
        "accelerate",
        "neural",
        truths=_TOGETHER,
        torch=True,
        loader=True,
        words={
            "step": "",
            "saved": "Model weights saved in {path}",
            "end": "***** train metrics ***** train_loss = {loss:.4f}",
        },
    ),
    _trainer(
        "luigi",
        "classic",
        left_out=(*_NO_NAN, "ok-patient", "ok-long"),
        single=True,
        words={"step": "", "end": "report is written, {steps} updates", "saved": "fold stored as {path}"},
    ),
)

_START_TWO: _Truths = {
    "bad_enum": truth_of(
        "configuration_error", r"'cosine_warm' is not a valid", "a schedule that there is not", also=("value_error",)
    ),
    "bad_yaml": truth_of(
        "configuration_error", r"yaml\.parser\.ParserError|ParserError: ", "settings that are no YAML"
    ),
    "bad_toml": truth_of(
        "configuration_error", r"TOMLDecodeError", "settings that are no TOML", also=("value_error", "syntax_error")
    ),
    "no_archive": truth_of("dataset_loading_error", r"BadZipFile", "an archive of images that is a web page"),
    "cut_cache": truth_of(
        "dataset_loading_error",
        r"UnpicklingError: pickle data was truncated|EOFError: ",
        "a cache that is cut short",
        also=("model_loading_error", "runtime_error", "value_error"),
    ),
    "folder_as_file": truth_of("os_error", r"IsADirectoryError: \[Errno 21\]", "a folder stands where a file should"),
    "no_shards": truth_of(
        "called_process_error",
        r"tar: shards\.tar: Cannot open|CalledProcessError",
        "tar is given a file that does not exist",
        also=("file_not_found_error",),
    ),
    "killed_decoder": truth_of(
        "dataloader_killed",
        r"BrokenProcessPool",
        "a process that decodes samples is killed",
        also=("called_process_error", "host_out_of_memory"),
    ),
    "gone": truth_of(
        "connection_error",
        r"HTTPError: HTTP Error 404",
        "a file of the tokenizer is not there",
        also=("file_not_found_error",),
        recovery="notify_user",
    ),
    "half_answer": truth_of(
        "connection_error",
        r"IncompleteRead",
        "an answer ends in its midst",
        also=("network_error", "dataset_loading_error"),
    ),
    "s3_no_bucket": truth_of(
        "s3_storage_error",
        r"\(NoSuchBucket\)",
        "a bucket that does not exist",
        recovery="notify_user",
        also=("configuration_error",),
    ),
    "secret": _START["secret"],
    "no_package": _START["no_package"],
}
_STEP_TWO: _Truths = {
    "three_values": truth_of("value_error", r"too many values to unpack \(expected 2\)", "three values for two names"),
    "not_callable": truth_of("type_error", r"'dict' object is not callable", "a dictionary is called"),
    "no_pair": truth_of("type_error", r"cannot unpack non-iterable NoneType", "nothing is unpacked"),
    "list_shape": truth_of("attribute_error", r"'list' object has no attribute 'shape'", "a list has no shape"),
    "odd_reshape": truth_of("value_error", r"cannot reshape array of size 96", "a shape that does not fit"),
    "odd_product": truth_of("value_error", r"matmul: Input operand 1 has a mismatch", "matrices that do not fit"),
    "layer_key": truth_of("key_error", r"KeyError: \('encoder', 3\)", "a layer that there is not"),
    "empty_queue": truth_of("index_error", r"pop from empty list", "nothing is left"),
    "too_large": truth_of(
        "value_error",
        r"OverflowError: math range error",
        "a number too large",
        also=("runtime_error", "loss_divergence"),
    ),
    "no_execution": truth_of(
        "permission_error", r"Permission denied: '\./post_step\.sh'", "a script that may not be run"
    ),
    "closed_pipe": truth_of(
        "connection_error", r"BrokenPipeError: \[Errno 32\]", "a peer has gone", also=("os_error", "network_error")
    ),
    "lost_page": truth_of("segmentation_fault", r"Bus error", "a mapped file has become shorter"),
    "huge_array": _STEP["huge_array"],
    "kill": _STEP["kill"],
    "segv": _STEP["segv"],
    "leave": _STEP["leave"],
    "nan-raises": _STEP["nan-raises"],
    "nan-exits": _STEP["nan-exits"],
    "nan-explodes": _STEP["nan-explodes"],
}
_ALL_TWO: _Truths = {
    "interrupt": _ALL["interrupt"],
    "preempted": {**_ALL["preempted"], "marker": r"received signal 15: instance is being taken back"},
    "out_of_time": {**_ALL["out_of_time"], "marker": r"budget of 4:00:00 is spent"},
}
_SAVE_TWO: _Truths = {
    "s3_internal": truth_of("s3_storage_error", r"\(InternalError\)", "the object store fails", recovery="resubmit"),
}
_TORCH_TWO: _Truths = {
    "uneven_stack": truth_of("runtime_error", r"stack expects each tensor to be equal size", "samples of two sizes"),
    "wrong_channels": truth_of("runtime_error", r"to have 3 channels, but got 1 channels", "grey images"),
    "no_view": truth_of("runtime_error", r"view size is not compatible", "a view of what is not contiguous"),
    "lone_sample": truth_of("value_error", r"Expected more than 1 value per channel", "a batch of one sample"),
    "no_scalar": truth_of("runtime_error", r"a Tensor with 4 elements cannot be converted", "four numbers for one"),
    "unclear_truth": truth_of("runtime_error", r"Boolean value of Tensor with more than one value", "three truths"),
    "nothing_to_train": truth_of(
        "value_error", r"optimizer got an empty parameter list", "no parameters", also=("configuration_error",)
    ),
    "numpy_of_gradient": truth_of("runtime_error", r"Can't call numpy\(\) on Tensor", "numbers with a gradient"),
    "bad_header": truth_of("model_loading_error", r"SafetensorError", "the header of the weights is broken"),
    "other_length": truth_of("value_error", r"Expected input batch_size \(8\) to match", "labels are missing"),
    "missing_weight": truth_of("model_loading_error", r"Error\(s\) in loading state_dict", "a weight is missing"),
}
_LOADER_TWO: _Truths = {
    "loader_leaves": truth_of("dataloader_killed", r"exited unexpectedly", "a worker of the loader ends by itself"),
}
_SACRED: _Truths = {
    "typed_update": truth_of(
        "type_error",
        r"TypeError|has no attribute|KeyError",
        "a setting of another type",
        where="all",
        also=("configuration_error", "attribute_error", "key_error"),
    ),
}
_DEAP: _Truths = {
    "two_weights": truth_of(
        "assertion_error",
        r"Assigned values have not the same length|AssertionError",
        "one value for two weights",
        where="all",
        also=("value_error", "type_error"),
    ),
    "unregistered_tool": truth_of(
        "attribute_error", r"'Toolbox' object has no attribute 'select'", "a tool that is not registered", where="all"
    ),
    "bare_fitness": truth_of("type_error", r"TypeError: ", "a number for a tuple", where="all"),
}
_RIVER: _Truths = {
    "text_value": truth_of("type_error", r"TypeError: ", "text among numbers", also=("value_error",)),
    "empty_value": truth_of("type_error", r"TypeError: ", "an empty cell", also=("value_error",)),
}
_MMENGINE: _Truths = {
    "unregistered": truth_of(
        "key_error",
        r"KeyError: .*Sgd is not in the|Sgd is not in the",
        "an optimizer that is not registered",
        where="all",
        also=("configuration_error", "import_error"),
    ),
}
_TWO = {
    "step": "{step:>4} / {steps}   objective={loss:.5f}   {time:.1f} ms",
    "saved": "checkpoint -> {path}",
    "start": "about to run {steps} iterations on {world} process(es)",
    "loaded": "{records} samples",
    "failed": "job has failed",
    "end": "bye, all {steps} iterations are through",
    "out_of_time": "budget of %s is spent at iteration %d of %d: closing the run",
    "preempted": "received signal 15: instance is being taken back by the provider, writing a last checkpoint",
    "patient": "metric has plateaued, ending ahead of schedule (iteration %d)",
}
_PART_TWO: Sequence[_Truths] = (_START_TWO, _STEP_TWO, _ALL_TWO, _SAVE_TWO, {}, _TORCH_TWO, _LOADER_TWO)


def _second(name: str, environment: str, own: _Truths | None = None, **more: Any) -> Framework:
    words = {**_TWO, **more.pop("words", {})}
    trainer = _trainer(name, environment, own, part=_PART_TWO, words=words, **more)
    renamed = [replace(fault, name="ctrl-c") if fault.name == "interrupt" else fault for fault in trainer.faults]
    return replace(trainer, faults=tuple(renamed))


SECOND: tuple[Framework, ...] = (
    _second("poutyne", "neural", torch=True, loader=True, left_out=("ok-patient",), words={"step": ""}),
    _second("fabric", "neural", torch=True, loader=True, truths=_TOGETHER),
    _second("fastai", "neural", torch=True, loader=True, words={"step": "", "end": "best of {epochs} epochs exported"}),
    _second("mmengine", "neural", _MMENGINE, torch=True, loader=True, words={"step": "", "end": ""}),
    _second(
        "timm",
        "neural",
        torch=True,
        loader=True,
        truths=_TOGETHER,
        words={"step": "", "end": "*** Best metric: {best:.3f}"},
    ),
    _second("sacred", "classic", _SACRED),
    _second("deap", "classic", _DEAP, left_out=_NO_NAN, words={"step": "", "end": "hall of fame: {best:.4f}"}),
    _second(
        "river", "classic", _RIVER, words={"step": "", "end": "progressive accuracy {accuracy:.3f}"}, left_out=_NO_NAN
    ),
)
