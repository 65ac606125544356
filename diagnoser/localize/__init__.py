"""Which rank failed first, which never arrived, which node is at fault, where progress stopped or the loss broke."""

from diagnoser.model import Anchor

ANCHORS = tuple(
    Anchor(text)
    for text in (
        "srun: error:",
        "first observed failure",
        "local_rank:",
        "exitcode  :",
        "host      :",
        "time      :",
        "on node ",
        "on host ",
        "nranks ",
        "nRanks ",
        "monitoredBarrier",
        "[missing ranks: ",
        "Successfully assigned ",
        "has been marked dead",
        "Watchdog caught",
        "last enqueued",
        "Connection closed by peer",
        "store_based_barrier_key:1 to store",
        "nitializing torch distributed",
        "distributed init (rank",
        "GLOBAL_RANK: ",
        "distributed_backend=",
        "Process rank: ",
        "tarted a local Ray instance",
        '"init_start"',
        "STARTING TIMING RUN",
    )
)
"""What the compressor must let through for this ring, beside the rules' anchors."""
