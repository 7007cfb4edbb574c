"""Of the clients that come most, merged over nodes and time."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ANALYTICS_NAMES_MAX",
    "ANALYTICS_SECRETS_MAX",
    "ANALYTICS_SECRET_CHARS_MAX",
    "OFFENDERS_MERGED_MAX",
    "TOP_NAMES_MAX",
    "TOP_ROWS_MAX",
    "TOP_WINDOW_S_MAX",
]

# Clients kept of one rule and kind when summaries are merged: who came more than a thousandth of all is told of, whatever
# else there was. A quarter of a megabyte.
OFFENDERS_MERGED_MAX: Final = 1_000

# Different clients in the file of `sluicegate top --names`: some seconds to hash, and about 100 MB.
TOP_NAMES_MAX: Final = 200_000

# Clients that one answer names.
TOP_ROWS_MAX: Final = 1_000

# The longest window that is asked for at once, in seconds: counts are kept for 90 days.
TOP_WINDOW_S_MAX: Final = 90 * 86_400

# Names of clients remembered with their digests; all are forgotten when it is full. About 3 MB.
ANALYTICS_NAMES_MAX: Final = 16_384

# Bytes of one secret of digests. HMAC-SHA-256 makes nothing better of more than 64.
ANALYTICS_SECRET_CHARS_MAX: Final = 256

# Secrets in the file of them: the one in use and those before it, a change a month for a year and a half.
ANALYTICS_SECRETS_MAX: Final = 20
