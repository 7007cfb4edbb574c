"""Every maximum in the package, each with its reason.

A value that grows with traffic, input or configuration has its bound here; what is cut off by a bound is counted or
reported where that happens.
"""

from __future__ import annotations

from typing import Final

# The longest address text that is looked at. A bracketed IPv6 address with a zone id and a port needs 65 characters
# with the interface names Linux allows (15); the rest is room for longer zone names elsewhere.
ADDRESS_CHARS_MAX: Final = 128

# Addresses remembered per memo (canonical key, membership in a network list). 16,384 entries take about 3 MB, and
# emptying a full memo pauses one request by less than a millisecond.
IP_MEMO_MAX: Final = 16_384

# The largest TCP port number.
PORT_MAX: Final = 65_535

# Bytes of a Unix socket's path. Linux allows 108 with the closing zero; a longer one would be cut off silently by some
# clients, so it is refused when it is configured.
UNIX_PATH_BYTES_MAX: Final = 107

# Connections the kernel may hold ready for a listener. A burst of reconnecting clients after a restart should wait in
# the queue rather than be refused; the kernel caps it at net.core.somaxconn (4096 by default).
LISTEN_BACKLOG: Final = 2_048

# Seconds at the beginning of a drain in which kept connections stay open. A request that a client has sent already, or sends
# before it hears of the end, is answered (with "Connection: close"); without it each busy client would lose one request.
DRAIN_GRACE_S: Final = 0.2

# Seconds between two sweeps over a door's connections; every timeout of a door is late by at most this. A sweep of
# 10,000 connections takes about a millisecond, so a shorter interval would cost more than precision is worth.
SWEEP_INTERVAL_S: Final = 0.5

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

# Bytes of the file that holds the values of flags. There are about thirty flags; a larger file is not one of ours.
CONFIG_BYTES_MAX: Final = 65_536

# The longest time a flag may ask for, a month in seconds. Nothing a server waits for takes longer, and no timer overflows.
DURATION_S_MAX: Final = 31 * 86_400

# The largest load (requests per second, clients, nodes) that `rules bounds` computes for. Its results stay finite.
REPORT_LOAD_MAX: Final = 1_000_000_000_000

# Counters a memory store holds unless told otherwise. With short keys one takes about 300 bytes, so a full store takes
# about 300 MB; more clients than this within one window belong on a shared store.
MEMORY_COUNTERS_MAX: Final = 1 << 20

# The most a memory store can be told to hold: about 30 GB, beyond which a sweep takes longer than its period.
MEMORY_COUNTERS_CEILING: Final = 100_000_000

# Segments a full memory store is cut into. A dict of 131,072 keys grows in about 3 ms where one of a million takes 30 ms
# or more; every further segment costs a new key one more lookup.
MEMORY_SEGMENTS: Final = 8

# Counters a segment has at least; smaller ones would be rotated all the time.
MEMORY_SEGMENT_MIN: Final = 64

# Counters looked at in one call to make room for one: about a tenth of a millisecond.
MEMORY_EXAMINED_PER_STEP: Final = 512

# The share of a memory store (1/128) that stays free for new keys while a pass over the table finds only refusing
# counters. A pass looks at 512 for each added one, so it uses at most 1/512 of the table.
MEMORY_RESERVE_DIVISOR: Final = 128

# Up to this many counters a whole pass is one step (under 2 ms) and no reserve is needed.
MEMORY_TABLE_SMALL: Final = 4_096

# Calls over which a sweep is spread, so that a store of any size is swept by this many calls and one step of a full store
# of default size looks at about 128 counters (30 microseconds).
MEMORY_SWEEP_CALLS: Final = 8_192

# Counters a sweep step looks at, at least.
MEMORY_SWEEP_STEP_MIN: Final = 16

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

# Redis store: what an event loop was too late to send in time is sent all the same, and may take this fraction of the time of a decision
# (2 ms of 8). A loop that is held up says nothing of the store, and its requests are late already.
REDIS_LATE_LOOP_DIVISOR: Final = 4

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

# Gateway: bytes of one message head (start line and fields), of a trailer section and of buffered early input. Real
# requests stay under 8 KiB (nginx's default); large cookies and tokens need more, and 32 KiB per connection is what
# a slow client can make the gateway hold.
GATEWAY_HEAD_BYTES_MAX: Final = 32_768

# Gateway: bytes of a request line. Browsers and proxies agree on about 8,000.
GATEWAY_REQUEST_LINE_BYTES_MAX: Final = 8_192

