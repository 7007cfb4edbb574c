"""What the log of an application says of its store: one warning when it goes away, one when it is back.

Servers have a watch for that, which asks the store each second. A door has none: it learns of an outage by the calls that fail, and of its end
by the first that is answered. So that a store that comes and goes does not fill the log, an outage is told ``_GAP_US`` after the last
one at the earliest; if it is still there then, with the next call that fails.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Final

from sluicegate.clock import US_PER_S, Clock
from sluicegate.errors import StoreError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.model import FailurePolicy, Mode, Rule
from sluicegate.stores.base import FleetStore
from sluicegate.stores.locks import Locked

__all__ = ["OutageNews", "tell_outages"]

_GAP_US: Final = 10 * US_PER_S
_NAMES_MAX: Final = 5
"""Rules named per policy; a log line is not a rules file."""

_log = logging.getLogger("sluicegate.doors")

_WAYS: Final = {
    FailurePolicy.LOCAL: "count in this process (local)",
    FailurePolicy.OPEN: "let everything pass (open)",
    FailurePolicy.CLOSED: "refuse everything (closed)",
}


class OutageNews(Locked):
    """Tells of the outages of one store. Safe from any thread. ``store``: its name in the log."""

    def __init__(self, store: str, clock: Clock) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._told_us: int | None = None
        """When an outage was told of; None where none was yet."""
        self._down = False

    def failed(self, error: str, rules: Iterable[Rule]) -> None:
        """A call failed; ``rules`` are those that are decided without the store."""
        now_us = self._clock.monotonic_us()
        with self._lock:
            if self._down or (self._told_us is not None and now_us - self._told_us < _GAP_US):
                return
            self._down = True
            self._told_us = now_us
        _log.warning("%s fails: %s; until it answers, %s", self._store, error, _policies(rules))

    def answered(self) -> None:
        """A call was answered."""
        with self._lock:
            if not self._down or self._told_us is None:
                return
            self._down = False
            away_us = self._clock.monotonic_us() - self._told_us
        _log.warning("%s answers again, after %d s", self._store, away_us // US_PER_S)

    def follow(self, limiter: Limiter) -> None:
        """Listen to a limiter on this store."""
        limiter.tell_outages(partial(self._heard, weakref.ref(limiter)))

    def _heard(self, limiter: weakref.ref[Limiter], error: StoreError | None) -> None:
        if error is None:
            self.answered()
            return
        found = limiter()
        self.failed(str(error), () if found is None else found.ruleset.rules)


_known: weakref.WeakKeyDictionary[Limiter, OutageNews] = weakref.WeakKeyDictionary()


def tell_outages(base: Limiter, limiter: Limiter | None = None) -> None:
    """Log the outages of the store of ``base``, and what ``limiter``, which is on the same store, learns of them; None: ``base``.

    A store that is known to be away already, as at the start of a program, is told of at once.
    """
    news = _known.get(base)
    if news is None:
        news = _known.setdefault(base, OutageNews(f"the store {base.store!r}", base.clock))
        news.follow(base)
    if limiter is not None:
        news.follow(limiter)
    elif isinstance(base.store, FleetStore):
        down = [server for server in base.store.health() if server.state in ("down", "failing")]
        if down:
            news.failed(f"{down[0].address}: {down[0].error}", base.ruleset.rules)


def _policies(rules: Iterable[Rule]) -> str:
    by_policy: dict[FailurePolicy, list[str]] = {}
    for rule in rules:
        if rule.mode is not Mode.OFF:
            by_policy.setdefault(rule.on_store_failure, []).append(rule.name)
    if not by_policy:
        return "limits beside routes go by their on_store_failure"
    return ", ".join(f"{_named(names)} {_WAYS[policy]}" for policy, names in by_policy.items())


def _named(names: list[str]) -> str:
    more = len(names) - _NAMES_MAX
    shown = ", ".join(map(repr, names[:_NAMES_MAX]))
    return f"rules {shown}" + (f" and {more} more" if more > 0 else "")
