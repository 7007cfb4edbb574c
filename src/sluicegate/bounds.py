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

# Seconds between two sweeps over a door's connections; every timeout of a door is late by at most this. A sweep of
# 10,000 connections takes about a millisecond, so a shorter interval would cost more than precision is worth.
SWEEP_INTERVAL_S: Final = 0.5
