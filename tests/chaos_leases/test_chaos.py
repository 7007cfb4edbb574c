"""No interval admits more than its bound, whatever happens to real processes with leases, to their messages and to their server."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from chaos_history import History
from chaos_plays import evict, fail_over, flush, quiet, restart, restart_empty, storm
from chaos_stage import NO_HARM, Scene, each, rule, rules

from sluicegate.algorithms import FixedWindow, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules

pytestmark = pytest.mark.slow

MS, SECOND = 1_000, 1_000_000

ALGORITHMS: dict[str, tuple[str, Spec]] = {
    "bucket": (rule("800/second burst 250"), TokenBucket(250, 800, SECOND)),
    "bucket that fills": (rule("2000/second burst 300"), TokenBucket(300, 2_000, SECOND)),
    "fixed window": (rule("400/500ms", "algorithm: fixed_window"), FixedWindow(400, 500 * MS)),
    "sliding window": (rule("400/500ms", "algorithm: sliding_window"), SlidingWindow(400, 500 * MS)),
    "strict": (rule("480/600ms", "algorithm: sliding_window, strict: 3"), SlidingWindow(480, 600 * MS, sub_windows=3)),
    "log": (rule("1500/4100ms", "algorithm: sliding_log"), SlidingLog(1_500, 4_100 * MS)),
}
"""What is leased in each, by its text and by its numbers."""

STORMS = [
    (Scene(f"storm on a {name}", rules(text), storm, forks=2, kind=kind), spec)
    for (name, (text, spec)), kind in zip(ALGORITHMS.items(), ("redis", "valkey") * 3, strict=True)
]


def goes_on(history: History, within_us: int) -> bool:
    """Whether somebody was admitted in the last moments."""
    last_us = max((row.ended_us for row in history.rows), default=0)
    return any(row.admitted and row.began_us > last_us - within_us for row in history.rows)


@each(STORMS)
def test_over_admission_is_zero_while_the_server_keeps_its_writes(played: Any, spec: Spec) -> None:
    """Messages lost, late, doubled, out of order; holders killed, stopped, forked, 1 % fast and slow; connections cut or standing still: nothing more."""

    def never(history: History) -> None:
        assert not history.told(spec)

    # It is leases that this is about.
    played.judge(never, lambda history: history.total("leased") > 0.1 * sum([end["admitted"] for end in history.ends]))


RESTARTS = [
    (Scene(f"restart of a {name}", rules(text), restart, options=("--appendonly", "yes"), kind=kind), spec)
    for name, kind in (("bucket", "redis"), ("fixed window", "valkey"), ("log", "redis"))
    for text, spec in [ALGORITHMS[name]]
]


@each(RESTARTS)
def test_a_restart_with_all_writes_adds_nothing(played: Any, spec: Spec) -> None:
    """A server that is killed twice and comes back with its file makes holders wait, and nothing more is admitted."""

    def never(history: History) -> None:
        assert not history.told(spec)

    # It goes on afterwards; but a log whose server has another life counts as full, for a whole window.
    played.judge(never, lambda history: isinstance(spec, SlidingLog) or goes_on(history, 1_300 * MS))


LOSSES = [
    (Scene(f"{event.__name__} of a {name}", rules(text), event, kind=kind), spec)
    for event, name, kind in (
        (flush, "bucket", "redis"),
        (flush, "sliding window", "valkey"),
        (restart_empty, "bucket", "redis"),
        (restart_empty, "fixed window", "redis"),
        (evict, "bucket", "valkey"),
        (evict, "strict", "redis"),
        (fail_over, "bucket", "redis"),
        (fail_over, "fixed window", "valkey"),
    )
    for text, spec in [ALGORITHMS[name]]
]


@each(LOSSES)
def test_a_loss_of_writes_adds_at_most_one_capacity(played: Any, spec: Spec) -> None:
    """After a flush, a restart without data, an eviction or a failover to a replica that is behind, one capacity more at most."""

    def never(history: History) -> None:
        assert not history.told(spec, more=spec.capacity)

    # It goes on afterwards.
    played.judge(never, lambda history: goes_on(history, 1_500 * MS))


LESS = {
    "bucket": (rule("160/second burst 60"), TokenBucket(60, 160, SECOND)),
    "fixed window": (rule("80/500ms", "algorithm: fixed_window"), FixedWindow(80, 500 * MS)),
}
CHANGES = [
    (
        Scene(
            f"changes of a {name}",
            rules(ALGORITHMS[name][0]),
            quiet,
            changes=((0.3, rules(LESS[name][0])), (0.8, rules(ALGORITHMS[name][0]))),
            harm={**NO_HARM, "late": 0.06},
            seconds=5,
        ),
        (ALGORITHMS[name][1], LESS[name][1]),
    )
    for name in LESS
]


@each(CHANGES)
def test_a_changed_limit_binds_when_older_leases_have_ended(played: Any, spec: tuple[Spec, Spec]) -> None:
    """From one hold after the last holder has lowered its limit until one raises it, the lower one holds; before and after, the larger."""
    large, small = spec

    def times(history: History) -> tuple[int, int, int, int]:
        """The first moment at which the limit was lowered, the part in which the lower one binds, and the last moment at which it was raised."""
        lowered, raised = ([moments[place] for moments in (end["applied"] for end in history.ends)] for place in (0, 1))
        # A message with the old numbers may be under way for one and a half times a lease.
        return min(lowered), max(lowered) + 302 * MS + 202 * MS, min(raised), max(raised)

    def never(history: History) -> None:
        first_us, since_us, until_us, last_us = times(history)
        assert not history.told(large, until_us=first_us)
        assert not history.told(small, since_us=since_us, until_us=until_us)
        # While some have the old numbers and some the new, what is used is cut to the lower limit again and again.
        assert not history.told(large, since_us=last_us + 302 * MS)

    def shown(history: History) -> bool:
        # The lower limit bound for a while, and the larger was needed.
        _, since_us, until_us, _ = times(history)
        return (
            until_us - since_us > SECOND and history.excess(large, more=small.capacity - large.capacity - 1) is not None
        )

    played.judge(never, shown)


USERS = ("a", "b", "c", "d")
COMPOSED = [
    (
        Scene(
            f"composed on {kind}",
            rules(
                rule("800/second burst 250", name="everyone"),
                rule("120/500ms", "algorithm: fixed_window, per: [user], precision: exact", name="client"),
            ),
            storm,
            facts=tuple({"path": "/a", "user": user} for user in USERS),
            weights=(8, 4, 2, 1),
            kind=kind,
            forks=1,
        ),
        (TokenBucket(250, 800, SECOND), FixedWindow(120, 500 * MS)),
    )
    for kind in ("redis", "valkey cluster")
]


@each(COMPOSED)
def test_a_shared_limit_and_the_clients_hold_together(played: Any, spec: tuple[Spec, Spec]) -> None:
    """Of requests that are charged to a leased counter and to an exact one, on one server or on three, neither admits more than its bound."""
    everyone, client = spec

    def never(history: History) -> None:
        assert not history.told(everyone)
        for which, _ in enumerate(USERS):
            assert not history.told(client, [which])

    def shown(history: History) -> bool:
        # Somebody was refused for each of them.
        refused = history.excess(client, [0], more=-40) is not None
        return refused and all(history.admitted([which]) > 10 for which, _ in enumerate(USERS))

    played.judge(never, shown)


def used(text: str, url: str) -> int:
    """What stands in the counter."""
    with Limiter.from_rules(load_rules(text.encode(), "rules.yaml"), url, near=None) as watcher:
        (result,) = watcher.peek(Facts(path="/a")).results
        return result.limit - result.remaining


ENDS = [
    (
        Scene(
            f"end of a {name}",
            rules(text),
            quiet,
            harm=NO_HARM,
            ends=("close", "exit"),
            seconds=4,
            # Leases so long that none ends before it is spent: what ends in a process is written off.
            ttl_us=SECOND,
            horizon_us=200 * MS,
            look=partial(used, rules(text)),
        ),
        None,
    )
    for name, text in (
        ("slow bucket", rule("{capacity: 30000, refill: 2/day}")),
        ("year", rule("100000/year", "algorithm: fixed_window")),
    )
]


@each(ENDS)
def test_what_ends_gives_back_what_it_holds(played: Any, spec: None) -> None:
    """When all holders have closed, or their programs have ended, the counter holds what was admitted and nothing of what was held."""

    def never(history: History) -> None:
        assert not history.errors
        assert history.admitted() <= history.found

    def shown(history: History) -> bool:
        # On a machine that is late some lease may end before it is spent, and some charge be made of which nobody hears.
        late = history.total("written_off") + history.admitted() // 100
        return history.found <= history.admitted() + late and history.total("leased") > 0.1 * history.admitted()

    played.judge(never, shown)