# Gateway: header fields of one message. Each costs a few hundred nanoseconds, so the count is bounded, not only the bytes.
GATEWAY_FIELDS_MAX: Final = 100

# Gateway: bytes of one chunk-size line with its extensions. The size takes 16 at most; nobody uses extensions.
GATEWAY_CHUNK_LINE_BYTES_MAX: Final = 256

# Gateway: interim (1xx) answers of an upstream to one request; more is a broken upstream.
GATEWAY_INTERIM_MAX: Final = 16

# Gateway: client connections at once. Each idle one holds about 5 KB; the limit on open files (often 1,024 unless raised) may
# come first, and a proxied request needs two.
GATEWAY_CONNECTIONS_MAX: Final = 10_000

# Gateway: connections to one upstream. A Python or Node backend rarely serves more at once; beyond it requests wait.
GATEWAY_UPSTREAM_CONNECTIONS_MAX: Final = 256

# Gateway: requests waiting for a connection to one upstream. At 10,000 requests a second this is a tenth of a second.
GATEWAY_WAITING_MAX: Final = 1_024

# Gateway: requests held at once to space their starts (leaky_bucket). Each keeps a client connection and a timer.
GATEWAY_HELD_MAX: Final = 1_000

# Gateway: bytes queued towards one peer before the other side is told to stop sending. Two of these and one read
# (256 KiB at most) in each direction is all the memory a body of any length takes.
GATEWAY_WRITE_BYTES_MAX: Final = 65_536

# Gateway: bytes of a refused request's body that are read and thrown away to keep the connection. More is cheaper to
# cut off than to receive.
GATEWAY_DISCARD_BYTES_MAX: Final = 65_536

# Gateway: bytes read after a last answer so that the client can read the answer before the connection is reset. What a
# client has under way fills the kernel's buffers on both ends (about 10 MiB); throwing 16 MiB away takes milliseconds.
GATEWAY_LINGER_BYTES_MAX: Final = 16 * 1_048_576

# Gateway: seconds such a lingering close lasts.
GATEWAY_LINGER_S: Final = 2.0

# Gateway: distinct spellings of header names whose meaning is remembered. An attacker can make up names, so the memo
# is emptied when it is full; real traffic has about a hundred.
GATEWAY_NAMES_MEMO_MAX: Final = 2_048

# Bytes of a PROXY protocol header, version 2, with its TLVs: the specification asks receivers for 536 at least.
PROXY_HEADER_BYTES_MAX: Final = 4_096

# Characters of one escaped part of a counter's key; a longer one is replaced by its SHA-256. 128 hold UUIDs, e-mail
# addresses and most tokens' ids readable, and keep a key of eight parts near a kilobyte.
SUBJECT_CHARS_MAX: Final = 128

# Finished key parts remembered per dimension. 16,384 entries of ordinary ids take about 4 MB; emptying a full memo pauses
# one request by about a millisecond.
SUBJECT_MEMO_MAX: Final = 16_384

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

# Bytes of a request's target, and of its body, that the demo backend keeps. It looks at paths of a few words.
DEMO_BYTES_KEPT: Final = 16_384

# Lines of one demo stream; at ten a second the longest lasts a quarter of an hour.
DEMO_STREAM_LINES_MAX: Final = 9_000

# The largest Integer of an HTTP structured field (RFC 9651, section 3.3.1): 15 digits. Larger counts are sent as this.
HEADER_INTEGER_MAX: Final = 999_999_999_999_999

# Rules whose header texts are kept ready, by name and numbers. More than a rule set has rules (5,000), so that only
# callers with ever new inline policies can fill it; it is then emptied, and each rule writes its texts again (5 µs).
POLICY_TEXTS_MAX: Final = 8_192

# The numbers of a limit. State and arithmetic are exact integers in Python; a port to Lua has doubles, exact to 2^53.
# There a time is whole microseconds plus a remainder below `tokens`, and every product has two factors below 2^53, so
# that a port can compute and compare it exactly in two limbs (2^106). These two are the store's time (until the year
# 2112) and the time a drained bucket takes to fill, capacity * period_us / tokens (71 years): their sum is below 2^53.
NOW_US_MAX: Final = 1 << 52
DRAIN_US_MAX: Final = 1 << 51

