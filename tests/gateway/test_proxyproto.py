"""PROXY protocol headers, whole, in part and wrong."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.doors.gateway.proxyproto import ProxyHeader, read_proxy_header

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def v2(command, family, addresses, tlvs=b"", version=2):
    """A header of version 2."""
    length = len(addresses) + len(tlvs)
    return SIGNATURE + bytes([version << 4 | command, family]) + struct.pack("!H", length) + addresses + tlvs


V4 = ipaddress.ip_address("203.0.113.9").packed + ipaddress.ip_address("10.0.0.1").packed + b"\x10\x00\x00\x50"
V6 = ipaddress.ip_address("2001:db8::9").packed + ipaddress.ip_address("2001:db8::1").packed + b"\x10\x00\x00\x50"
TLV = b"\x02\x00\x03abc" + b"\x20\x00\x05\x00\x00\x00\x00\x00"

GOOD = [
    (b"PROXY TCP4 203.0.113.9 10.0.0.1 56324 443\r\n", "203.0.113.9"),
    (b"PROXY TCP6 2001:db8::9 2001:db8::1 0 65535\r\n", "2001:db8::9"),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    (v2(1, 0x11, V4), "203.0.113.9"),
    (v2(1, 0x21, V6), "2001:db8::9"),
    (v2(1, 0x11, V4, TLV), "203.0.113.9"),
    (v2(1, 0x21, V6, TLV), "2001:db8::9"),
    (v2(0, 0x00, b""), None),
    (v2(0, 0x11, V4, TLV), None),
    (v2(1, 0x00, b"", TLV), None),
    (v2(1, 0x31, b"\0" * 216), None),
]
BAD = [
    b"GET / HTTP/1.1\r\n",
    b"PROXY TCP4 203.0.113.9 10.0.0.1 56324\r\n",
    b"PROXY TCP4 203.0.113.9 10.0.0.1 56324 443 9\r\n",
    b"PROXY TCP4  203.0.113.9 10.0.0.1 56324 443\r\n",
    b"PROXY TCP4 2001:db8::9 2001:db8::1 1 2\r\n",
    b"PROXY TCP6 203.0.113.9 10.0.0.1 1 2\r\n",
    b"PROXY TCP4 203.0.113.999 10.0.0.1 1 2\r\n",
    b"PROXY TCP4 203.0.113.9 10.0.0.1 1 65536\r\n",
    b"PROXY TCP4 203.0.113.9 10.0.0.1 -1 2\r\n",
    b"PROXY TCP4 203.0.113.9 10.0.0.1 01 2\r\n",
    b"PROXY UDP4 203.0.113.9 10.0.0.1 1 2\r\n",
    b"PROXY TCP4 " + b"1" * 120,
    b"proxy TCP4 203.0.113.9 10.0.0.1 1 2\r\n",
    v2(1, 0x11, V4[:8]),
    v2(1, 0x12, V4),
    v2(1, 0x41, V4),
    v2(1, 0x13, V4),
    v2(2, 0x11, V4),
    v2(1, 0x11, V4, version=1),
    v2(1, 0x11, V4, b"\0" * 5000),
]


@pytest.mark.parametrize(("header", "address"), GOOD)
def test_a_header_names_the_client(header, address):
    """What follows the header is left for HTTP."""
    assert read_proxy_header(header + b"GET /") == ProxyHeader(address, len(header))


@pytest.mark.parametrize("header", [header for header, _ in GOOD])
def test_a_header_in_part_asks_for_more(header):
    """At every length short of the whole, whatever the version."""
    for size in range(len(header)):
        assert read_proxy_header(header[:size]) is None


@pytest.mark.parametrize("header", BAD)
def test_a_malformed_header_is_told(header):
    """It is neither waited for nor taken for a request."""
    assert isinstance(read_proxy_header(header), str)


@given(st.one_of(st.binary(max_size=64), st.binary(max_size=64).map(lambda b: SIGNATURE + b)))
def test_any_bytes_give_a_value(data):
    """It never raises."""
    found = read_proxy_header(data)
    assert found is None or isinstance(found, str | ProxyHeader)
