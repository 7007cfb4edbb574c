"""What chosen clients ask for, in full: sums and peaks over a span."""

from __future__ import annotations

from collections.abc import Callable

from sluicegate.bounds import DEMAND_CLIENTS_MAX, DEMAND_SPAN_S, FOLLOWED_ASKS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.events import Demand

__all__ = ["DIGESTS", "DemandBook"]

DIGESTS = 2**32
"""Digests are whole numbers below this."""

_LONG_S = 10
_LEVELS_MAX = 32


class _Client:
    """One client of one rule. ``recent``: tokens of the last ten seconds, the last one at the place of ``second`` modulo ten."""

    __slots__ = ("asked", "digest", "peak_1s", "peak_10s", "recent", "refused", "second", "tokens")

    def __init__(self, digest: int, second: int) -> None:
        self.digest = digest
        self.asked = self.tokens = self.refused = self.peak_1s = self.peak_10s = 0
        self.second = second
        self.recent = [0] * _LONG_S

    def ask(self, second: int, cost: int, *, refused: bool) -> None:
        self.asked += 1
        self.tokens += cost
        self.refused += refused
        gone = second - self.second
        if gone > 0:
            # A clock that was set back counts on in the last second it had.
            for step in range(1, min(gone, _LONG_S) + 1):
                self.recent[(self.second + step) % _LONG_S] = 0
            self.second = second
        place = self.second % _LONG_S
        self.recent[place] += cost
        self.peak_1s = max(self.peak_1s, self.recent[place])
        self.peak_10s = max(self.peak_10s, sum(self.recent))


class DemandBook:
    """Clients whose digest is below ``limit``. Its owner holds a lock.

    It begins with everybody and halves the share when there is too much to do or to keep; at the end of a span in which there was little,
    the share is doubled again.
    """

    __slots__ = ("_asks", "_begun_us", "_clients", "_most", "dropped", "level")

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str, str], _Client] = {}
        self._begun_us: int | None = None
        self._asks = self._most = 0
        self.level = 0
        self.dropped = 0

    @property
    def limit(self) -> int:
        """Digests below this are followed."""
        return DIGESTS >> self.level

    def ask(self, key: tuple[str, str, str], digest: int, now_us: int, cost: int, *, refused: bool) -> None:
        """A client asked: ``key`` is rule, tier and subject."""
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= DEMAND_CLIENTS_MAX:
                self._halve()
                if digest >= self.limit or len(self._clients) >= DEMAND_CLIENTS_MAX:
                    self.dropped += 1
                    return
            client = self._clients[key] = _Client(digest, now_us // US_PER_S)
        client.ask(now_us // US_PER_S, cost, refused=refused)
        self._asks += 1
        if self._asks > FOLLOWED_ASKS_MAX:
            self._asks = 0
            self._most = FOLLOWED_ASKS_MAX
            self._halve()

    def take(self, at_us: int, until_us: int, name_of: Callable[[str], str], *, last: bool) -> list[Demand]:
        """Nothing, until a span is over (or ``last``): then all of it."""
        if self._begun_us is None or self._begun_us > at_us:
            self._begun_us = at_us
        self._most, self._asks = max(self._most, self._asks), 0
        if until_us - self._begun_us < DEMAND_SPAN_S * US_PER_S and not last:
            return []
        span_s = max(1, round((until_us - self._begun_us) / US_PER_S))
        share = self.limit / DIGESTS
        told = [
            Demand(
                rule,
                tier,
                name_of(subject),
                self._begun_us,
                span_s,
                client.asked,
                client.tokens,
                client.refused,
                client.peak_1s,
                client.peak_10s,
                share,
            )
            for (rule, tier, subject), client in self._clients.items()
        ]
        little = len(self._clients) * 3 < DEMAND_CLIENTS_MAX and self._most * 3 < FOLLOWED_ASKS_MAX
        if little and self.level:
            self.level -= 1
        self._clients = {}
        self._begun_us = until_us
        self._most = 0
        return told

    def _halve(self) -> None:
        """Give up every client whose digest is in the upper half; of those that stay nothing is missing."""
        if self.level >= _LEVELS_MAX:
            return
        self.level += 1
        limit, before = self.limit, len(self._clients)
        self._clients = {key: client for key, client in self._clients.items() if client.digest < limit}
        self.dropped += before - len(self._clients)
