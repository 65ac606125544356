"""Checkpoints that can be trusted: a manifest with checksums around whatever saves them, and what reads it again.

Imports the standard library only; torch is imported where ``Checkpointer.async_save`` is called.
"""

from diagnoser.client.checkpoints.just_in_time import JustInTime
from diagnoser.client.checkpoints.manifest import TwoWriters
from diagnoser.client.checkpoints.saver import Checkpointer, PendingCheckpoint, SaveFailed
from diagnoser.client.checkpoints.verification import NoCheckpoint, Verification, find, latest, resume, verify

__all__ = [
    "Checkpointer",
    "JustInTime",
    "NoCheckpoint",
    "PendingCheckpoint",
    "SaveFailed",
    "TwoWriters",
    "Verification",
    "find",
    "latest",
    "resume",
    "verify",
]
