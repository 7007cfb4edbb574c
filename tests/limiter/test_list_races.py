"""Requests while the lists change under them, with proof that both really met."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.lists import Lists
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListChanges, ListEntry, SubjectEntry
from sluicegate.rules.load import load_rules

pytestmark = pytest.mark.usefixtures("often_switched")

ASKED = 4_000


def beside(change: Callable[[int], None], ask: Callable[[], object], wanted: int = 1) -> tuple[int, list[object]]:
    """Ask again and again while another thread changes something: changes made meanwhile, and the different answers.

    Asks on until there were twenty changes and ``wanted`` different answers; a test that never sees them fails by what it sees.
    """
    done = threading.Event()
    changes = 0
    errors: list[BaseException] = []

    def run() -> None:
        nonlocal changes
        try:
            while not done.is_set():
                change(changes)
                changes += 1
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        answers = {ask() for _ in range(ASKED)}
        for _ in range(100 * ASKED):
            if changes >= 20 and len(answers) >= wanted:
                break
            answers.add(ask())
    finally:
        done.set()
        thread.join()
    assert not errors
    return changes, sorted(answers, key=str)


def test_a_client_that_stays_on_the_list_is_never_missed() -> None:
    """While whole states, changes, prefixes and kinds come and go, an entry that is in all of them is found by every request."""
    clock = ManualClock()
    lists = Lists(clock)
    stays = [ListEntry("block", "ip", "203.0.113.0/24"), ListEntry("block", "user", "eve")]
    comes = [ListEntry("block", "ip", f"10.{n}.0.0/{16 + n % 9}") for n in range(40)]
    comes += [ListEntry("allow", "tenant", "t"), ListEntry("block", "api_key", "k"), ListEntry("block", "ip", "::1")]
    lists.replace(stays)
    facts = Facts(ip="203.0.113.9", user="eve")

    def change(turn: int) -> None:
        lists.apply(ListChanges("life", 0, 3 * turn + 1, True, stays, []))
        lists.apply(ListChanges("life", 3 * turn + 1, 3 * turn + 2, False, comes, []))
        lists.apply(ListChanges("life", 3 * turn + 2, 3 * turn + 3, False, [], [each.key for each in comes]))

    changes, answers = beside(change, lambda: getattr(lists.find(facts), "rule", None))
    assert answers == ["block:ip"]
    assert changes >= 20


def test_a_request_sees_one_state_or_the_other() -> None:
    """While two states take turns, in which a client is on the allow list or on the block list, it is never on none."""
    lists = Lists(ManualClock())
    states = [
        [ListEntry("allow", "user", "eve")],
        [ListEntry("block", "ip", "10.0.0.0/8"), ListEntry("block", "ip", "::/0")],
    ]
    lists.replace(states[0])
    facts = Facts(user="eve", ip="10.0.0.1")
    changes, answers = beside(
        lambda turn: lists.replace(states[turn % 2]), lambda: getattr(lists.find(facts), "list", None), 2
    )
    assert answers == ["allow", "block"]
    assert changes >= 20


def test_overrides_and_penalties_beside_requests() -> None:
    """While a subject's factor changes, each request is decided by one of them, and clients are blocked meanwhile all the same."""
    rules = "version: 1\nrules:\n  - {name: r, per: [user], quota: 1000000/day, penalty: {after: 3 refusals/1m, block: 1h}}\n"
    limiter = Limiter.from_rules(load_rules(rules, "rules.yaml"), clock=ManualClock())
    eve = Facts(user="eve")

    def change(turn: int) -> None:
        limiter.subjects.put(SubjectEntry("user:eve", None, 1 + turn % 3, 1))
        for _ in range(3):
            limiter.check(Facts(user=f"mallory-{turn}"), 2_000_000)

    changes, answers = beside(change, lambda: limiter.check(eve).limit, 3)
    assert answers == [1_000_000, 2_000_000, 3_000_000]
    assert limiter.penalties.given == changes == len(limiter.lists)


def test_threads_that_refuse_one_client_block_it_once() -> None:
    """Eight threads whose requests are refused together count every refusal, and the client is blocked once for as many as it takes."""
    rules = "version: 1\nrules:\n  - {name: r, per: [user], quota: 0, penalty: {after: 800 refusals/1m, block: 1h}}\n"
    limiter = Limiter.from_rules(load_rules(rules, "rules.yaml"), clock=ManualClock())
    barrier = threading.Barrier(8)

    def run() -> None:
        barrier.wait()
        for _ in range(100):
            limiter.check(Facts(user="eve"))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limiter.penalties.given == 1
    assert limiter.check(Facts(user="eve")).rule == "block:user"
    assert sum(limiter.stats.refused.values()) == 801
