"""What one process holds of one counter: the holder's side of leases. It reads no clock and sends nothing.

The holder ends a lease before the store does, by its own clock and counted from the moment it *sent* the wish: ``usable_us``. It
lowers its own share before it tells the store that tokens go back, so no token is ever in two places.

A request takes its tokens provisionally (``spend``) and keeps or returns them when it is decided (``conclude``, ``give_back``). What
is provisional is not reported, and a lease with provisional tokens is not closed, because the store would let time give back
what is not yet used. A lease that ends first takes them with it: ``conclude`` then says False, and the request must not
pass by them.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from sluicegate.algorithms.leasing.terms import LeaseAsk, LeaseGrant, LeaseReport, LeaseTerms
from sluicegate.bounds import LEASE_REPORTS_MAX, LEASE_SERIAL_MAX, LEASE_SPENDS_MAX

__all__ = ["Holding", "Spend"]


class _Held:
    """One lease. ``taken``: spent and provisional tokens; ``pending``: the provisional ones among them.

    ``brink``: as long as not more is taken, ``take`` needs to look no further; -1 where nothing may be taken. From ``gone_us`` on the store
    knows nothing of it either.
    """

    __slots__ = ("brink", "closing", "end_us", "gone_us", "granted", "pending", "serial", "spends", "taken")

    def __init__(self, serial: int, granted: int, end_us: int, gone_us: int) -> None:
        self.serial = serial
        self.granted = granted
        self.end_us = end_us
        self.gone_us = gone_us
        self.taken = self.pending = self.spends = 0
        self.closing = False
        self.brink = -1

    def close(self) -> None:
        """From here on nothing of it is spent."""
        self.closing = True
        self.brink = -1


_NONE: Final = _Held(0, 0, 0, 0)
"""The lease that is spent of where there is none."""


class Spend(NamedTuple):
    """Tokens taken provisionally: of which leases, and how many of each. Concluded or given back once."""

    parts: tuple[tuple[_Held, int], ...]


class Holding:
    """The leases of one counter in one process, at most ``LEASE_REPORTS_MAX`` of them. ``now_us`` is always the holder's steady clock.

    Not safe under threads: its owner holds a lock. Belongs to one process: after a fork the child begins with a new one and
    under a new holder's name.
    """

    __slots__ = ("_asked", "_gone", "_head", "_leases", "_mark", "low", "serial", "terms", "wanted", "written_off")

    def __init__(self, terms: LeaseTerms, serial: int = 0) -> None:
        self.terms = terms
        self.wanted = False
        """The store asks for idle leases."""
        self.low = False
        """Less is left than ``warn_below`` said."""
        self.serial = serial
        """The last id this holder used for this counter; none is used twice."""
        self.written_off = 0
        """Tokens that ended here unspent, and that the store was not heard to take back."""
        self._leases: list[_Held] = []
        self._asked: dict[int, int] = {}
        self._head = _NONE
        self._mark = 0
        self._gone = 0

    # ------------------------------------------------------------------ spending

    def take(self, cost: int, now_us: int) -> bool:
        """Spend ``cost`` tokens (>= 1) for good, as ``spend`` and ``conclude`` in one; False where there are not so many."""
        held = self._head
        taken = held.taken + cost
        if taken <= held.brink and now_us < held.end_us:
            held.taken = taken
            return True
        return self._take_looking(cost, now_us)

    def _take_looking(self, cost: int, now_us: int) -> bool:
        """``take`` where the lease at hand does not do, or little is left."""
        if self._head is _NONE:
            return False
        self._look(now_us)
        held = self._head
        taken = held.taken + cost
        if taken <= held.granted:
            held.taken = taken
            if taken > held.brink:
                self._look(now_us)
            return True
        spend = self.spend(cost, now_us) if held is not _NONE else None
        return spend is not None and self.conclude(spend, now_us)

    def _look(self, now_us: int) -> None:
        """Find the lease to be spent of, and how far before somebody must be told that little is left."""
        head, left = _NONE, 0
        for held in self._leases:
            if now_us < held.end_us and not held.closing and held.taken < held.granted:
                left += held.granted - held.taken
                if head is _NONE:
                    head = held
        self._head = head
        if head is _NONE:
            return
        if self.low or left <= self._mark:
            self.low = True
            head.brink = head.granted
        else:
            head.brink = min(head.granted, head.taken + left - self._mark - (self._mark > 0))

    def warn_below(self, tokens: int, now_us: int) -> None:
        """``low`` is False now, and will be True when no more than so many are left; 0: never."""
        self.low = False
        self._mark = tokens
        self._look(now_us)

    @property
    def used(self) -> int:
        """Tokens that were spent of all leases there were, provisional ones included."""
        return self._gone + sum([held.taken for held in self._leases])

    def survey(self, now_us: int) -> tuple[int, int, bool]:
        """(tokens spent of all leases there were, provisional ones included; tokens that can be spent; whether something is to be closed)."""
        used, left, closing = self._gone, 0, False
        for held in self._leases:
            used += held.taken
            if now_us >= held.end_us:
                closing = True
            elif not held.closing:
                left += held.granted - held.taken
            elif not held.pending:
                closing = True
        return used, left, closing

    @property
    def count(self) -> int:
        """Leases that are held, ended and closing ones included until the store knows it."""
        return len(self._leases)

    def left(self, now_us: int) -> int:
        """Tokens that can be spent now."""
        return sum([held.granted - held.taken for held in self._leases if now_us < held.end_us and not held.closing])

    def spend(self, cost: int, now_us: int) -> Spend | None:
        """Take ``cost`` tokens (>= 1) provisionally, of the lease that ends first; None where there are not so many."""
        parts: list[tuple[_Held, int]] = []
        missing = cost
        for held in self._leases:
            if held.closing or now_us >= held.end_us or held.spends >= LEASE_SPENDS_MAX:
                continue
            part = min(held.granted - held.taken, missing)
            if part > 0:
                parts.append((held, part))
                missing -= part
                if missing == 0:
                    break
        if missing:
            return None
        for held, part in parts:
            held.taken += part
            held.pending += part
            held.spends += 1
        if not self.low and held.taken > held.brink:
            self._look(now_us)
        return Spend(tuple(parts))

    def conclude(self, spend: Spend, now_us: int) -> bool:
        """Keep the tokens: the request passes. False where a lease has ended meanwhile, and the request must not pass by it."""
        alive = True
        for held, part in spend.parts:
            held.pending -= part
            held.spends -= 1
            alive = alive and now_us < held.end_us
        return alive

    def give_back(self, spend: Spend) -> None:
        """Return the tokens of a request that did not pass. Those of a lease that has ended are dropped."""
        for held, part in spend.parts:
            held.pending -= part
            held.taken -= part
            held.spends -= 1
            if self._head is _NONE:
                self._head = held

    # ------------------------------------------------------------------ talking to the store

    def ask(
        self,
        now_us: int,
        *,
        want: int = 0,
        share: int = 1,
        close: bool = False,
        settled: bool = False,
        cautious: bool = False,
        life: str = "",
    ) -> LeaseAsk:
        """What to send now: reports of all leases and (``want`` >= 1) a wish. ``close``: give back what is idle.

        It may be lost or come twice. ``granted`` takes the answer to the wish, by the ask's ``serial``; ``answered`` confirms the reports.
        """
        self._forget_gone(now_us)
        reports: list[LeaseReport] = []
        for held in self._leases:
            if now_us >= held.end_us:
                # What was left goes back, in the time by which the store waits longer. What is provisional does not pass any more.
                held.end_us = 0
                held.close()
            elif (close or held.taken == held.granted) and not held.pending:
                # From here on nothing of it is spent, whether or not the store hears of it.
                held.close()
            closed = held.closing and (not held.pending or held.end_us == 0)
            reports.append(LeaseReport(held.serial, held.taken - held.pending, closed))
        serial = 0
        if want > 0 and len(self._leases) < LEASE_REPORTS_MAX and self.serial < LEASE_SERIAL_MAX:
            self.serial = serial = self.serial + 1
            self._asked[serial] = now_us
        return LeaseAsk(
            tuple(reports),
            serial,
            want if serial else 0,
            share,
            settled,
            cautious=cautious,
            life=life if settled else "",
        )

    def answered(self, ask: LeaseAsk, grant: LeaseGrant, now_us: int) -> int:
        """Take the store's answer to an ask; returns the tokens that were added. Answers may be late or come twice.

        What no replica has is not spent: the next ask gives it back.
        """
        self.wanted = grant.wanted
        self._remove({report.serial for report in ask.reports if report.closed})
        sent_us = self._asked.pop(ask.serial, None)
        if sent_us is None or grant.granted == 0:
            return 0
        end_us = sent_us + self.terms.usable_us(grant.lasts_us)
        if now_us >= end_us:
            return 0
        held = _Held(ask.serial, grant.granted, end_us, now_us + grant.lasts_us)
        self._leases.append(held)
        self._leases.sort(key=_end_us)
        if not grant.confirmed:
            held.close()
            return 0
        self._look(now_us)
        return grant.granted

    def failed(self, ask: LeaseAsk) -> None:
        """No answer to an ask will be waited for; one that comes all the same adds nothing."""
        self._asked.pop(ask.serial, None)

    def freeze(self) -> None:
        """Spend nothing more, as the limit must bind at once; what requests hold provisionally may still pass. The next ask gives it all back."""
        for held in self._leases:
            held.close()

    def close_surplus(self, surplus: int) -> None:
        """Stop to spend of leases of which no more than ``surplus`` tokens are left together, those that end last first. The next ask closes them."""
        for held in reversed(self._leases):
            left = held.granted - held.taken
            if not held.closing and not held.pending and left <= surplus:
                surplus -= left
                held.close()

    def drop(self) -> None:
        """Spend nothing more: the store was replaced, or the process forked. Provisional tokens end too."""
        for held in self._leases:
            held.end_us = 0
            held.close()
            self._gone += held.taken
        self._leases.clear()
        self._asked.clear()
        self._head = _NONE

    def _forget_gone(self, now_us: int) -> None:
        gone = [held for held in self._leases if now_us >= held.gone_us]
        if gone:
            self.written_off += sum([held.granted - held.taken + held.pending for held in gone])
            self._remove({held.serial for held in gone})

    def _remove(self, serials: AbstractSet[int]) -> None:
        if serials:
            self._gone += sum([held.taken for held in self._leases if held.serial in serials])
            self._leases = [held for held in self._leases if held.serial not in serials]


def _end_us(held: _Held) -> int:
    return held.end_us
