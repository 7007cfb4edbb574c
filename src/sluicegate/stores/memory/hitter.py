"""The shortest way to a yes: one counter, cost 1, nothing but the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sluicegate.algorithms.spec import Spec, State
from sluicegate.bounds import COUNTER_MEMO_MAX
from sluicegate.stores.base import Counter, Hitter
from sluicegate.stores.memory.segment import Segment
from sluicegate.stores.memory.table import CounterTable

if TYPE_CHECKING:
    from sluicegate.stores.memory.store import MemoryStore

__all__ = ["make_hitter"]


def make_hitter(
    store: MemoryStore,
    table: CounterTable,
    counter: Counter,
    key_of: Callable[[str], str],
    otherwise: Callable[[str, int], bool],
    refused: Callable[[], None],
) -> Hitter:
    """The fast path of one counter of ``store``.

    ``slots`` holds, by name, slots of the segment ``home``. It is read and written under the store's lock, and good only
    while ``home`` is the young segment; a slot whose counter has gone has no spec, so it is never taken for another's.
    """
    spec = counter.spec
    admit, clamp, stats, now_ns = spec.admit, spec.clamp, store.stats, store._now_ns
    refuses_free = not (counter.shadow or counter.denied_counts)
    slots: dict[str, int] = {}
    home: Segment | None = None
    specs: list[Spec | None] = []
    states: list[State | None] = []
    one = 1

    def hit(name: str, cost: int = 1) -> bool:
        # Bound methods are put in locals first: reading a slot and calling are fast, calling a slot is not.
        acquire, release = store._acquire, store._release
        if cost is one:
            try:
                acquire()
                slot = slots[name]
                if home is table.young and specs[slot] is spec:
                    now_us = now_ns() // 1_000
                    if now_us < table.wake_us:
                        before = states[slot]
                        state = admit(before, now_us, 1)
                        if state is not None:
                            states[slot] = state
                            stats.decisions += 1
                            return True
                        # A refusal that writes nothing ends here: whoever is over the limit may well ask the most often.
                        if refuses_free and clamp(before, now_us) is before:
                            stats.decisions += 1
                            refused()
                            return False
            except KeyError:
                pass
            finally:
                release()
        return slow(name, cost)

    def slow(name: str, cost: int) -> bool:
        nonlocal home, specs, states
        allowed = otherwise(name, cost)
        with store._lock:
            if retired:
                return allowed
            if home is not table.young or len(slots) >= COUNTER_MEMO_MAX:
                slots.clear()
                home = table.young
                specs, states = home.specs, home.states
            slot = home.slot_of(key_of(name))
            if slot is None:
                slots.pop(name, None)
            else:
                slots[name] = slot
        return allowed

    retired = False

    def retire() -> None:
        nonlocal retired, home
        with store._lock:
            retired = True
            slots.clear()
            home = None

    return Hitter(hit, retire)
