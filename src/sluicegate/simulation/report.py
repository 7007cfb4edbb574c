"""What a run of the fleet model says: numbers for machines, a table and a chart for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluicegate.clock import US_PER_MS, US_PER_S
from sluicegate.simulation.clients import Client
from sluicegate.simulation.fleet import BIN_US, Fleet
from sluicegate.simulation.masters import Latencies
from sluicegate.simulation.plan import FleetPlan
from sluicegate.simulation.shared import SharedCounter

__all__ = ["FleetReport", "report_of"]

_PARTS = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
_BAR = 40
_SPARKS = " ▁▂▃▄▅▆▇█"
_CERTAIN = 1.2
"""A client that asks for so many times its limit can use all of it, whatever chance does."""


@dataclass(frozen=True, slots=True)
class FleetReport:
    """``to_dict`` for machines; ``text`` for people. The same plan and costs give the same report."""

    plan: dict[str, Any]
    costs: dict[str, Any]
    checks: dict[str, float]
    latency_us: dict[str, dict[str, float]]
    masters: list[dict[str, float]]
    clients: dict[str, float]
    counters: list[dict[str, Any]]
    process: dict[str, float]
    scenario: dict[str, Any]
    timeline: list[dict[str, Any]]
    assumptions: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def text(self) -> str:
        """Tables, charts, and what is measured and what is not."""
        plan, costs = self.plan, self.costs
        head = (
            f"Fleet: {plan['gateways']:,} gateways x {plan['rate']:,} checks/s, {plan['keys']:,} live clients, {plan['masters']} masters; "
            f"scenario {plan['scenario']}, {plan['seconds']:g} s, seed {plan['seed']}"
        )
        lines = [head, "", *_rows("Checks", self.checks)]
        lines += [
            "",
            *self._latency_lines(),
            "",
            *self._master_lines(),
            "",
            *_rows("Clients' own counters", self.clients),
        ]
        lines += ["", *self._counter_lines(), "", *_rows("Processor time of a gateway", self.process)]
        if len(self.scenario) > 1:
            about = self.scenario["about"]
            lines += ["", *_rows(f"Scenario: {about}", {k: v for k, v in self.scenario.items() if k != "about"})]
        lines += ["", *self._charts()]
        lines += [
            "",
            f"Measured ({costs['machine']}, {costs['server']}, {costs['python']}, {costs['date']}), in microseconds:",
        ]
        lines += [f"  {name} {value:g}" for name, value in costs.items() if isinstance(value, float)]
        lines += ["Modelled, each an assumption:", *[f"  - {line}" for line in self.assumptions]]
        return "\n".join(lines)

    def _latency_lines(self) -> list[str]:
        names = [*_PARTS, "max"]
        rows = [["Latency, microseconds", *names]]
        rows += [[name, *[f"{values[part]:,.0f}" for part in names]] for name, values in self.latency_us.items()]
        return _columns(rows)

    def _master_lines(self) -> list[str]:
        rows = [["Masters", "calls/s", "checks/s", "lease steps/s", "busy %", "late", ""]]
        most = max([one["calls_per_s"] for one in self.masters] or [0.0]) or 1.0
        for number, one in enumerate(self.masters):
            bar = "#" * round(one["calls_per_s"] / most * _BAR)
            numbers = [f"{one[name]:,.0f}" for name in ("calls_per_s", "checks_per_s", "lease_steps_per_s")]
            rows.append([f"master {number}", *numbers, f"{one['busy_percent']:.1f}", f"{one['late']:,.0f}", bar])
        return _columns(rows)

    def _counter_lines(self) -> list[str]:
        names = (
            "limit_per_s",
            "offered_per_s",
            "passed_per_s",
            "passed_by_lease_percent",
            "no_charge_percent",
            "over_admitted",
            "under_admitted_percent",
        )
        rows = [
            [
                "Shared counters",
                "limit/s",
                "offered/s",
                "passed/s",
                "by lease %",
                "no charge sent %",
                "above bound",
                "below limit %",
            ]
        ]
        rows += [[one["name"], *[_number(one[name]) for name in names]] for one in self.counters]
        return _columns(rows)

    def _charts(self) -> list[str]:
        every = BIN_US // US_PER_MS
        of = {
            "checks/s": [one["checks_per_s"] for one in self.timeline],
            "sent to the store, %": [one["sent_percent"] for one in self.timeline],
            "calls/s, busiest master": [max(one["calls_per_s"]) for one in self.timeline],
            f"passed/s, counter {self.plan['watched']}": [one["passed_per_s"] for one in self.timeline],
            "decided without store, %": [one["degraded_percent"] for one in self.timeline],
        }
        wide = max(len(name) for name in of)
        rows = [
            f"  {name.ljust(wide)} |{_spark(values)}| {_number(min(values))} to {_number(max(values))}"
            for name, values in of.items()
        ]
        return [f"Over time, one column per {every} ms:", *rows]


def report_of(fleet: Fleet) -> FleetReport:
    """The report of a fleet that was played."""
    plan, seconds = fleet.plan, fleet.plan.seconds
    watched = fleet.viral or fleet.floor
    return FleetReport(
        plan={
            "gateways": plan.gateways, "rate": plan.rate, "keys": plan.keys, "masters": plan.masters, "seconds": plan.seconds, "seed": plan.seed,
            "scenario": plan.scenario.value, "exponent": plan.exponent, "watched": watched.counter.name,
        },
        costs=asdict(fleet.costs),
        checks=_checks(fleet),
        latency_us=_latencies(fleet),
        masters=[
            {
                "calls_per_s": (one.calls + one.lease_calls) / seconds, "checks_per_s": one.checks / seconds,
                "lease_steps_per_s": one.lease_calls / seconds, "busy_percent": one.busy_us / seconds / US_PER_S * 100,
                "late": one.late,
            }
            for one in fleet.masters
        ],
        clients=_clients(fleet),
        counters=[_counter(one, plan) for one in fleet.counters],
        process=_process(fleet),
        scenario={"about": fleet.event.about, **fleet.event.lines()},
        timeline=_timeline(fleet),
        assumptions=_assumptions(fleet),
    )  # fmt: skip


def _sent(fleet: Fleet) -> float:
    viral = fleet.viral.asked if fleet.viral else 0
    return fleet.clients.counts.asked + fleet.tail_asked + viral


def _total(fleet: Fleet) -> float:
    viral = fleet.viral.offered if fleet.viral else 0
    clients = fleet.clients
    refused = sum(clients.refused_here) + sum(clients.refused_degraded)
    return clients.counts.checks + refused + fleet.tail_asked + fleet.tail_degraded + viral


def _checks(fleet: Fleet) -> dict[str, float]:
    """Where checks were decided."""
    counts, total, viral = fleet.clients.counts, _total(fleet), fleet.viral
    degraded = counts.degraded + counts.degraded_refused + sum(fleet.clients.refused_degraded) + fleet.tail_degraded
    leased = viral.leased_passed + viral.local if viral else 0
    return {
        "checks per second": total / fleet.plan.seconds,
        "refused by the deny cache, %": 100 * sum(fleet.clients.refused_here) / total,
        "viral client: decided by leases, %": 100 * leased / total,
        "asked the store, %": 100 * _sent(fleet) / total,
        "decided without their store, %": 100 * (degraded + (viral.degraded if viral else 0)) / total,
        "lease items per check, %": 100 * fleet.shared.items / total,
        "answered with no charge sent to the store, %": 100 * (1 - (_sent(fleet) + fleet.shared.items) / total),
    }


def _latencies(fleet: Fleet) -> dict[str, dict[str, float]]:
    asked, every = Latencies(), Latencies()
    for master in fleet.masters:
        asked.merge(master.latencies)
        every.merge(master.latencies)
    every.add(fleet.costs.local_check_us, max(0, round(_total(fleet)) - asked.total))
    return {
        name: {**dict(zip(_PARTS, found.at(*_PARTS.values()), strict=True)), "max": found.longest_us}
        for name, found in (("all checks", every), ("those that ask the store", asked))
    }


def _clients(fleet: Fleet) -> dict[str, float]:
    played = fleet.clients.all
    over = [client for client in played if client.over]
    due = missing = 0.0
    for client in over:
        if client.offered >= _CERTAIN * _rate(client):
            tokens = _rate(client) * fleet.plan.seconds * US_PER_S
            due += client.weight * tokens
            missing += client.weight * (tokens - client.sweep.total)
    counts = fleet.clients.counts
    return {
        "played one by one": len(played),
        "they stand for": sum(client.weight for client in played),
        "of these above their limit": sum(client.weight for client in over),
        "passed per second": (counts.admitted + counts.degraded) / fleet.plan.seconds,
        "played clients with an interval above their bound": sum(1 for client in played if client.sweep.excess),
        "tokens above the bound, all played clients": sum(client.sweep.excess for client in played),
        "below the limit, clients that ask for 1.2 times theirs or more, %": max(0.0, 100 * missing / due)
        if due
        else 0.0,
    }


def _rate(client: Client) -> float:
    return client.spec.tokens / client.spec.period_us


def _counter(one: SharedCounter, plan: FleetPlan) -> dict[str, Any]:
    seconds = (plan.end_us - max(one.since_us, plan.begin_us)) / US_PER_S
    limit = one.spec.tokens * US_PER_S / one.spec.period_us
    offered, passed = one.offered / seconds, one.sweep.total / seconds
    due = min(limit, offered)
    return {
        "name": one.counter.name,
        "limit_per_s": limit,
        "offered_per_s": offered,
        "passed_per_s": passed,
        "passed_by_lease_percent": 100 * one.leased_passed / (one.leased_passed + one.asked_passed or 1),
        "no_charge_percent": 100 * (1 - (one.asked + one.lease_asks) / one.offered) if one.offered else 0.0,
        "over_admitted": one.sweep.excess,
        "under_admitted_percent": max(0.0, 100 * (due - passed) / due) if due else 0.0,
    }


def _process(fleet: Fleet) -> dict[str, float]:
    per_s = _total(fleet) / fleet.plan.seconds / fleet.plan.gateways
    asks = _sent(fleet) / fleet.plan.seconds / fleet.plan.gateways
    busy = (per_s * fleet.costs.local_check_us + asks * fleet.costs.ask_us) / US_PER_S
    return {"checks per second": per_s, "asks per second": asks, "of one core, without its door, %": 100 * busy}


def _timeline(fleet: Fleet) -> list[dict[str, Any]]:
    per_s = US_PER_S / BIN_US
    return [
        {
            "at_s": number * BIN_US / US_PER_S,
            "checks_per_s": one.checks * per_s,
            "sent_percent": 100 * one.sent / one.checks if one.checks else 0.0,
            "calls_per_s": [calls * per_s for calls in one.calls],
            "passed_per_s": one.passed * per_s,
            "degraded_percent": 100 * one.degraded / one.checks if one.checks else 0.0,
        }
        for number, one in enumerate(fleet.bins)
    ]


def _assumptions(fleet: Fleet) -> list[str]:
    plan, played = fleet.plan, len(fleet.clients.all)
    where = "always come to the same gateway" if plan.affinity else "come to every gateway alike"
    return [
        f"clients ask independently of each other, by Zipf's law with exponent {plan.exponent:g}, and {where}; {100 * plan.paid:g} % of them are paid",
        ("rules: free 100/minute, paid 1000/minute (token buckets); a global limit of 1.5 times what passes; an endpoint with "
        f"{100 * plan.endpoint_part:g} % of the requests and a limit of 0.8 times what is asked of it; every request costs one token"),
        (f"of the clients of ranks up to {fleet.last_played:,} {played:,} are played one by one for all, drawn by rank; they have been asking for long when "
        "the run begins. The others ask for less than half of their limit, are never refused, and are counts of a Poisson process"),
        "clients' own counters are decided exactly: after a refusal, or a pass that took the last token, nothing is asked until the store's wait is over, by the worst clocks, or for trust_us; a client that hammers at several gateways is asked about more rarely, as the product's own rules say. None of them is leased, as a hot one with a large limit would be",
        "leases: the product's own objects on both sides; a gateway's requests of 5 ms take their tokens at one moment; clocks are up to 1 % wrong",
        "what a shared counter refuses is not given back to the client's counter",
        ("a master is one queue: calls of one size take the same time, one after the other; checks of one gateway for one master ride together while a call is "
        "under way. No pauses of servers or processes (fork, garbage collector, other programs)"),
        f"network: {plan.oneway_us:g} microseconds each way, and on the way back exponential with mean {plan.jitter_us:g} more; nothing is lost",
        "latency: from the process's question to its answer; the door, and waiting for the process itself, are not in it",
        (f"a check without an answer after {plan.deadline_us / US_PER_MS:g} ms is decided by the gateway's own share (rate and capacity / gateways); a master that is "
        "so late, or away, is not asked"),
    ]  # fmt: skip


# ------------------------------------------------------------------ text


def _number(value: float) -> str:
    if isinstance(value, int) or value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}"


def _rows(title: str, values: dict[str, float]) -> list[str]:
    wide = max(len(name) for name in values)
    return [title, *[f"  {name.ljust(wide)}  {_number(value)}" for name, value in values.items()]]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    found = []
    for number, row in enumerate(rows):
        first = row[0].ljust(widths[0] + 2) if number == 0 else f"  {row[0].ljust(widths[0])}"
        rest = [
            text.rjust(width) if width < _BAR // 2 else text for text, width in zip(row[1:], widths[1:], strict=True)
        ]
        found.append("  ".join([first, *rest]).rstrip())
    return found


def _spark(values: Sequence[float]) -> str:
    most = max(values) or 1.0
    return "".join([_SPARKS[round(value / most * (len(_SPARKS) - 1))] for value in values])
