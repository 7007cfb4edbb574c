"""The codec against generated code: whatever one reads the other reads alike, and whatever one refuses so does the other."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import GRPC_DESCRIPTORS_MAX, GRPC_ENTRIES_MAX
from sluicegate.doors.grpc.codec import (
    UNIT_SECONDS,
    Descriptor,
    Override,
    RateLimitRequest,
    decode_health,
    decode_request,
    encode_duration,
    encode_health,
    encode_limit,
    encode_struct,
)
from sluicegate.doors.grpc.protobuf import delimited, fields, varint
from sluicegate.errors import InvalidRequest

texts = st.text(max_size=20)
entries = st.lists(st.tuples(st.text(min_size=1, max_size=20), texts), min_size=1, max_size=4)
limits = st.none() | st.tuples(st.integers(0, 2**32 - 1), st.sampled_from(sorted(UNIT_SECONDS)))
descriptors = st.lists(
    st.tuples(entries, limits, st.none() | st.integers(0, 2**64 - 1), st.booleans()), min_size=1, max_size=4
)
# Pieces of which malformed and odd messages are likely to be made.
odd_bytes = st.lists(
    st.sampled_from(
        [
            b"\x0a",
            b"\x12",
            b"\x18",
            b"\x00",
            b"\x01",
            b"\x05",
            b"\x80",
            b"\xff",
            b"\x0b",
            b"\x0c",
            b"\x0d",
            b"\x09",
            b"\x1a",
            b"\x22",
        ]
    )
    | st.binary(max_size=6),
    max_size=24,
).map(b"".join)


def built(pb: Any, domain: str, parts: Any, hits: int) -> Any:
    """A request as generated code builds it."""
    request = pb.RateLimitRequest(domain=domain, hits_addend=hits)
    for pairs, limit, own, negative in parts:
        made = request.descriptors.add(is_negative_hits=negative)
        for key, value in pairs:
            made.entries.add(key=key, value=value)
        if limit is not None:
            made.limit.requests_per_unit, made.limit.unit = limit
        if own is not None:
            made.hits_addend.value = own
    return request


def meaning(request: Any) -> RateLimitRequest | str:
    """What a message that generated code has read says to this door: a request, or why it is none."""
    if not request.domain:
        return "domain"
    if not 0 < len(request.descriptors) <= GRPC_DESCRIPTORS_MAX:
        return "descriptors"
    made = []
    for each in request.descriptors:
        if not 0 < len(each.entries) <= GRPC_ENTRIES_MAX or not all(entry.key for entry in each.entries):
            return "entries"
        limit = None
        if each.HasField("limit"):
            limit = Override(each.limit.requests_per_unit, each.limit.unit)
            if limit.unit not in UNIT_SECONDS:
                return "unit"
        own = each.hits_addend.value if each.HasField("hits_addend") else None
        pairs = tuple((entry.key, entry.value) for entry in each.entries)
        made.append(Descriptor(pairs, limit, own, each.is_negative_hits))
    return RateLimitRequest(request.domain, tuple(made), request.hits_addend)


@given(st.text(min_size=1, max_size=20), descriptors, st.integers(0, 2**32 - 1))
def test_requests_are_read_as_they_were_written(pb: Any, domain: str, parts: Any, hits: int) -> None:
    """Every request that generated code writes is read with the same meaning."""
    request = built(pb, domain, parts, hits)
    assert decode_request(request.SerializeToString()) == meaning(request)


def agree(pb: Any, data: bytes) -> bool:
    """Whether both readers say the same of a message; True where both refuse it."""
    try:
        theirs = meaning(pb.RateLimitRequest.FromString(data))
    except DecodeError:
        theirs = "malformed"
    try:
        return decode_request(data) == theirs
    except InvalidRequest:
        return isinstance(theirs, str)


@given(st.text(min_size=1, max_size=8), descriptors, st.integers(0, 9), st.data())
def test_mutilated_requests_are_read_alike(pb: Any, domain: str, parts: Any, hits: int, data: st.DataObject) -> None:
    """A request with bytes removed, changed or put in is refused by both or means the same to both."""
    message = built(pb, domain, parts, hits).SerializeToString()
    at = data.draw(st.integers(0, len(message)))
    removed = data.draw(st.integers(0, 4))
    assert agree(pb, message[:at] + data.draw(odd_bytes) + message[at + removed :])


@given(odd_bytes)
def test_random_bytes_are_read_alike(pb: Any, message: bytes) -> None:
    """So are bytes that were never a request, after one that is and by themselves."""
    good = built(pb, "d", [([("k", "v")], None, None, False)], 0).SerializeToString()
    assert agree(pb, message)
    assert agree(pb, good + message)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff" * 10,
        b"\x0a\x05ab",
        b"\x00\x01",
        b"\x0f",
        b"\x0b",
        b"\x0b\x14",
        b"\x0a\x01\xff",
        b"\x29\x01",
        b"\x0b" * 200 + b"\x0c" * 200,
        b"\xf8\xff\xff\xff\x7f\x01",
    ],
    ids=["number", "length", "field 0", "wire type", "open group", "wrong end", "utf-8", "cut", "deep", "tag"],
)
def test_malformed_messages_are_refused(pb: Any, message: bytes) -> None:
    """Each kind of malformation is an InvalidRequest, as it is a DecodeError of generated code."""
    with pytest.raises(Exception, match=r"pars|[Dd]ecod"):
        pb.RateLimitRequest.FromString(message)
    with pytest.raises(InvalidRequest):
        decode_request(message)


def test_unknown_fields_are_skipped(pb: Any) -> None:
    """Fields of later versions, of every wire type, change nothing."""
    request = built(pb, "d", [([("k", "v")], None, None, False)], 2)
    more = (
        b"\xa0\x06\x05\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4) + delimited(100, b"x") + b"\xa3\x06\x08\x01\xa4\x06"
    )
    assert decode_request(request.SerializeToString() + more) == meaning(request)


def test_what_says_nothing_is_named() -> None:
    """The error of a well-formed message that cannot be decided names the field."""
    descriptor = delimited(2, delimited(1, delimited(1, b"k")))
    domain = delimited(1, b"d")
    cases = {
        b"": "domain",
        domain: "descriptors",
        domain + delimited(2, b""): "descriptors[0].entries",
        domain + delimited(2, delimited(1, b"")): "descriptors[0].entries[0].key",
        domain
        + delimited(2, delimited(1, delimited(1, b"k")) + delimited(2, b"\x10\x08")): "descriptors[0].limit.unit",
        domain + descriptor * (GRPC_DESCRIPTORS_MAX + 1): "descriptors",
        domain + delimited(2, delimited(1, delimited(1, b"k")) * (GRPC_ENTRIES_MAX + 1)): "descriptors[0].entries",
    }
    for message, name in cases.items():
        with pytest.raises(InvalidRequest) as caught:
            decode_request(message)
        assert caught.value.field == name
    assert len(decode_request(domain + descriptor * GRPC_DESCRIPTORS_MAX).descriptors) == GRPC_DESCRIPTORS_MAX


@given(texts)
def test_health_messages(pb: Any, service: str) -> None:
    """Health checks are read as written, and statuses written as generated code reads them."""
    assert decode_health(pb.HealthCheckRequest(service=service).SerializeToString()) == service
    assert [pb.HealthCheckResponse.FromString(encode_health(status)).status for status in (1, 2)] == [1, 2]


@given(st.integers(0, 2**63 - 1), texts, st.integers(0, 2**40), st.sampled_from(sorted(UNIT_SECONDS)))
def test_parts_of_answers(pb: Any, time_us: int, name: str, count: int, unit: int) -> None:
    """Durations, limits and structs are read by generated code as they were meant; large limits are told as the largest there is."""
    status = pb.RateLimitResponse.DescriptorStatus.FromString(
        delimited(4, encode_duration(time_us)) + delimited(2, encode_limit(name, count, unit))
    )
    duration, limit = status.duration_until_reset, status.current_limit
    assert duration.seconds * 1_000_000 + duration.nanos // 1_000 == time_us
    assert (limit.name, limit.requests_per_unit, limit.unit) == (name, min(count, 2**32 - 1), unit)
    struct = encode_struct((("a", name), ("b", True), ("c", [name, "x"])))
    found = pb.RateLimitResponse.FromString(delimited(6, struct)).dynamic_metadata
    assert dict(found) == {"a": name, "b": True, "c": [name, "x"]} or list(found["c"]) == [name, "x"]


@given(st.integers(0, 2**64 - 1))
def test_numbers(value: int) -> None:
    """A number is read as it was written."""
    assert [found[2] for found in fields(b"\x08" + varint(value), "m")] == [value]
