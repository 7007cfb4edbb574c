"""Of the Redis store."""

from __future__ import annotations

from typing import Final

__all__ = [
    "BREAKER_FAILURES",
    "BREAKER_PROBE_FIRST_US",
    "BREAKER_PROBE_MAX_US",
    "FLEET_NODES_MAX",
    "REDIS_BATCH_MAX",
    "REDIS_BEAT_TTL_MS",
    "REDIS_BEAT_US",
    "REDIS_CLUSTER_ASK_MS",
    "REDIS_CLUSTER_REFRESH_US",
    "REDIS_CONNECTIONS_MAX",
    "REDIS_CONNECT_MS",
    "REDIS_COSTS_MEMO_MAX",
    "REDIS_EXIT_MS",
    "REDIS_EXPECTED_CLIENTS_MAX",
    "REDIS_FORMS_MEMO_MAX",
    "REDIS_HASH_CLIENTS",
    "REDIS_HASH_FIELDS_MIN",
    "REDIS_HASH_VALUE_BYTES_MAX",
    "REDIS_IDLE_CHECK_US",
    "REDIS_KEY_SECRET_BYTES_MAX",
    "REDIS_KEY_SECRET_BYTES_MIN",
    "REDIS_LATE_LOOP_DIVISOR",
    "REDIS_NEWS_BYTES_MAX",
    "REDIS_NEWS_FLUSH_MS",
    "REDIS_NEWS_FORBIDDEN_US",
    "REDIS_NEWS_LIFE_US",
    "REDIS_NEWS_NAMES_MAX",
    "REDIS_NEWS_PAUSE_MAX_US",
    "REDIS_NEWS_PAUSE_MIN_US",
    "REDIS_NEWS_PENDING_MAX",
    "REDIS_NEWS_RETRY_FIRST_US",
    "REDIS_NEWS_RETRY_MAX_US",
    "REDIS_NODES_MEMORY_US",
    "REDIS_PREPARE_PAUSE_US",
    "REDIS_PROBE_MS",
    "REDIS_READ_BYTES",
    "REDIS_READ_TOGETHER_MAX",
    "REDIS_RESENDS_MAX",
    "REDIS_RIDER_RETRY_US",
    "REDIS_ROW_MAX",
    "REDIS_SECRET_CHECK_US",
    "REDIS_SEEDS_MAX",
    "REDIS_SENTINEL_ASK_MS",
    "REDIS_SENTINEL_CHECK_US",
    "REDIS_SUSPECTS_MAX",
    "REDIS_TIMEOUT_MS",
    "REDIS_TIMEOUT_MS_MAX",
    "REDIS_UNDO_DIVISOR",
    "REDIS_WAITING_MAX",
    "REDIS_WARM_MS",
]

# Redis store: requests decided in one call of the script. The server does nothing else meanwhile; 256 take about a millisecond.
REDIS_BATCH_MAX: Final = 256

# Redis store: counters (rule and tier) whose definitions are kept ready. Rule sets hold up to 5,000 rules; a full memo is emptied,
# and a definition costs 10 microseconds to make.
REDIS_FORMS_MEMO_MAX: Final = 16_384

# Redis store: costs of one counter whose definitions are kept ready. Nearly all requests cost one; where a header says what they cost, a
# definition takes 3 microseconds to make anew.
REDIS_COSTS_MEMO_MAX: Final = 64

# Redis store: keys that one script reads with one command. Lua's stack holds 8,000 values; from a few dozen on nothing more is gained.
REDIS_READ_TOGETHER_MAX: Final = 1_024

# Redis store: numbers that a script unpacks onto Lua's stack, for the same reason. A full batch whose requests charge thirty counters each, no two
# alike in a row, has more, which are unpacked more slowly.
REDIS_ROW_MAX: Final = 4_000

# Redis store: connections of one process. A thread uses one at a time; whoever finds all in use waits within its deadline.
REDIS_CONNECTIONS_MAX: Final = 256

# Redis store: milliseconds one decision may take in all, connecting included, and the longest that may be configured. In a data
# centre the store answers within one; a minute is for batch programs, never for a door.
REDIS_TIMEOUT_MS: Final = 8
REDIS_TIMEOUT_MS_MAX: Final = 60_000

