"""The deny cache: what it repeats, for how long, and what makes it forget."""

from __future__ import annotations

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.bounds import DENIAL_MARKS
from sluicegate.stores.near.denials import Denials

S = 1_000_000
FREE, PAID = TokenBucket(1, 1, 60 * S), TokenBucket(20, 20, 60 * S)
KEY = "default:api:token_bucket:-:0:user:1"
OTHER = "default:api:token_bucket:-:0:user:2"


def names(key: str) -> int:
    """Names that tests can read: the user's number."""
    return int(key.rpartition(":")[2])


@pytest.fixture
def denials() -> Denials:
    return Denials(3, S, LeaseTerms(drift_ppm=10_000), names)


def learn(denials: Denials, key: str = KEY, cost: int = 1, wait_us: int = S // 2, sent_us: int = 0) -> None:
    denials.learn(key, FREE, cost, wait_us, sent_us, denials.epoch, sent_us)


def test_a_refusal_is_repeated_for_the_time_it_was_said_for_less_the_drift_of_two_clocks(denials: Denials) -> None:
    """It begins when the question was sent, and ends at (1 - drift) / (1 + drift) of the wait."""
    learn(denials, wait_us=101_000, sent_us=7)
    assert denials.refuses(KEY, FREE, 1, 7) == 101_000
    assert denials.refuses(KEY, FREE, 1, 7 + 98_999) == 101_000 - 98_999
    assert denials.refuses(KEY, FREE, 1, 7 + 99_000) is None


def test_a_client_is_told_to_wait_from_when_the_answer_came(denials: Denials) -> None:
    """The store may have decided as late as that, so whoever comes back then is not too early."""
    denials.learn(KEY, FREE, 1, 500_000, 0, 0, 3_000)
    assert denials.refuses(KEY, FREE, 1, 3_000) == 500_000


def test_a_refusal_is_trusted_for_a_second_however_long_it_is(denials: Denials) -> None:
    """After that the store is asked again; until then the client is told the whole wait."""
    learn(denials, wait_us=3_600 * S)
    assert denials.refuses(KEY, FREE, 1, S - 1) == 3_599 * S + 1
    assert denials.refuses(KEY, FREE, 1, S) is None


def test_only_what_costs_as_much_or_more_is_refused(denials: Denials) -> None:
    """Three tokens that are not there say nothing of two."""
    learn(denials, cost=3)
    assert [denials.refuses(KEY, FREE, cost, 1) is None for cost in (1, 2, 3, 9)] == [True, True, False, False]


def test_the_refusal_of_less_takes_the_place_of_the_refusal_of_more(denials: Denials) -> None:
    """One token that is not there stands for three; the other way round nothing is learned while that lasts."""
    learn(denials, cost=3, wait_us=900_000)
    learn(denials, cost=1, wait_us=300_000, sent_us=10)
    assert denials.refuses(KEY, FREE, 1, 20) == 299_990
    learn(denials, cost=3, wait_us=900_000, sent_us=20)
    assert denials.refuses(KEY, FREE, 3, 30) == 299_980
    learn(denials, cost=3, wait_us=900_000, sent_us=400_000)
    assert denials.refuses(KEY, FREE, 1, 400_001) is None
    assert denials.refuses(KEY, FREE, 3, 400_001) == 899_999


def test_of_two_answers_to_one_cost_the_one_that_lasts_longer_stays(denials: Denials) -> None:
    """Both are true, whichever comes last."""
    learn(denials, wait_us=600_000)
    learn(denials, wait_us=200_000, sent_us=1)
    assert denials.refuses(KEY, FREE, 1, 2) == 599_998


def test_a_refusal_under_one_quota_says_nothing_of_another(denials: Denials) -> None:
    """A counter has one key whatever the tier: who pays is asked about, though he was refused as one who does not."""
    learn(denials)
    assert denials.refuses(KEY, PAID, 1, 1) is None
    assert denials.refuses(KEY, TokenBucket(1, 1, 60 * S), 1, 1) is not None
    denials.learn(KEY, PAID, 1, S, 5, 0, 5)
    assert denials.refuses(KEY, FREE, 1, 6) is None


def test_what_is_forgotten_is_asked_for_and_the_rest_is_not(denials: Denials) -> None:
    """A refund to one client leaves the others refused."""
    learn(denials, KEY)
    learn(denials, OTHER)
    denials.forget([KEY])
    assert denials.refuses(KEY, FREE, 1, 1) is None
    assert denials.refuses(OTHER, FREE, 1, 1) is not None
    assert denials.active
    denials.forget(None)
    assert denials.refuses(OTHER, FREE, 1, 1) is None
    assert not denials.active


def test_news_forget_by_name(denials: Denials) -> None:
    """What another process gave back is asked for here; news of strangers cost at most one more question."""
    learn(denials, KEY)
    learn(denials, OTHER)
    denials.heard([77, 2])
    assert denials.refuses(KEY, FREE, 1, 1) is not None
    assert denials.refuses(OTHER, FREE, 1, 1) is None
    denials.heard([1 + DENIAL_MARKS])
    assert denials.refuses(KEY, FREE, 1, 1) is None
    learn(denials, KEY)
    denials.heard(None)
    assert denials.refuses(KEY, FREE, 1, 1) is None


@pytest.mark.parametrize("news", [[KEY], None, "heard", "heard all"], ids=str)
def test_an_answer_that_was_under_way_when_its_counter_was_forgotten_is_not_learned(
    denials: Denials, news: list[str] | str | None
) -> None:
    """Nobody knows whether the store refused before or after the reset."""
    epoch = denials.epoch
    if news == "heard":
        denials.heard([1])
    elif news == "heard all":
        denials.heard(None)
    else:
        assert not isinstance(news, str)
        denials.forget(news)
    denials.learn(KEY, FREE, 1, S, 0, epoch, 0)
    assert denials.refuses(KEY, FREE, 1, 1) is None
    denials.learn(KEY, FREE, 1, S, 0, denials.epoch, 0)
    assert denials.refuses(KEY, FREE, 1, 1) is not None


def test_answers_of_other_counters_are_learned_while_one_is_forgotten(denials: Denials) -> None:
    """A stream of refunds does not turn the cache off for everybody else."""
    epoch = denials.epoch
    denials.forget([OTHER])
    denials.heard([2])
    denials.learn(KEY, FREE, 1, S, 0, epoch, 0)
    assert denials.refuses(KEY, FREE, 1, 1) is not None


def test_a_full_table_lets_the_oldest_go(denials: Denials) -> None:
    """All are trusted for the same time at most, so the oldest is the one that would have ended first."""
    keys = [f"{KEY}{number}" for number in range(5)]
    for at_us, key in enumerate(keys):
        learn(denials, key, sent_us=at_us)
    assert [denials.refuses(key, FREE, 1, 9) is not None for key in keys] == [False, False, True, True, True]
    assert len(denials) == 3


def test_a_counter_that_is_refused_again_is_young_again(denials: Denials) -> None:
    """Who goes on asking stays known while others come and go."""
    for at_us, key in enumerate((KEY, OTHER, KEY + "3", KEY, KEY + "4")):
        learn(denials, key, sent_us=at_us)
    assert denials.refuses(KEY, FREE, 1, 9) is not None
    assert denials.refuses(OTHER, FREE, 1, 9) is None


def test_what_has_ended_leaves_as_others_come() -> None:
    """A flood that is over does not keep its memory: each new counter takes four old ones with it."""
    denials = Denials(1_000, S, LeaseTerms())
    for number in range(1_000):
        learn(denials, f"{KEY}{number}")
    for number in range(300):
        learn(denials, f"{OTHER}{number}", sent_us=2 * S)
    assert len(denials) <= 300


def test_a_flood_of_clients_neither_grows_the_table_nor_gets_slower() -> None:
    """A hundred thousand clients that are refused once leave a table of the size it may have; each costs the same few steps."""
    denials = Denials(500, S, LeaseTerms())
    for number in range(100_000):
        learn(denials, f"{KEY}{number}", sent_us=number)
        assert len(denials) <= 500
    assert denials.refuses(f"{KEY}99999", FREE, 1, 100_000) is not None


def test_a_table_of_nothing_remembers_nothing() -> None:
    """Switched off, no refusal is repeated, and nobody has to look."""
    denials = Denials(0, 1_000_000, LeaseTerms())
    denials.learn("a", FREE, 1, 500_000, 0, 0, 0)
    assert denials.refuses("a", FREE, 1, 1) is None
    assert (denials.active, len(denials)) == (False, 0)
