"""`text/plain`: the lines as the training process wrote them."""

from diagnoser.compress.lines import measure
from diagnoser.ingest.batch import LINES_LIMIT, Batch, RecordDefaults, check_count
from diagnoser.model import LineBlock
from diagnoser.model.errors import BadInput


def parse_text(body: bytes, defaults: RecordDefaults, received: float) -> Batch:
    """All lines of ``body`` as one block. Raises BadInput when the query names no job, TooLarge for too many lines."""
    target = defaults.target
    if not target.job:
        raise BadInput("no job: name it in the query, as in /api/v1/logs?job=my-job")
    check_count(measure(body)[0], LINES_LIMIT, "lines")
    batch = Batch()
    batch.add(target, LineBlock(defaults.stream, body, defaults.first or 0, received=received))
    return batch