# How far behind a counter's state a clock may be and still be taken for skew, in microseconds: time then stands still
# until it has caught up. Further behind, the clock was set back and the counter is brought to the new time. Without a
# tolerance two clocks that take turns (a failover, an NTP step undone) would refill the counter at every turn; with it
# a step back locks a caller out for at most ten seconds longer than a drain or a window.
CLOCK_BEHIND_US_MAX: Final = 10 * 1_000_000

# Tokens of a bucket or a window, and tokens per period after the fraction is reduced; a remainder is below the latter.
# They stand in the products capacity * period_us, cost * period_us, elapsed_us * tokens and count * overlap_us, all of
# them below 2^93.
CAPACITY_MAX: Final = 10**12
TOKENS_MAX: Final = 10**12

# Period and window, in microseconds: ten years of 365 days, below 2^49, so that the start of a window plus its length is
# below 2^53 too.
PERIOD_US_MAX: Final = 10 * 365 * 86_400 * 1_000_000
WINDOW_US_MAX: Final = PERIOD_US_MAX

# Tokens one request may ask for. A larger number is an input error; one above the capacity never fits.
COST_MAX: Final = CAPACITY_MAX

# The longest a leaky bucket may tell a caller to hold a request: an hour. A longer wait is the work of a job queue.
DELAY_US_MAX: Final = 3_600 * 1_000_000

# Sub-windows of a strict sliding window: one integer each per counter. At 60 the sustained rate is 98.4 % of the limit.
SUB_WINDOWS_MAX: Final = 60

# Tokens in a sliding log, which keeps one entry per accepted hit: 10,000 take about 0.5 MB per counter, and a hit copies
# the log in about 0.1 ms.
SLIDING_LOG_LIMIT_MAX: Final = 10_000

# Calendar windows whose ends are remembered. All counters of one calendar rule share the current window.
CALENDAR_MEMO_MAX: Final = 1_024

# The longest identity value (a user id, a tenant, a tier). Opaque ids and mail addresses (254 characters) fit; whatever
# is longer is no id and would only inflate keys and memory.
IDENTITY_BYTES_MAX: Final = 256

# Identity values remembered in decoded form, per header: at most 10 MB of the longest values, 2 MB of usual ones.
IDENTITY_MEMO_MAX: Final = 16_384

# Characters of a header name in a rule file, and header spellings remembered per resolver. Real requests use a few
# dozen names in two or three spellings; the memo is emptied when somebody invents more.
HEADER_NAME_CHARS_MAX: Final = 128
HEADER_NAMES_MEMO_MAX: Final = 1_024

# The part of a forwarding header that is looked at, counted from its right end, and the trusted hops that are followed in
# it. Chains of real deployments have fewer than ten hops of at most 60 bytes.
FORWARDED_BYTES_MAX: Final = 4_096
FORWARDED_HOPS_MAX: Final = 32

# Forwarding headers up to this length are remembered: 16,384 of them (IP_MEMO_MAX) then take at most about 6 MB.
FORWARDED_MEMO_BYTES_MAX: Final = 256

# Bytes of a keys file; at about 90 bytes a key, 180,000 keys. More belong into the tokens of an identity provider.
KEYS_FILE_BYTES_MAX: Final = 16 * 1024 * 1024

# Bytes and keys of a JSON Web Key Set. Providers publish two to ten keys; a set is parsed while it is loaded only.
JWKS_BYTES_MAX: Final = 1024 * 1024
JWKS_KEYS_MAX: Final = 100

# Bytes of a token. Servers limit a header line to 8 KiB, so a longer token would not reach a backend either.
TOKEN_BYTES_MAX: Final = 8_192

# Verified tokens, and tokens with a bad signature, remembered per verifier; each generation of the memo holds this many.
# A verified entry takes about 400 bytes, so both generations stay below 7 MB.
TOKENS_MEMO_MAX: Final = 8_192

# Seconds by which an issuer's clock may differ from ours, and characters of a claim's name (a URL often).
JWT_LEEWAY_S_MAX: Final = 300
CLAIM_NAME_CHARS_MAX: Final = 256

# Bytes of a request head at the decision API: request line and fields. Its own clients send about 200; a browser or a
# proxy chain with cookies and tracing stays below 8 KiB.
HTTP_HEAD_BYTES_MAX: Final = 16_384

# Header fields of one request at the decision API, for the same reason.
HTTP_FIELDS_MAX: Final = 100

# Default of the largest request body: a full batch of 1,000 checks with facts takes about 300 KB.
HTTP_BODY_BYTES_MAX: Final = 1_048_576

