"""Vectors in one matrix: the nearest of a hundred thousand are found by one product."""

import numpy as np

from diagnoser.model import ConfirmedFailure, Similar
from diagnoser.model.access import may_learn
from diagnoser.retrieval.hashing import Vector, unit

_FIRST = 64


class Index:
    """Vectors of length 1 by confirmed failure. A vector whose size differs from the first one's is ignored."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._confirmed_failures: list[ConfirmedFailure] = []
        self._matrix = np.zeros((0, 0), np.float32)

    def __len__(self) -> int:
        return len(self._confirmed_failures)

    def put(self, confirmed: ConfirmedFailure, vector: Vector) -> None:
        if not self._confirmed_failures:
            self._matrix = np.zeros((_FIRST, len(vector)), np.float32)
        if len(vector) != self._matrix.shape[1]:
            return
        row = self._rows.setdefault(confirmed.diagnosis, len(self._confirmed_failures))
        if row == len(self._confirmed_failures):
            self._confirmed_failures.append(confirmed)
            if row == len(self._matrix):
                self._matrix = np.concatenate((self._matrix, np.zeros_like(self._matrix)))
        self._confirmed_failures[row] = confirmed
        self._matrix[row] = unit(vector)

    def drop(self, diagnosis: str) -> None:
        """The last row moves into the freed place, so that the matrix has no holes."""
        row = self._rows.pop(diagnosis, None)
        if row is None:
            return
        last = self._confirmed_failures.pop()
        if row < len(self._confirmed_failures):
            self._confirmed_failures[row], self._rows[last.diagnosis] = last, row
            self._matrix[row] = self._matrix[len(self._confirmed_failures)]

    def nearest(self, vector: Vector, limit: int, tenant: str = "") -> list[Similar]:
        """The nearest first; equally near ones by their ids, so that every replica says the same. tenant: only what
        its own jobs taught; "" for all."""
        rows = np.arange(len(self._confirmed_failures))
        if tenant:
            own = [may_learn(tenant, confirmed.tenant) for confirmed in self._confirmed_failures]
            rows = rows[np.array(own, bool)]
        count = len(rows)
        if not count or len(vector) != self._matrix.shape[1] or not vector.any():
            return []
        scores = self._matrix[rows if tenant else slice(count)] @ unit(vector)
        best = np.argpartition(-scores, min(limit, count) - 1)[:limit] if limit < count else np.arange(count)
        similar = [Similar(self._confirmed_failures[rows[at]], round(min(1.0, float(scores[at])), 4)) for at in best]
        return sorted(similar, key=lambda confirmed: (-confirmed.score, confirmed.confirmed.diagnosis))
