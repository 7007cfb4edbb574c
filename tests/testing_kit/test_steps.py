"""The step runner passes true tables and names the row of a false one."""

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.testing.steps import ALLOWED, DENIED, NEVER_FITS, Step, run_steps

TABLE = [
    Step(0, 1, ALLOWED, remaining=1),
    Step(0, 1, ALLOWED, remaining=0, reset_after_us=2_000_000),
    Step(400_000, 1, DENIED, remaining=0, retry_after_us=600_000),
    Step(400_000, 3, NEVER_FITS),
    Step(1_000_000, 1, ALLOWED, remaining=0),
]


def test_true_table_passes_and_gives_the_state() -> None:
    """The runner returns the state after the last row, from which another table goes on."""
    spec = TokenBucket(2, 1, 1_000_000)
    state = run_steps(spec, TABLE)
    run_steps(spec, [Step(1_000_000, 0, ALLOWED, remaining=0)], state=state)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            Step(400_000, 1, ALLOWED),
            "row 3 .t=400000 us, cost 1. of TokenBucket.*outcome: expected allowed, got denied",
        ),
        (Step(400_000, 1, DENIED, remaining=1), "row 3 .*remaining: expected 1, got 0"),
        (Step(400_000, 1, DENIED, retry_after_us=1), "row 3 .*retry_after_us: expected 1, got 600000"),
        (Step(400_000, 1, NEVER_FITS), "row 3 .*retry_after_us: expected None, got 600000"),
        (Step(400_000, 1, DENIED, delay_us=7), "row 3 .*delay_us: expected 7, got 0"),
    ],
)
def test_false_row_is_named(row: Step, message: str) -> None:
    """The failure names row, time, cost and each differing field."""
    with pytest.raises(AssertionError, match=message):
        run_steps(TokenBucket(2, 1, 1_000_000), [*TABLE[:2], row])
