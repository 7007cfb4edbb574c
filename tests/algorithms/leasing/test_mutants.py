"""The checker of the simulation notices a protocol that is wrong: each rule of leases, broken, over-admits in some seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, SlidingLog, Spec, TokenBucket
from sluicegate.algorithms.leasing import Holding, LeaseAsk, Leased, LeasedState, LeaseGrant, Ledger, Spend
from sluicegate.algorithms.leasing import leased as leased_module

pytestmark = pytest.mark.slow

MS = 1_000
SECOND = 1_000_000
BUCKET = TokenBucket(60, 200, SECOND)


class FillsUp(Leased):
    """A bucket that fills up to its capacity, whatever is out."""

    __slots__ = ()

    def _capped(self, base: Any, ledger: Ledger, now_us: int) -> Any:
        return base


class CreditsWrittenOff(Leased):
    """Tokens of a lease that ended without a report go back."""

    __slots__ = ()

    def settled(self, state: LeasedState, now_us: int) -> LeasedState:
        base, ledger = super().settled(state, now_us)
        back = state.ledger.out - ledger.out
        return LeasedState(base - back * self.spec.period_us if base and back else base, ledger)  # type: ignore[attr-defined]


class KeepsLost(Leased):
    """A counter of another life of the server is trusted."""

    __slots__ = ()

    def _found(self, state: Any, turn: Any) -> Any:
        return state if isinstance(state, LeasedState) else LeasedState(state, Ledger(turn.incarnation))


class CountsFromReceipt(Holding):
    """A lease is counted from the moment its answer came."""

    __slots__ = ()

    def answered(self, ask: LeaseAsk, grant: LeaseGrant, now_us: int) -> int:
        if ask.serial in self._asked:
            self._asked[ask.serial] = now_us
        return super().answered(ask, grant, now_us)


class SpendsWhileClosing(Holding):
    """A return is sent before the holder's own share is lowered."""

    __slots__ = ()

    def ask(self, now_us: int, **options: Any) -> LeaseAsk:
        ask = super().ask(now_us, **options)
        for held in self._leases:
            held.closing = False
        return ask

    def answered(self, ask: LeaseAsk, grant: LeaseGrant, now_us: int) -> int:
        for report in ask.reports:
            for held in self._leases:
                held.closing = held.closing or (report.closed and held.serial == report.serial)
        return super().answered(ask, grant, now_us)


class AddsTwice(Holding):
    """An answer that comes twice adds its tokens twice."""

    __slots__ = ()

    def answered(self, ask: LeaseAsk, grant: LeaseGrant, now_us: int) -> int:
        sent_us = self._asked.get(ask.serial)
        added = super().answered(ask, grant, now_us)
        if sent_us is not None:
            self._asked[ask.serial] = sent_us
        return added


class TrustsForEver(Holding):
    """A request concludes by a lease that has ended."""

    __slots__ = ()

    def conclude(self, spend: Spend, now_us: int) -> bool:
        super().conclude(spend, now_us)
        return True


def caught(make_world: Callable[..., Any], spec: Spec, options: dict[str, Any], **faults: Any) -> int | None:
    """The first seed whose history exceeds the bound."""
    for seed in range(60):
        if make_world(seed, spec, options, **{"settled": True, **faults}).run(3 * SECOND).excess() is not None:
            return seed
    return None


@pytest.mark.parametrize(
    ("spec", "mutant", "faults"),
    [
        (TokenBucket(60, 600, SECOND), {"leased_type": FillsUp}, {}),
        (BUCKET, {"leased_type": CreditsWrittenOff}, {}),
        (BUCKET, {"leased_type": KeepsLost}, {"failover_us": 700 * MS, "exact_us": 0, "settled": False}),
        (FixedWindow(80, 300 * MS), {"holding_type": CountsFromReceipt}, {"late": 0.5}),
        (FixedWindow(80, 300 * MS), {"holding_type": SpendsWhileClosing}, {"late": 0.5}),
        (BUCKET, {"holding_type": AddsTwice}, {"doubled": 0.5}),
        (FixedWindow(80, 300 * MS), {"holding_type": TrustsForEver}, {}),
    ],
    ids=["fills up", "credits", "keeps lost", "from receipt", "spends while closing", "adds twice", "for ever"],
)
def test_a_broken_rule_is_caught(
    make_world: Callable[..., Any], spec: Spec, mutant: dict[str, Any], faults: dict[str, Any]
) -> None:
    """A protocol with this rule broken admits more than the bound in one of sixty seeds."""
    assert caught(make_world, spec, mutant, **faults) is not None


def test_a_log_that_counts_grants_at_once_is_caught(
    make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log whose entries stand at the time of the grant instead of the lease's end admits too much."""
    monkeypatch.setattr(
        leased_module.SlidingLog, "stamped", lambda self, base, now_us, size, _end_us: self.admit(base, now_us, size)
    )
    assert caught(make_world, SlidingLog(80, 400 * MS), {}) is not None


def test_a_window_whose_leases_outlive_it_is_caught(
    make_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window whose leases do not end with it admits too much."""
    monkeypatch.setattr(leased_module, "_window_of", lambda spec, state: (state[0], state[0] + 10 * SECOND))
    assert caught(make_world, FixedWindow(80, 300 * MS), {}) is not None