# Redis store: milliseconds for the first connection when a store is opened, with loading the script. Nobody waits for a decision
# then, and a name lookup may take this long.
REDIS_WARM_MS: Final = 1_000

# Redis store: milliseconds that making one connection may take (a longer timeout_ms allows as much), TLS and authentication included.
# It goes on while the decisions that wait for it meet their own deadlines. A lost first packet is repeated by the kernel after a
# second; a new attempt is sooner.
REDIS_CONNECT_MS: Final = 500

# Redis store: milliseconds for which the end of a program waits for connections that are being made. Making one takes at most twice REDIS_CONNECT_MS
# (TCP, then TLS) unless timeout_ms is longer; a name lookup that hangs must not keep a program alive.
REDIS_EXIT_MS: Final = 1_500

# Redis store: milliseconds a server may take to answer a probe, once connected. A server that was stopped answers old probes when it
# goes on, one that was cut off answers none: then the next probe must not be kept waiting.
REDIS_PROBE_MS: Final = 250

# Breaker: failures in a row after which a server is left alone. One is a lost packet, two may be bad luck; while three are
# counted, callers wait for three timeouts.
BREAKER_FAILURES: Final = 3

# Breaker: microseconds until the first probe, and the longest pause between two; each is cut by up to a half at random. With
# the time a probe may take (REDIS_CONNECT_MS, REDIS_PROBE_MS) a server that returns is used again within a second.
BREAKER_PROBE_FIRST_US: Final = 25_000
BREAKER_PROBE_MAX_US: Final = 200_000

# Redis store: how often a command is sent again because a server said that it did nothing: a script it does not know, counters that
# moved. A migration needs two, a failover in the middle of one two more.
REDIS_RESENDS_MAX: Final = 4

# Redis store: what an event loop was too late to send in time is sent all the same, and may take the time of a decision divided by this,
# counted from then. A loop that is held up says nothing of the store: in a crowd of 2,000 clients that ask at once, 4 here had 80 % of them
# decided without a healthy store, and 1 had 36 %.
REDIS_LATE_LOOP_DIVISOR: Final = 1

# Redis store: requests and commands that may wait for one server on one event loop. At 40,000 a second these are 200 milliseconds'
# worth, far more than a deadline lets wait; more fail at once.
REDIS_WAITING_MAX: Final = 8_192

# Redis store: microseconds between two heartbeats of a process, and how long one is believed. Three may be lost before a process
# is taken for gone.
REDIS_BEAT_US: Final = 1_000_000
REDIS_BEAT_TTL_MS: Final = 3_500

# Redis store: microseconds after which a heartbeat or a check of the secret is sent again where no reply came, and for which a store
# that could not be made ready (absent, another secret) is not tried again.
REDIS_RIDER_RETRY_US: Final = 250_000
REDIS_PREPARE_PAUSE_US: Final = 100_000

# Redis store: microseconds for which the largest number of processes that was seen is kept. A rollout replaces processes within
# it, and dividing a limit by too many is the safe side. While the store is down nothing is forgotten.
REDIS_NODES_MEMORY_US: Final = 60_000_000

# Redis store: microseconds a connection may lie idle before it is looked at and used. What was closed in a shorter time is found
# by using it, which costs one decision.
REDIS_IDLE_CHECK_US: Final = 10_000

# Redis store: microseconds between two checks that the secret of the keys is still the store's; a flush deletes it.
REDIS_SECRET_CHECK_US: Final = 1_000_000

# Redis store: bytes read from a connection at once. An answer to a full batch takes about 10 KB.
REDIS_READ_BYTES: Final = 65_536

# Redis Cluster and Sentinel: hosts that a store's URL may name. Three are enough to find the others; a hundred is a list of them all.
REDIS_SEEDS_MAX: Final = 128

# Redis Cluster: microseconds between two looks at the map of slots while there are signs of change; a failover takes a second or more.
REDIS_CLUSTER_REFRESH_US: Final = 200_000

