"""A Nextflow pipeline that trains folds of a model on a batch system."""


def begin(draw):
    return [
        "",
        " N E X T F L O W   ~  version 24.10.4",
        "",
        "Launching `main.nf` [sad_curie] DSL2 - revision: 0e8dbf9a2b",
        "",
        "T R A I N - F O L D S   P I P E L I N E",
        "=======================================",
        "samplesheet : /data/folds.csv",
        "outdir      : /data/results",
        "",
        "[-        ] PREPARE  -",
        "[-        ] TRAIN    -",
        "",
    ]


def step(draw, number, steps):
    code = f"{draw.randrange(256):02x}/{draw.randrange(1 << 24):06x}"
    if number <= steps // 6:
        return [f"[{code}] Submitted process > PREPARE (chunk_{number})"]
    lines = [f"[{code}] Submitted process > TRAIN (fold_{number})"]
    if number % 5 == 0:
        lines += [
            "",
            f"executor >  slurm ({number})",
            f"[{code}] PREPARE (chunk_{steps // 6}) | {steps // 6} of {steps // 6} ✔",
            f"[{code}] TRAIN (fold_{number})   | {number - steps // 6} of {steps - steps // 6}",
        ]
    return lines


def finish(draw):
    return [
        "[a1/77c0de] EVALUATE (all) | 1 of 1 ✔",
        "Completed at: 26-Nov-2026 21:04:11",
        "Duration    : 1h 12m 40s",
        "CPU hours   : 61.3",
        "Succeeded   : 91",
        "",
    ]


def _failed(process, code, error, output=("epoch 1 loss 0.9121", "epoch 2 loss 0.7044")):
    return [
        f"ERROR ~ Error executing process > '{process}'",
        "",
        "Caused by:",
        f"  Process `{process}` terminated with an error exit status ({code})",
        "",
        "",
        "Command executed:",
        "",
        "  train_fold.py --fold 17 --epochs 30 --data fold_17.parquet",
        "",
        "Command exit status:",
        f"  {code}",
        "",
        "Command output:",
        *(f"  {line}" for line in output),
        "",
        "Command error:",
        *(f"  {line}" for line in error),
        "",
        "Work dir:",
        "  /data/work/3f/70944c0b3a5d1e",
        "",
        "Container:",
        "  /images/train-1.4.sif",
        "",
        "Tip: you can try to figure out what's wrong by changing to the process work dir and showing the script file named `.command.sh`",
        "",
        " -- Check '.nextflow.log' file for details",
        *(["WARN: Killing running tasks (3)"] if code != 2 else []),
    ]


def _trace(*lines):
    return [
        "Traceback (most recent call last):",
        '  File "/usr/local/bin/train_fold.py", line 88, in <module>',
        "    main()",
        *lines,
    ]


FAULTS = {
    "key": (
        0.5,
        _failed(
            "TRAIN (fold_17)",
            1,
            _trace(
                '  File "/usr/local/bin/train_fold.py", line 61, in main',
                '    y = frame["target"]',
                "KeyError: 'target'",
            ),
        ),
        1,
    ),
    "killed": (
        0.6,
        _failed(
            "TRAIN (fold_17)",
            137,
            [
                ".command.sh: line 3:    41 Killed                  train_fold.py --fold 17 --epochs 30 --data fold_17.parquet",
                "slurmstepd: error: Detected 1 oom_kill event in StepId=8812.batch. Some of the step tasks have been OOM Killed.",
            ],
        ),
        1,
    ),
    "time": (
        0.7,
        _failed(
            "TRAIN (fold_17)",
            143,
            ["slurmstepd: error: *** JOB 8812 ON gpu-027 CANCELLED AT 2026-11-26T20:52:11 DUE TO TIME LIMIT ***"],
        ),
        1,
    ),
    "module": (
        0.3,
        _failed(
            "TRAIN (fold_3)",
            1,
            _trace(
                '  File "/usr/local/bin/train_fold.py", line 4, in <module>',
                "    import lightgbm",
                "ModuleNotFoundError: No module named 'lightgbm'",
            ),
            (),
        ),
        1,
    ),
    "parameter": (
        -6,
        [
            "ERROR ~ No such variable: outDir",
            "",
            " -- Check script 'main.nf' at line: 31 or see '.nextflow.log' file for more details",
        ],
        1,
    ),
    "input": (
        -10,
        [
            "ERROR ~ No such file or directory: /data/folds.csv",
            "",
            " -- Check script 'main.nf' at line: 40 or see '.nextflow.log' file for more details",
        ],
        1,
    ),
    "missing-output": (
        0.8,
        [
            "ERROR ~ Error executing process > 'TRAIN (fold_44)'",
            "",
            "Caused by:",
            "  Missing output file(s) `model.pkl` expected by process `TRAIN (fold_44)`",
            "",
            "Command executed:",
            "",
            "  train_fold.py --fold 44",
            "",
            "Command exit status:",
            "  0",
            "",
            "Work dir:",
            "  /data/work/9a/11bc03",
            "",
            " -- Check '.nextflow.log' file for details",
        ],
        1,
    ),
    "image": (
        0.2,
        _failed(
            "TRAIN (fold_1)",
            255,
            [
                "FATAL:   While making image from oci registry: error fetching image to cache: while building SIF from layers: conveyor failed to get: reading manifest train-1.4 in registry.example.org/ml/train: manifest unknown"
            ],
            (),
        ),
        1,
    ),
    "ok-retry": (
        1.0,
        [
            "[9a/11bc03] NOTE: Process `TRAIN (fold_44)` terminated with an error exit status (137) -- Execution is retried (1)",
            "[c0/5510aa] Re-submitted process > TRAIN (fold_44)",
        ],
        0,
    ),
    "ok-silent": (1.0, ["[a1/77c0de] EVALUATE (all) | 1 of 1 ✔"], 0),
}
