"""Quotas as text again: the shortest notation that means the same specs."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, TokenBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.clock import US_PER_MS, US_PER_S
from sluicegate.rules.notation import DAY_US

__all__ = ["format_quota", "format_span"]

_UNITS: Final = (
    ("year", 365 * DAY_US),
    ("month", 30 * DAY_US),
    ("week", 7 * DAY_US),
    ("day", DAY_US),
    ("hour", DAY_US // 24),
    ("minute", DAY_US // 1_440),
    ("second", US_PER_S),
)


def format_quota(specs: Sequence[Spec]) -> str:
    """A text that ``parse_quota`` reads back as these specs, given the same algorithm and options."""
    if not specs:
        return "unlimited"
    return "; ".join(_format_spec(spec) for spec in specs)


def format_span(span_us: int) -> str:
    """A span of time as short as it can be said exactly: ``minute``, ``15m``, ``90s``, ``500ms``, ``7us``."""
    for name, unit_us in _UNITS:
        if span_us == unit_us:
            return name
    for suffix, unit_us in (("d", DAY_US), ("h", DAY_US // 24), ("m", DAY_US // 1_440), ("s", US_PER_S)):
        if span_us % unit_us == 0:
            return f"{span_us // unit_us}{suffix}"
    return f"{span_us // US_PER_MS}ms" if span_us % US_PER_MS == 0 else f"{span_us}us"


def _format_spec(spec: Spec) -> str:
    if isinstance(spec, Ban):
        return "0"
    if isinstance(spec, TokenBucket | LeakyBucket):
        return _format_bucket(spec.capacity, spec.tokens, spec.period_us)
    if isinstance(spec, FixedWindow) and spec.unit is not None:
        return f"{spec.capacity}/{spec.unit}"
    return f"{spec.capacity}/{format_span(spec.window_us)}"


def _format_bucket(capacity: int, tokens: int, period_us: int) -> str:
    """``capacity`` per one unit, else the rate a second or minute, else ``capacity`` per its drain time, else the rate."""
    for name, unit_us in _UNITS:
        if capacity * period_us == tokens * unit_us:
            return f"{capacity}/{name}"
    short, long = _UNITS[:-3:-1], _UNITS[-3::-1]
    for name, unit_us in short:
        if tokens * unit_us % period_us == 0:
            return _with_burst(tokens * unit_us // period_us, name, capacity)
    drain_us, rest = divmod(capacity * period_us, tokens)
    if rest == 0 and drain_us % US_PER_S == 0:
        return f"{capacity}/{format_span(drain_us)}"
    for name, unit_us in long:
        if tokens * unit_us % period_us == 0:
            return _with_burst(tokens * unit_us // period_us, name, capacity)
    scale = US_PER_S // gcd(period_us, US_PER_S)
    return _with_burst(tokens * scale, format_span(period_us * scale), capacity)


def _with_burst(count: int, period: str, capacity: int) -> str:
    return f"{count}/{period}" if count == capacity else f"{count}/{period} burst {capacity}"
