"""loguru: its default form on stderr, or serialized to JSON."""

import sys

from loguru import logger


class Loguru:
    """Takes arguments as logging does, and passes them on as loguru wants them."""

    def __init__(self, log):
        self.log = log.opt(depth=1)

    def info(self, text, *values):
        self.log.info("{}", text % values if values else text)

    def warning(self, text, *values):
        self.log.warning("{}", text % values if values else text)

    def error(self, text, *values, exc_info=None):
        log = self.log.opt(depth=1, exception=bool(exc_info)) if exc_info else self.log
        log.error("{}", text % values if values else text)

    def critical(self, text, *values, exc_info=None):
        self.log.opt(depth=1, exception=bool(exc_info)).critical("{}", text % values if values else text)

    def exception(self, text, *values):
        self.log.opt(depth=1, exception=True).error("{}", text % values if values else text)


def build(form, rank, world):
    logger.remove()
    if form == "json":
        logger.add(sys.stdout, serialize=True, diagnose=False, backtrace=False)
    elif form == "diagnose":
        logger.add(sys.stderr, diagnose=True, backtrace=True)
    else:
        logger.add(sys.stderr, diagnose=False)
    return Loguru(logger.bind(rank=rank) if world > 1 else logger)
