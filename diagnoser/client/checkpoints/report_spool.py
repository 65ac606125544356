"""Keeps reports of checkpoints on the disk until the service has them, so that no end of a process loses one.

A file ``reports-*.jsonl`` in the checkpoint folder holds them, a JSON object a line. The process that wrote it removes
it once all were sent. What stays is sent by ``diagnoser run`` above the trainer, else by the next launch that saves
into the folder. The service counts a report once, however often it is sent.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Mapping

LISTING_VARIABLE = "DIAGNOSER_REPORTS"
"""Names the file in which a trainer says where its reports are kept, to ``diagnoser run`` above it."""
_NAME = re.compile(r"reports-[\w.-]+\.jsonl\Z")
FILE_BYTES = 4 << 20
"""Read of one file at most: the job may write to it."""


@dataclass(frozen=True)
class PendingReport:
    """A report that the service does not have yet.

    job, attempt: that saved the checkpoint; None for the newest attempt.
    at: when it was made, in seconds since the epoch.
    event: as ``checkpoint_event`` makes it.
    """

    job: str
    attempt: int | None
    at: float
    event: Mapping[str, Any]

    @property
    def checkpoint(self) -> tuple[str, int | None, Any, str]:
        """Return what tells the checkpoint from others."""
        return self.job, self.attempt, self.event.get("step"), self.path

    @property
    def path(self) -> str:
        return str(self.event.get("path", ""))

    def followed_by(self, later: PendingReport) -> PendingReport:
        """Join with a later report of the same checkpoint: its phase counts, and fields that only this one has stay."""
        return PendingReport(self.job, self.attempt, later.at, {**self.event, **later.event})


class ReportSpool:
    """The files of reports in one folder.

    folder: of the checkpoints.
    name: of this process's file, that no other process has.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._folder = folder
        self._files = [os.path.join(folder, "reports-{}.jsonl".format(name))]

    @property
    def path(self) -> str:
        return self._files[0]

    @property
    def paths(self) -> list[str]:
        return list(self._files)

    def append(self, report: PendingReport) -> None:
        """Write a report down before it is sent. Raises OSError."""
        os.makedirs(self._folder, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(report)) + "\n")

    def take_over(self) -> list[PendingReport]:
        """Read what earlier processes could not send, the oldest first; ``clear`` removes their files as well."""
        left = [path for path in report_files(self._folder) if path != self.path]
        self._files += left
        return sorted(chain.from_iterable(map(read_reports, left)), key=lambda report: report.at)

    def clear(self) -> None:
        """Remove the files: everything in them was sent."""
        for path in self._files:
            with suppress(OSError):
                os.unlink(path)
        del self._files[1:]


def is_report_file(path: str) -> bool:
    return _NAME.match(os.path.basename(path)) is not None


def report_files(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(os.path.join(folder, name) for name in names if is_report_file(name))


def read_reports(path: str) -> list[PendingReport]:
    """Read the reports of a file, without lines that were cut off."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(FILE_BYTES).splitlines()
    except OSError:
        return []
    reports = []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            body = json.loads(line)
            attempt = body["attempt"]
            if attempt is not None:
                attempt = int(attempt)
            reports.append(PendingReport(str(body["job"]), attempt, float(body["at"]), dict(body["event"])))
    return reports


def unreported(folder: str) -> set[str]:
    """Return the directories of checkpoints that the service may not have heard of."""
    return {report.path for path in report_files(folder) for report in read_reports(path)}
