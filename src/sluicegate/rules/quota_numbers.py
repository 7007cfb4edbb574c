"""Quotas as a mapping of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Final

from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import COUNT_DIGITS_MAX, DECIMAL_EXPONENT_MAX
from sluicegate.clock import US_PER_MS, US_PER_S
from sluicegate.rules.notation import NotationError, shown, suggest
from sluicegate.rules.quota_spec import BUCKETS, Amount, Options, QuotaError, spec_of
from sluicegate.rules.quota_text import parse_part

__all__ = ["NUMBER_FIELDS", "spec_from_numbers"]

_BUCKET_FIELDS: Final = ("capacity", "refill", "refill_per_sec")
_WINDOW_FIELDS: Final = ("limit", "window_s")
NUMBER_FIELDS: Final = frozenset((*_BUCKET_FIELDS, *_WINDOW_FIELDS))
"""Keys that make a mapping a quota in numbers rather than a mapping by tier; no tier may have such a name."""


def spec_from_numbers(obj: Mapping[object, object], options: Options) -> Spec:
    """The one spec that a mapping of numbers means."""
    bucket = options.algorithm in BUCKETS
    fields, others = (_BUCKET_FIELDS, _WINDOW_FIELDS) if bucket else (_WINDOW_FIELDS, _BUCKET_FIELDS)
    for key in obj:
        name = str(key)
        if key in others:
            message = f"does not belong to {options.algorithm}, which takes {', '.join(fields)}"
            raise QuotaError(message, part=name, field=name)
        if key not in fields:
            raise QuotaError("unknown field", part=name, suggestion=suggest(name, fields), field=name)
    size = _whole(obj, fields[0])
    amount = _bucket_amount(obj, size) if bucket else _window_amount(obj, size)
    return spec_of(amount, options)


def _bucket_amount(obj: Mapping[object, object], capacity: int) -> Amount:
    token = f"capacity {capacity}"
    rates = [name for name in ("refill", "refill_per_sec") if name in obj]
    if len(rates) > 1:
        raise QuotaError("refill and refill_per_sec say the same thing; keep one", part="refill", field="refill")
    if not rates:
        if capacity == 0:
            return Amount(0, US_PER_S, None, token)
        raise QuotaError("missing: how many tokens come back a second", part="", field="refill_per_sec")
    name = rates[0]
    tokens, period_us = _refill_text(obj[name]) if name == "refill" else _refill_per_s(obj[name])
    if capacity == 0:
        return Amount(0, US_PER_S, None, token)
    if tokens == 0:
        raise QuotaError("a refill of 0 never gives a token back; a ban is written 0", part="0", field=name)
    return Amount(tokens, period_us, capacity, token)


def _refill_text(refill: object) -> tuple[int, int]:
    if not isinstance(refill, str):
        raise QuotaError(f"{shown(refill)} is not a rate such as 10/second", part=shown(refill), field="refill")
    try:
        rate = parse_part(refill.strip(" \t"))
    except NotationError as error:
        raise QuotaError(error.message, part=error.part, suggestion=error.suggestion, field="refill") from None
    if rate.burst is not None:
        raise QuotaError("capacity says the burst already", part=f"burst {rate.burst}", field="refill")
    return rate.count, rate.period_us


def _refill_per_s(value: object) -> tuple[int, int]:
    per_s = _exact(value, "refill_per_sec")
    return per_s.numerator, per_s.denominator * US_PER_S


def _window_amount(obj: Mapping[object, object], limit: int) -> Amount:
    if "window_s" not in obj:
        raise QuotaError("missing: the window in seconds", part="", field="window_s")
    window_ms = _exact(obj["window_s"], "window_s") * 1_000
    if window_ms == 0 or window_ms.denominator != 1:
        value = shown(obj["window_s"])
        raise QuotaError(f"{value} is not a window of whole milliseconds > 0", part=value, field="window_s")
    return Amount(limit, window_ms.numerator * US_PER_MS, None, f"limit {limit}")


def _whole(obj: Mapping[object, object], name: str) -> int:
    if name not in obj:
        raise QuotaError("missing", part="", field=name)
    value = obj[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise QuotaError(f"{shown(value)} is not a whole number >= 0", part=shown(value), field=name)
    if value >= 10**COUNT_DIGITS_MAX:
        raise QuotaError(f"{shown(value)} is too large", part=shown(value), field=name)
    return value


def _exact(value: object, name: str) -> Fraction:
    """The number >= 0 as written: Decimal and int exactly, a float as its shortest decimal text."""
    if isinstance(value, float):
        value = Decimal(repr(value))
    if isinstance(value, bool) or not isinstance(value, int | Decimal | Fraction):
        raise QuotaError(f"{shown(value)} is not a number", part=shown(value), field=name)
    # Checked before the conversion: Fraction(Decimal("1e999999")) would be a number of a million digits.
    if _is_unwieldy(value):
        raise QuotaError(f"{shown(value)} is out of range", part=shown(value), field=name)
    number = Fraction(value)
    if number < 0:
        raise QuotaError(f"{shown(value)} is below 0", part=shown(value), field=name)
    return number


def _is_unwieldy(value: int | Decimal | Fraction) -> bool:
    if isinstance(value, Decimal):
        if not value.is_finite() or abs(value.adjusted()) > DECIMAL_EXPONENT_MAX:
            return True
        return len(value.as_tuple().digits) > DECIMAL_EXPONENT_MAX
    return not -(10**DECIMAL_EXPONENT_MAX) < value < 10**DECIMAL_EXPONENT_MAX
