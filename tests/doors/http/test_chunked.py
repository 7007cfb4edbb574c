"""Chunked bodies: the same whatever the segmentation, and strict."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import HTTP_CHUNK_LINE_BYTES_MAX, HTTP_TRAILER_BYTES_MAX
from sluicegate.doors.http.chunked import ChunkedBody
from sluicegate.doors.http.head import BadHead


def read(pieces: list[bytes], limit: int = 10_000) -> tuple[bytes, bytes]:
    """Feed the pieces as a connection would; returns (body, bytes that were not used)."""
    body = ChunkedBody(limit)
    rest = b""
    for piece in pieces:
        rest += piece
        if not body.done:
            rest = rest[body.feed(rest, 0) :]
    assert body.done
    return body.body, rest


def encode(parts: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts if part)
    return chunks + b"0" + extension + b"\r\n" + trailer + b"\r\n"


@given(
    parts=st.lists(st.binary(max_size=40), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=12),
    extension=st.sampled_from([b"", b";a=b", b" ; x", b';q="1"']),
    trailer=st.sampled_from([b"", b"X-Sum: 1\r\n", b"A: b\r\nC: d\r\n"]),
)
def test_segmentation_does_not_matter(parts: list[bytes], cuts: list[int], extension: bytes, trailer: bytes) -> None:
    """However the bytes are cut, the body is the same and what follows it is left alone."""
    wire = encode(parts, extension, trailer) + b"GET /next"
    places = [0, *sorted(min(c, len(wire)) for c in cuts), len(wire)]
    pieces = [wire[a:b] for a, b in pairwise(places)]
    assert read(pieces) == (b"".join(parts), b"GET /next")
    assert read([wire[i : i + 1] for i in range(len(wire))]) == (b"".join(parts), b"GET /next")


@pytest.mark.parametrize(
    "wire",
    [
        b"\r\n",
        b"g\r\n",
        b"-1\r\n",
        b"+1\r\n",
        b"0x1\r\n",
        b" 1\r\n",
        b"1 \r\n",
        b"1\n",
        b"1\r\r\n",
        b"1;a\0\r\n",
        b"1;a\rb\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n",
        b"1\r\na0\r\n\r\n",
        b"f" * 16 + b"\r\n",
        b"0" * (HTTP_CHUNK_LINE_BYTES_MAX + 1),
        b"1;" + b"a" * HTTP_CHUNK_LINE_BYTES_MAX,
        b"0\r\nno colon\r\n",
        b"0\r\nX : y\r\n",
        b"0\r\n folded: y\r\n",
        b"0\r\nX: a\0\r\n",
        b"0\r\n" + b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n" * (HTTP_TRAILER_BYTES_MAX // 47 + 1),
    ],
)
def test_sloppy_coding_is_refused(wire: bytes) -> None:
    """Whatever RFC 9112 does not allow is a 400, whether it comes at once or byte by byte."""
    for pieces in ([wire], [wire[i : i + 1] for i in range(len(wire))]):
        with pytest.raises(BadHead) as caught:
            read(pieces)
        assert caught.value.status == 400


def test_limit_counts_all_chunks() -> None:
    """The sum of the chunks is bounded, and refused by the size line, before the data."""
    assert read([encode([b"a" * 6, b"b" * 4])], limit=10)[0] == b"aaaaaabbbb"
    with pytest.raises(BadHead) as caught:
        read([b"6\r\naaaaaa\r\n5\r\n"], limit=10)
    assert caught.value.status == 413
