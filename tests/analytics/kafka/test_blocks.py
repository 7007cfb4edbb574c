"""Blocks are the same whoever reads a partition, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.analytics.kafka.blocks import Lane, Piece, intended, intent, token_of
from sluicegate.bounds import KAFKA_BLOCK_BATCHES_MAX, KAFKA_BLOCK_BYTES_MAX

LINGER_US = 1_000_000


def lane_at(offset: int | None, metadata: str | None = None) -> Lane:
    lane = Lane(0)
    lane.committed(offset, metadata)
    return lane


def fill(lane: Lane, offsets: range | list[int], now_us: int = 0, size: int = 1) -> None:
    for offset in offsets:
        lane.add(Piece(offset, b"x" * size), now_us)


def sealed(lane: Lane, now_us: int = 0, *, hurry: bool = False) -> tuple[int, int] | None:
    block, _ = lane.seal(now_us, LINGER_US, hurry=hurry)
    return None if block is None else (block.first, block.last)


def test_a_block_waits_for_company() -> None:
    """It is made when its time has passed, and not before."""
    lane = lane_at(None)
    fill(lane, range(5))
    assert sealed(lane, LINGER_US - 1) is None
    assert sealed(lane, LINGER_US) == (0, 4)


def test_nothing_is_made_before_the_committed_offset_is_known() -> None:
    """A block may have been begun there by somebody else."""
    lane = Lane(0)
    fill(lane, range(5))
    assert sealed(lane, 9 * LINGER_US, hurry=True) is None
    assert lane.position == 0


def test_a_block_stays_until_it_is_done() -> None:
    """More messages do not change it."""
    lane = lane_at(0)
    fill(lane, range(3))
    assert sealed(lane, hurry=True) == (0, 2)
    fill(lane, range(3, 9))
    assert sealed(lane, 9 * LINGER_US) == (0, 2)
    lane.done()
    assert lane.bytes == 6
    assert sealed(lane, 9 * LINGER_US) == (3, 8)


def test_a_full_block_does_not_wait() -> None:
    """Neither one of many messages nor one of many bytes."""
    lane = lane_at(0)
    fill(lane, range(KAFKA_BLOCK_BATCHES_MAX + 1))
    assert sealed(lane) == (0, KAFKA_BLOCK_BATCHES_MAX - 1)
    lane = lane_at(0)
    fill(lane, range(4), size=KAFKA_BLOCK_BYTES_MAX // 3)
    assert sealed(lane) == (0, 2)


def test_a_message_larger_than_a_block_is_one() -> None:
    """It is not held up for ever."""
    lane = lane_at(0)
    fill(lane, range(2), size=KAFKA_BLOCK_BYTES_MAX + 1)
    assert sealed(lane) == (0, 0)


def test_a_block_that_was_begun_is_made_again() -> None:
    """Its end is that of the first time, whatever there is by now and however much."""
    lane = lane_at(10, intent(12))
    fill(lane, [10, 11])
    assert sealed(lane, 9 * LINGER_US, hurry=True) is None, "its last message is not here yet"
    fill(lane, range(12, 2_000))
    block, missing = lane.seal(0, LINGER_US)
    assert (block.first, block.last, block.written_down, missing) == (10, 12, True, 0)
    lane.done()
    assert sealed(lane) == (13, 12 + KAFKA_BLOCK_BATCHES_MAX)


def test_what_is_left_of_a_begun_block() -> None:
    """Where its beginning was deleted meanwhile the rest is the block; where all was, the next is as if none had been begun."""
    lane = lane_at(10, intent(20))
    fill(lane, range(15, 30))
    block, missing = lane.seal(0, LINGER_US)
    assert (block.first, block.last, missing) == (15, 20, 5)
    lane = lane_at(10, intent(20))
    fill(lane, range(25, 30))
    block, missing = lane.seal(LINGER_US, LINGER_US)
    assert (block.first, block.last, block.written_down, missing) == (25, 29, False, 15)


def test_offsets_that_are_missing_are_told_once() -> None:
    """Those before a block and those within, but not what came before anything was committed."""
    lane = lane_at(None)
    fill(lane, [100, 101, 105])
    assert lane.seal(LINGER_US, LINGER_US)[1] == 3
    assert lane.seal(LINGER_US, LINGER_US)[1] == 0
    lane.done()
    fill(lane, [110])
    assert lane.seal(9 * LINGER_US, LINGER_US)[1] == 4


def test_a_topic_that_was_made_anew() -> None:
    """Offsets that begin again are no gap, and a block that was begun in the old topic is void."""
    lane = lane_at(500, intent(900))
    fill(lane, range(3))
    block, missing = lane.seal(LINGER_US, LINGER_US)
    assert (block.first, block.last, missing) == (0, 2, 0)


def test_tokens_of_a_topic_that_was_made_anew(make_batch) -> None:
    """The same offsets with other batches are another token; the same batches are the same."""
    lane = lane_at(0)
    fill(lane, range(2))
    block, _ = lane.seal(0, LINGER_US, hurry=True)
    one, other = [make_batch("a", 1), make_batch("a", 2)], [make_batch("a", 1, incarnation=2), make_batch("a", 2)]
    assert token_of("t", block, one) == token_of("t", block, list(one)) != token_of("t", block, other)
    assert token_of("t", block, one).startswith("t/0/0-1/")


def test_metadata_of_others_is_no_intent() -> None:
    """Whatever else stands there."""
    assert intended(intent(7)) == 7
    for text in (
        None,
        "",
        "7",
        "sluicegate block until -1",
        "sluicegate block until 7 ",
        f"sluicegate block until {10**30}",
    ):
        assert intended(text) is None


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2), st.booleans()), min_size=1, max_size=30))
def test_interrupted_readers_make_the_same_blocks(steps: list[tuple[int, int, bool]]) -> None:
    """However readers are interrupted, at whatever point, the blocks that reached the home cut the messages into the same pieces."""
    end, committed, metadata = 0, 0, ""
    told: set[tuple[int, int]] = set()
    for more, survives, hurry in steps:
        end += more
        lane = lane_at(committed, metadata)
        fill(lane, range(committed, end))
        place = sealed(lane, hurry=hurry)
        if place is None:
            continue
        committed, metadata = place[0], intent(place[1])
        if survives > 0:
            told.add(place)
        if survives > 1:
            committed, metadata = place[1] + 1, ""
    covered = [offset for first, last in told for offset in range(first, last + 1)]
    assert len(covered) == len(set(covered)), "two blocks hold the same message"
