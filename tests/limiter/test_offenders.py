"""Who is refused most, in bounded memory."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.offenders import Offenders
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules


@given(st.lists(st.integers(0, 30), max_size=300), st.integers(1, 12))
def test_estimates_keep_their_bounds(stream: list[int], size: int) -> None:
    """true <= told <= true + N/size for every client told, every client above N/size is told, and never more than ``size`` are."""
    offenders = Offenders(size)
    for number in stream:
        offenders.refused("r", str(number))
    true = Counter(map(str, stream))
    assert offenders.refusals == len(stream)
    found = offenders.take()
    assert len(found) <= size
    for _, subject, times in found:
        assert true[subject] <= times <= true[subject] + len(stream) / size
    told = {subject for _, subject, _ in found}
    assert {subject for subject, times in true.items() if times > len(stream) / size} <= told
    assert [times for _, _, times in found] == sorted((times for _, _, times in found), reverse=True)
    # Space-Saving hands a count on and loses none: what it tells adds up to all refusals.
    assert sum(times for _, _, times in found) == len(stream)


def test_taking_begins_anew() -> None:
    """What was taken is told once; ``at_most`` cuts the list after the most refused."""
    offenders = Offenders()
    for subject, times in (("a", 3), ("b", 5), ("c", 1)):
        for _ in range(times):
            offenders.refused("r", subject)
    assert offenders.take(2) == [("r", "b", 5), ("r", "a", 3)]
    assert (offenders.take(), offenders.refusals) == ([], 0)
    offenders.refused("r", "c")
    assert offenders.take() == [("r", "c", 1)]


def test_a_flood_of_new_clients_hides_no_heavy_one() -> None:
    """A client with a fifth of 20,000 refusals stays among 10 counted ones while everybody else is new each time."""
    offenders, source = Offenders(10), random.Random(5)
    heavy = 0
    for number in range(20_000):
        is_heavy = source.random() < 0.2
        heavy += is_heavy
        offenders.refused("r", "heavy" if is_heavy else str(number))
    rule, subject, times = offenders.take(1)[0]
    assert (rule, subject) == ("r", "heavy")
    assert heavy <= times <= heavy + 2_000


def test_threads_lose_no_refusal() -> None:
    """Refusals from four threads at once add up."""
    offenders = Offenders(3)
    start = threading.Barrier(4)

    def refuse(subject: str) -> None:
        start.wait()
        for _ in range(2_000):
            offenders.refused("r", subject)

    threads = [threading.Thread(target=refuse, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(times for _, _, times in offenders.take()) == 8_000


RULES = """
version: 1
rules:
  - {name: shadow, per: [ip], quota: 1/minute, mode: shadow}
  - {name: api, per: [user], quota: "2/minute; 3/hour"}
  - {name: later, per: [ip], quota: 2/minute}
"""


@pytest.mark.parametrize("batch", [False, True])
def test_a_limiter_tells_whom_it_refused(batch: bool) -> None:
    """The rule that decided a refusal and every shadow rule that would refuse are told with their client; peeks are not."""
    limiter = Limiter.from_rules(load_rules(RULES, "r"), clock=ManualClock())
    facts = Facts(user="u", ip="10.0.0.1")
    if batch:
        limiter.check_many([facts] * 5)
    else:
        for _ in range(5):
            limiter.check(facts)
    limiter.peek(facts)
    assert limiter.offenders.take() == [("shadow", "ip:10.0.0.1", 4), ("api", "user:u", 3)]
    counts = limiter.stats.rule_counts()
    assert {name: (row.matched, row.refused, row.shadow_refused) for name, row in counts.items()} == {
        "api": (0, 3, 0),
        "shadow": (0, 0, 4),
    }


def test_refusals_without_the_store_are_told_too(site_of) -> None:
    """While the store is away a local refusal counts for its client, in every form of asking."""
    site = site_of("name: api, per: [user], quota: 1/minute, on_store_failure: local")
    site.store.down = True
    for _ in range(3):
        site.ask({"user": "u"})
    assert site.limiter.stats.offenders.take() == [("api", "user:u", 2)]
