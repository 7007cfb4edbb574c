"""Bodies off the wire and on it again, however they are cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import GATEWAY_HEAD_BYTES_MAX
from sluicegate.doors.gateway.body import ChunkedBody, CloseBody, FixedBody, chunk, last_chunk


def drain(body, pieces):
    """Feed pieces; give the payload and what was left over."""
    payload = b""
    for index, piece in enumerate(pieces):
        if body.done or body.fault:
            return payload, b"".join(pieces[index:])
        got, pos = body.feed(piece, 0)
        payload += got
        if pos < len(piece):
            return payload, piece[pos:] + b"".join(pieces[index + 1 :])
    return payload, b""


def cut(data, places):
    """Cut bytes at places."""
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[a:b] for a, b in zip([0, *ends], ends, strict=False) if b > a]


chunks = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
trailer = st.tuples(st.sampled_from([b"A", b"x-y"]), st.sampled_from([b"", b"1", b"a b"]))


@given(chunks, st.lists(trailer, max_size=3), st.lists(st.integers(0, 500), max_size=12), st.binary(max_size=10))
def test_a_chunked_body_is_the_same_in_any_segmentation(parts, trailers, places, after):
    """Payload, trailers and the first byte of the next message do not depend on how the bytes arrive."""
    wire = b"".join(map(chunk, parts)) + last_chunk(trailers) + after
    body = ChunkedBody()
    payload, left = drain(body, cut(wire, places))
    assert body.done
    assert body.fault is None
    assert payload == b"".join(parts)
    assert left == after
    assert body.trailers == trailers


def test_one_byte_at_a_time():
    """The slowest segmentation there is, with an extension and a trailer."""
    wire = b'5;name="v"\r\nhello\r\n00A \t;x\r\n0123456789\r\n0\r\nT: 1\r\n\r\n'
    body = ChunkedBody()
    payload, left = drain(body, [wire[i : i + 1] for i in range(len(wire))])
    assert (payload, left, body.done) == (b"hello0123456789", b"", True)
    assert body.trailers == [(b"T", b"1")]


@pytest.mark.parametrize(
    "wire",
    [
        b"5\nhello\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello\rX",
        b"g\r\n",
        b"-1\r\n",
        b"+5\r\n",
        b"0x5\r\n",
        b" 5\r\n",
        b"5 \r\n",
        b"\r\n",
        b"5_0\r\n",
        b"1234567890123456\r\n",
        b"5;\x00\r\n",
        b"5;" + b"x" * 300,
        b"0\r\nBad Name: 1\r\n\r\n",
        b"0\r\n folded\r\n\r\n",
        b"0\r\nA: 1\n\r\n\r\n",
        b"0\r\n" + b"A: b\r\n" * 101 + b"\r\n",
        b"0\r\nA: " + b"x" * (GATEWAY_HEAD_BYTES_MAX + 10),
    ],
)
def test_broken_framing_is_found_in_any_segmentation(wire):
    """A size, a line end or a trailer outside the grammar ends the body as a fault, at once or byte by byte."""
    for pieces in ([wire], [wire[i : i + 1] for i in range(len(wire))]):
        body = ChunkedBody()
        drain(body, pieces)
        assert body.fault is not None
        assert not body.done


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8))
def test_any_bytes_are_decoded_or_refused(data, places):
    """No exception, and never more payload than there were bytes."""
    body = ChunkedBody()
    payload, left = drain(body, cut(data, places))
    assert len(payload) + len(left) <= len(data)


@given(st.binary(max_size=60), st.integers(0, 60), st.lists(st.integers(0, 60), max_size=6))
def test_a_fixed_body_ends_where_it_says(data, length, places):
    """What follows belongs to the next message; ``left`` says what is still to come."""
    body = FixedBody(length)
    payload, left = drain(body, cut(data, places))
    assert payload == data[:length]
    assert left == data[length:]
    assert body.left == max(0, length - len(data))
    assert body.done == (len(data) >= length)


def test_a_body_until_close_takes_everything():
    """Only the end of the connection ends it."""
    body = CloseBody()
    assert body.feed(b"xyz", 1) == (b"yz", 3)
    assert not body.done
    assert body.left is None


def test_a_piece_that_is_wholly_payload_is_not_copied():
    """A large body passes through as the very objects that were read."""
    piece = b"x" * 1000
    fixed = FixedBody(2000)
    assert fixed.feed(piece, 0)[0] is piece
    chunked = ChunkedBody()
    chunked.feed(b"1000\r\n", 0)
    assert chunked.feed(piece, 0)[0] is piece
