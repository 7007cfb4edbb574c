"""Of the HTTP API and of the doors of web frameworks."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ASGI_HELD_MAX",
    "BATCH_MAX",
    "CHECKS_MEMO_MAX",
    "CHECK_MEMO_BYTES_MAX",
    "DECISION_S_MAX",
    "FACT_BYTES_MAX",
    "FACT_ENTRIES_MAX",
    "HEADER_INTEGER_MAX",
    "HTTP_BATCH_SLICE",
    "HTTP_BODY_BYTES_MAX",
    "HTTP_CHUNK_LINE_BYTES_MAX",
    "HTTP_CONNECTIONS_MAX",
    "HTTP_DUE_MAX",
    "HTTP_FIELDS_MAX",
    "HTTP_HEADS_MEMO_MAX",
    "HTTP_HEAD_BYTES_MAX",
    "HTTP_HEAD_MEMO_BYTES_MAX",
    "HTTP_LINGER_BYTES_MAX",
    "HTTP_TRAILER_BYTES_MAX",
    "HTTP_WRITE_BYTES_MAX",
    "INLINE_POLICIES_MEMO_MAX",
    "INLINE_POLICY_MEMO_BYTES_MAX",
    "KEY_BYTES_MAX",
    "POLICY_TEXTS_MAX",
    "RETRY_JITTER_S_MAX",
    "ROUTE_MEMO_CHARS_MAX",
    "ROUTE_MEMO_MAX",
    "TEMPLATES_MAX",
    "TEMPLATE_PIECE_BYTES_MAX",
    "THROTTLE_LIMITS_MAX",
    "WSGI_HELD_MAX",
]

# The largest Integer of an HTTP structured field (RFC 9651, section 3.3.1): 15 digits. Larger counts are sent as this.
HEADER_INTEGER_MAX: Final = 999_999_999_999_999

# Rules whose header texts are kept ready, by name and numbers. More than a rule set has rules (5,000), so that only
# callers with ever new inline policies can fill it; it is then emptied, and each rule writes its texts again (5 µs).
POLICY_TEXTS_MAX: Final = 8_192

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

# Shapes of batches remembered (everything but the key), each with the items seen in it (from the key on), of at most this
# length. Four shapes with two generations of 16,384 items take at most 64 MB.
TEMPLATES_MAX: Final = 4
TEMPLATE_PIECE_BYTES_MAX: Final = 192

# Seconds by which refused clients may be told to come back later than they may. An hour spreads the largest crowd; more would only
# keep clients away who have their limit back.
RETRY_JITTER_S_MAX: Final = 3_600

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
