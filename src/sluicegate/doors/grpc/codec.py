"""The messages of Envoy's rate limit service and of gRPC health checks, to and from bytes.

Sources: envoy/service/ratelimit/v3/rls.proto, envoy/extensions/common/ratelimit/v3/ratelimit.proto,
envoy/type/v3/ratelimit_unit.proto, grpc/health/v1/health.proto. Fields that mean nothing here are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from sluicegate.bounds import GRPC_DESCRIPTORS_MAX, GRPC_ENTRIES_MAX
from sluicegate.doors.grpc.protobuf import LENGTH, VARINT, delimited, fields, text_of, varint
from sluicegate.errors import InvalidRequest

__all__ = [
    "NOT_SERVING",
    "OK",
    "OVER_LIMIT",
    "SERVICE_UNKNOWN",
    "SERVING",
    "UINT32_MAX",
    "UNIT_OF_SECONDS",
    "UNIT_SECONDS",
    "Descriptor",
    "Override",
    "RateLimitRequest",
    "decode_health",
    "decode_request",
    "encode_duration",
    "encode_header",
    "encode_health",
    "encode_limit",
    "encode_struct",
]

OK: Final = 1
OVER_LIMIT: Final = 2
SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3

UINT32_MAX: Final = 0xFFFF_FFFF
_US_PER_S: Final = 1_000_000

UNIT_SECONDS: Final = {1: 1, 2: 60, 3: 3_600, 4: 86_400, 5: 30 * 86_400, 6: 365 * 86_400, 7: 7 * 86_400}
"""The units by their numbers: second, minute, hour, day, month (30 days), year (365 days), week."""

UNIT_OF_SECONDS: Final = {seconds: unit for unit, seconds in UNIT_SECONDS.items()}


class Override(NamedTuple):
    """A limit that the request brings along. ``unit`` is one of ``UNIT_SECONDS``."""

    requests_per_unit: int
    unit: int


class Descriptor(NamedTuple):
    """One descriptor. ``hits_addend``: None where it has none of its own, 0 to look only. ``negative``: its hits are given back."""

    entries: tuple[tuple[str, str], ...]
    limit: Override | None = None
    hits_addend: int | None = None
    negative: bool = False


class RateLimitRequest(NamedTuple):
    """``hits_addend`` 0 is the same as none: 1."""

    domain: str
    descriptors: tuple[Descriptor, ...]
    hits_addend: int = 0


def decode_request(data: bytes) -> RateLimitRequest:
    """Read a RateLimitRequest; raises InvalidRequest naming the field where it is malformed or says nothing that can be decided."""
    domain, hits_addend = "", 0
    descriptors: list[Descriptor] = []
    for number, wire_type, value, content in fields(data, "request"):
        if number == 1 and wire_type == LENGTH:
            domain = text_of(content, "domain")
        elif number == 2 and wire_type == LENGTH:
            if len(descriptors) >= GRPC_DESCRIPTORS_MAX:
                raise InvalidRequest("descriptors", f"at most {GRPC_DESCRIPTORS_MAX} are decided together")
            descriptors.append(_descriptor(content, f"descriptors[{len(descriptors)}]"))
        elif number == 3 and wire_type == VARINT:
            hits_addend = value & UINT32_MAX
    if not domain:
        raise InvalidRequest("domain", "must not be empty")
    if not descriptors:
        raise InvalidRequest("descriptors", "must not be empty")
    return RateLimitRequest(domain, tuple(descriptors), hits_addend)


def decode_health(data: bytes) -> str:
    """The service a HealthCheckRequest asks about; "" is the whole server. Raises InvalidRequest."""
    service = ""
    for number, wire_type, _, content in fields(data, "request"):
        if number == 1 and wire_type == LENGTH:
            service = text_of(content, "service")
    return service


def encode_health(status: int) -> bytes:
    """A HealthCheckResponse."""
    return b"\x08" + varint(status)


def encode_limit(name: str, requests_per_unit: int, unit: int) -> bytes:
    """A RateLimitResponse.RateLimit; a count that does not fit is told as the largest that does."""
    count = b"\x08" + varint(min(requests_per_unit, UINT32_MAX)) if requests_per_unit else b""
    return count + b"\x10" + varint(unit) + delimited(3, name.encode())


def encode_duration(time_us: int) -> bytes:
    """A google.protobuf.Duration of ``time_us`` >= 0."""
    seconds, rest_us = divmod(time_us, _US_PER_S)
    whole = b"\x08" + varint(seconds) if seconds else b""
    return whole + b"\x10" + varint(rest_us * 1_000) if rest_us else whole


def encode_header(number: int, name: str, value: str) -> bytes:
    """A core.v3.HeaderValue as field ``number``."""
    return delimited(number, delimited(1, name.encode()) + delimited(2, value.encode()))


def encode_struct(members: Iterable[tuple[str, str | bool | Sequence[str]]]) -> bytes:
    """A google.protobuf.Struct of texts, booleans and lists of texts."""
    return b"".join(
        [delimited(1, delimited(1, name.encode()) + delimited(2, _value(value))) for name, value in members]
    )


def _value(value: str | bool | Sequence[str]) -> bytes:
    if isinstance(value, bool):
        return b"\x20\x01" if value else b"\x20\x00"
    if isinstance(value, str):
        return delimited(3, value.encode())
    return delimited(6, b"".join([delimited(1, _value(each)) for each in value]))


def _descriptor(data: bytes, name: str) -> Descriptor:
    entries: list[tuple[str, str]] = []
    limit: tuple[int, int] | None = None
    hits_addend: int | None = None
    negative = False
    for number, wire_type, value, content in fields(data, name):
        if number == 1 and wire_type == LENGTH:
            if len(entries) >= GRPC_ENTRIES_MAX:
                raise InvalidRequest(f"{name}.entries", f"a descriptor has at most {GRPC_ENTRIES_MAX}")
            entries.append(_entry(content, f"{name}.entries[{len(entries)}]"))
        elif number == 2 and wire_type == LENGTH:
            limit = _override(content, f"{name}.limit", limit or (0, 0))
        elif number == 3 and wire_type == LENGTH:
            hits_addend = _uint64_value(content, f"{name}.hits_addend", hits_addend or 0)
        elif number == 4 and wire_type == VARINT:
            negative = value != 0
    if not entries:
        raise InvalidRequest(f"{name}.entries", "must not be empty")
    if limit is not None and limit[1] not in UNIT_SECONDS:
        raise InvalidRequest(f"{name}.limit.unit", f"no such unit: {limit[1]}")
    return Descriptor(tuple(entries), None if limit is None else Override(*limit), hits_addend, negative)


def _entry(data: bytes, name: str) -> tuple[str, str]:
    key = text = ""
    for number, wire_type, _, content in fields(data, name):
        if number == 1 and wire_type == LENGTH:
            key = text_of(content, f"{name}.key")
        elif number == 2 and wire_type == LENGTH:
            text = text_of(content, f"{name}.value")
    if not key:
        raise InvalidRequest(f"{name}.key", "must not be empty")
    return key, text


def _override(data: bytes, name: str, before: tuple[int, int]) -> tuple[int, int]:
    requests_per_unit, unit = before
    for number, wire_type, value, _ in fields(data, name):
        if number == 1 and wire_type == VARINT:
            requests_per_unit = value & UINT32_MAX
        elif number == 2 and wire_type == VARINT:
            unit = value & UINT32_MAX
    return requests_per_unit, unit


def _uint64_value(data: bytes, name: str, before: int) -> int:
    for number, wire_type, value, _ in fields(data, name):
        if number == 1 and wire_type == VARINT:
            before = value
    return before
