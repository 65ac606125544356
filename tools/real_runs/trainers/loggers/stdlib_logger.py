"""The standard library's logging in formats that sites and frameworks use."""

import logging
import os
import socket
import sys

FORMATS = {
    "basic": ("%(levelname)s:%(name)s:%(message)s", None),
    "pipes": ("%(asctime)s | %(levelname)-8s | %(module)s:%(lineno)d | %(message)s", None),
    "uvicorn": ("%(levelname)s:     %(message)s", None),
    "vertical": ("[%(asctime)s] {%(filename)s:%(lineno)d} %(levelname)s - %(message)s", None),
    "threads": ("%(asctime)s [%(processName)s/%(threadName)s] %(levelname)s %(name)s - %(message)s", "%H:%M:%S"),
    "host": ("%(asctime)s HOST %(name)s[%(process)d] %(levelname)s RANK%(message)s", "%Y-%m-%dT%H:%M:%S"),
    "rank": ("[%(asctime)s][RANK][%(levelname)s] %(message)s", "%m-%d %H:%M:%S"),
}


def build(form, rank, world):
    text, dates = FORMATS[form]
    text = text.replace("HOST", os.environ.get("NODE_NAME") or socket.gethostname())
    label = {"rank": f"rank {rank}/{world}", "host": f"[r{rank}] " if world > 1 else ""}.get(form, "")
    handler = logging.StreamHandler(sys.stderr if form in ("basic", "vertical") else sys.stdout)
    handler.setFormatter(logging.Formatter(text.replace("RANK", label), dates))
    log = logging.getLogger("train")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
    return log
