"""The shortest way to a yes or no for a counter whose tokens are held here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from sluicegate.bounds import COUNTER_MEMO_MAX, HITS_MAX
from sluicegate.stores.base import Counter, Hitter, HitterWays
from sluicegate.stores.near.counter import LeasedCounter
from sluicegate.stores.near.front import is_leasable

if TYPE_CHECKING:
    from sluicegate.stores.near.core import NearCore

__all__ = ["OPEN", "Gate", "make_hitter"]


class Gate(Protocol):
    """Whether what is decided fast must take the long way (``active``), as after an outage."""

    @property
    def active(self) -> bool: ...


class _Open:
    active: bool = False


OPEN: Final[Gate] = _Open()
"""Never active."""


def make_hitter(store: NearCore, counter: Counter, ways: HitterWays, gate: Gate) -> Hitter:
    """The fast path of one counter of ``store``: tokens that are held here, and refusals that are known. The rest is ``otherwise``'s.

    ``held`` has leased counters by name. One that is leased no more has no tokens to take, so it is never wrong to find it.
    """
    key_of, otherwise, refused, ration = ways
    front, stats, now = store.front, store.stats, store.now_us
    leasable, refuses_free = is_leasable(counter), not (counter.shadow or counter.denied_counts)
    held: dict[str, LeasedCounter] = {}
    one, retired, left, given = 1, False, 0, 0

    def hit(name: str, cost: int = 1) -> bool:
        nonlocal left
        if cost is one and left > 0 and not gate.active:
            acquire, release = store._acquire, store._release
            try:
                acquire()
                leased = held[name]
                if leased.take(1, now()):
                    stats.leased += 1
                    left -= 1
                    if leased.low:
                        store.poke()
                    return True
            except (KeyError, TypeError):
                pass  # A new name, or one that is none: ``otherwise`` says what is wrong with the second.
            finally:
                release()
        return slow(name, cost)

    def slow(name: str, cost: int) -> bool:
        nonlocal left, given
        if left <= 0:
            with store._lock:
                fresh = HITS_MAX if ration is None else ration()
                left, given = left + fresh, given + fresh
        denials = front.denials
        if denials.active and refuses_free and cost is one and not gate.active:
            key = key_of(name)
            if name not in held and denials.refuses(key, counter.spec, 1, now()) is not None:
                stats.denied += 1
                if leasable and front.saw is not None:
                    with store._lock:
                        front.saw((counter, key[len(counter.prefix) :], 1), key, now())
                refused(name)
                return False
        allowed = otherwise(name, cost)
        if leasable:
            with store._lock:
                leased = None if retired else front.leases.find(counter, key_of(name)[len(counter.prefix) :], now())
                if leased is None:
                    held.pop(name, None)
                else:
                    if len(held) >= COUNTER_MEMO_MAX:
                        held.clear()
                    held[name] = leased
        return allowed

    def retire() -> None:
        nonlocal retired
        with store._lock:
            retired = True
            held.clear()

    def passed() -> int:
        with store._lock:
            return given - left

    return Hitter(hit, retire, passed)
