"""A Snakemake workflow that trains folds, each in a job of its own: ``snakemake_trainer.py [--fault NAME]``."""

import argparse
import subprocess
import sys
from pathlib import Path

SNAKEFILE = """
FOLDS = range({folds})

rule all:
    input: "results/report.txt"

rule prepare:
    output: "folds/fold_{{n}}.csv"
    log: "logs/prepare_{{n}}.log"
    shell: "{python} fold.py prepare {{wildcards.n}} {{output}}"

rule train:
    input: "folds/fold_{{n}}.csv"
    output: "models/model_{{n}}.json"
    threads: 1
    shell: "{python} fold.py train {{wildcards.n}} {{output}} {fault}"

rule evaluate:
    input: expand("models/model_{{n}}.json", n=FOLDS)
    output: "results/report.txt"
    shell: "{python} fold.py evaluate 0 {{output}}"
"""
FOLD = """
import json, math, os, random, socket, subprocess, sys

step, fold, output, *fault = sys.argv[1:]
fault = fault[0] if fault and int(fold) == 7 else ""
if step == "prepare":
    chance = random.Random(int(fold))
    with open(output, "w") as file:
        file.write("x,y\\\\n" + "".join(f"{chance.gauss(0, 1):.4f},{chance.gauss(0, 1):.4f}\\\\n" for _ in range(80)))
elif step == "train":
    rows = [tuple(map(float, line.split(","))) for line in open(f"folds/fold_{fold}.csv").read().split()[1:]]
    weight = 0.0
    for epoch in range(1, 6):
        weight -= 0.1 * sum(2 * x * (weight * x - y) for x, y in rows) / len(rows)
        loss = sum((weight * x - y) ** 2 for x, y in rows) / len(rows)
        print(f"fold {fold} epoch {epoch} loss {loss:.5f}", flush=True)
    if fault == "key":
        loss = {"mse": loss}["rmse"]
    if fault == "import":
        import catboost
    if fault == "kill":
        os.kill(os.getpid(), 9)
    if fault == "refused":
        socket.create_connection(("127.0.0.1", 9))
    if fault == "nan":
        raise FloatingPointError(f"loss of fold {fold} is {math.nan}")
    if fault == "value":
        rows = [math.sqrt(-1.0 - abs(x)) for x, _ in rows]
    if fault == "call":
        subprocess.run(["tar", "-cf", "model.tar", "exports"], check=True)
    if fault == "silent-output":
        sys.exit(0)
    with open(output, "w") as file:
        json.dump({"weight": weight, "loss": loss}, file)
else:
    with open(output, "w") as file:
        file.write("done\\\\n")
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--folds", type=int, default=14)
    parser.add_argument("--quiet", action="store_true")
    arguments = parser.parse_args()
    text = SNAKEFILE.format(folds=arguments.folds, python=sys.executable, fault=arguments.fault)
    if arguments.fault == "syntax":
        text = text.replace("    threads: 1\n", "    threads 1\n")
    if arguments.fault == "missing-input":
        text = text.replace('input: "folds/fold_{n}.csv"', 'input: "raw/fold_{n}.csv"')
    Path("Snakefile").write_text(text)
    Path("fold.py").write_text(FOLD.replace("\\\\", "\\"))
    command = [str(Path(sys.executable).with_name("snakemake")), "--cores", "2", "--nocolor"]
    if arguments.fault == "retry":
        command += ["--retries", "2"]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main())