# Connections one decision API serves at once. Each idle one holds about 5 KB; the usual limit on open files (1,024 soft)
# is reached earlier unless it is raised.
HTTP_CONNECTIONS_MAX: Final = 10_000

# Bytes of one line of a chunked body (a size with its extensions, or a trailer field), and of all trailer fields.
HTTP_CHUNK_LINE_BYTES_MAX: Final = 1_024
HTTP_TRAILER_BYTES_MAX: Final = 8_192

# Answers to pipelined requests are collected up to this many bytes before they are written; beyond it the peer has to
# read before more of its requests are served.
HTTP_WRITE_BYTES_MAX: Final = 65_536

# After an early answer, at most this much of what the peer still sends is thrown away before the connection is cut.
HTTP_LINGER_BYTES_MAX: Final = 16_777_216

# HTTP API: answers that may be due at once on one connection, where decisions take time. Pipelined checks of one read ride
# together in the store; more of them wait for these, and a connection holds at most so many small answers.
HTTP_DUE_MAX: Final = 64

# HTTP API: items of a batch that are not plain checks and wait for the store at once. It is what one call of the Redis script takes.
HTTP_BATCH_SLICE: Final = 256

# Seconds after which a connection is given up whose decision has not come. A store answers within its timeout, of at most a
# minute, and a full batch takes four calls of it; what takes longer is a fault of this program.
DECISION_S_MAX: Final = 300.0

# Request heads whose parse is remembered, each at most this long. A client repeats its head with every request, so a few
# per client program suffice; 2 generations of 1,024 take at most 4 MB. Heads with a unique field pass through and push out others.
HTTP_HEADS_MEMO_MAX: Final = 1_024
HTTP_HEAD_MEMO_BYTES_MAX: Final = 1_536

# Checks of one batch call. Bounds the time one call may hold the store: about a millisecond.
BATCH_MAX: Final = 1_000

# Bytes of ``key`` in an inline check, and of each identifying fact. Keys above 128 are stored as a digest, so the bound
# is about parsing and logs, not the store.
KEY_BYTES_MAX: Final = 1_024

# Bytes of any other text among the facts: paths and header values.
FACT_BYTES_MAX: Final = 8_192

# Entries of the facts' maps (headers, descriptors, attrs).
FACT_ENTRIES_MAX: Final = 128

# Checks remembered by their exact JSON text, each at most this long: two generations of 16,384 take at most 25 MB.
# Callers repeat the same few thousand checks (key and policy), and reading one again costs 4 µs instead of 0.1.
CHECKS_MEMO_MAX: Final = 16_384
CHECK_MEMO_BYTES_MAX: Final = 384

# Inline policies remembered by their exact JSON text. Each is one spec; programs use a handful.
INLINE_POLICIES_MEMO_MAX: Final = 2_048
INLINE_POLICY_MEMO_BYTES_MAX: Final = 256

# Characters of the key of a quota limiter. Whoever needs more has not chosen a key; above 128 a digest is stored.
KEY_CHARS_MAX: Final = 65_536

# Keys whose counter is remembered by a quota limiter: about 4 MB. A full memo is emptied; a key costs 2 µs to learn.
COUNTER_MEMO_MAX: Final = 16_384

# Receipts a limiter keeps for refunds, and how long. An hour is longer than any request is in flight; a receipt takes
# about 600 bytes, so a full table takes 60 MB. The oldest is forgotten first, and counted.
RECEIPTS_MAX: Final = 100_000
RECEIPT_TTL_US: Final = 3_600 * 1_000_000

# Pairs of rule and outcome a limiter counts refusals of: four outcomes of more rules than a file may hold. Further
# names, which only inline policies can bring, are counted together.
REFUSAL_COUNTS_MAX: Final = 20_000

# What a request refused because of the store is told to wait: long enough for a failover to begin, short enough that
# clients are back soon after it.
STORE_RETRY_US: Final = 1_000_000

# Local counters that a limiter keeps for times without its store, and counters of which it remembers that they were charged here.
# About 100 MB when full; clients beyond that are the least recent ones, who begin anew.
FALLBACK_COUNTERS_MAX: Final = 1 << 18

# A store that answers again is taken for well if it has not failed for a minute: what fails again before is the same outage, so that
# a store that comes and goes gives nobody a new beginning each time.
FALLBACK_GAP_US: Final = 60_000_000

