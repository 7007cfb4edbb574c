"""Quotas as text."""

from __future__ import annotations

from sluicegate.algorithms import Ban
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import QUOTA_CHARS_MAX, QUOTA_PARTS_MAX
from sluicegate.rules.notation import parse_count, parse_span, shown, suggest
from sluicegate.rules.quota_spec import CALENDAR_US, EXAMPLE, Amount, Options, QuotaError, spec_of

__all__ = ["parse_part", "specs_from_text"]


def specs_from_text(text: str, options: Options) -> tuple[Spec, ...]:
    """The specs of a quota text, in order; none where it is ``unlimited``."""
    stripped = text.strip(" \t")
    if len(stripped) > QUOTA_CHARS_MAX:
        raise QuotaError(f"a quota has at most {QUOTA_CHARS_MAX} characters, this one {len(stripped)}", part=text)
    if not stripped:
        raise QuotaError(f"empty quota: {EXAMPLE}", part=text)
    if stripped == "unlimited":
        return ()
    if stripped == "0":
        return (Ban(),)
    parts = stripped.split(";")
    if len(parts) > QUOTA_PARTS_MAX:
        raise QuotaError(f"a quota has at most {QUOTA_PARTS_MAX} limits, this one {len(parts)}", part=stripped)
    specs: list[Spec] = []
    for part in parts:
        spec = spec_of(parse_part(part.strip(" \t")), options)
        if spec in specs:
            raise QuotaError(f"the limit {shown(part.strip())} is there twice", part=part.strip())
        specs.append(spec)
    if len(specs) > 1 and any(isinstance(spec, Ban) for spec in specs):
        raise QuotaError("a ban (0) cannot be combined with other limits: nothing would pass anyway", part=stripped)
    return tuple(specs)


def parse_part(part: str) -> Amount:
    """One limit, ``COUNT/PERIOD [burst COUNT]``; raises NotationError."""
    if not part:
        raise QuotaError("empty limit beside ';'", part=";")
    count_text, slash, rest = part.partition("/")
    if not slash:
        raise QuotaError(f"{shown(part)} is not a limit: {EXAMPLE}", part=part, suggestion=_without_slash(part))
    count = parse_count(count_text.strip(" \t"), "count")
    words = rest.split()
    if not words:
        raise QuotaError(f"{shown(part)} has no period: {EXAMPLE}", part=part)
    burst = None
    if "burst" in words:
        at = words.index("burst")
        words, after = words[:at], words[at + 1 :]
        if len(after) != 1:
            raise QuotaError("'burst' needs exactly one number after it", part=" ".join(["burst", *after]))
        burst = parse_count(after[0], "burst")
        if burst == 0:
            raise QuotaError("burst 0 would refuse everything; a ban is written 0", part="0", suggestion="0")
    # "15 m" is two words, "15m" and "minute" one; a word beyond that is named, not swallowed.
    period_words = 2 if words and words[0].isdigit() else 1
    if len(words) > period_words:
        extra = words[period_words]
        raise QuotaError(f"unexpected {shown(extra)}", part=extra, suggestion=suggest(extra, ("burst",)))
    period = " ".join(words)
    period_us = parse_span(period)
    unit = next((name for name, us in CALENDAR_US.items() if us == period_us and _is_one(period)), None)
    return Amount(count, period_us, burst, part, unit)


def _is_one(period: str) -> bool:
    digits = period.rstrip("abcdefghijklmnopqrstuvwxyz ")
    return digits in ("", "1")


def _without_slash(part: str) -> str | None:
    """What a text without a slash probably means: a misspelt word, or "100 per minute"."""
    words = part.split()
    if len(words) == 3 and words[0].isdigit():
        return f"{words[0]}/{words[2]}"
    return suggest(part, ("unlimited",))
