"""The PROXY protocol, versions 1 and 2 (haproxy.org, proxy-protocol.txt): who the client of an L4 balancer is.

Pure: the connection feeds what has arrived and is told the address, that more is needed, or that it is no such header.
"""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from sluicegate.bounds import PROXY_HEADER_BYTES_MAX

__all__ = ["ProxyHeader", "read_proxy_header"]

_V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_V2_FIXED_BYTES = 16
_V1_BYTES_MAX = 107  # "the worst case", section 2.1
_ADDRESS_BYTES = {1: 4, 2: 16}  # family nibble -> bytes of one address


class ProxyHeader(NamedTuple):
    """``address`` is the client's, or None where the header names none (LOCAL, UNKNOWN, a Unix socket)."""

    address: str | None
    used: int
    """Bytes the header took; what follows is the client's."""


def read_proxy_header(data: bytes) -> ProxyHeader | str | None:
    """Read a header at the start of ``data``: the header, None when more bytes are needed, or why it is none."""
    if data[:12] == _V2_SIGNATURE[: len(data)]:
        return _read_v2(data) if len(data) >= _V2_FIXED_BYTES else None
    if data[:6] == b"PROXY "[: len(data)]:
        return _read_v1(data)
    return "the connection does not begin with a PROXY header"


def _read_v1(data: bytes) -> ProxyHeader | str | None:
    end = data.find(b"\r\n", 0, _V1_BYTES_MAX)
    if end < 0:
        return None if len(data) < _V1_BYTES_MAX else "a PROXY header of version 1 is longer than 107 bytes"
    words = data[:end].split(b" ")
    if words[1:2] == [b"UNKNOWN"]:
        return ProxyHeader(None, end + 2)
    if len(words) != 6 or words[1] not in {b"TCP4", b"TCP6"}:
        return "a PROXY header of version 1 does not have its six words"
    version = 4 if words[1] == b"TCP4" else 6
    try:
        source, target = (ipaddress.ip_address(word.decode("ascii")) for word in words[2:4])
    except ValueError:
        return "a PROXY header has an address that is none"
    if source.version != version or target.version != version:
        return "a PROXY header has an address of the other family"
    if not all(_is_port(word) for word in words[4:6]):
        return "a PROXY header has a port that is none"
    return ProxyHeader(str(source), end + 2)


def _is_port(word: bytes) -> bool:
    return word.isdigit() and len(word) <= 5 and int(word) <= 65_535 and (word == b"0" or word[:1] != b"0")


def _read_v2(data: bytes) -> ProxyHeader | str | None:
    version, command = data[12] >> 4, data[12] & 15
    length = int.from_bytes(data[14:16], "big")
    used = _V2_FIXED_BYTES + length
    if version != 2 or command > 1:
        return "a PROXY header has an unknown version or command"
    if used > PROXY_HEADER_BYTES_MAX:
        return f"a PROXY header is longer than {PROXY_HEADER_BYTES_MAX} bytes"
    if len(data) < used:
        return None
    if command == 0:
        # LOCAL: the balancer speaks for itself (a health check). Addresses, if any, mean nothing.
        return ProxyHeader(None, used)
    family, transport = data[13] >> 4, data[13] & 15
    if family > 3 or transport > 2:
        return "a PROXY header has an unknown address family"
    size = _ADDRESS_BYTES.get(family)
    if size is None:
        return ProxyHeader(None, used)
    if transport != 1:
        return "a PROXY header is not for a stream"
    if length < 2 * size + 4:
        return "a PROXY header is shorter than its addresses"
    # What follows the addresses are TLVs (TLS details, names); none is needed.
    return ProxyHeader(str(ipaddress.ip_address(data[16 : 16 + size])), used)
