"""Request heads: what is understood, and what is refused because two servers could read it differently."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.doors.http.head import CHUNKED, BadHead, Head, essence, parse_head


def head(*lines: str, start: str = "POST /v1/check HTTP/1.1") -> Head:
    return parse_head("\r\n".join([start, *lines, "", ""]).encode("latin-1"), 100)


def test_usual_head_is_read() -> None:
    """Method, path, length, token and persistence come out of an ordinary head."""
    got = head("Host: x", "Content-Length: 12", "Authorization: Bearer t")
    assert (got.method, got.path, got.length, got.keep_alive, got.http10, got.expect, got.authorization) == (
        "POST", "/v1/check", 12, True, False, False, b"Bearer t",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("start", "path"),
    [
        ("GET /livez?verbose=1 HTTP/1.1", "/livez"),
        ("GET http://host:80/livez?x HTTP/1.1", "/livez"),
        ("GET http://host HTTP/1.1", "/"),
        ("OPTIONS * HTTP/1.1", "*"),
        ("GET //livez HTTP/1.1", "//livez"),
        ("GET /%6civez HTTP/1.1", "/%6civez"),
    ],
)
def test_path_is_taken_literally(start: str, path: str) -> None:
    """A query is dropped and an absolute form loses its authority; nothing else is rewritten."""
    assert head("Host: x", start=start).path == path


@pytest.mark.parametrize(
    ("start", "lines", "keep"),
    [
        ("GET / HTTP/1.1", [], True),
        ("GET / HTTP/1.1", ["Connection: close"], False),
        ("GET / HTTP/1.1", ["Connection: upgrade, Close"], False),
        ("GET / HTTP/1.0", [], False),
        ("GET / HTTP/1.0", ["Connection: Keep-Alive"], True),
    ],
)
def test_persistence(start: str, lines: list[str], keep: bool) -> None:
    """HTTP/1.1 persists unless told otherwise, HTTP/1.0 only when asked to."""
    assert head("Host: x", *lines, start=start).keep_alive is keep


def test_chunked_and_expect() -> None:
    """A single chunked coding and 100-continue are understood."""
    got = head("Host: x", "Transfer-Encoding: Chunked", "Expect: 100-Continue")
    assert got.length == CHUNKED
    assert got.expect


def test_one_stray_line_end_is_forgiven() -> None:
    """A client that ends its body with an unannounced CRLF is still understood."""
    assert parse_head(b"\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n", 100).path == "/livez"


def test_upgrade_is_ignored() -> None:
    """An upgrade nobody asked for here is served as the plain request it is."""
    assert head("Host: x", "Connection: Upgrade", "Upgrade: h2c", start="GET /livez HTTP/1.1").path == "/livez"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["Host: x", "Content-Length: 1", "Transfer-Encoding: chunked"], 400),
        (["Host: x", "Transfer-Encoding: chunked", "Content-Length: 1"], 400),
        (["Host: x", "Content-Length: 1", "Content-Length: 1"], 400),
        (["Host: x", "Content-Length: 1", "Content-Length: 2"], 400),
        (["Host: x", "Content-Length: 1, 1"], 400),
        (["Host: x", "Content-Length: +1"], 400),
        (["Host: x", "Content-Length: -1"], 400),
        (["Host: x", "Content-Length: 0x10"], 400),
        (["Host: x", "Content-Length: 1 1"], 400),
        (["Host: x", "Content-Length:"], 400),
        (["Host: x", "Content-Length: " + "9" * 16], 400),
        (["Host: x", "Content-Length: " + "9" * 400], 400),
        (["Host: x", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], 400),
        (["Host: x", "Transfer-Encoding: gzip, chunked"], 501),
        (["Host: x", "Transfer-Encoding: chunked, identity"], 400),
        (["Host: x", "Transfer-Encoding: identity"], 400),
        (["Host: x", "Transfer-Encoding: xchunked"], 400),
        (["Host: x", "Transfer-Encoding:"], 400),
        (["Host: x", "Transfer-Encoding : chunked"], 400),
        (["Host: x", "Transfer-Encoding: chunked\x0b"], 400),
        (["Host: x", "X: a", " folded"], 400),
        (["Host: x", "X: a", "\tfolded"], 400),
        (["Host: x", "X: a\nContent-Length: 5"], 400),
        (["Host: x", "X: a\rContent-Length: 5"], 400),
        (["Host: x", "X: a\0b"], 400),
        (["Host: x", "X y: a"], 400),
        (["Host: x", ": a"], 400),
        (["Host: x", "noColon"], 400),
        (["Host: x", "Host: y"], 400),
        ([], 400),
        (["Host: x", "Expect: 200-ok"], 417),
        (["Host: x", "Expect: 100-continue", "Expect: 100-continue"], 417),
        (["Host: x", "Content-Encoding: gzip"], 415),
        (["Host: x", *[f"X-{i}: 1" for i in range(100)]], 431),
    ],
)
def test_hostile_fields_are_refused(lines: list[str], status: int) -> None:
    """Whatever could make two servers disagree about the message's end is refused with its status."""
    with pytest.raises(BadHead) as caught:
        head(*lines)
    assert caught.value.status == status
    assert str(caught.value) == caught.value.detail


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n\r\n",
        b"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\r\nHost: x\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET / HTTP/0.9\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.2\r\nHost: x\r\n\r\n",
        b"GET / http/1.1\r\nHost: x\r\n\r\n",
        b"get / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"NOSUCH / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_hostile_start_lines_are_refused(raw: bytes) -> None:
    """A start line that is not exactly that of HTTP/1.0 or 1.1 is refused."""
    with pytest.raises(BadHead) as caught:
        parse_head(raw, 100)
    assert caught.value.status in (400, 505)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_head_or_refused(data: bytes) -> None:
    """No input makes the reader fail in any other way."""
    for raw in (data + b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n" + data + b"\r\n\r\n"):
        with contextlib.suppress(BadHead):
            assert parse_head(raw, 100).length >= CHUNKED


FIELDS_MAX = 6
LINES = st.one_of(
    st.sampled_from(
        [
            b"Host: x", b"host:y", b"Host : x", b"Content-Length: 3", b"content-length:4", b"Content-Length : 5", b"Content-Length: x",
            b"Transfer-Encoding: chunked", b"TRANSFER-ENCODING:gzip", b"Transfer-Encoding\t: chunked", b"Connection: close",
            b"Connection: Content-Length", b"Expect: 100-continue", b"Authorization: Bearer t", b"Content-Encoding: gzip",
            b"Upgrade: h2c", b"Keep-Alive: timeout=1", b"Proxy-Connection: close", b"TE: trailers", b"X-Request-Id: 1", b"X:", b"X:\t\xff",
            b" folded: x", b"\tX: y", b": x", b"X y: z", b"X: a\x00b", b"X: a\nHost: z", b"X: a\rHost: z", b"X: a\x7f", b"\x80: a", b"X",
            b"Content-Length\x00: 3", b"Content_Length: 3", b"X-Content-Length: 3", b"Host-: x", b"GET / HTTP/1.1", b"",
        ]
    ),
    st.binary(max_size=12),
)  # fmt: skip


def meaning(raw: bytes) -> object:
    """All that a head says, or that it is refused."""
    try:
        got = parse_head(raw, FIELDS_MAX)
    except BadHead:
        return "refused"
    return tuple(getattr(got, name) for name in Head.__slots__)


@given(
    st.sampled_from([b"POST /v1/check HTTP/1.1", b"GET / HTTP/1.0", b"\r\nGET / HTTP/1.1", b"", b"X: y"]),
    st.lists(LINES, max_size=8),
)
def test_a_head_means_what_its_essence_means(start: bytes, lines: list[bytes]) -> None:
    """Leaving out what nothing looks at changes neither what a head says nor whether it is refused."""
    text = b"\r\n".join([start, *lines, b"", b""])
    raw = text[: text.index(b"\r\n\r\n") + 4]  # A head ends at its first empty line.
    assert meaning(raw) == meaning(essence(raw, FIELDS_MAX))


def test_the_essence_keeps_what_matters() -> None:
    """A request id is left out; framing, persistence, host and token stay, however they are written."""
    kept = b"POST / HTTP/1.1\r\nhOST: x\r\nContent-Length:3\r\nAUTHORIZATION: t\r\nConnection: close\r\n\r\n"
    raw = kept.replace(b"hOST", b"X-Request-Id: 7\r\nhOST").replace(b"Connection", b"Accept-Language: en\r\nConnection")
    assert essence(raw, 100) == kept
    assert essence(raw, 3) == raw  # Too many fields: left to the parser, which refuses it.
