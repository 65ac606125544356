"""rich's handler: columns of time, level and place, with wrapped lines; tracebacks in boxes or plain."""

import logging

from rich.console import Console
from rich.logging import RichHandler


def build(form, rank, world):
    console = Console(width=120 if form == "wide" else 100, force_terminal=form == "color")
    handler = RichHandler(console=console, rich_tracebacks=form != "plain", show_path=form != "plain")
    handler.setFormatter(logging.Formatter(f"[rank {rank}] %(message)s" if world > 1 else "%(message)s", "[%X]"))
    log = logging.getLogger("train")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False
    return log
