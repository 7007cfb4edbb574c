"""What a script shows of a counter, read as the state its algorithm has: fixed-width integers, least byte first.

The layouts are those of the Lua scripts, which write the same text into the key; what only the scripts need is passed over. Counts
and remainders have five bytes there, read here as four and one.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from sluicegate.algorithms.spec import State

__all__ = ["BAN", "ESTIMATE", "FIXED", "LEAKY", "LOG", "STRICT", "TOKEN", "Record"]

BAN, TOKEN, LEAKY, FIXED, ESTIMATE, STRICT, LOG = range(7)
"""The algorithms as the scripts know them."""

Read: TypeAlias = Callable[[bytes, int], State]

_BYTE: Final = 32  # bits of the part of a count that comes first

_whole = Struct("<24xQ").unpack_from
_token = Struct("<24xQIB").unpack_from
_leaky = Struct("<31xQIBq").unpack_from
_fixed = Struct("<12xQIB").unpack_from
_estimate = Struct("<12xQIBIB").unpack_from
_log = Struct("<IBQ").unpack_from


class Record(NamedTuple):
    """``size`` bytes that ``read(reply, at)`` turns into a state."""

    size: int
    read: Read

    @classmethod
    def of(cls, code: int, tokens: int, sub_windows: int | None) -> Record:
        """The record of an algorithm; ``tokens`` of a bucket, ``sub_windows`` of a strict sliding window."""
        if code == TOKEN:
            return cls(37, _read_whole if tokens == 1 else _token_reader(tokens))
        if code == LEAKY:
            return cls(52, _leaky_reader(tokens))
        if code == STRICT:
            assert sub_windows is not None
            return cls(20 + 5 * (sub_windows + 1), _strict_reader(sub_windows + 1))
        return {
            BAN: cls(0, _read_none),
            FIXED: cls(25, _read_fixed),
            ESTIMATE: cls(30, _read_estimate),
            LOG: cls(13, _read_log),
        }[code]


def _read_none(_reply: bytes, _at: int) -> State:
    raise AssertionError("a ban has no counter")


def _read_whole(reply: bytes, at: int) -> State:
    """Of a token bucket whose rate is a whole number of microseconds per token, so that nothing remains."""
    found: int = _whole(reply, at)[0]
    return found


def _token_reader(tokens: int) -> Read:
    def read(reply: bytes, at: int) -> State:
        us, low, high = _token(reply, at)
        return us * tokens + low + (high << _BYTE)

    return read


def _leaky_reader(tokens: int) -> Read:
    def read(reply: bytes, at: int) -> State:
        us, low, high, mark = _leaky(reply, at)
        return us * tokens + low + (high << _BYTE), mark

    return read


def _read_fixed(reply: bytes, at: int) -> State:
    start_us, low, high = _fixed(reply, at)
    return start_us, low + (high << _BYTE)


def _read_estimate(reply: bytes, at: int) -> State:
    start_us, low, high, previous_low, previous_high = _estimate(reply, at)
    return start_us, low + (high << _BYTE), previous_low + (previous_high << _BYTE)


def _strict_reader(counts: int) -> Read:
    unpack = Struct("<12xQ" + "IB" * counts).unpack_from

    def read(reply: bytes, at: int) -> State:
        newest, *parts = unpack(reply, at)
        return newest, *[low + (high << _BYTE) for low, high in zip(parts[::2], parts[1::2], strict=True)]

    return read


def _read_log(reply: bytes, at: int) -> State:
    """The total and the one time that describes the answer, not the whole log."""
    low, high, time_us = _log(reply, at)
    total = low + (high << _BYTE)
    return (total, time_us, total) if total else (0,)
