"""From the sinks of nodes through the real broker into a home, whatever happens on the way: each decision exactly once."""

from __future__ import annotations

import pytest

from sluicegate.analytics.kafka import KafkaSink, lag_of
from sluicegate.clock import SystemClock
from sluicegate.errors import AnalyticsError

pytestmark = pytest.mark.slow


def test_every_decision_arrives_once(settings, sink, tell, consume, home, wait_until) -> None:
    """What nodes tell is what the home has, and nothing is left to be read."""
    made = tell(sink, 5, range(40))
    running = consume(home.keep)
    wait_until(lambda: home.total == made, "all decisions in the home")
    wait_until(lambda: running.stats.lag == 0, "no lag")
    running.stop()
    assert (sink.stats.batches, sink.stats.decisions, sink.stats.lost_batches) == (200, made, 0)
    assert [place.lag for place in lag_of(settings)] == [0, 0, 0]
    assert running.stats.batches == 200
    assert running.stats.missing == running.stats.dead == 0


def test_a_node_is_in_one_partition_in_order(settings, sink, tell, consume, home, wait_until) -> None:
    """The batches of a node arrive in the order in which it made them."""
    made = tell(sink, 4, range(30))
    consume(home.keep)
    wait_until(lambda: home.total == made, "all decisions in the home")
    for node in range(4):
        mine = [name for name in home.decisions if name.startswith(f"node-{node}/")]
        assert mine == [f"node-{node}/0000000000000001/{sequence}" for sequence in range(30)]


def test_restart_and_kill_of_the_broker(kafka, sink, tell, consume, home, wait_until) -> None:
    """Nodes go on telling while the broker restarts and while it is dead; nothing is lost, nothing counted twice."""
    running = consume(home.keep)
    made = tell(sink, 4, range(10), flush=False)
    kafka.stop()
    made += tell(sink, 4, range(10, 20), flush=False)
    kafka.start()
    made += tell(sink, 4, range(20, 30), flush=False)
    sink.tick()
    kafka.kill()
    try:
        made += tell(sink, 4, range(30, 40), flush=False)
    finally:
        kafka.start()
    made += tell(sink, 4, range(40, 50))
    wait_until(lambda: home.total == made, "all decisions in the home")
    assert sink.stats.lost_batches == 0
    assert sink.stats.batches == len(home.decisions) == 200
    assert running.stats.missing == 0


def test_doubled_batches(settings, sink, tell, consume, home, wait_until) -> None:
    """A batch that is in the topic several times is counted once."""
    made = tell(sink, 3, range(10))
    for _ in range(2):
        other = KafkaSink(settings, SystemClock())
        assert tell(other, 3, range(10)) == made
        other.close()
    running = consume(home.keep)
    wait_until(lambda: running.stats.batches == 90, "all three times read")
    assert home.total == made


def test_a_home_that_is_away(sink, tell, consume, home, wait_until) -> None:
    """While the home is away no more is read, nothing is committed and the member stays; then all arrives, under the tokens of the first attempt."""
    home.away = True
    made = tell(sink, 3, range(20))
    running = consume(home.keep)
    wait_until(lambda: running.stats.home_errors >= 3, "attempts")
    assert not running.stats.well
    assert running.stats.partitions == 3
    read = running.stats.messages
    made += tell(sink, 3, range(20, 40))
    failed = running.stats.home_errors
    wait_until(lambda: running.stats.home_errors > failed, "another attempt")
    assert running.stats.messages == read
    tried = set(home.calls)
    home.away = False
    wait_until(lambda: home.total == made, "all decisions in the home")
    assert tried <= set(home.tokens)
    wait_until(lambda: running.stats.well, "well again")


def test_a_slow_home(sink, tell, consume, home, wait_until) -> None:
    """A home that takes its time gets everything."""
    home.delay_s = 0.3
    consume(home.keep)
    made = sum(tell(sink, 3, range(start, start + 10)) for start in range(0, 30, 10))
    wait_until(lambda: home.total == made, "all decisions in the home")


def test_an_interrupted_consumer_leaves_the_same_blocks(sink, tell, consume, home, wait_until, settings) -> None:
    """What one consumer has told the home and not committed, the next one tells under the same tokens, however much more there is by then."""
    made = tell(sink, 3, range(10))

    def interrupted(token, batches) -> None:
        home.keep(token, batches)
        raise AnalyticsError("the reply was lost")

    running = consume(interrupted)
    wait_until(lambda: running.stats.home_errors > 0, "a first block")
    running.stop()
    first = dict(home.tokens)
    assert first
    assert any(place.begun for place in lag_of(settings))
    made += tell(sink, 3, range(10, 30))
    home.calls.clear()
    consume(home.keep)
    wait_until(lambda: home.total == made, "all decisions in the home")
    assert set(first) <= set(home.calls)
    told = [name for names in home.tokens.values() for name in names]
    assert len(told) == len(set(told)), "a batch came under two tokens"


def test_two_consumers(sink, tell, consume, home, wait_until) -> None:
    """Two share the partitions; when one leaves the other has all of them; no batch comes under two tokens."""
    one = consume(home.keep)
    made = tell(sink, 6, range(10))
    wait_until(lambda: one.stats.partitions == 3, "all partitions at the first")
    two = consume(home.keep)
    wait_until(lambda: two.stats.partitions > 0 and one.stats.partitions + two.stats.partitions == 3, "a share each")
    made += tell(sink, 6, range(10, 30))
    wait_until(lambda: home.total == made, "all decisions in the home")
    one.stop()
    made += tell(sink, 6, range(30, 50))
    wait_until(lambda: home.total == made, "all decisions in the home, of one consumer")
    assert two.stats.partitions == 3
    told = [name for names in home.tokens.values() for name in names]
    assert len(told) == len(set(told)) == 300
