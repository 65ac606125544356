"""Vectors in one matrix: the nearest of a hundred thousand are found by one product."""

import numpy as np

from diagnoser.model import Incident, Similar
from diagnoser.retrieval.hashing import Vector, unit

_FIRST = 64


class Index:
    """Vectors of length 1 by incident. A vector whose size differs from the first one's is ignored."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._incidents: list[Incident] = []
        self._matrix = np.zeros((0, 0), np.float32)

    def __len__(self) -> int:
        return len(self._incidents)

    def put(self, incident: Incident, vector: Vector) -> None:
        """Add, or replace the entry of the same diagnosis."""
        if not self._incidents:
            self._matrix = np.zeros((_FIRST, len(vector)), np.float32)
        if len(vector) != self._matrix.shape[1]:
            return
        row = self._rows.setdefault(incident.diagnosis, len(self._incidents))
        if row == len(self._incidents):
            self._incidents.append(incident)
            if row == len(self._matrix):
                self._matrix = np.concatenate((self._matrix, np.zeros_like(self._matrix)))
        self._incidents[row] = incident
        self._matrix[row] = unit(vector)

    def drop(self, diagnosis: str) -> None:
        """The last row moves into the freed place, so that the matrix has no holes."""
        row = self._rows.pop(diagnosis, None)
        if row is None:
            return
        last = self._incidents.pop()
        if row < len(self._incidents):
            self._incidents[row], self._rows[last.diagnosis] = last, row
            self._matrix[row] = self._matrix[len(self._incidents)]

    def nearest(self, vector: Vector, limit: int) -> list[Similar]:
        """The nearest first; equally near ones by their ids, so that every replica says the same."""
        count = len(self._incidents)
        if not count or len(vector) != self._matrix.shape[1] or not vector.any():
            return []
        scores = self._matrix[:count] @ unit(vector)
        best = np.argpartition(-scores, min(limit, count) - 1)[:limit] if limit < count else np.arange(count)
        similar = [Similar(self._incidents[row], round(min(1.0, float(scores[row])), 4)) for row in best]
        return sorted(similar, key=lambda incident: (-incident.score, incident.incident.diagnosis))
