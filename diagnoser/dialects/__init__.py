"""Who speaks: every form in which launchers, runtimes and collectors carry a line. A new one is one entry here, with examples"""

from diagnoser.dialects import collectors, launchers, runtimes
from diagnoser.dialects.dialect import Dialect, Example, Peeled

DIALECTS: tuple[Dialect, ...] = (*launchers.DIALECTS, *runtimes.DIALECTS, *collectors.DIALECTS)

__all__ = ["DIALECTS", "Dialect", "Example", "Peeled"]
