"""Bytes of a request -> blocks of whole lines, each with the attempt and stream it belongs to."""

from diagnoser.ingest.batch import ERRORS_TOLD, Batch, IngestReceipt, RecordDefaults, Target
from diagnoser.ingest.ndjson import parse_array, parse_ndjson
from diagnoser.ingest.offsets import OffsetRanges, covered_with, missing
from diagnoser.ingest.text import parse_text
