"""Since when a process has seen the servers of a store live, which is what it can answer for.

A lease that nobody knows any more must have ended before a missing counter may be taken for a new one. Whoever has seen the same life of a
server for longer than the store waits for any lease knows that no write was lost by a failover or a restart in that time.
"""

from __future__ import annotations

from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.bounds import LEASE_LIVES_MAX

__all__ = ["Lives"]


class Lives:
    """Lives of servers by name, at most ``LEASE_LIVES_MAX``. Times are of the process's steady clock. ``latest``: the one heard of last, "" for none."""

    __slots__ = ("_settling_us", "_since_us", "latest")

    def __init__(self, terms: LeaseTerms) -> None:
        million, drift = 1_000_000, terms.drift_ppm
        self._settling_us = -(-terms.hold_us * (million + drift) // (million - drift))
        self._since_us: dict[str, int] = {}
        self.latest = ""

    def seen(self, life: str, now_us: int) -> None:
        """An answer of this life came."""
        self.latest = life
        if life not in self._since_us:
            if len(self._since_us) >= LEASE_LIVES_MAX:
                del self._since_us[next(iter(self._since_us))]
            self._since_us[life] = now_us

    def doubted(self, life: str) -> None:
        """A call failed that should have been answered by this life: its time begins anew."""
        self._since_us.pop(life, None)

    def settled(self, life: str, now_us: int) -> bool:
        """Whether a question that is sent now to this life comes a whole hold, by the worst clocks, after its first answer.

        The script that gets the question compares the life, so what happened on the way makes nobody believe this wrongly.
        """
        since_us = self._since_us.get(life)
        return since_us is not None and now_us >= since_us + self._settling_us

    def settles_us(self, life: str, now_us: int) -> int:
        """When this life will be settled, if nothing happens."""
        return self._since_us.get(life, now_us) + self._settling_us
