"""Bytes of a request -> blocks of whole lines, each with the attempt and stream it belongs to."""

from diagnoser.ingest.batch import ERRORS_TOLD, Batch, IngestReceipt, RecordDefaults, Target
from diagnoser.ingest.offsets import OffsetRanges, covered_with, missing
