"""Of block and allow lists, subjects and penalties in a node's memory."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BLOCK_RETRY_AFTER_US_MAX",
    "LIST_DUE_SPARE",
    "LIST_ENTRIES_MAX",
    "LIST_RECORDS_MAX",
    "LIST_VALUE_CHARS_MAX",
    "PENALTIES_UNTOLD_MAX",
    "PENALTY_CLIENTS_MAX",
    "PENALTY_FORGETS_MAX",
    "SUBJECTS_IN_NODE_MAX",
    "SUBJECT_FACTOR_PART_MAX",
]

# Entries of both lists together in one process. An address takes about 80 bytes, so two million take 160 MB: two feeds of a
# million. What is above belongs into a firewall, which does not have to read a request to refuse it.
LIST_ENTRIES_MAX: Final = 2_000_000

# Characters of an entry's value, and of the name of what put it there. No identity that is longer can be told apart by a person.
LIST_VALUE_CHARS_MAX: Final = 1_024

# Pairs of expiry and source that entries share. An imported feed has one; beyond this many each entry keeps its own, which
# takes about 100 bytes more.
LIST_RECORDS_MAX: Final = 4_096

# Notes of entries to be looked at when they end, beyond twice the number of entries. An entry that is put again with another end
# leaves its old note behind; above this the notes are written anew.
LIST_DUE_SPARE: Final = 1_024

# Entries that have ended, of each kind and length of prefix, that are forgotten when a penalty is given: a request waits for it. More than
# one penalty adds, so that lists that only penalties change do not grow.
PENALTY_FORGETS_MAX: Final = 64

# The longest a blocked client is told to wait: a day. An entry may be taken off before it ends, and whoever was told a month
# would not notice.
BLOCK_RETRY_AFTER_US_MAX: Final = 86_400 * 1_000_000

# Subjects with a tier or an override in one process. One takes about 100 bytes, with an override 300, so a million take 100 to
# 300 MB; where there are more, the tier has to come with the request, as a verified fact.
SUBJECTS_IN_NODE_MAX: Final = 1_000_000

# Numerator and denominator of the factor of an override. A limit that is to be a million times what it was is another limit.
SUBJECT_FACTOR_PART_MAX: Final = 1_000_000

# Clients whose refusals are counted for penalties, over all rules; about 250 bytes each. Where more are refused within a window
# the one whose window began first is forgotten, so a flood of identities costs others a late penalty and no memory.
PENALTY_CLIENTS_MAX: Final = 65_536

# Penalties that nobody has asked for yet. They act in this process whether or not they are told; where no rules service takes them
# the oldest are dropped.
PENALTIES_UNTOLD_MAX: Final = 10_000
