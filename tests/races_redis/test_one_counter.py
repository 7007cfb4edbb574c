"""Fifty connections of eight processes on one counter at once: what is admitted is the limit, not one more and not one less."""

from __future__ import annotations

from statistics import median

import pytest

ROUNDS = 20
LIMIT = 100
CALLS = 4
TURNS = 4
SKEWS_US = (0, -15_000_000, 15_000_000)

RULES = """
version: 1
rules:
  - {name: token, match: {path: /token}, per: [user], quota: 100/day}
  - {name: leaky, match: {path: /leaky}, per: [user], quota: 100/day, algorithm: leaky_bucket, nodelay: true}
  - {name: fixed, match: {path: /fixed}, per: [user], quota: 100/year, algorithm: fixed_window}
  - {name: sliding, match: {path: /sliding}, per: [user], quota: 100/year, algorithm: sliding_window}
  - {name: strict, match: {path: /strict}, per: [user], quota: 100/year, algorithm: sliding_window, strict: true}
  - {name: log, match: {path: /log}, per: [user], quota: 100/day, algorithm: sliding_log}
  - {name: month, match: {path: /month}, per: [user], quota: 100/month, algorithm: fixed_window, align: calendar}
  - {name: warm, match: {path: /warm}, per: [user], quota: 100/day}
"""
ALGORITHMS = ("token", "leaky", "fixed", "sliding", "strict", "log", "month")


@pytest.mark.slow
@pytest.mark.parametrize("raced", ["redis", "valkey", "redis-cluster"], indirect=True)
def test_exactly_the_limit_is_admitted(racers, raced) -> None:
    """200 checks at once on a limit of 100 admit 100, by every algorithm, and the clocks of the processes are 30 s apart."""  # T24, P67
    racers.open(raced.url, RULES, skews_us=SKEWS_US)
    assert raced.connections >= 50 or raced.cluster
    for turn in range(TURNS):
        together = []
        for name in ALGORITHMS:
            for number in range(ROUNDS):
                found = racers.round([f"{name}{turn}-{number}"], [f"/{name}"], CALLS)
                assert (found.admitted, found.degraded) == (LIMIT, 0), (name, turn, number)
                together.append(found.together())
        # The checks were really under way at once: usually 29 connections of all 8 processes. A machine that has other work may run them in turn.
        connections, processes = zip(*together, strict=True)
        if median(connections) >= 20 and median(processes) >= 6:
            return
    pytest.fail(f"the checks were never under way at once: {together}")
