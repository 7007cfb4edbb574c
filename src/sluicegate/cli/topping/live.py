"""A screen that shows itself anew, and listens to keys, until somebody presses ``q``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from sluicegate.cli.topping.view import SORTS, View, lines
from sluicegate.control.offenders import OVERALL
from sluicegate.errors import SluicegateError

__all__ = ["watch"]

Ask = Callable[[View], Awaitable[dict[str, Any]]]

_STYLES: Final = {"": "", "title": "bold", "head": "reverse", "bad": "bold red", "dim": "dim"}


class _Screen:
    """What is on the screen: drawn for the size it has now."""

    def __init__(self, answer: dict[str, Any], view: View) -> None:
        self.answer = answer
        self.view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        made = lines(self.answer, self.view, options.max_width, height)
        yield Text("\n", end="").join(Text(line.text, style=_STYLES[line.style], no_wrap=True, end="") for line in made)


async def watch(ask: Ask, view: View, every_s: float, windows: Sequence[str]) -> None:
    """Show until ``q`` or control-C. What cannot be asked is said, and asked again; only the first time it ends all."""
    view.keys = True
    screen = _Screen(await ask(view), view)
    # Keys first: what is pressed as soon as something is seen counts.
    async with _keys() as pressed:
        with Live(screen, console=Console(), screen=True, auto_refresh=False) as live:
            while True:
                live.refresh()
                key = await _next(pressed, every_s)
                if key in {"q", "Q", "\x03", "\x04"}:
                    return
                _turn(key, view, screen.answer, windows)
                try:
                    screen.answer = await ask(view)
                    view.trouble = ""
                except SluicegateError as error:
                    view.trouble = str(error)


def _turn(key: str, view: View, answer: dict[str, Any], windows: Sequence[str]) -> None:
    """What a key changes in the view; others change nothing."""
    if key == "w":
        view.window = _after(view.window, windows)
    elif key == "s":
        view.sort = _after(view.sort, SORTS)
    elif key == "k":
        view.kind = "asked" if view.kind == "refused" else "refused"
    elif key == "r":
        rules = sorted({row["rule"] for row in answer["rules"]} | ({view.rule} - {"", OVERALL}))
        view.rule = _after(view.rule, ["", OVERALL, *rules])


def _after(value: str, values: Sequence[str]) -> str:
    return values[(values.index(value) + 1) % len(values)] if value in values else values[0]


async def _next(pressed: asyncio.Queue[str], every_s: float) -> str:
    """The next key, or "" where none comes in time."""
    try:
        async with asyncio.timeout(every_s):
            return await pressed.get()
    except TimeoutError:
        return ""


@contextlib.asynccontextmanager
async def _keys() -> AsyncIterator[asyncio.Queue[str]]:
    """Keys as they are pressed; none where standard input is no terminal. The terminal is afterwards as it was."""
    pressed: asyncio.Queue[str] = asyncio.Queue(maxsize=16)
    if not sys.stdin.isatty():
        yield pressed
        return
    descriptor = sys.stdin.fileno()

    def read() -> None:
        data = os.read(descriptor, 64)
        # A terminal that is gone gives nothing for ever.
        for char in data.decode("ascii", "ignore") or "q":
            with contextlib.suppress(asyncio.QueueFull):
                pressed.put_nowait(char)

    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()
    tty.setcbreak(descriptor, termios.TCSADRAIN)
    loop.add_reader(descriptor, read)
    try:
        yield pressed
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
