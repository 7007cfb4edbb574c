"""Of proposals that are made from traffic."""

from __future__ import annotations

from typing import Final

__all__ = [
    "SUGGESTION_CLIENTS_MAX",
    "SUGGESTION_FLOORS_MAX",
    "SUGGESTION_ROWS_MAX",
]

# Rows of demand that one proposal looks at: a client's minutes. Each takes about 50 us, so that a proposal is made within five seconds.
SUGGESTION_ROWS_MAX: Final = 100_000

# Clients that one proposal looks at; 20,000 tell a share of 99.5 % to a tenth of a percent.
SUGGESTION_CLIENTS_MAX: Final = 20_000

# Minimum quotas in one question: one for each rule and tier of a large file.
SUGGESTION_FLOORS_MAX: Final = 1_000
