"""Log stores of a site, read from where our database says: one file and one line here for each."""

from collections.abc import Mapping
from typing import Protocol

from diagnoser.adapters.line_sources.loki import LokiSource
from diagnoser.adapters.line_sources.store_client import StoreClient
from diagnoser.adapters.line_sources.victorialogs import VictoriaLogsSource
from diagnoser.ports import LineSource


class MakeSource(Protocol):
    def __call__(self, client: StoreClient, query: str) -> LineSource: ...


SOURCES: Mapping[str, MakeSource] = {"loki": LokiSource, "victorialogs": VictoriaLogsSource}
