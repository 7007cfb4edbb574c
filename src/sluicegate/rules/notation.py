"""Small notations that people type in rules: counts and spans of time.

Both are strict: ASCII digits only, no sign, no separator, and an error names the token it could not read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from sluicegate.bounds import COUNT_DIGITS_MAX, HINT_CHARS_MAX

__all__ = ["DAY_US", "UNITS_US", "NotationError", "on_line", "parse_count", "parse_span", "shown", "suggest"]

_MS_US: Final = 1_000
_SECOND_US: Final = 1_000_000
_MINUTE_US: Final = 60 * _SECOND_US
_HOUR_US: Final = 60 * _MINUTE_US
DAY_US: Final = 24 * _HOUR_US

_NAMES: Final = (
    (_MS_US, "ms millisecond milliseconds"),
    (_SECOND_US, "s sec secs second seconds"),
    (_MINUTE_US, "m min mins minute minutes"),
    (_HOUR_US, "h hour hours"),
    (DAY_US, "d day days"),
    (7 * DAY_US, "w week weeks"),
    (30 * DAY_US, "month months"),
    (365 * DAY_US, "year years"),
)

UNITS_US: Final[Mapping[str, int]] = MappingProxyType(
    {name: length_us for length_us, names in _NAMES for name in names.split()}
)
"""Every accepted unit in microseconds. A month is 30 days and a year 365; calendar windows are asked for by name."""

_SPAN: Final = re.compile(r"([0-9]*)[ \t]*([^0-9 \t]\S*)?")


class NotationError(ValueError):
    """A text is not in its notation. ``part`` is the part that could not be read, ``suggestion`` a likely meaning."""

    def __init__(self, message: str, *, part: str, suggestion: str | None = None) -> None:
        super().__init__(message if suggestion is None else f"{message} (did you mean {suggestion!r}?)")
        self.message = message
        self.part = part
        self.suggestion = suggestion


def suggest(word: str, options: Iterable[str]) -> str | None:
    """The option most like ``word``, or None. Letter case is ignored; words too long to be a slip get no answer."""
    if len(word) > HINT_CHARS_MAX:
        return None
    by_folded = {option.casefold(): option for option in options}
    found = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def shown(value: object) -> str:
    """A value as an error message shows it: quoted, one line, never longer than an operator can read."""
    try:
        text = str(value) if isinstance(value, Decimal) else repr(value)
    except ValueError:
        # CPython refuses to print integers of more than 4,300 digits.
        text = "a number of thousands of digits"
    return text if len(text) <= HINT_CHARS_MAX else f"{text[:HINT_CHARS_MAX]}…"


def on_line(line: int) -> str:
    """`` on line 7``, or "" where what is spoken of has no line (``line`` < 1)."""
    return f" on line {line}" if line > 0 else ""


def parse_count(token: str, what: str) -> int:
    """A whole number >= 0 written in ASCII digits."""
    if not token.isascii() or not token.isdigit():
        plain = re.sub(r"[_, ]", "", token)
        hint = plain if plain.isascii() and plain.isdigit() and len(plain) <= COUNT_DIGITS_MAX else None
        raise NotationError(f"bad {what} {shown(token)}: digits only", part=token, suggestion=hint)
    if len(token) > COUNT_DIGITS_MAX:
        raise NotationError(f"{what} {shown(token)} is too large", part=token)
    return int(token)


def parse_span(text: str) -> int:
    """A span of time in microseconds, > 0: ``15m``, ``15 minutes``, or a bare unit for one of it (``minute``)."""
    token = text.strip(" \t")
    found = _SPAN.fullmatch(token)
    unit = found[2] if found else None
    if found is None or unit is None:
        hint = f"{token}s" if token.isascii() and token.isdigit() and len(token) <= COUNT_DIGITS_MAX else None
        raise NotationError(f"{shown(token)} is not a span of time such as 15m", part=token, suggestion=hint)
    if unit not in UNITS_US:
        hint = suggest(unit, UNITS_US)
        raise NotationError(f"unknown unit {shown(unit)}", part=unit, suggestion=hint)
    count = parse_count(found[1], "number of units") if found[1] else 1
    if count == 0:
        raise NotationError(f"{shown(token)} is an empty span of time", part=token)
    return count * UNITS_US[unit]
