"""Quotas: the notations people write, and the specs they mean.

    "100/minute"              100 tokens a minute, all at once if saved up (capacity 100)
    "10/second burst 50"      10 tokens a second, at most 50 at once (capacity 50); buckets only
    "5/15m"                   any number of units
    "1/second; 100/hour"      several limits that must all pass; results are named rule#1, rule#2
    "unlimited"               no limit
    "0" or "0/minute"         a ban: nothing ever fits
    {capacity: 100, refill_per_sec: 0.5}    a bucket in numbers; refill: 10/second says the same as a rate
    {limit: 100, window_s: 60}              a window in numbers

The parser is strict. It never guesses: what it cannot read is an error that names the token.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluicegate.algorithms import Ban
from sluicegate.rules.model import Quota
from sluicegate.rules.notation import NotationError, shown
from sluicegate.rules.quota_format import format_quota
from sluicegate.rules.quota_numbers import NUMBER_FIELDS, spec_from_numbers
from sluicegate.rules.quota_spec import ALGORITHMS, BUCKETS, EXAMPLE, MAX_DELAY_MS_DEFAULT, QuotaError, checked_options
from sluicegate.rules.quota_text import specs_from_text

__all__ = ["ALGORITHMS", "BUCKETS", "NUMBER_FIELDS", "QuotaError", "format_quota", "parse_quota"]


def parse_quota(
    text_or_obj: object,
    *,
    algorithm: str = "token_bucket",
    strict: bool | int | None = None,
    max_delay_ms: int = MAX_DELAY_MS_DEFAULT,
    nodelay: bool = False,
    align: str = "epoch",
    tz: str = "UTC",
) -> Quota:
    """The quota meant by a text (see the module's examples), by 0, or by a mapping of numbers.

    ``strict`` (sliding_window only): True means 6 sub-windows, a number that many, None or False the estimate.
    ``max_delay_ms`` and ``nodelay`` belong to leaky_bucket, ``align`` and ``tz`` to fixed_window; anywhere else a value
    other than the default is an error, not ignored. ``refill_per_sec`` may be an int, a Decimal or a float; a float
    stands for its shortest decimal text and the rate is exact. Raises QuotaError and nothing else.
    """
    options = checked_options(algorithm, strict, max_delay_ms, nodelay, align, tz)
    try:
        if isinstance(text_or_obj, str):
            return Quota(specs_from_text(text_or_obj, options), text_or_obj.strip(" \t"))
        if isinstance(text_or_obj, Mapping):
            specs = (spec_from_numbers(text_or_obj, options),)
            return Quota(specs, format_quota(specs))
    except QuotaError:
        raise
    except NotationError as error:
        raise QuotaError(error.message, part=error.part, suggestion=error.suggestion) from None
    if isinstance(text_or_obj, int) and not isinstance(text_or_obj, bool):
        if text_or_obj == 0:
            return Quota((Ban(),), "0")
        raise QuotaError(f"{shown(text_or_obj)} has no period: {EXAMPLE}", part=shown(text_or_obj))
    raise QuotaError(f"{shown(text_or_obj)} is not a quota: {EXAMPLE}", part=shown(text_or_obj))
