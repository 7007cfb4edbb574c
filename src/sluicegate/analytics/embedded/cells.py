"""Cells of counts: which of them answer for a span, and sums that do not overflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sluicegate.analytics.model import RESOLUTIONS_S, Span
from sluicegate.clock import US_PER_S

__all__ = ["LARGEST", "Piece", "halves", "pieces_of", "whole"]

LARGEST: Final = 2**63 - 1
"""The largest number that SQLite adds exactly; a cell's counts stay there when they come so far."""


class Piece(NamedTuple):
    """A part of a span that is answered by cells of one length."""

    cell_s: int
    since_s: int
    until_s: int


def pieces_of(span: Span, finest_s: int, coarsest_s: int) -> list[Piece]:
    """The span, widened to cells of ``finest_s``, in as long cells as fit, none longer than ``coarsest_s``. They add up to the same counts."""
    wide = span.in_cells_of(finest_s)
    lengths = [length for length in RESOLUTIONS_S if finest_s <= length <= max(coarsest_s, finest_s)]
    return _pieces(wide.since_us // US_PER_S, wide.until_us // US_PER_S, lengths)


def _pieces(since_s: int, until_s: int, lengths: list[int]) -> list[Piece]:
    if since_s >= until_s:
        return []
    longest = lengths[-1]
    if len(lengths) == 1:
        return [Piece(longest, since_s, until_s)]
    first, last = -(-since_s // longest) * longest, until_s // longest * longest
    if first >= last:
        return _pieces(since_s, until_s, lengths[:-1])
    shorter = lengths[:-1]
    return [*_pieces(since_s, first, shorter), Piece(longest, first, last), *_pieces(last, until_s, shorter)]


def halves(column: str) -> str:
    """The sum of a column of integers in two parts, neither of which overflows; ``whole`` puts them together."""
    return f"sum({column} >> 32), sum({column} & 4294967295)"


def whole(parts: Sequence[int | None]) -> int:
    """The sum that ``halves`` asked for; 0 where there were no rows."""
    high, low = parts
    return ((high or 0) << 32) + (low or 0)
