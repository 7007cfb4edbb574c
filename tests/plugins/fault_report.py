"""What a process under load tells of a fault: latencies, stalls, memory, outcomes, recovery, charges."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

__all__ = ["CAPACITY", "HEADING", "PATHS", "REFILL_PER_S", "RULES", "Report", "Row", "Size", "Tick", "percentile"]

CAPACITY, REFILL_PER_S = 50, 20

RULES = f"""
version: 1
rules:
  - name: local
    match: {{path: [/local, /all]}}
    per: [user]
    quota: {{capacity: {CAPACITY}, refill_per_sec: {REFILL_PER_S}}}
    on_store_failure: local
  - name: open
    match: {{path: [/open, /all]}}
    per: [user]
    quota: 1000000/year
    algorithm: fixed_window
    on_store_failure: open
  - name: closed
    match: {{path: [/closed, /all]}}
    per: [user]
    quota: 1000000/year
    algorithm: fixed_window
    on_store_failure: closed
"""
"""One rule of each policy, and a path that all three share. The last two refuse nobody while the store is there: they count."""

SLOT_US = 100_000

PATHS = ("/local", "/open", "/closed", "/all")
ALLOWED, DEGRADED, UNAVAILABLE, WRONG, TOLD_UP, TOLD_DOWN = 1, 2, 4, 8, 16, 32


class Row(NamedTuple):
    """One check: when it began, how long it took, what it said."""

    began_us: int
    latency_us: int
    place: int
    flags: int

    @property
    def path(self) -> str:
        return PATHS[self.place]

    @property
    def ended_us(self) -> int:
        return self.began_us + self.latency_us

    @property
    def allowed(self) -> bool:
        return bool(self.flags & ALLOWED)

    @property
    def degraded(self) -> bool:
        return bool(self.flags & DEGRADED)

    @property
    def unavailable(self) -> bool:
        """Refused because the store is not there: 503."""
        return bool(self.flags & UNAVAILABLE)

    @property
    def wrong(self) -> bool:
        """An answer that a server must not give."""
        return bool(self.flags & WRONG)

    @property
    def told(self) -> str | None:
        """What the server said of its store when it was asked at the same moment whether it is ready: "up" or "down"."""
        return "up" if self.flags & TOLD_UP else "down" if self.flags & TOLD_DOWN else None


class Tick(NamedTuple):
    """When the event loop ran, how late, for how long its process had waited for a processor, and for how long a server under load had."""

    at_us: int
    late_us: int
    delayed_us: int
    server_us: int


class Size(NamedTuple):
    """How large the process was."""

    at_us: int
    resident: int
    threads: int
    files: int


@dataclass(frozen=True)
class Report:
    """The course of one fault, which came about between ``fault_us`` and ``set_us`` and went between ``healing_us`` and
    ``healed_us``. ``charged``: (rule, user) -> what stands in the store's counter at the end."""

    name: str
    loop: str
    began_us: int
    fault_us: int
    set_us: int
    healing_us: int
    healed_us: int
    ended_us: int
    checks: Sequence[Row]
    calls: Sequence[Row]
    ticks: Sequence[Tick]
    sizes: Sequence[Size]
    charged: dict[tuple[str, str], int]
    paths: Sequence[str] = PATHS

    @property
    def is_server(self) -> bool:
        """Whether a server was asked over HTTP, and not a limiter in the process."""
        return self.name.startswith("server-")

    @property
    def users(self) -> list[str]:
        """Who asked: coroutines, and threads where a limiter was asked in the process."""
        return [user for user in ("async", "sync") if self.rows(user)]

    def rows(self, user: str) -> Sequence[Row]:
        """Those of the event loop ("async") or of the waiting thread ("sync")."""
        return self.checks if user == "async" else self.calls

    def before(self, user: str) -> list[Row]:
        """What ended before the fault."""
        return [row for row in self.rows(user) if row.ended_us < self.fault_us]

    def during(self, user: str, settled_us: int = 200_000) -> list[Row]:
        """What lies wholly inside the fault, its first moments left out."""
        return [
            row for row in self.rows(user) if row.began_us > self.set_us + settled_us and row.ended_us < self.healing_us
        ]

    def after(self, user: str, after_us: int) -> list[Row]:
        """What began so long after the end of the fault."""
        return [row for row in self.rows(user) if row.began_us > self.healed_us + after_us]

    def recovery_us(self, user: str) -> int:
        """From the end of the fault to the end of the first tenth of a second in which the store made most decisions."""
        slots: dict[int, list[bool]] = {}
        if user not in self.users:
            return 0
        for row in self.rows(user):
            if row.began_us > self.healed_us:
                slots.setdefault((row.began_us - self.healed_us) // SLOT_US, []).append(row.degraded)
        good = [slot for slot, degraded in slots.items() if 2 * sum(degraded) < len(degraded)]
        return (min(good) + 1) * SLOT_US if good else self.ended_us - self.healed_us

    @cached_property
    def stalls_us(self) -> list[int]:
        """For how long, each time, the event loop did not run though it had a processor; ascending."""
        return sorted(tick.late_us - tick.delayed_us for tick in self.ticks)

    def excess_us(self, rows: Sequence[Row]) -> list[int]:
        """Of each check, what it took beyond the time for which the processes were late meanwhile; ascending."""
        ticks = sorted(self.ticks)
        late = list(accumulate((tick.late_us + tick.server_us for tick in ticks), initial=0))
        ends, begins = [tick.at_us for tick in ticks], [tick.at_us - tick.late_us for tick in ticks]
        # Late were the ticks that came after the check began and were due before it ended.
        return sorted(
            row.latency_us - max(late[bisect(begins, row.ended_us)] - late[bisect(ends, row.began_us)], 0)
            for row in rows
        )

    @cached_property
    def growth(self) -> int:
        """Bytes by which the process grew beyond its size at the beginning of the fault."""
        at_fault = max(size.resident for size in self.sizes if size.at_us <= self.fault_us)
        return max(size.resident for size in self.sizes) - at_fault

    @cached_property
    def late_growth(self) -> int:
        """Bytes by which it grew in the second half of the fault."""
        middle_us = (self.fault_us + self.healed_us) // 2
        halves = [
            [size.resident for size in self.sizes if low <= size.at_us <= high]
            for low, high in ((self.fault_us, middle_us), (middle_us, self.healed_us))
        ]
        return max(halves[1]) - max(halves[0]) if all(halves) else 0

    def without(self, rows: Sequence[Row]) -> float:
        """The share of decisions that were made without the store."""
        return sum(row.degraded for row in rows) / max(len(rows), 1)

    def admitted(self, user: str, rule: str, where: Callable[[Row], bool] = lambda row: True) -> int:
        """Admitted checks that a rule was asked about."""
        paths = (f"/{rule}", "/all")
        return sum(row.allowed and row.path in paths and where(row) for row in self.rows(user))

    @property
    def seconds(self) -> float:
        """How long the load lasted: it ends when its process has heard that it is to."""
        last_us = max((row.ended_us for row in (*self.checks, *self.calls)), default=0)
        return (max(self.ended_us, last_us) - self.began_us) / 1e6

    def line(self) -> str:
        """The report in one line of a table."""
        latencies = [row.latency_us for row in self.during("async", 0)]
        waits = [row.latency_us for row in self.during("sync", 0)]
        degraded = sum(row.degraded for row in self.checks)
        return (
            f"{self.name:18} {self.loop:7} {len(self.checks):6} {degraded:6} "
            f"{percentile(latencies, 50) / 1e3:7.2f} {percentile(latencies, 99) / 1e3:7.1f} {max(latencies, default=0) / 1e3:7.1f} "
            f"{percentile(waits, 50) / 1e3:7.2f} {max(waits, default=0) / 1e3:7.1f} "
            f"{self.stalls_us[-1] / 1e3:7.1f} {self.growth / 1e6:7.2f} {max(size.threads for size in self.sizes):4} "
            f"{max(size.files for size in self.sizes):4} "
            f"{self.recovery_us('async') / 1e3:8.0f} {self.recovery_us('sync') / 1e3:8.0f}"
        )


HEADING = (
    f"{'fault':18} {'loop':7} {'checks':>6} {'without':>6} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7} {'sync 50':>7} {'max ms':>7} "
    f"{'stall':>7} {'grew MB':>7} {'thr':>4} {'fds':>4} {'back ms':>8} {'sync':>8}"
)


def percentile(values: Sequence[int], percent: float) -> int:
    """The value that so many of a hundred are not above; 0 where there are none."""
    return sorted(values)[min(int(len(values) * percent / 100), len(values) - 1)] if values else 0
