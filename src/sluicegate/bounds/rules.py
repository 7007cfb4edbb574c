"""Of rule files, of matching and of reports."""

from __future__ import annotations

from typing import Final

__all__ = [
    "COUNT_DIGITS_MAX",
    "DECIMAL_EXPONENT_MAX",
    "ENTRY_VALUES_MAX",
    "HINT_CHARS_MAX",
    "LABEL_VALUES_MIN",
    "LEAKY_PAIRS_MAX",
    "LIMITS_PER_REQUEST_MAX",
    "MATCH_MEMO_CHARS_MAX",
    "MATCH_MEMO_MAX",
    "MATCH_VALUES_MAX",
    "PATH_CHARS_MAX",
    "PATH_READINGS_CHARS_MAX",
    "PATTERN_SEGMENTS_MAX",
    "PENALTY_BLOCK_DAYS_MAX",
    "PER_DIMENSIONS_MAX",
    "PROBLEMS_MAX",
    "QUOTA_CHARS_MAX",
    "QUOTA_PARTS_MAX",
    "REPORT_LOAD_MAX",
    "RULES_BYTES_MAX",
    "RULES_DEPTH_MAX",
    "RULES_MAX",
    "RULES_VALUES_MAX",
    "RULE_TEXT_CHARS_MAX",
    "SEGMENT_WILDCARDS_MAX",
    "SUBJECTS_MAX",
    "TIERS_MAX",
]

# Bytes of a rules file. 1 MiB holds several thousand rules and is read in a few seconds (500 rules in a third of one); a
# larger one is more likely the wrong file than a rule set.
RULES_BYTES_MAX: Final = 1_048_576

# Rules in one set. Matching does not slow down with their number, but every node holds them all in memory.
RULES_MAX: Final = 5_000

# Values a rules file may hold after its aliases are written out. A file within RULES_BYTES_MAX that uses none stays
# below it; ten lines of aliases to aliases (a "billion laughs" file) do not.
RULES_VALUES_MAX: Final = 600_000

# Levels a rules file may be nested. The deepest valid one needs 6 (file, rules, rule, match, not, list).
RULES_DEPTH_MAX: Final = 16

# Problems reported of one rules file. The rest is counted: a file with more is broken in one way many times.
PROBLEMS_MAX: Final = 200

# Values in one condition of a match (paths, hosts, networks, users). A longer list belongs to block and allow lists,
# which are looked up and not tried one after another.
MATCH_VALUES_MAX: Final = 256

# Values that one entry of a descriptor leaves out: those with a rule of their own, of which there may be as many as rules. They are looked
# up in a set.
ENTRY_VALUES_MAX: Final = 5_000

# Characters of one text in a rules file (a path pattern, a header value, a user). Longer ones could never equal what a
# door lets through.
RULE_TEXT_CHARS_MAX: Final = 1_024

# Limits (rules times parts of their quotas) that may apply to one request. Each is read and written per request; 64
# cost about 30 microseconds, and a set with more has lost sight of what it limits.
LIMITS_PER_REQUEST_MAX: Final = 64

# Dimensions of one composite key. There are ten built-in ones, and a key of more is one counter per request.
PER_DIMENSIONS_MAX: Final = 8

# Tiers of one rule set; every rule may hold one quota for each.
TIERS_MAX: Final = 64

# Entries of the static `subjects` map of a rules file.
SUBJECTS_MAX: Final = 10_000

# Pairs of leaky rules compared when a file is checked for two that hold the same request. 20,000 pairs take about a
# second; beyond it the check says that it did not look further.
LEAKY_PAIRS_MAX: Final = 20_000

# The longest block a penalty may give, in days. A longer one is a decision for a person and a block list.
PENALTY_BLOCK_DAYS_MAX: Final = 30

# Characters of a quota text and limits in it ("1/second; 100/hour" is two). Eight cover second to year; more are a slip.
QUOTA_CHARS_MAX: Final = 256
QUOTA_PARTS_MAX: Final = 8

# Digits of a number in a quota text. 15 digits stay below 2^53, so every number is exact in JSON and Lua too.
COUNT_DIGITS_MAX: Final = 15

# Digits and decimal exponent of a decimal number (refill_per_sec). It is turned into an exact fraction, whose size grows
# with the exponent: unbounded, "1e999999999" would take all memory.
DECIMAL_EXPONENT_MAX: Final = 18

# Characters of a word or value repeated in an error message, and the longest word a did-you-mean is sought for (the
# search is quadratic in the length).
HINT_CHARS_MAX: Final = 64

# The largest load (requests per second, clients, nodes) that `rules bounds` computes for. Its results stay finite.
REPORT_LOAD_MAX: Final = 1_000_000_000_000

# Requests (method, path, host, tier) whose matching rules are remembered. A miss costs a few microseconds, so the memo
# only has to hold the busy part of a site.
MATCH_MEMO_MAX: Final = 8_192

# Characters of a request line that is remembered. Longer ones are matched each time; 8,192 of these take about 10 MB.
MATCH_MEMO_CHARS_MAX: Final = 256

# Characters of a request path (without its query) that the matcher looks at. A hostile one of this length takes two or
# three milliseconds to read in all ways; a longer one is an invalid request, never an unmatched one.
PATH_CHARS_MAX: Final = 4_096

# Length of a path times the ways it can be read. An honest path has one to three; sixty are possible, and nobody needs them on a
# path of more than 800 characters. Beyond it a request is invalid, because each reading is searched for.
PATH_READINGS_CHARS_MAX: Final = 49_152

# Segments of a path pattern. A URL that an application routes by has far fewer.
PATTERN_SEGMENTS_MAX: Final = 64

# Wildcards inside one segment of a pattern; matching a segment takes at most this many searches in it.
SEGMENT_WILDCARDS_MAX: Final = 8

# Different values of one fact (tenant, descriptor, header) that rules must ask for before they are filed by it. Filing costs
# every request a lookup; trying this many rules one by one costs about as much.
LABEL_VALUES_MIN: Final = 8
