"""The clients that are refused most, in bounded memory.

Space-Saving (Metwally, Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, 2005): of all
clients that are refused, ``size`` are counted. One that is not among them takes the place of one counted least, and its count goes on
from there. So of N refusals a client's count is never below the true number and at most N / size above it, and every client
refused more than N / size times is among those told.
"""

from __future__ import annotations

from sluicegate.bounds import OFFENDERS_MAX
from sluicegate.stores.locks import Locked

__all__ = ["Offenders"]

_Client = tuple[str, str]


class Offenders(Locked):
    """Counts refusals by (rule, subject). Safe from any thread. A refusal costs about a microsecond, an allowed request nothing."""

    __slots__ = ("_by_count", "_counts", "_least", "_size", "refusals")

    def __init__(self, size: int = OFFENDERS_MAX) -> None:
        super().__init__()
        self._size = size
        self.refusals = 0
        """Refusals since the last ``take``."""
        self._forget()

    def refused(self, rule: str, subject: str) -> None:
        """A rule has refused a client, or would have if it were no shadow."""
        client = (rule, subject)
        with self._lock:
            self.refusals += 1
            count = self._counts.get(client)
            if count is not None:
                del self._by_count[count][client]
            elif len(self._counts) < self._size:
                count = 0
                self._least = 1
            else:
                count = self._least
                replaced, _ = self._by_count[count].popitem()
                del self._counts[replaced]
            self._counts[client] = count + 1
            self._by_count.setdefault(count + 1, {})[client] = None
            if count and not self._by_count[count]:
                del self._by_count[count]
                if count == self._least:
                    self._least = count + 1

    def take(self, at_most: int | None = None) -> list[tuple[str, str, int]]:
        """(rule, subject, times) since the last call, the most refused first, ``at_most`` of them (None: all that are counted)."""
        with self._lock:
            counts = self._counts
            self._forget()
        found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return [(rule, subject, times) for (rule, subject), times in found[:at_most]]

    def _forget(self) -> None:
        self._counts: dict[_Client, int] = {}
        self._by_count: dict[int, dict[_Client, None]] = {}
        self._least = 1
        self.refusals = 0
