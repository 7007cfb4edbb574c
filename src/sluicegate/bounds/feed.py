"""Of a node and the rules service that feeds it."""

from __future__ import annotations

from typing import Final

__all__ = [
    "FEED_ANSWER_BYTES_MAX",
    "FEED_CALL_S_MAX",
    "FEED_CONNECT_S_MAX",
    "FEED_POLL_S_MAX",
    "FEED_RETRY_S_MAX",
    "FEED_WAIT_S",
    "KEPT_RULES_BYTES_MAX",
    "KEPT_TABLE_BYTES_MAX",
    "NODE_NAME_CHARS_MAX",
    "OFFENDERS_IN_REPORT_MAX",
    "PENALTIES_IN_REPORT_MAX",
    "PUSH_PING_S",
    "PUSH_RETRY_S_MAX",
    "REPORT_ERROR_CHARS_MAX",
    "REPORT_INTERVAL_S_MAX",
    "REPORT_INTERVAL_S_MIN",
    "RULES_IN_REPORT_MAX",
    "SAMPLES_IN_REPORT_MAX",
    "SAMPLE_CHARS_MAX",
]

# Seconds that a long poll asks to wait, and between two polls at most: what no push told of is known after this time in any case.
FEED_WAIT_S: Final = 25
FEED_POLL_S_MAX: Final = 30

# Seconds for a connection, and for one whole call beside the time it asks to wait. A page of lists is a megabyte.
FEED_CONNECT_S_MAX: Final = 3
FEED_CALL_S_MAX: Final = 30

# Seconds between two attempts while the service does not answer; the first follow faster. A node is told by push meanwhile.
FEED_RETRY_S_MAX: Final = 10

# Bytes of one answer of the service: a page of 20,000 entries with the longest values fits.
FEED_ANSWER_BYTES_MAX: Final = 67_108_864

# Bytes of the rules that are kept on disk: those in service and those on trial, both at their bound, as JSON.
KEPT_RULES_BYTES_MAX: Final = 16_777_216

# Bytes of the lists, or the subjects, that are kept on disk: two million entries, and as much again of changes since.
KEPT_TABLE_BYTES_MAX: Final = 536_870_912

# Characters of a node's name, and of the reason in a report why it does not decide by what it was told.
NODE_NAME_CHARS_MAX: Final = 256
REPORT_ERROR_CHARS_MAX: Final = 2_000

# Seconds between two reports. The guard of a rollout looks back five seconds at least, and a service hears of all its nodes.
REPORT_INTERVAL_S_MIN: Final = 1
REPORT_INTERVAL_S_MAX: Final = 300

# Refused clients, penalties and rules with counts in one report; the rest come with the next. Together well below the service's bound.
OFFENDERS_IN_REPORT_MAX: Final = 200
PENALTIES_IN_REPORT_MAX: Final = 1_000
RULES_IN_REPORT_MAX: Final = 5_000

# Requests drawn for one report, and characters of one: longer ones are left out. At most 1 MB of a report.
SAMPLES_IN_REPORT_MAX: Final = 500
SAMPLE_CHARS_MAX: Final = 2_048

# Seconds between two questions whether the connection that brings hints still lives, and between two attempts to connect again.
PUSH_PING_S: Final = 10
PUSH_RETRY_S_MAX: Final = 10
