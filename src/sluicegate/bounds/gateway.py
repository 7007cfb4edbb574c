"""Of the gateway."""

from __future__ import annotations

from typing import Final

__all__ = [
    "GATEWAY_CHUNK_LINE_BYTES_MAX",
    "GATEWAY_CONNECTIONS_MAX",
    "GATEWAY_DISCARD_BYTES_MAX",
    "GATEWAY_FIELDS_MAX",
    "GATEWAY_HEAD_BYTES_MAX",
    "GATEWAY_HELD_MAX",
    "GATEWAY_INTERIM_MAX",
    "GATEWAY_LINGER_BYTES_MAX",
    "GATEWAY_LINGER_S",
    "GATEWAY_NAMES_MEMO_MAX",
    "GATEWAY_REQUEST_LINE_BYTES_MAX",
    "GATEWAY_UPSTREAM_CONNECTIONS_MAX",
    "GATEWAY_WAITING_MAX",
    "GATEWAY_WRITE_BYTES_MAX",
    "PROXY_HEADER_BYTES_MAX",
]

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
