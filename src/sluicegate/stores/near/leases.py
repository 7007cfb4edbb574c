"""All counters of which this process takes tokens in advance."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from sluicegate.algorithms import Precision
from sluicegate.algorithms.leasing import HOLDER_CHARS, LeaseAsk, LeaseGrant, can_lease
from sluicegate.bounds import LEASE_STEP_ITEMS_MAX
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.near.counter import LeasedCounter, View
from sluicegate.stores.near.lives import Lives
from sluicegate.stores.near.settings import NearSettings

__all__ = ["LeaseCounts", "Leases"]

_TICKS: Final = 4


class LeaseCounts:
    """What happened to leases in this process: ``asks`` (one per counter and call), tokens ``granted`` and ``returned``, asks that ``failed``;
    tokens that were ``written_off``: their lease ended before they were spent or known to be given back.
    """

    __slots__ = ("asks", "failed", "granted", "returned", "written_off")

    def __init__(self) -> None:
        self.asks = self.failed = self.granted = self.returned = self.written_off = 0


class Leases:
    """The leases of a process: at most ``leases_max`` counters at one time. Pure: no clock, no lock, no I/O.

    ``step`` says what to send; every list it returned is handed to ``answered`` with what came, in any order. ``now_us`` is always
    the steady clock. ``holder``: the name this process has in stores. ``nodes``: processes in the fleet, to be set by whoever knows. ``draw``: a
    random number of 0..1, to spread asks.
    """

    __slots__ = (
        "_active",
        "_closed",
        "_draw",
        "_entries",
        "_idle",
        "_in_step",
        "_lives",
        "_nodes",
        "_scan_us",
        "_serial",
        "_settings",
        "_sizes",
        "_turn_us",
        "_view",
        "_woken",
        "counts",
        "holder",
    )

    def __init__(self, settings: NearSettings, draw: Callable[[], float] | None = None) -> None:
        self._settings = settings
        self._draw = draw or secrets.SystemRandom().random
        self._lives = Lives(settings.terms)
        self._nodes = 1
        self._closed = False
        self._serial = 0
        self.counts = LeaseCounts()
        self._view = self._made_view()
        self._begin()

    def _begin(self) -> None:
        self.holder = secrets.token_hex(HOLDER_CHARS // 2)
        self._entries: dict[str, LeasedCounter] = {}
        self._active: dict[str, LeasedCounter] = {}
        # A plain dict finds its first key behind all that were deleted before it.
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._woken: list[LeasedCounter] = []
        # Per prefix: its counter and whether that is large enough. Hysteresis needs to know what it was.
        self._sizes: dict[str, tuple[Counter, bool]] = {}
        self._scan_us = self._turn_us = 0

    def forked(self) -> None:
        """In a child: another holder, which holds nothing and spends nothing of its parent's."""
        for entry in self._entries.values():
            entry.drop()
        self.counts = LeaseCounts()
        self._begin()

    @property
    def tick_us(self) -> int:
        """The pace at which the store is asked."""
        return self._settings.horizon_us // _TICKS

    @property
    def nodes(self) -> int:
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: int) -> None:
        if nodes != self._nodes and nodes >= 1:
            self._nodes = nodes
            self._view = self._made_view()
            sizes = [(prefix, counter, large) for prefix, (counter, large) in self._sizes.items()]
            self._sizes = {prefix: (counter, self._is_large(counter, was=large)) for prefix, counter, large in sizes}
            for entry in self._entries.values():
                self._set_leasable(entry)

    def _made_view(self) -> View:
        return View(self.tick_us, self._settings.horizon_us, self._nodes, self._lives, self._draw)

    def __len__(self) -> int:
        """Counters in the table."""
        return len(self._entries)

    @property
    def held(self) -> int:
        """Counters of which something is held, or that are about to ask."""
        return len(self._active) + len(self._woken)

    # ------------------------------------------------------------------ finding

    def find(self, counter: Counter, subject: str, now_us: int) -> LeasedCounter | None:
        """The counter's leases here. None: it is decided exactly.

        So is one that is not to be leased, is too small for the number of processes, is ``AUTO`` and was not promoted, or finds no room.
        """
        found = self._entries.get(counter.prefix + subject)
        if found is not None and found.counter is counter:
            return found if found.leasable else None
        if counter.precision is not Precision.LEASED and found is None:
            return None
        return self._find_looking(counter, subject, found, now_us)

    def _find_looking(
        self, counter: Counter, subject: str, found: LeasedCounter | None, now_us: int
    ) -> LeasedCounter | None:
        """``find`` of a counter that is new or has other numbers."""
        if found is None:
            return self._entered(counter, subject, now_us)
        if found.counter.spec != counter.spec:
            # A lower limit binds here at once; in the fleet when older leases have ended.
            found.freeze()
            found.forget()
        found.counter = counter
        self._set_leasable(found)
        return found if found.leasable else None

    def _entered(self, counter: Counter, subject: str, now_us: int) -> LeasedCounter | None:
        if self._closed or not self._fits(counter):
            return None
        if len(self._entries) >= self._settings.leases_max and not self._made_room():
            return None
        settings = self._settings
        entry = LeasedCounter(
            counter, subject, settings.terms, self._serial, settings.horizon_us, now_us, self._woken.append
        )
        self._entries[entry.key] = entry
        self._idle[entry.key] = None
        return entry

    def _made_room(self) -> bool:
        """Forget the counter that has been idle for longest."""
        while self._idle:
            key = next(iter(self._idle))
            del self._idle[key]
            entry = self._entries[key]
            # One that has just woken up is idle no more, though no step has seen it yet.
            if not entry.active:
                self._leave(entry)
                return True
        return False

    def _leave(self, entry: LeasedCounter) -> None:
        """Whoever still has this object gets nothing of it, and an id is never used twice, also where the counter comes back."""
        del self._entries[entry.key]
        entry.leasable = False
        self._serial = max(self._serial, entry.serial)

    def _fits(self, counter: Counter) -> bool:
        known = self._sizes.get(counter.prefix)
        if known is not None and (known[0] is counter or known[0].spec == counter.spec):
            return known[1]
        if len(self._sizes) >= self._settings.leases_max:
            self._sizes.clear()
        large = self._is_large(counter, was=False)
        self._sizes[counter.prefix] = (counter, large)
        return large

    def _is_large(self, counter: Counter, *, was: bool) -> bool:
        settings, spec = self._settings, counter.spec
        least = settings.exact_below * self._nodes
        if was:
            least = least * 4 // 5
        return spec.capacity >= least and can_lease(spec, settings.horizon_us, settings.terms)

    def _set_leasable(self, entry: LeasedCounter) -> None:
        wanted = entry.counter.precision is Precision.LEASED or (
            entry.counter.precision is Precision.AUTO and not entry.retiring
        )
        entry.leasable = wanted and not self._closed and self._fits(entry.counter)

    def promote(self, counter: Counter, subject: str, now_us: int) -> bool:
        """A hot ``AUTO`` counter is leased from now on, as far as its size and the table allow; whether it is."""
        entry = self._entries.get(counter.prefix + subject) or self._entered(counter, subject, now_us)
        if entry is None:
            return False
        entry.retiring = False
        entry.counter = counter
        self._set_leasable(entry)
        return entry.leasable

    def used(self, key: str) -> int | None:
        """Tokens that were ever spent here of a counter's leases; None where it has none."""
        entry = self._entries.get(key)
        return None if entry is None else entry.used

    def retire(self, key: str) -> None:
        """A counter that was promoted is exact again: what is held of it goes back."""
        entry = self._entries.get(key)
        if entry is None or entry.counter.precision is Precision.LEASED:
            return
        entry.retiring = True
        entry.leasable = False
        entry.freeze()

    def forget(self, keys: Iterable[str] | None) -> None:
        """Something may have come back to these counters, None: to any. Nothing is refused here for what was known before."""
        entries = (
            self._entries.values() if keys is None else [entry for key in keys if (entry := self._entries.get(key))]
        )
        for entry in entries:
            entry.forget()

    def drop(self, keys: Iterable[str] | None) -> None:
        """Spend nothing more of what is held of these counters, None: of any; it goes back with the next step. For resets and lowered limits."""
        for entry in (
            self._entries.values() if keys is None else [self._entries[key] for key in keys if key in self._entries]
        ):
            entry.freeze()
            entry.forget()

    # ------------------------------------------------------------------ talking to the store

    def step(self, now_us: int) -> list[LeaseItem]:
        """What to send now, at most ``LEASE_STEP_ITEMS_MAX`` items; each counter waits for its answer before it says more."""
        for entry in self._woken:
            if self._entries.get(entry.key) is entry:
                self._active[entry.key] = entry
                self._idle.pop(entry.key, None)
        self._woken.clear()
        ticks = now_us >= self._scan_us or now_us >= self._turn_us > 0
        items: list[LeaseItem] = []
        view, counts = self._view, self.counts
        turn_us, rest = 0, False
        for key, entry in list(self._active.items()):
            if not entry.low and (not ticks or now_us < entry.calm_us):
                if ticks and entry.turn_us and (turn_us == 0 or entry.turn_us < turn_us):
                    turn_us = entry.turn_us
                continue
            if len(items) >= LEASE_STEP_ITEMS_MAX:
                rest = True
                break
            before = entry.written_off
            ask = entry.plan(now_us, view)
            counts.written_off += entry.written_off - before
            if ask is not None:
                items.append(LeaseItem(entry.counter, entry.subject, ask))
            elif not entry.active and entry.under_way is None:
                self._settle(key, entry)
            if entry.turn_us:
                next_us = entry.next_us(now_us)
                if turn_us == 0 or next_us < turn_us:
                    turn_us = next_us
        if ticks:
            self._turn_us = turn_us
            self._scan_us = now_us if rest else now_us + self.tick_us
        counts.asks += len(items)
        return items

    def _settle(self, key: str, entry: LeasedCounter) -> None:
        """A counter of which nothing is held any more."""
        del self._active[key]
        if entry.leasable:
            self._idle[key] = None
        else:
            self._leave(entry)

    def answered(self, items: Sequence[LeaseItem], grants: Sequence[LeaseGrant | StoreError], now_us: int) -> list[str]:
        """Take what came for what a step said. Returns the keys of which tokens went back while somebody was refused: news for others."""
        news: list[str] = []
        counts, view = self.counts, self._view
        for item, grant in zip(items, grants, strict=True):
            entry = self._entries.get(item.counter.prefix + item.subject)
            if entry is None or entry.under_way is not item.ask:
                continue
            if isinstance(grant, StoreError):
                counts.failed += 1
                entry.failed_to_ask(item.ask, now_us, view)
                continue
            back, wanted = entry.returning(item.ask), entry.wanted or grant.wanted
            counts.granted += entry.hear(item.ask, grant, now_us, view)
            counts.returned += back
            if back and wanted:
                news.append(entry.key)
            if entry.turn_us and (self._turn_us == 0 or entry.next_us(now_us) < self._turn_us):
                self._turn_us = entry.next_us(now_us)
        return news

    def next_due_us(self) -> int | None:
        """When ``step`` has something to look at, if nobody pokes before; None while nothing is held."""
        if self._woken:
            return 0
        if not self._active:
            return None
        return min(self._scan_us, self._turn_us) if self._turn_us else self._scan_us

    def close(self, now_us: int) -> list[LeaseItem]:
        """The last step: nothing is found any more, and all that is held goes back."""
        self._closed = True
        items: list[LeaseItem] = []
        for entry in self._entries.values():
            ask: LeaseAsk | None = entry.close_all(now_us, self._view)
            if ask is not None:
                items.append(LeaseItem(entry.counter, entry.subject, ask))
        return items
