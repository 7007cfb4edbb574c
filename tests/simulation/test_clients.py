"""Clients' own counters: what the model assumes of them is what the product's objects do, and nothing is lost between its counts."""

from __future__ import annotations

from random import Random

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.simulation.clients import Caches, Clients, local_share
from sluicegate.simulation.draws import Stratum, Zipf
from sluicegate.simulation.plan import FREE
from sluicegate.stores.near.denials import Denials
from sluicegate.stores.near.rechecks import Rechecks
from sluicegate.stores.near.settings import NearSettings

SECOND_US = 1_000_000


def caches_of(gateways: int, stretch_us: int = 5 * SECOND_US, *, learn_passes: bool = True) -> Caches:
    """The product's, by its settings."""
    near = NearSettings()
    return Caches(Rechecks(near.terms, near.trust_us, stretch_us), gateways, learn_passes)


def one_client(
    per_s: float, gateways: int, *, spec: TokenBucket = FREE, affinity: bool = False, caches: Caches | None = None
) -> Clients:
    """One client that asks so often, watched from 10 s on for 100 s."""
    return Clients(
        [Stratum(1, 1, (1,), 1.0)], Zipf(1, 1.1), per_s / SECOND_US, gateways, 1, ((spec, 1.0),), caches or caches_of(gateways),
        (10 * SECOND_US, 110 * SECOND_US, SECOND_US), affinity, Random(9),
    )  # fmt: skip


def watched(clients: Clients, delay_us: float = 200.0) -> Clients:
    """Play it all."""
    clients.delays = [delay_us]
    clients.play(10 * SECOND_US)
    clients.begin_sweep()
    clients.calls = [[]]
    clients.play(110 * SECOND_US)
    return clients


@pytest.mark.parametrize("wait_us", [1, 1_000, 600_000, 3_000_000])
def test_holds_as_long_as_the_deny_cache_does(wait_us: int) -> None:
    """A refusal lasts exactly as long as ``Denials`` keeps it, and not a microsecond longer."""
    near = NearSettings()
    hold_us = Rechecks(near.terms, near.trust_us).plain_us(wait_us)
    denials = Denials(10, near.trust_us, near.terms)
    denials.learn("key", FREE, 1, wait_us, 0, denials.epoch, 0)
    if hold_us:
        assert denials.refuses("key", FREE, 1, hold_us - 1) is not None
    assert denials.refuses("key", FREE, 1, hold_us) is None


@pytest.mark.parametrize(("per_s", "gateways"), [(1.0, 4), (5.0, 4), (200.0, 4), (200.0, 1)])
def test_checks_are_what_is_offered(per_s: float, gateways: int) -> None:
    """Checks that asked the store and those that the deny cache refused are together what the client sent."""
    clients = watched(one_client(per_s, gateways))
    total = clients.counts.checks + sum(clients.refused_here)
    assert total == pytest.approx(100 * per_s, rel=0.02, abs=60)
    assert clients.counts.asked == clients.counts.admitted + clients.counts.refused == len(clients.calls[0])


@pytest.mark.parametrize("affinity", [False, True])
def test_a_client_above_its_limit_gets_its_limit(affinity: bool) -> None:
    """Of 20 checks a second 100 a minute pass, in no interval more than the bound, whether or not it keeps to one gateway."""
    clients = watched(one_client(20.0, 8, affinity=affinity))
    client = clients.all[0]
    assert client.over
    assert client.sweep.total == pytest.approx(100 * 100 / 60, rel=0.03)
    assert client.sweep.excess == 0


def test_a_client_below_its_limit_is_never_refused() -> None:
    """One check a second passes always, and each asks the store."""
    clients = watched(one_client(1.0, 8))
    assert (clients.counts.refused, sum(clients.refused_here)) == (0.0, 0.0)
    assert clients.counts.admitted == clients.counts.asked


def test_asks_of_a_refused_client() -> None:
    """A client far above its limit makes every gateway ask twice per refill: when the wait is over for the worst clocks, 2 % early, and when it really is."""
    clients = watched(one_client(4_000.0, 8, caches=caches_of(8, 0)), delay_us=1.0)
    refills_per_s = 100 / 60
    assert clients.counts.refused / 100 == pytest.approx(2 * 8 * refills_per_s, rel=0.1)
    assert clients.counts.admitted / 100 == pytest.approx(refills_per_s, rel=0.03)


def test_what_the_deny_cache_saves_beside_the_refusals_themselves() -> None:
    """Passes that leave nothing taken for refusals save one ask each, longer refusals of a counter that is hammered most others, and the client still gets its limit."""
    asked = []
    for caches in (caches_of(8, 0, learn_passes=False), caches_of(8, 0), caches_of(8)):
        clients = watched(one_client(400.0, 8, caches=caches))
        asked.append(clients.counts.asked / 100)
        assert clients.all[0].sweep.total == pytest.approx(100 * 100 / 60, rel=0.05)
        assert clients.all[0].sweep.excess == 0
    assert asked[0] - asked[1] == pytest.approx(100 / 60, rel=0.3)
    assert asked[2] < asked[0] / 3


def test_a_master_that_is_away() -> None:
    """While a master is away every gateway lets pass its share, so the client gets at most its limit and one burst of every gateway."""
    clients = watched(one_client(20.0, 8), delay_us=-1.0)
    share = local_share(FREE, 8)
    assert clients.counts.asked == 0.0
    assert 0 < clients.counts.degraded <= 8 * share.most_admitted(100 * SECOND_US)
    total = clients.counts.checks + sum(clients.refused_degraded)
    assert total == pytest.approx(2_000, rel=0.05)


def test_a_replica_brings_back_what_it_has() -> None:
    """States that are restored are those that were copied."""
    clients = one_client(20.0, 2)
    clients.play(SECOND_US)
    copied = clients.of_master(0)
    clients.play(20 * SECOND_US)
    assert clients.of_master(0) != copied
    clients.restore(copied)
    assert clients.of_master(0) == copied
