"""Clients that are followed: everything they ask is noted, and they are the same on every node.

Chosen by a digest of the subject that any process finds alike (CRC-32). It is quick, not secret: a client that makes up its own name can choose to be
followed or not, which bends what is said of demand and of accuracy, and no decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

from sluicegate.events import Admission, Demand, Watching
from sluicegate.limiter.cells import rule_of
from sluicegate.limiter.recording.demand import DemandBook
from sluicegate.limiter.recording.watching import Ask, WatchBook
from sluicegate.stores.base import Charge
from sluicegate.stores.keys import EVERYBODY
from sluicegate.stores.locks import Locked

__all__ = ["Following", "digest_of"]


def digest_of(subject: str) -> int:
    """A number below 2**32 that every process finds alike."""
    return crc32(subject.encode("utf-8", "surrogatepass"))


class Following(Locked):
    """Demand and watched counters of one limiter. Safe from any thread.

    Only subjects whose digest is below ``limit`` are to be told of. ``chosen``: that limit, and subjects that are known not to be below it; whoever reads it adds
    to the set of that limit, which is given up with it.
    """

    def __init__(self, now_us: Callable[[], int]) -> None:
        super().__init__()
        self._now_us = now_us
        self._demand = DemandBook()
        self._watch = WatchBook()
        self.chosen: tuple[int, set[str]] = (0, set())
        self._set_limit()

    @property
    def limit(self) -> int:
        """Digests below this are followed."""
        return self.chosen[0]

    def saw(
        self,
        charge: Charge,
        digest: int,
        tier: str,
        version: int,
        at_us: int,
        *,
        allowed: bool,
        fits: bool,
        degraded: bool = False,
    ) -> None:
        """A client that is followed has asked. ``allowed``: the charge was made; ``fits``: this counter would have let it pass."""
        counter, subject, cost = charge
        name = counter.name
        with self._lock:
            if digest < self._demand.limit and subject != EVERYBODY and ("#" not in name or name.endswith("#1")):
                key = (rule_of(name), tier, subject)
                self._demand.ask(key, digest, self._now_us(), cost, refused=not fits)
            if digest < self._watch.limit:
                self._watch.ask(digest, Ask(counter, subject, at_us, cost, allowed, fits, version, degraded))
            self._set_limit()

    def changed(self, charges: Sequence[Charge], kind: str, at_us: int) -> None:
        """Counters were given tokens back (GIVEN_BACK, with the tokens as costs) or forgotten (RESET)."""
        with self._lock:
            for counter, subject, cost in charges:
                digest = digest_of(subject)
                if digest < self._watch.limit:
                    told = Ask(
                        counter, subject, at_us, cost, allowed=False, fits=True, version=0, degraded=False, kind=kind
                    )
                    self._watch.ask(digest, told)
            self._set_limit()

    def reset_all(self, at_us: int) -> None:
        """Any counter may have been changed by hand."""
        with self._lock:
            self._watch.reset_all(at_us)

    def take(
        self, at_us: int, until_us: int, name_of: Callable[[str], str], *, last: bool
    ) -> tuple[list[Demand], list[Admission], Watching, int, int]:
        """Demand of a span that is over, asks of watched counters, who was watched; and how many of each were given up."""
        with self._lock:
            demand = self._demand.take(at_us, until_us, name_of, last=last)
            admissions, watching = self._watch.take(name_of)
            gone = self._demand.dropped, self._watch.dropped
            self._demand.dropped = self._watch.dropped = 0
            self._set_limit()
        return demand, admissions, watching, *gone

    def _set_limit(self) -> None:
        limit = max(self._demand.limit, self._watch.limit)
        if limit != self.chosen[0]:
            self.chosen = (limit, set())
