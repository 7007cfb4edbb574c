"""The limit of zero: refuses cleanly, in every method."""

import pytest

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, OnChange, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.testing.steps import ALLOWED, NEVER_FITS, Step, run_steps

NOW_US = 1_700_000_000_000_000


def test_nothing_ever_fits() -> None:
    """Every cost is refused for good, nothing is kept, and a peek shows nothing left (T62, P17)."""
    steps = [Step(0, cost, NEVER_FITS, remaining=0, reset_after_us=0) for cost in (1, 2, 10**12)]
    assert run_steps(Ban(), [*steps, Step(0, 0, ALLOWED, remaining=0, reset_after_us=0)]) is None


def test_every_method_answers() -> None:
    """No method divides by the limit or needs a state."""
    ban = Ban()
    assert (ban.capacity, ban.window_us, ban.shape) == (0, 1, "-")
    assert (ban.most_admitted(10**9), ban.state_bytes(), ban.expires_us(7)) == (0, 0, 0)
    assert ban.refund(7, NOW_US, 1, NOW_US) == 7
    assert ban.clamp(7, NOW_US) == 7
    assert ban.charge_refused(7, NOW_US, 1) == 7
    assert ban.expires_us(ban.charge_refused(None, NOW_US, 1)) <= NOW_US
    assert ban.carry(ban, 7, NOW_US, OnChange.KEEP) is None
    assert Ban() == Ban()
    assert hash(Ban()) == hash(Ban())


@pytest.mark.parametrize("make", [TokenBucket, LeakyBucket])
def test_buckets_of_nothing_name_the_ban(make: type[TokenBucket]) -> None:
    """A capacity of 0 is an error that says what to use."""
    with pytest.raises(ValueError, match=r"capacity: must be >= 1, got 0; a limit that admits nothing is Ban\(\)"):
        make(0, 1, 1)


@pytest.mark.parametrize("make", [FixedWindow, SlidingWindow, SlidingLog])
def test_windows_of_nothing_name_the_ban(make: type[FixedWindow]) -> None:
    """A limit of 0 is an error that says what to use."""
    with pytest.raises(ValueError, match=r"limit: must be >= 1, got 0; a limit that admits nothing is Ban\(\)"):
        make(0, 1)
