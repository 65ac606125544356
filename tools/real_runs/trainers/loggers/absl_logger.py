"""absl-py, in glog's form."""

from absl import logging


def build(form, rank, world):
    logging.use_absl_handler()
    logging.get_absl_handler().python_handler.stream = __import__("sys").stderr
    log = logging.get_absl_logger()
    log.setLevel("INFO")
    log.propagate = False
    log.handlers[:] = [logging.get_absl_handler()]
    return log
