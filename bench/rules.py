"""A whole decision by a file of 50 rules, three of which match, beside one hit of one counter of `limits`.

The three rules are charged together or not at all, which `limits` does not offer. The requests are 1,000 users times ten paths in
a shuffled order that is the same on every run. Also told: the same with making the facts, with reading the answer, for a
client that is refused, and with 5 and with 500 rules.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from _report import number, of_ratios, table, tell
from _rounds import Pass, one_pass, rounds_us
from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from sluicegate import Facts, Limiter, load_rules

ROUNDS = 15
USERS, PATHS = 1_000, 10
PLENTY = "1000000/minute"
RATIO_MAX = 3.0


def limiter_of(rules: int, user_quota: str = PLENTY) -> Limiter:
    """``rules`` rules, three of which match every request of this benchmark."""
    lines = [
        "version: 1",
        "rules:",
        f"  - {{name: everything, scope: global, quota: {PLENTY}}}",
        f"  - {{name: api, match: {{methods: [GET], path: /api/**}}, per: [ip], quota: {PLENTY}}}",
        f"  - {{name: user, per: [user], quota: {user_quota}}}",
        *(f"  - {{name: r{n}, match: {{path: /pages/{n}/*}}, per: [ip], quota: 10/minute}}" for n in range(rules - 3)),
    ]
    return Limiter.from_rules(load_rules("\n".join(lines) + "\n", "bench"))


def requests() -> list[tuple[str, str, str]]:
    """(path, address, user) of every request."""
    paths = [f"/api/v1/things/{number}" for number in range(PATHS)]
    users = [(f"203.0.113.{number % 250}", f"user-{number}") for number in range(USERS)]
    made = [(path, ip, user) for ip, user in users for path in paths]
    Random(8123).shuffle(made)
    return made


def contenders() -> dict[str, Pass]:
    """Name -> one pass over all requests."""
    lines = requests()
    facts = [Facts(method="GET", path=path, ip=ip, user=user) for path, ip, user in lines]
    sized = {rules: limiter_of(rules).check for rules in (5, 50, 500)}
    assert all(len(check(facts[0]).results) == 3 for check in sized.values())
    refusing = limiter_of(50, "1/day").check
    made: dict[str, Pass] = {}
    for rules, check in sized.items():
        made[f"check(facts), {rules} rules"] = partial(one_pass, check, facts)
    made["check(Facts(...)), 50 rules"] = partial(one_pass, making_facts(limiter_of(50).check), lines)
    made["check(facts), described, 50 rules"] = partial(one_pass, described(limiter_of(50).check), facts)
    made["check(facts), refused, 50 rules"] = partial(one_pass, refusing, facts)
    made["check(facts), refused, described, 50 rules"] = partial(one_pass, described(refusing), facts)
    hit, item = FixedWindowRateLimiter(MemoryStorage()).hit, parse(PLENTY)
    made["one limits hit, fixed_window"] = partial(pass_of_limits, hit, item, [user for _, _, user in lines])
    return made


def making_facts(check: Callable[[Facts], object]) -> Callable[[tuple[str, str, str]], object]:
    """A check that makes its facts."""

    def call(line: tuple[str, str, str]) -> object:
        path, ip, user = line
        return check(Facts(method="GET", path=path, ip=ip, user=user))

    return call


def described(check: Callable[[Facts], Any]) -> Callable[[Facts], object]:
    """A check whose numbers are read."""

    def call(facts: Facts) -> object:
        decision = check(facts)
        return decision.remaining, decision.retry_after_us

    return call


def pass_of_limits(hit: Callable[[Any, str], object], item: object, keys: list[str]) -> int:
    """``one_pass`` for ``limits``, whose ``hit`` takes the limit first."""
    for key in keys:
        hit(item, key)
    return len(keys)


def main() -> None:
    """Measure, print, tell the figures."""
    times = rounds_us(contenders(), ROUNDS)
    rows = [("microseconds per call, three rules match", "median")]
    rows += [(name, number(statistics.median(each))) for name, each in times.items()]
    print(table(rows))
    one_hit = times["one limits hit, fixed_window"]
    tell(
        [
            of_ratios("check of 3 rules of 50: one limits hit takes", one_hit, times["check(facts), 50 rules"], 1.0),
            of_ratios("the same with making the facts", one_hit, times["check(Facts(...)), 50 rules"]),
            of_ratios("the same with reading the answer", one_hit, times["check(facts), described, 50 rules"]),
            of_ratios("the same refused by one rule", one_hit, times["check(facts), refused, 50 rules"]),
            of_ratios(
                "500 rules take, beside 5",
                times["check(facts), 500 rules"],
                times["check(facts), 5 rules"],
                RATIO_MAX,
                at_most=True,
            ),
        ]
    )


if __name__ == "__main__":
    main()
