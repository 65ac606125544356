"""Who speaks: the forms in which launchers, runtimes and collectors carry lines, and name ranks and nodes in them"""

from diagnoser.dialects.dialect import Dialect, Example, PrefixStripping
from diagnoser.dialects.prefixes import DIALECTS, Prefix
