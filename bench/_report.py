"""What a benchmark has to say: figures, printed for people and handed to the runner.

A figure is the median of several rounds; its spread is the middle half of them (first to third quartile). Ratios are taken
within a round, between neighbours, so a machine that is slower for a while is slower for both.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["FIGURES_FILE", "Figure", "of_rates", "of_ratios", "tell"]

FIGURES_FILE = "BENCH_FIGURES"
"""The environment variable by which the runner names the file it wants the figures in."""


class Figure(NamedTuple):
    """One result. ``goal`` None: told for comparison; ``at_most``: smaller is better."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    goal: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal

    def cells(self) -> tuple[str, str, str, str, str]:
        """The figure as texts: name, value, spread, goal, reached."""
        goal = "" if self.goal is None else f"{'<=' if self.at_most else '>='} {number(self.goal)}"
        reached = {None: "", True: "yes", False: "NO"}[self.met]
        return (
            self.name,
            f"{number(self.value)} {self.unit}".strip(),
            f"{number(self.low)} - {number(self.high)}",
            goal,
            reached,
        )


def of_rates(
    name: str, rates: Sequence[float], unit: str, goal: float | None = None, *, at_most: bool = False
) -> Figure:
    """Median and middle half of the rounds of one contender."""
    low, high = quartiles(rates)
    return Figure(name, statistics.median(rates), unit, low, high, goal, at_most)


def of_ratios(
    name: str, over: Sequence[float], under: Sequence[float], goal: float | None = None, *, at_most: bool = False
) -> Figure:
    """Median and middle half of ``over / under``, round by round."""
    return of_rates(name, [a / b for a, b in zip(over, under, strict=True)], "x", goal, at_most=at_most)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """First and third quartile; the extremes where there are fewer than four values."""
    if len(values) < 4:
        return min(values), max(values)
    first, _, third = statistics.quantiles(values, n=4)
    return first, third


def number(value: float) -> str:
    """Two decimals for small numbers, separators for large ones."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of texts in columns, as Markdown that also reads well as it is."""
    rows = [list(row) for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


HEAD = ("figure", "median", "middle half", "goal", "reached")


def tell(figures: Sequence[Figure]) -> None:
    """Print the figures, and leave them for the runner if it asked for them."""
    print()
    print(table([HEAD, *(figure.cells() for figure in figures)]))
    wanted = os.environ.get(FIGURES_FILE)
    if wanted:
        Path(wanted).write_text(json.dumps([figure._asdict() for figure in figures]))
