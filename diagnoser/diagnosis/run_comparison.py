"""A run beside another one, mostly the last that went well: what it prints, and what it was started with. Pure."""

from dataclasses import dataclass

from diagnoser.compress import AttemptLog, baseline
from diagnoser.compress.run_settings import SettingChange, changes, run_settings
from diagnoser.model import Baseline, CleanRun, NewLine, Template

GONE = 20
"""Templates listed that the run does not print any more."""
_LEAST = 2
"""Lines of a template from which its absence means something."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """new: lines of which the other run printed none alike, or far fewer; the most telling first. gone: what it printed
    and this one does not, most frequent first. versions, settings: what differs, as far as both logs say it.
    """

    new: tuple[NewLine, ...]
    gone: tuple[Template, ...]
    versions: tuple[SettingChange, ...]
    settings: tuple[SettingChange, ...]


def compare(log: AttemptLog, other: AttemptLog, name: str) -> RunComparison:
    """name: of the other run. Takes a second for the largest logs."""
    printed = {shape: stat.count for shape, stat in other.delta.shapes.items()}
    found = baseline.diff(log.digest, Baseline((CleanRun(name, other.delta.lines, printed),))).new
    now, then = run_settings(log.digest), run_settings(other.digest)
    return RunComparison(
        tuple(new for new in found if new.usual or baseline.shape_of(new.line.text) not in printed),
        tuple(_gone(log, other)),
        tuple(changes(then.versions, now.versions)),
        tuple(changes(then.settings, now.settings)),
    )


def _gone(log: AttemptLog, other: AttemptLog) -> list[Template]:
    mine = log.delta.shapes
    gone = []
    for template in other.digest.templates:
        if template.count < _LEAST:
            continue
        if not mine.keys() & set(map(baseline.shape_of, template.samples)):
            gone.append(template)
    return gone[:GONE]
