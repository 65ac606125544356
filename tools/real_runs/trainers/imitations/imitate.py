"""Prints what software that cannot be run here prints: ``imitate.py SOFTWARE [--fault NAME] [--steps N]``.

A module of SOFTWARE has ``begin(draw)``, ``step(draw, number, steps)``, ``finish(draw)`` (lines each) and ``FAULTS``:
name -> (share of the steps that go well before, lines, exit code, lines of ranks that go on). Times stand in the lines as tokens.
"""

import argparse
import datetime
import importlib
import random
import re
import sys
import time

import yaml

FORMS = {
    "@MMDG": "%m%d %H:%M:%S",
    "@KERN": "%b %d %H:%M:%S",
    "@MMDD": "%m-%d %H:%M:%S",
    "@BRACKET": "%Y-%m-%d %H:%M:%S",
    "@SECONDS": "%H:%M:%S.%f",
    "@TSEC": "%Y-%m-%dT%H:%M:%S",
    "@COMMA": "%Y-%m-%d %H:%M:%S,%f",
    "@ISO": "%Y-%m-%dT%H:%M:%S.%f+0000",
    "@LOG4J": "%y/%m/%d %H:%M:%S",
    "@NEXT": "%b-%d %H:%M:%S.%f",
    "@UTC": "%Y-%m-%d, %H:%M:%S UTC",
}


DONE = re.compile(r"@DONE(\+\d+)?")
"""The number of steps that went well, or a later one."""


class Clock:
    def __init__(self, done):
        self.now, self.done = datetime.datetime.now(), done

    def say(self, lines, seconds):
        for line in lines:
            self.now += datetime.timedelta(seconds=seconds)
            for token, form in FORMS.items():
                if token in line:
                    text = self.now.strftime(form)
                    cut = text[:-3] if form.endswith("%f") else text
                    line = line.replace(token, cut)
            print(DONE.sub(lambda match: str(self.done + int(match[1] or 0)), line), flush=True)
            time.sleep(0.001)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("software")
    parser.add_argument("--fault", default="")
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    software = importlib.import_module(arguments.software)
    with open("config.yaml") as file:
        draw = random.Random(yaml.safe_load(file)["seed"])
    total = arguments.steps or draw.randrange(60, 160)
    share, fault, code = software.FAULTS.get(arguments.fault, (1.0, [], 0))
    steps = max(0, int(total * share))
    clock = Clock(steps)
    clock.say(software.begin(draw) if share > 0 else software.begin(draw)[: max(3, int(-share))], 0.7)
    for number in range(1, steps + 1):
        clock.say(software.step(draw, number, total), 0.9)
    if share >= 1.0 and not code:
        clock.say(fault, 0.5)
        clock.say([] if arguments.fault == "ok-silent" else software.finish(draw), 0.5)
    else:
        clock.say(fault, 0.02)
    sys.exit(code)


if __name__ == "__main__":
    main()
