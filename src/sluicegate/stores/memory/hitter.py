"""The shortest way to a yes: one counter, cost 1, nothing but the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sluicegate.algorithms.spec import Spec, State, UnitSpec
from sluicegate.bounds import COUNTER_MEMO_MAX, HITS_MAX
from sluicegate.stores.base import Counter, Hitter
from sluicegate.stores.memory.segment import Segment

if TYPE_CHECKING:
    from sluicegate.stores.memory.store import MemoryStore

__all__ = ["make_hitter"]


def make_hitter(
    store: MemoryStore,
    counter: Counter,
    key_of: Callable[[str], str],
    otherwise: Callable[[str, int], bool],
    refused: Callable[[str], None],
    ration: Callable[[], int] | None = None,
) -> Hitter:
    """The fast path of one counter of ``store``.

    ``slots`` holds, by name, slots of the segment ``home``. It is read and written under the store's lock, and good only
    while ``home`` is the young segment; a slot whose counter has gone has no spec, so it is never taken for another's.
    """
    spec, table, stats, now_ns = counter.spec, store._table, store.stats, store._now_ns
    admit, clamp = _unit_admit(spec), spec.clamp
    refuses_free = not (counter.shadow or counter.denied_counts)
    slots: dict[str, int] = {}
    home: Segment | None = None
    specs, states = Segment().specs, Segment().states
    one, retired = 1, False
    left, given = 0, 0

    def hit(name: str, cost: int = 1) -> bool:
        nonlocal left
        # Bound methods are put in locals first: reading a slot and calling are fast, calling a slot is not.
        acquire, release = store._acquire, store._release
        if cost is one and left > 0:
            try:
                acquire()
                slot = slots[name]
                if home is table.young and specs[slot] is spec:
                    now_us = now_ns() // 1_000
                    if now_us < table.wake_us:
                        before = states[slot]
                        state = admit(before, now_us)
                        if state is not None:
                            states[slot] = state
                            left -= 1
                            stats.decisions += 1
                            return True
                        # A refusal that writes nothing ends here: whoever is over the limit may well ask the most often.
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
                home = table.young
                specs, states = home.specs, home.states
            slot = home.slot_of(key_of(name))
            if slot is not None:
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
