"""Log stores of a site, read from where our database says: one file and one line here for each."""

from collections.abc import Mapping

from diagnoser.adapters.line_sources.loki import read_loki
from diagnoser.adapters.line_sources.store_client import ReadLines
from diagnoser.adapters.line_sources.victorialogs import read_victorialogs

SOURCES: Mapping[str, ReadLines] = {"loki": read_loki, "victorialogs": read_victorialogs}
