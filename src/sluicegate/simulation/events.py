"""What happens to the fleet in each scenario, and what is told about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from sluicegate.algorithms.leasing import LeasedState
from sluicegate.algorithms.spec import State
from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.clock import US_PER_MS, US_PER_S
from sluicegate.simulation.clients import local_share
from sluicegate.simulation.plan import Scenario
from sluicegate.simulation.shared import per_second
from sluicegate.simulation.sweep import Sweep

if TYPE_CHECKING:
    from sluicegate.simulation.fleet import Fleet

__all__ = ["Event", "event_of"]

_STEP_US = 25 * US_PER_MS


class Event:
    """A quiet run: nothing happens."""

    about: ClassVar[str] = "nothing happens"

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.due_us = fleet.plan.event_us

    def at(self, _now_us: int) -> None:
        """Called at the beginning of every tick."""

    def lines(self) -> dict[str, float]:
        """What is to be told of it, by name."""
        return {}


class _Failover(Event):
    about = "the master of the global counter is lost; a replica without its last writes takes over"

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self._copied: tuple[dict[int, int | None], dict[str, LeasedState | State | None]] | None = None
        self._exact: dict[int, int] = {}
        self.lost = 0

    def at(self, now_us: int) -> None:
        fleet, plan = self.fleet, self.fleet.plan
        master = fleet.floor.master
        if self._copied is None and now_us >= self.due_us - plan.lag_us:
            self._copied = (fleet.clients.of_master(master), fleet.shared.states_of(master))
            self._exact = {index: fleet.clients.all[index].exact for index in self._copied[0]}
        if fleet.away is None and self.due_us <= now_us < self.due_us + plan.away_us:
            fleet.lose(master)
            self.lost = sum(fleet.clients.all[index].exact - exact for index, exact in self._exact.items())
        elif fleet.away is not None and now_us >= self.due_us + plan.away_us:
            fleet.away = None
            assert self._copied is not None
            fleet.clients.restore(self._copied[0])
            fleet.shared.replaced(master, self._copied[1])

    def lines(self) -> dict[str, float]:
        fleet = self.fleet
        played = [fleet.clients.all[index] for index in self._exact]
        shares = [local_share(client.spec, fleet.plan.gateways) for client in played]
        away_us = fleet.plan.away_us
        return {
            "the master is away, ms": away_us / US_PER_MS,
            "writes its replica had not, ms": fleet.plan.lag_us / US_PER_MS,
            "clients played whose counters it had": len(played),
            "their admissions that were lost": self.lost,
            "their tokens above the bound": sum(client.sweep.excess for client in played),
            "the most that is promised: what was lost and what gateways let pass by themselves": self.lost
            + sum(share.most_admitted(away_us) * fleet.plan.gateways for share in shares),
            "tokens of the global counter above its bound": fleet.floor.sweep.excess,
            "of the global counter passed by gateways' own shares": fleet.floor.share_passed,
            "checks decided without the store": round(
                fleet.clients.counts.degraded + fleet.clients.counts.degraded_refused + fleet.tail_degraded
            ),
        }


class _Viral(Event):
    about = "one client more asks for nine tenths of all checks"

    def at(self, now_us: int) -> None:
        fleet = self.fleet
        if now_us >= self.due_us and not fleet.viral_per_us:
            fleet.viral_per_us = fleet.plan.checks_per_us * fleet.plan.viral_part
            assert fleet.viral is not None
            fleet.viral.since_us = now_us

    def lines(self) -> dict[str, float]:
        fleet, viral = self.fleet, self.fleet.viral
        assert viral is not None
        risen = [gateway.promoted_us for gateway in fleet.gateways if gateway.promoted_us]
        calls = _late_calls(fleet)
        mean = sum(calls) / len(calls)
        return {
            "viral checks": viral.offered,
            "of them sent to the store": viral.asked,
            "until the first gateway leases it, ms": (min(risen) - self.due_us) / US_PER_MS if risen else -1,
            "until all gateways lease it, ms": (max(risen) - self.due_us) / US_PER_MS
            if len(risen) == len(fleet.gateways)
            else -1,
            "answered with no charge sent, in the last third, %": 100 * (1 - _late_sent(fleet)),
            "calls of the busiest master / mean, in the last third": max(calls) / mean if mean else 0.0,
            "tokens of the viral counter above its bound": viral.sweep.excess,
            "passed by gateways' own shares, while its master was too late to be asked": viral.share_passed,
        }


def _late_calls(fleet: Fleet) -> list[int]:
    """Calls by master in the last third of the run."""
    late = fleet.bins[-(len(fleet.bins) // 3 or 1) :]
    return [sum(each) for each in zip(*[one.calls for one in late], strict=True)]


def _late_sent(fleet: Fleet) -> float:
    """The part of the checks of the last third that sent a charge."""
    late = fleet.bins[-(len(fleet.bins) // 3 or 1) :]
    checks = sum(one.checks for one in late)
    return sum(one.sent for one in late) / checks if checks else 0.0


class _Rule(Event):
    about = "the global limit is lowered to half of what passes"

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.spec = per_second(0.5 * fleet.passing_per_s)
        first, last = fleet.plan.told_us
        self._told = [self.due_us + fleet.draw.uniform(first, last) for _ in fleet.gateways]
        self._changed = False

    def at(self, now_us: int) -> None:
        fleet = self.fleet
        if now_us < self.due_us:
            return
        if not self._changed:
            self._changed = True
            fleet.floor.watch()
        counter = fleet.floor.counter._replace(spec=self.spec)
        for gateway, told_us in zip(fleet.gateways, self._told, strict=True):
            if told_us <= now_us and gateway.counters[counter.name].spec != self.spec:
                gateway.told(counter, now_us)

    def lines(self) -> dict[str, float]:
        history = self.fleet.floor.history
        binds_us = self.due_us
        while _excess(self.spec, history, binds_us) > 0:
            binds_us += _STEP_US
        hold_us = self.fleet.near.terms.hold_us
        end_us = self.fleet.plan.end_us
        passed = sum(tokens for time_us, tokens in history if time_us >= binds_us)
        return {
            "new global limit, per second": self.spec.tokens * US_PER_S // self.spec.period_us,
            "the last gateway is told after, ms": (max(self._told) - self.due_us) / US_PER_MS,
            "no interval that begins later is above the new limit, ms": (binds_us - self.due_us) / US_PER_MS,
            "the most that is promised: told, and a lease's whole time, ms": (max(self._told) - self.due_us + hold_us)
            / US_PER_MS,
            "tokens above the new limit, counted from the change": _excess(self.spec, history, self.due_us),
            "passed per second after that, the burst included": passed * US_PER_S / (end_us - binds_us)
            if end_us > binds_us
            else 0,
        }


def _excess(spec: TokenBucket, history: list[tuple[int, int]], from_us: int) -> int:
    sweep = Sweep(spec)
    for time_us, tokens in history:
        if time_us >= from_us:
            sweep.admitted(time_us, tokens)
    return sweep.excess


_EVENTS: dict[Scenario, type[Event]] = {
    Scenario.STEADY: Event,
    Scenario.FAILOVER: _Failover,
    Scenario.VIRAL: _Viral,
    Scenario.RULE: _Rule,
}


def event_of(scenario: Scenario) -> type[Event]:
    """What happens in it."""
    return _EVENTS[scenario]