# After an outage requests pass their local counter too, for one drain of it and at most a minute. The other nodes of a fleet find
# the store back within seconds; a longer hand-over of slow limits (a month) would only keep clients that stay with one node to a
# fraction of their limit.
FALLBACK_HANDOVER_US_MAX: Final = 60_000_000

# How long a limiter remembers what it owes the store for a client that does not come back. An hour is longer than most outages
# last, and one that does come back later finds what the store gained meanwhile all the same.
FALLBACK_OWED_US_MAX: Final = 3_600_000_000

# Different values of one fact (tenant, descriptor, header) that rules must ask for before they are filed by it. Filing costs
# every request a lookup; trying this many rules one by one costs about as much.
LABEL_VALUES_MIN: Final = 8

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

# Replay: what a report shows: the most refused clients, the busiest minutes, the first bad lines and this much of each.
REPLAY_CLIENTS_SHOWN: Final = 10
REPLAY_MINUTES_SHOWN: Final = 5
REPLAY_BAD_LINES_SHOWN: Final = 5
REPLAY_BAD_LINE_CHARS_SHOWN: Final = 64

# Shapes of batches remembered (everything but the key), each with the items seen in it (from the key on), of at most this
# length. Four shapes with two generations of 16,384 items take at most 64 MB.
TEMPLATES_MAX: Final = 4
TEMPLATE_PIECE_BYTES_MAX: Final = 192

# Worker processes of one server. The largest machines have a few hundred cores; more is a slip.
WORKERS_MAX: Final = 512

# Seconds a worker may take to open its listeners. Key sets of issuers that do not answer take five, a store that does not answer one.
WORKER_START_S: Final = 30.0

# Seconds that workers have beyond --drain-delay and --drain-timeout before the supervisor ends them.
WORKER_STOP_MARGIN_S: Final = 5.0

# Seconds in which a worker whose supervisor is gone finishes what is in flight, and after which it ends in whatever state it is.
ORPHAN_DRAIN_S: Final = 2.0
ORPHAN_LIFE_S: Final = 3.0

# Restarts of workers and of the embedded store: a life this long in seconds was a good one, the next starts at once. After shorter
# ones the pauses grow from the first to the longest, so that what cannot live takes little of the machine.
STEADY_LIFE_S: Final = 10.0
RESTART_PAUSE_FIRST_S: Final = 0.25
RESTART_PAUSE_MAX_S: Final = 10.0

# Bytes of one message between supervisor and worker. The longest holds all settings, about 3 KB, or a reason made of many problems.
WORKER_MESSAGE_BYTES_MAX: Final = 1_048_576

# What one worker asks another (metrics, refunds): seconds to wait, and bytes of one answer. Metrics are read in milliseconds; with
# 5,000 rules and every label in use they are about 5 MB.
FLEET_ANSWER_S: Final = 1.0
FLEET_ANSWER_BYTES_MAX: Final = 16_777_216

# Embedded store: mebibytes of counters, unless told otherwise, and the least and most it can be told. 512 hold about three million counters.
EMBEDDED_MEMORY_MB: Final = 512
EMBEDDED_MEMORY_MB_MIN: Final = 16
EMBEDDED_MEMORY_MB_MAX: Final = 1_048_576

# Embedded store: milliseconds one decision may take, unless told otherwise. There is no network between; a late answer means that the
# machine is busy, and then a late decision by the shared counter is better than one by a part of the limit.
EMBEDDED_TIMEOUT_MS: Final = 250

# Embedded store: seconds it may take to answer after its start (a tenth is usual), and to end after it was told to.
EMBEDDED_START_S: Final = 10.0
EMBEDDED_STOP_S: Final = 3.0

# Python doors: requests (method, path) whose route template is remembered. A miss tries the routes one after another, a
# microsecond each; paths hold ids, so the memo only has to hold what is asked for often.
ROUTE_MEMO_MAX: Final = 4_096

# Python doors: characters of a request that is remembered so. Longer ones are looked up each time; 4,096 of these take 2 MB.
ROUTE_MEMO_CHARS_MAX: Final = 256

# ASGI middleware: requests held at once to space their starts (leaky_bucket). Each keeps a connection, a timer and what the server
# has read of it.
ASGI_HELD_MAX: Final = 1_000

# WSGI doors: requests held at once in one process. Each blocks a worker's thread, of which there are often 4 to 40.
WSGI_HELD_MAX: Final = 8

# Django door: limits of throttle classes that are kept ready, one for each class and rate. A program has a dozen; the bound is for
# classes that make up their rates.
THROTTLE_LIMITS_MAX: Final = 1_024
