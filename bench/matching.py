"""What finding the rules of a request costs with 5 rules and with 500.

Every set holds three rules that match the request, and others that do not: by path, by a wildcard in a segment, by host, by tenant and by descriptor.
``hit`` is a request line seen before, ``miss`` one seen for the first time. Times are microseconds per request, the
best of several runs; the ratio is what the goal speaks of: at most 3.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from timeit import repeat

from _report import Figure, tell

from sluicegate.limiter.engine import Engine
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules

FEW, MANY = 5, 500
RATIO_MAX = 3.0

MATCHING = """version: 1
rules:
  - {name: floor, quota: 1000000/second}
  - {name: address, match: {path: /api/**}, per: [ip], quota: 1000/second}
  - {name: key, match: {methods: [GET], path: "/api/v1/things/{id}"}, per: {first_of: [api_key, user, ip]}, quota: 100/second}
"""

OTHERS: dict[str, Callable[[int], str]] = {
    "path": lambda n: f'{{path: "/service-{n}/v1/{{id}}/items"}}',
    "wildcard": lambda n: f'{{path: "/api/v1/things/{n}-*.pdf"}}',
    "host": lambda n: f"{{host: shop-{n}.example}}",
    "tenant": lambda n: f"{{path: /api/**, tenant: tenant-{n}}}",
    "descriptor": lambda n: f"{{descriptors: {{plan: plan-{n}}}}}",
}


def engine_of(others: str, rules: int) -> Engine:
    """``rules`` rules, of which three match and the others differ by ``others``."""
    more = [f"  - {{name: r{n}, match: {OTHERS[others](n)}, per: [ip], quota: 10/minute}}" for n in range(rules - 3)]
    return Engine(load_rules(MATCHING + "\n".join(more), "bench.yaml"))


def facts_of(path: str) -> Facts:
    """A request of a tenant and host that no rule is for."""
    return Facts(
        method="GET",
        path=path,
        host="api.example",
        ip="203.0.113.9",
        user="8123",
        api_key="k1",
        tenant="somebody",
        descriptors={"plan": "none"},
    )


def hit_us(engine: Engine) -> float:
    """Planning a request whose line is remembered."""
    facts = facts_of("/api/v1/things/8123")
    assert len(engine.plan(facts).charges) == 3
    return best_us(lambda: engine.plan(facts), 20_000)


def miss_us(engine: Engine) -> float:
    """Planning requests that are all new; making the facts is not counted."""
    number = count()
    waiting: list[Facts] = []

    def refill() -> None:
        waiting[:] = [facts_of(f"/api/v1/things/{next(number)}") for _ in range(5_000)]

    return best_us(lambda: engine.plan(waiting.pop()), 5_000, refill)


def best_us(call: Callable[[], object], times: int, setup: Callable[[], object] = lambda: None) -> float:
    """Microseconds of one call, the best of seven runs."""
    return min(repeat(call, setup, number=times, repeat=7)) / times * 1e6


def main() -> int:
    """Print the table; 1 where a ratio is above the goal."""
    print(f"{'rules differ by':<16}{'':>6}{f'{FEW} rules':>12}{f'{MANY} rules':>12}{'ratio':>8}")
    ratios: dict[str, list[float]] = {"hit": [], "miss": []}
    for others in OTHERS:
        engines = engine_of(others, FEW), engine_of(others, MANY)
        for name, measure in (("hit", hit_us), ("miss", miss_us)):
            few, many = (measure(engine) for engine in engines)
            ratios[name].append(many / few)
            print(f"{others:<16}{name:>6}{few:>9.2f} us{many:>9.2f} us{many / few:>8.2f}")
    figures = []
    for name, line in (("hit", "seen before"), ("miss", "seen for the first time")):
        worst = max(ratios[name])
        text = f"500 rules beside 5, request line {line}: the worst kind of rules"
        figures.append(Figure(text, worst, "x", min(ratios[name]), worst, RATIO_MAX, at_most=True))
    tell(figures)
    return int(any(figure.met is False for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
