"""Which rank runs on which node, from lines that say so."""

import re

_NCCL = re.compile(rb"(?:^|[ >])([A-Za-z][\w.-]{1,80}):\d+:\d+ \[\d+\].*\bcomm 0x[0-9a-f]+ rank (\d+) nranks (\d+)")
_SAID = re.compile(rb"(?i)\brank[ =:]+(\d+)\b.{0,40}\b(?:node|host(?:name)?|on)[ =:]+([A-Za-z][\w.-]*\d[\w.-]*)")


SURE = 1 << 30
_DEVICE = re.compile(rb"(?:mlx\d|(?:bnxt|efa|irdma|hfi|cxi|ib|eth|bond|hsn|rdma|roce|en[ops])_?\d)")
"""Network devices stand where hosts stand in some lines."""


def read(line: bytes) -> tuple[int, tuple[int, str]] | None:
    """(rank, (weight, node)), or None. NCCL numbers the ranks of each communicator anew: the larger one weighs more."""
    if match := _NCCL.search(line):
        return int(match.group(2)), (int(match.group(3)), match.group(1).decode())
    if (match := _SAID.search(line)) and not _DEVICE.match(match.group(2)):
        return int(match.group(1)), (SURE, match.group(2).decode())
    return None
