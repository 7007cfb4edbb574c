"""One counter of which this process takes tokens in advance: what it holds, and how much it asks for and when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from sluicegate.algorithms import FixedWindow, SlidingWindow, TokenBucket
from sluicegate.algorithms.leasing import Holding, LeaseAsk, LeaseGrant, LeaseTerms, Spend
from sluicegate.bounds import (
    COST_MAX,
    LEASE_BEGIN_REQUESTS,
    LEASE_GAP_US_MAX,
)
from sluicegate.clock import US_PER_S
from sluicegate.stores.base import Counter
from sluicegate.stores.near.lives import Lives

__all__ = ["LeasedCounter", "View", "Wake"]

_LOW_PART: Final = 0.3
"""Tokens are asked for when less than this part of what is used within one horizon is left."""
_SLOWLY_US: Final = US_PER_S
"""A rate that falls is believed over so long; one that rises at once."""
_TICKS: Final = 4
"""Looks of the keeper in one horizon."""
_CALM_HALF_TICKS: Final = 5
"""Half ticks for which a counter is not looked at that holds more than enough. It says so itself when that changes."""
_FAR: Final = 3
"""Horizons that are taken ahead where there is plenty."""
_FAR_WINDOW: Final = 50
"""Windows of fewer horizons are not taken far ahead of."""
_PLENTY: Final = 4
"""There is plenty where half of the limit is left, and so many leases for everybody."""
_SOON: Final = 16
"""A window that ends within this part of a tick is waited for: what it grants would hardly arrive."""
_CONTENDED: Final = 2
"""Answers in a row that brought less than wanted, while little was left, after which a counter counts as contended."""


class View(NamedTuple):
    """What a counter needs to know of the others: ``tick_us``, the pace of asking; processes in the fleet; lives of servers; a draw of 0..1."""

    tick_us: int
    horizon_us: int
    nodes: int
    lives: Lives
    draw: Callable[[], float]


Wake: TypeAlias = Callable[["LeasedCounter"], None]
"""Called by a counter that was idle and is asked for again."""


class LeasedCounter(Holding):
    """A counter's leases in this process, with their pace. ``take``, ``spend`` and the like: see ``Holding``.

    ``low``: the store should be asked soon; whoever sees it pokes the keeper. Belongs to ``Leases``; not safe under threads, and not to be kept
    over a fork.
    """

    __slots__ = (
        "_ask_us",
        "_asked_us",
        "_busy_us",
        "_came",
        "_contended",
        "_denied_cost",
        "_denied_us",
        "_exact_us",
        "_gap_us",
        "_horizon_us",
        "_leases_seen",
        "_life",
        "_measured_us",
        "_missed",
        "_misses",
        "_pause_us",
        "_rate",
        "_seen",
        "_span_us",
        "_store_at_us",
        "_store_us",
        "_wake",
        "_want",
        "active",
        "calm_us",
        "counter",
        "key",
        "leasable",
        "level",
        "retiring",
        "subject",
        "turn_us",
        "under_way",
    )

    def __init__(
        self,
        counter: Counter,
        subject: str,
        terms: LeaseTerms,
        serial: int,
        horizon_us: int,
        now_us: int,
        wake: Wake,
    ) -> None:
        super().__init__(terms, serial)
        self.counter = counter
        self.subject = subject
        self.key = counter.prefix + subject
        self.leasable = True
        """False: it is decided exactly, and what is held goes back."""
        self.retiring = False
        """It becomes an exact counter when nothing of it is out."""
        self.active = False
        """Its keeper looks at it with every tick; it has said so by ``wake``."""
        self.under_way: LeaseAsk | None = None
        """The ask that is not answered yet."""
        self.calm_us = 0
        """Until then nothing is to be said, unless it is ``low``."""
        self.level = 0
        """Tokens left in the store when it answered last."""
        self.turn_us = 0
        """When the window ends of which something is held, 0 for not known: then everything is new."""
        self._wake = wake
        self._horizon_us = horizon_us
        self._span_us = horizon_us
        self._rate = 0.0
        self._seen = self._missed = self._misses = self._want = 0
        self._measured_us = self._busy_us = now_us
        self._asked_us = self._ask_us = self._pause_us = self._exact_us = 0
        self._denied_us = self._denied_cost = 0
        self._came = 0
        self._gap_us = self._contended = self._leases_seen = 0
        self._life = ""
        self._store_us = self._store_at_us = 0

    # ------------------------------------------------------------------ deciding

    def _take_looking(self, cost: int, now_us: int) -> bool:
        return super()._take_looking(cost, now_us) or self._missing(cost, now_us)

    def spend(self, cost: int, now_us: int) -> Spend | None:
        """See ``Holding.spend``."""
        found = super().spend(cost, now_us)
        if found is None:
            self._missing(cost, now_us)
        return found

    def _missing(self, cost: int, now_us: int) -> bool:
        """Note that somebody asked for more than is held. Always False."""
        if not self.active:
            if now_us - self._busy_us > self._horizon_us:
                self._busy_us = self._measured_us = now_us
                self._missed = self._misses = 0
            if self._misses + 1 >= LEASE_BEGIN_REQUESTS and self.leasable:
                self.active = True
                self._wake(self)
        self._missed += cost
        self._misses += 1
        if self.active and now_us >= self._ask_us and self.under_way is None:
            self.low = True
        return False

    def waits_us(self, cost: int, now_us: int) -> int | None:
        """Microseconds (>= 1) until tokens may come, where the counter is contended: refuse for so long. None: ask the store.

        To be asked when ``take`` or ``spend`` got nothing. A contended counter still lets one question of a cost that was larger than its last
        lease through with every ask, so that it gets its turn.
        """
        if now_us < self._denied_us and cost >= self._denied_cost:
            return self._denied_us - now_us
        if self._contended < _CONTENDED or now_us > self._ask_us + LEASE_GAP_US_MAX:
            return None
        if cost > self._came and now_us >= self._exact_us:
            self._exact_us = now_us + max(self._gap_us, 1)
            return None
        return max(self._ask_us - now_us, 1)

    def denied(self, cost: int, retry_after_us: int, now_us: int) -> None:
        """The store refused this cost: it is not asked again before it said, and while leases are shared out, no sooner than they can come."""
        wait_us = self.terms.usable_us(min(retry_after_us, LEASE_GAP_US_MAX))
        if self.active and retry_after_us < self._ask_us - now_us:
            # Tokens come back sooner than this counter meant to ask.
            self._ask_us = max(self._asked_us + self._horizon_us // _TICKS, now_us + retry_after_us)
        if isinstance(self.counter.spec, FixedWindow) and self.active and not self.turn_us:
            self.turn_us = now_us + retry_after_us
        if self.active:
            wait_us = max(wait_us, self._ask_us - now_us)
        self._denied_us = now_us + wait_us
        self._denied_cost = cost
        self._exact_us = min(self._exact_us, self._denied_us)

    def forget(self) -> None:
        """Something may have come back: nothing that was refused is refused for that any more."""
        self._denied_us = self._contended = self._ask_us = self._gap_us = 0

    def estimate(self, now_us: int) -> tuple[int, int]:
        """(tokens that certainly pass here, microseconds in which all have come back at the latest)."""
        spec, left = self.counter.spec, self.left(now_us)
        if isinstance(spec, TokenBucket):
            return left, -(-max(spec.capacity - left, 0) * spec.window_us // max(spec.capacity, 1))
        return left, 2 * spec.window_us if isinstance(spec, SlidingWindow) else spec.window_us

    def store_now_us(self, now_us: int) -> int:
        """The store's clock now, or before that; 0 where it never answered. For receipts: what is dated too early gives back less."""
        return self._store_us + self.terms.usable_us(now_us - self._store_at_us) if self._store_us else 0

    # ------------------------------------------------------------------ asking

    def next_us(self, now_us: int) -> int:
        """When its window ends, or just before that its leases; 0 for nothing known."""
        if now_us >= self.turn_us:
            return self.turn_us
        return min([held.end_us for held in self._leases if held.end_us > now_us], default=self.turn_us)

    def plan(self, now_us: int, view: View) -> LeaseAsk | None:
        """What to say to the store now; None for nothing. ``active`` is False afterwards where nothing will be due either."""
        low, self.low = self.low, False
        used, left, closing = self.survey(now_us)
        if now_us - self._measured_us >= view.tick_us // 2:
            self._measure(used, now_us, view)
        if self.under_way is not None or now_us < self._pause_us:
            return None
        if 0 < self.turn_us <= now_us:
            # Another window: what was learned of the last one says nothing.
            self.turn_us = 0
            self.forget()
        idle_us = view.tick_us if self.wanted else view.horizon_us
        if not self.leasable or now_us - self._busy_us >= idle_us:
            return self._wind_up(now_us, view)
        span_us = self._span_us
        if self.turn_us and self.turn_us - now_us < span_us:
            span_us = self.turn_us - now_us
            if span_us < view.tick_us // _SOON:
                return None
        target = self._rate * span_us / US_PER_S
        few = self._rate * min(span_us, view.horizon_us) / US_PER_S * _LOW_PART
        if self.wanted and left > target:
            self.close_surplus(left - int(target))
            used, left, closing = self.survey(now_us)
        close = self._leftover(now_us, view, left)
        if (low or close or left <= few) and now_us >= self._ask_us:
            want = min(max(int(target) + 1 - (0 if close else left), 1), COST_MAX)
            return self._ask(now_us, view, want, close=close)
        if closing:
            return self._ask(now_us, view, 0)
        if left > 2 * few and not self.wanted:
            self.calm_us = now_us + view.tick_us * _CALM_HALF_TICKS // 2
        return None

    def _measure(self, used: int, now_us: int, view: View) -> None:
        """Learn how fast tokens are asked for: a rise is believed within two ticks, a fall over ``_SLOWLY_US``."""
        passed_us = now_us - self._measured_us
        tokens = used - self._seen + self._missed
        rate = tokens * US_PER_S / passed_us
        part = passed_us / (2 * view.tick_us if rate > self._rate else _SLOWLY_US)
        self._rate = max(self._rate + (rate - self._rate) * min(1.0, part), 0.0)
        if tokens > 0:
            self._busy_us = now_us
        self._seen, self._missed, self._measured_us = used, 0, now_us

    def _leftover(self, now_us: int, view: View, left: int) -> bool:
        """Whether a lease is about to end of which more is left than will be used: it goes back, and another is asked for."""
        if not left or self.turn_us:
            return False
        ends_us = self._leases[0].end_us - now_us
        if ends_us <= 0:
            ends_us = min([held.end_us for held in self._leases if held.end_us > now_us]) - now_us
        return ends_us <= 2 * view.tick_us and left > 1 + 1.5 * self._rate * max(ends_us, 0) / US_PER_S

    def _wind_up(self, now_us: int, view: View) -> LeaseAsk | None:
        """Give back what is held; when all has gone back there is nothing more to do."""
        self._forget_gone(now_us)
        if self._leases:
            return self._ask(now_us, view, 0, close=True)
        self.warn_below(0, now_us)
        self.forget()
        self.active = False
        self._rate = 0.0
        self._misses = self._missed = self.turn_us = 0
        return None

    def close_all(self, now_us: int, view: View) -> LeaseAsk | None:
        """The last words of a process: all that is held goes back."""
        self.leasable = False
        self._forget_gone(now_us)
        return self._ask(now_us, view, 0, close=True) if self._leases else None

    def _ask(self, now_us: int, view: View, want: int, *, close: bool = False) -> LeaseAsk:
        lives, life = view.lives, self._life or view.lives.latest
        nodes = min(self._leases_seen, view.nodes) if self._leases_seen else view.nodes
        ask = self.ask(
            now_us,
            want=want,
            share=(max(nodes, 1) + 2) // 2,
            close=close,
            settled=lives.settled(life, now_us),
            life=life,
            # Who holds a lease knows that a counter without any has lost it. Others do not say so of one that may just be new.
            cautious=not any(now_us < held.end_us for held in self._leases),
        )
        if self.retiring and not want:
            ask = ask._replace(retire=True)
        self.under_way = ask
        self._want = ask.want
        self.warn_below(0, now_us)
        if ask.want:
            self._asked_us = now_us
        return ask

    def returning(self, ask: LeaseAsk) -> int:
        """Tokens that go back with an ask."""
        spent = {report.serial: report.spent for report in ask.reports if report.closed}
        return sum([held.granted - spent[held.serial] for held in self._leases if held.serial in spent])

    def hear(self, ask: LeaseAsk, grant: LeaseGrant, now_us: int, view: View) -> int:
        """Take the answer to the ask that is under way; returns the tokens that came."""
        self.under_way = None
        life = grant.incarnation
        if self._life and self._life != life:
            view.lives.doubted(self._life)
        self._life = life
        view.lives.seen(life, now_us)
        self._store_us, self._store_at_us = grant.now_us, now_us
        added = self.answered(ask, grant, now_us)
        self.level, self._leases_seen = grant.level, grant.leases
        if grant.granted and grant.lasts_us < self.terms.hold_us:
            self.turn_us = now_us + grant.lasts_us
        if ask.want:
            self._pace(grant, added, now_us, view)
            self._look_ahead(grant, view)
        self.warn_below(int(self._rate * view.horizon_us / US_PER_S * _LOW_PART), now_us)
        return added

    def _pace(self, grant: LeaseGrant, added: int, now_us: int, view: View) -> None:
        """When to ask again, and whether there is too little for all."""
        spec, tick_us = self.counter.spec, view.tick_us
        self._came = added
        if added:
            self._denied_us = 0
        if grant.lost:
            self._contended = 0
            known = grant.out == 0
            self._ask_us = view.lives.settles_us(self._life, now_us) if known else now_us + self.terms.hold_us
            self._ask_us = max(self._ask_us, self._asked_us + tick_us)
            return
        short = grant.granted < self._want
        if grant.confirmed and short and 2 * grant.level <= spec.capacity:
            self._contended += 1 if grant.level else _CONTENDED
        else:
            self._contended = 0
        if not grant.granted or not grant.confirmed:
            self._gap_us = min(max(2 * self._gap_us, tick_us), LEASE_GAP_US_MAX)
        elif short:
            # No sooner than this process's part of a new token has come, or many would ask for it in vain.
            part_us = min(grant.leases, view.nodes) * spec.window_us // max(spec.capacity, 1)
            self._gap_us = min(max(tick_us, part_us), LEASE_GAP_US_MAX)
        else:
            self._gap_us = tick_us // _TICKS
        # Not always in the same order, or who asks first would always find most.
        self._ask_us = self._asked_us + int(self._gap_us * (1 + view.draw() / 2))
        if now_us < self._denied_us < self._ask_us:
            # The store has said when something comes back.
            self._ask_us = max(self._asked_us + tick_us, self._denied_us)

    def _look_ahead(self, grant: LeaseGrant, view: View) -> None:
        """Where there is plenty, take more at a time: a lease that nobody else misses costs fewer asks."""
        spec, nodes = self.counter.spec, min(grant.leases, view.nodes)
        if spec.window_us < _FAR_WINDOW * view.horizon_us and not isinstance(spec, TokenBucket):
            # What is taken far ahead would be missed by others near the end of a window.
            return
        plenty = grant.granted == self._want and grant.level >= max(spec.capacity // 2, _PLENTY * nodes * self._want)
        self._span_us = min(_FAR * view.horizon_us, self.terms.ttl_us * 3 // 5) if plenty else view.horizon_us

    def failed_to_ask(self, ask: LeaseAsk, now_us: int, view: View) -> None:
        """No answer came."""
        self.under_way = None
        self.failed(ask)
        view.lives.doubted(self._life)
        self._contended = 0
        self._gap_us = min(max(2 * self._gap_us, view.tick_us), LEASE_GAP_US_MAX)
        self._pause_us = now_us + self._gap_us
