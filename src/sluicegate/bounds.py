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
