"""logfmt: key=value lines."""

import logging
import sys

from logfmter import Logfmter


def build(form, rank, world):
    def add_rank(record):
        record.worker = rank
        return True

    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(add_rank)
    keys = ["at", "level", "logger", *(["rank"] if world > 1 else [])]
    names = {"at": "asctime", "level": "levelname", "logger": "name", "rank": "worker"}
    handler.setFormatter(Logfmter(keys=keys, mapping=names))
    log = logging.getLogger("train")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
    return log
