"""What keeps the database small and its lists fast."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dropped:
    """What went with some attempts. stored: bytes of their logs and dumps."""

    attempts: int = 0
    diagnoses: int = 0
    plans: int = 0
    stored: int = 0