# Redis Cluster: milliseconds one server is given to say who has which slot; then the next is asked. One that hangs must not hide the others.
REDIS_CLUSTER_ASK_MS: Final = 300

# Redis Sentinel: milliseconds one Sentinel, and the master it names, are given to answer; then the next is asked.
REDIS_SENTINEL_ASK_MS: Final = 300

# Redis Sentinel: microseconds between two questions who is the master, while the store is used. So long may charges go to a master that
# was replaced and still runs, and be lost.
REDIS_SENTINEL_CHECK_US: Final = 1_000_000

# Redis Cluster: counters whose refusal is remembered, so that they are decided before others are charged. A client is refused by one
# or two; a full memory is emptied, which costs each client one give-back.
REDIS_SUSPECTS_MAX: Final = 16_384

# Redis Cluster: what a refused request over several slots takes back may be sent until this fraction of the time of a decision after its
# deadline (2 ms of 8): the servers it goes to have just answered, and what is not taken back is lost.
REDIS_UNDO_DIVISOR: Final = 4

# Processes that may be said to share the limits of a store (``?nodes=``), which each divides by while the store is down.
FLEET_NODES_MAX: Final = 100_000

# Redis store: bytes of a key secret. 16 random bytes are enough; more than 1,024 is another file's content.
REDIS_KEY_SECRET_BYTES_MIN: Final = 16
REDIS_KEY_SECRET_BYTES_MAX: Final = 1_024

# Redis store, news: counters named in one message, and those that wait to be told; beyond that a message says that any counter may pass, which
# costs each process one more question for every counter that it refuses. 1,024 are 8 KiB. A process that gives back 200,000 times a second
# reaches the second.
REDIS_NEWS_NAMES_MAX: Final = 1_024
REDIS_NEWS_PENDING_MAX: Final = 10_240

# Redis store, news: microseconds between two messages of one process: one for each process there is, within these. All hear them: with 100 processes
# that all give back all the time, each hears 2,000 a second. The first after a pause is sent at once.
REDIS_NEWS_PAUSE_MIN_US: Final = 10_000
REDIS_NEWS_PAUSE_MAX_US: Final = 50_000

# Redis store, news: bytes of a message that are read before the connection is given up: eight times what this program sends. Anybody who may publish
# on the channel could fill a process's memory otherwise.
REDIS_NEWS_BYTES_MAX: Final = 65_536 + 1_024

# Redis store, news: microseconds without a word after which a server is asked for a sign of life; after twice as many the connection is given up.
REDIS_NEWS_LIFE_US: Final = 5_000_000

# Redis store, news: the first and the longest pause before another attempt to connect; each is cut by up to a half at random. Meanwhile
# refusals are trusted for a second.
REDIS_NEWS_RETRY_FIRST_US: Final = 25_000
REDIS_NEWS_RETRY_MAX_US: Final = 1_000_000

# Redis store, news: microseconds until a server that forbids them is asked again: rights are changed by operators.
REDIS_NEWS_FORBIDDEN_US: Final = 60_000_000

# Redis store, news: milliseconds for which closing a store waits for news to be sent, so that a program that resets a counter and ends is heard.
REDIS_NEWS_FLUSH_MS: Final = 100

# Redis store, packed layout: clients whose counters share a hash, when as many come as were expected. A hash is searched from its front, so twice
# as many cost half a microsecond more per check and save one byte per client.
REDIS_HASH_CLIENTS: Final = 100

# Redis store, packed layout: fields that the server must let a small hash have (hash-max-listpack-entries); fewer are told at the start. Chance
# gives one hash in a million half as many clients again as the mean, and twice as many than were expected may come.
REDIS_HASH_FIELDS_MIN: Final = 256

# Redis store, packed layout: bytes of a value; one that is longer makes its hash a large one for good. It is the server's default
# (hash-max-listpack-value), and a counter that needs more (a strict sliding window of many parts) is kept under a key of its own.
REDIS_HASH_VALUE_BYTES_MAX: Final = 64

# Redis store, packed layout: the most clients that can be expected.
REDIS_EXPECTED_CLIENTS_MAX: Final = 10_000_000_000
