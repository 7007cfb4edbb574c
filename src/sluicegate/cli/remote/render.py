"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from sluicegate.clock import US_PER_S

__all__ = ["cut", "pairs", "print_json", "span", "table", "told", "when"]


def print_json(data: Any) -> None:
    """Data as JSON, indented."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """Rows under headings, or a sentence where there are none."""
    cells = [[told(cell) for cell in row] for row in rows]
    if not cells:
        click.echo(empty)
    elif sys.stdout.isatty():
        _on_terminal(headings, cells)
    else:
        widths = [max(len(row[at]) for row in (headings, *cells)) for at in range(len(headings))]
        for row in (headings, *cells):
            click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def pairs(fields: Mapping[str, Any]) -> None:
    """Names and values, one a line."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name.ljust(width)}  {told(value)}".rstrip())


def when(us: int | None, none: str = "never") -> str:
    """A time, to the second, in UTC."""
    if us is None:
        return none
    try:
        return datetime.fromtimestamp(us // US_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        # Times of the service reach further than calendars.
        return f"{us} us"


def span(us: int) -> str:
    """A length of time, to three digits, and from 100 s on to the second."""
    seconds = us / US_PER_S
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def cut(text: str, chars: int = 60) -> str:
    """A text for a column: of a long one the beginning."""
    return text if len(text) <= chars else f"{text[: chars - 3].rstrip()}..."


def told(value: Any) -> str:
    """A value in one line that no terminal takes for a command."""
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(told, value)) or "-"
    text = value if isinstance(value, str) else str(value)
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _on_terminal(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for row in cells:
        made.add_row(*(Text(cell) for cell in row))
    Console().print(made)
