"""The formats in which lines come, and the parser of each."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from diagnoser.ingest.batch import Batch, RecordDefaults
from diagnoser.ingest.loki import parse_loki, parse_loki_json
from diagnoser.ingest.mapping import FieldMapping
from diagnoser.ingest.ndjson import parse_array, parse_ndjson
from diagnoser.ingest.otlp import parse_otlp, parse_otlp_json
from diagnoser.ingest.syslog import parse_syslog
from diagnoser.ingest.text import parse_text

Parser = Callable[[bytes, RecordDefaults, float], Batch]
"""(body, what the request says of all lines, time of arrival) -> its lines. Raises BadInput."""


class Format(NamedTuple):
    """is_ours: the sender made the body for this service, so one without a usable line is its mistake. A shipper that
    speaks a protocol also sends what belongs to no job, and bodies without a record."""

    parse: Parser
    is_ours: bool = False


def formats(mapping: FieldMapping) -> Mapping[str, Format]:
    """By name. mapping: places the lines of what carries labels."""
    return {
        "text": Format(parse_text, is_ours=True),
        "ndjson": Format(partial(parse_ndjson, mapping=mapping), is_ours=True),
        "json": Format(partial(parse_array, mapping=mapping), is_ours=True),
        "loki": Format(partial(parse_loki, mapping=mapping)),
        "loki-json": Format(partial(parse_loki_json, mapping=mapping)),
        "otlp": Format(partial(parse_otlp, mapping=mapping)),
        "otlp-json": Format(partial(parse_otlp_json, mapping=mapping)),
        "syslog": Format(partial(parse_syslog, mapping=mapping)),
    }
