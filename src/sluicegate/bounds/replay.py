"""Of replays of access logs."""

from __future__ import annotations

from typing import Final

__all__ = [
    "REPLAY_BAD_LINES_SHOWN",
    "REPLAY_BAD_LINE_CHARS_SHOWN",
    "REPLAY_BATCH_LINES",
    "REPLAY_CLIENTS_MAX",
    "REPLAY_CLIENTS_SHOWN",
    "REPLAY_COUNTERS_MAX",
    "REPLAY_HELD_LINES_MAX",
    "REPLAY_LINE_CHARS_MAX",
    "REPLAY_LOGS_MAX",
    "REPLAY_MEMO_CHARS_MAX",
    "REPLAY_MEMO_MAX",
    "REPLAY_MINUTES_SHOWN",
    "REPLAY_PURGE_MIN",
    "REPLAY_READ_BYTES",
    "REPLAY_RECORDED_CLIENTS_MAX",
    "REPLAY_RECORDED_CLIENTS_TOLD",
    "REPLAY_TIMES_MEMO_MAX",
    "WHATIF_CLIENTS_SHOWN",
    "WHATIF_MEMORY_BYTES_MAX",
]

# Replay: bytes read from a log at once, and unpacked at once, which bounds what a packed log can unpack to in memory.
REPLAY_READ_BYTES: Final = 262_144

# Replay: characters of one line. Web servers accept request lines and headers of 8 to 32 KiB, escaped to four times that
# at worst; what is longer is no line of an access log.
REPLAY_LINE_CHARS_MAX: Final = 131_072

# Replay: log files in one run, each held open until all are merged by time. Four months of daily files.
REPLAY_LOGS_MAX: Final = 128

# Replay: requests that come out of their order of time together. Sorting and deciding in batches of this size costs no
# more per request than in larger ones.
REPLAY_BATCH_LINES: Final = 8_192

# Replay: requests held back until their turn in order of time, over all logs; 120 seconds at 4,000 requests a second. One
# takes 70 bytes, or 500 where every line is different, so this is a quarter of a gigabyte at worst.
REPLAY_HELD_LINES_MAX: Final = 500_000

# Replay: requests whose charges are remembered, and the characters of what one is known by. About 30 MB when full; a
# request that is not remembered costs three microseconds more.
REPLAY_MEMO_MAX: Final = 32_768
REPLAY_MEMO_CHARS_MAX: Final = 512

# Replay: time texts remembered. Lines of one second follow each other, so a few minutes' worth is plenty.
REPLAY_TIMES_MEMO_MAX: Final = 1_024

# Replay: live counters, as many as a memory store holds by default, and the number from which on expired ones are looked for.
REPLAY_COUNTERS_MAX: Final = 1 << 20
REPLAY_PURGE_MIN: Final = 65_536

# Replay: refused clients that are counted exactly, about 20 MB. With more, small counts are forgotten, and the report says
# by how much the others may be too small.
REPLAY_CLIENTS_MAX: Final = 100_000

# Replay: what a report shows: the most refused clients (more of them where two rule sets are compared), the busiest minutes, the first bad lines and this much of each.
REPLAY_CLIENTS_SHOWN: Final = 10
WHATIF_CLIENTS_SHOWN: Final = 50
REPLAY_MINUTES_SHOWN: Final = 5
REPLAY_BAD_LINES_SHOWN: Final = 5
REPLAY_BAD_LINE_CHARS_SHOWN: Final = 64

# Replay in a process of its own: address space that it may take. Counters and clients at their bounds take half of it; the rest is the interpreter.
WHATIF_MEMORY_BYTES_MAX: Final = 2_147_483_648

# Replay: clients of one rule and minute that are counted where decisions are recorded, and those of them that are told of: as
# many as are kept when minutes are merged. Ten times as many are counted, so what is told is exact up to 10,000 clients a minute.
REPLAY_RECORDED_CLIENTS_MAX: Final = 10_000
REPLAY_RECORDED_CLIENTS_TOLD: Final = 1_000
