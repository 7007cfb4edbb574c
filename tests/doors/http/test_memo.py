"""The memo of pure functions of bytes."""

from __future__ import annotations

from sluicegate.doors.http.memo import Memo


def test_memo_is_bounded_and_keeps_what_is_used() -> None:
    """A flood of new keys never grows it beyond two generations, and a key in use survives the flood."""
    memo: Memo[int] = Memo(4, 16)
    memo.remember(b"hot", 1)
    for i in range(100):
        memo.remember(b"cold-%d" % i, i)
        assert memo.recall(b"hot") == 1
        assert len(memo) <= 8
    assert memo.recall(b"cold-0") is None
    assert memo.recall(b"cold-99") == 99


def test_long_keys_are_not_kept() -> None:
    """A key above the length limit is not worth its memory."""
    memo: Memo[int] = Memo(4, 16)
    memo.remember(b"x" * 17, 1)
    assert memo.recall(b"x" * 17) is None
    assert len(memo) == 0
