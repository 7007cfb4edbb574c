"""The shortest way to a yes: one counter, cost 1, nothing but the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sluicegate.algorithms.spec import Spec, State, UnitSpec
from sluicegate.bounds import COUNTER_MEMO_MAX, HITS_MAX
from sluicegate.stores.base import Counter, Hitter, HitterWays
from sluicegate.stores.memory.segment import Segment

if TYPE_CHECKING:
    from sluicegate.stores.memory.store import MemoryStore

__all__ = ["make_hitter"]


def make_hitter(store: MemoryStore, counter: Counter, ways: HitterWays) -> Hitter:
    """The fast path of one counter of ``store``.

    ``slots`` holds, by name, slots of the segment ``home``; under the store's lock, and good only while that is the young one. A slot whose
    counter has gone has no spec, so it is never taken for another's.
    """
    key_of, otherwise, refused, ration = ways
    spec, table, stats, now_ns = counter.spec, store._table, store.stats, store._now_ns
    admit, clamp = _unit_admit(spec), spec.clamp
    refuses_free = not (counter.shadow or counter.denied_counts)
    slots: dict[str, int] = {}
    home: Segment | None = None
    specs, states = Segment().specs, Segment().states
    one, retired, left, given = 1, False, 0, 0

    def hit(name: str, cost: int = 1) -> bool:
        nonlocal left
        acquire, release = store._acquire, store._release  # calling a local is fast, calling a slot is not
        if cost is one and left > 0:
            try:
                acquire()
                slot = slots[name]
                if home is table.young and specs[slot] is spec:
                    if (now_us := now_ns() // 1_000) < table.wake_us:
                        before = states[slot]
                        if (state := admit(before, now_us)) is not None:
                            states[slot] = state
                            left -= 1
                            stats.decisions += 1
                            return True
                        # A refusal that writes nothing ends here.
                        if refuses_free and clamp(before, now_us) is before:
                            stats.decisions += 1
                            refused(name)
                            return False
            except (KeyError, TypeError):
                pass  # A new name, or one that is none: ``otherwise`` counts the first and says what is wrong with the second.
            finally:
                release()
        return slow(name, cost)

    def slow(name: str, cost: int) -> bool:
        nonlocal home, specs, states, left, given
        if left <= 0:
            with store._lock:
                fresh = HITS_MAX if ration is None else ration()
                left, given = left + fresh, given + fresh
        allowed = otherwise(name, cost)
        with store._lock:
            if retired:
                return allowed
            if home is not table.young or len(slots) >= COUNTER_MEMO_MAX:
                slots.clear()
                home, specs, states = table.young, table.young.specs, table.young.states
            if (slot := home.slot_of(key_of(name))) is not None:
                slots[name] = slot
        return allowed

    def retire() -> None:
        nonlocal retired, home
        with store._lock:
            retired = True
            slots.clear()
            home = None

    def passed() -> int:
        with store._lock:
            return given - left

    return Hitter(hit, retire, passed)


def _unit_admit(spec: Spec) -> Callable[[State, int], State | None]:
    return spec.unit_admit() if isinstance(spec, UnitSpec) else lambda state, now_us: spec.admit(state, now_us, 1)
