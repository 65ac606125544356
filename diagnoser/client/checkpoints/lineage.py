"""Orders the checkpoints of a folder by the launches that saved them, and never by a clock.

Each launch takes the next number in the folder before it saves: a file ``launch-00003.json`` that only one process can
create. A checkpoint carries the number of its launch and how many saves the launch had begun. A clock that was set
back, or a node whose clock is slow, changes neither.
"""

from __future__ import annotations

import json
import os
import re
from typing import Mapping, NamedTuple

from diagnoser.client.checkpoints.checksums import regular
from diagnoser.client.checkpoints.manifest import About, rollback_of

LAUNCH = "launch-{:05d}.json"
_NUMBER = re.compile(r"launch-(\d{5,})\.json\Z")
ATTEMPTS = 1000
"""Launches that may start at the same moment in one folder."""


class LaunchRecord(NamedTuple):
    """One launch that could save into a folder.

    run: name that all ranks of the launch share, and no other launch has.
    rollback: what a recovery plan named to it, "" for none; a launch that a scheduler repeats keeps it.
    skip_from: first step whose batches that plan skips; None where no plan went back.
    """

    run: str
    rollback: str = ""
    skip_from: int | None = None


def register_launch(folder: str, run: str, environment: Mapping[str, str]) -> int:
    """Return the number of this launch in the folder, from 1; take the next one where it has none yet.

    run: as in ``LaunchRecord``. The same run gets the same number.
    environment: variables of a recovery plan, if one made this launch.
    Raises OSError.
    """
    os.makedirs(folder, exist_ok=True)
    plan = {"rollback": rollback_of(environment), "skip_from": environment.get("DIAGNOSER_SKIP_FROM", "")}
    body = json.dumps({"run": run, **plan}).encode()
    for _ in range(ATTEMPTS):
        known = read_launches(folder)
        for number, record in known.items():
            if record.run == run:
                return number
        number = max(known, default=0) + 1
        path = os.path.join(folder, LAUNCH.format(number))
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            continue  # another launch was faster
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        return number
    raise OSError("{}: no number is left for this launch".format(folder))


def read_launches(folder: str) -> dict[int, LaunchRecord]:
    """Read who could save into the folder, by number. A file that was cut off counts as a launch without a name."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    records = {}
    for name in names:
        match = _NUMBER.match(name)
        if match is not None:
            records[int(match[1])] = _read(os.path.join(folder, name))
    return records


def is_abandoned(about: About, launches: Mapping[int, LaunchRecord]) -> bool:
    """Tell whether a later launch went back to before this checkpoint: its weights are those of the broken loss.

    about: of the checkpoint.
    launches: all launches of the folder.
    """
    for number, record in launches.items():
        if number <= about.launch:
            continue
        if record.skip_from is None:
            continue
        if record.rollback != about.rollback and record.skip_from <= about.step:
            return True
    return False


def _read(path: str) -> LaunchRecord:
    try:
        with open(path, encoding="utf-8", opener=regular) as file:
            body = json.load(file)
        run, rollback, skip_from = str(body["run"]), str(body["rollback"]), str(body["skip_from"])
    except (OSError, ValueError, KeyError, TypeError):
        return LaunchRecord("")
    if not skip_from.isdigit():
        return LaunchRecord(run, rollback)
    return LaunchRecord(run, rollback, int(skip_from))
