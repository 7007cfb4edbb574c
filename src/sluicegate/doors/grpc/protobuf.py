"""The part of the protocol buffer encoding that a few small messages need, read with suspicion.

Reading follows what generated code does, so that no message means one thing here and another there: of a field that may stand
once the last counts (messages are merged by their reader), a field of another wire type than its own is unknown, unknown fields
are skipped, groups included, and an integer keeps its low bits. What generated code refuses is refused: a length beyond
the end, a number of more than ten bytes, field 0, a group that does not close.

Source: the Protocol Buffers encoding guide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluicegate.bounds import GRPC_GROUP_DEPTH_MAX
from sluicegate.errors import InvalidRequest

__all__ = ["FIXED32", "FIXED64", "LENGTH", "VARINT", "Field", "delimited", "fields", "text_of", "varint"]

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
_GROUP: Final = 3
_END_GROUP: Final = 4
FIXED32: Final = 5

_TAG_MAX: Final = (1 << 32) - 1
_VARINT_BYTES_MAX: Final = 10

Field = tuple[int, int, int, bytes]
"""(number, wire type, the number of a VARINT, the bytes of a LENGTH). Groups and fixed-width numbers come with neither."""

_ONE_BYTE: Final = [bytes((n,)) for n in range(128)]


def fields(data: bytes, name: str) -> Iterator[Field]:
    """The fields of the message ``data``, in their order; raises InvalidRequest for ``name`` where it is no message."""
    pos, end = 0, len(data)
    while pos < end:
        number, wire_type, pos = _read_tag(data, pos, name)
        if wire_type == VARINT:
            value, pos = _read_varint(data, pos, name)
            yield number, VARINT, value, b""
        elif wire_type == LENGTH:
            start, pos = _read_length(data, pos, name)
            yield number, LENGTH, 0, data[start:pos]
        else:
            pos = _skip(data, pos, number, wire_type, name, 0)
            yield number, wire_type, 0, b""


def text_of(data: bytes, name: str) -> str:
    """The text of a ``string`` field; raises InvalidRequest for ``name`` where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(name, "must be UTF-8") from None


def varint(value: int) -> bytes:
    """A number >= 0 as it is written."""
    if value < 128:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(number: int, data: bytes) -> bytes:
    """A field of text, bytes or a message."""
    return varint(number << 3 | LENGTH) + varint(len(data)) + data


def _read_tag(data: bytes, pos: int, name: str) -> tuple[int, int, int]:
    tag, pos = _read_varint(data, pos, name)
    if tag > _TAG_MAX or tag < 8:
        raise InvalidRequest(name, "is malformed: no such field number")
    return tag >> 3, tag & 7, pos


def _read_varint(data: bytes, pos: int, name: str) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[pos : pos + _VARINT_BYTES_MAX]):
        if byte < 128:
            return (value | byte << 7 * place) & 0xFFFF_FFFF_FFFF_FFFF, pos + place + 1
        value |= (byte & 127) << 7 * place
    raise InvalidRequest(name, "is malformed: a number does not end")


def _read_length(data: bytes, pos: int, name: str) -> tuple[int, int]:
    """Where the value of a LENGTH field begins and ends."""
    length, start = _read_varint(data, pos, name)
    if length > len(data) - start:
        raise InvalidRequest(name, "is malformed: a field is longer than the message")
    return start, start + length


def _skip(data: bytes, pos: int, number: int, wire_type: int, name: str, depth: int) -> int:
    """The position after a field that nobody wants."""
    if wire_type == VARINT:
        return _read_varint(data, pos, name)[1]
    if wire_type == LENGTH:
        return _read_length(data, pos, name)[1]
    if wire_type in (FIXED32, FIXED64):
        pos += 4 if wire_type == FIXED32 else 8
        if pos > len(data):
            raise InvalidRequest(name, "is malformed: a number is cut off")
        return pos
    if wire_type != _GROUP or depth >= GRPC_GROUP_DEPTH_MAX:
        raise InvalidRequest(name, "is malformed: a group is not closed, or too deep, or the wire type is none")
    while pos < len(data):
        inner, inner_type, pos = _read_tag(data, pos, name)
        if inner_type == _END_GROUP:
            if inner != number:
                break
            return pos
        pos = _skip(data, pos, inner, inner_type, name, depth + 1)
    raise InvalidRequest(name, "is malformed: a group is not closed")
