"""Functions that users hand to a door: plain ones, and coroutine functions where somebody can await them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from sluicegate.errors import ConfigurationError

__all__ = [
    "answering",
    "awaited",
    "described",
    "is_async",
    "no_awaitable",
    "on_event_loop",
    "require_function",
    "require_plain",
    "require_target",
    "template_of",
]


def is_async(function: object) -> bool:
    """Whether calling it gives a coroutine; sees through partials and objects with an ``async`` ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 -- it is the method itself that is looked at


def described(function: object) -> str:
    """What to call a function in a message: objects and partials have no name of their own."""
    name: str = getattr(function, "__qualname__", None) or f"{function!r:.64}"
    return name


def require_target(function: object) -> None:
    """Raise ConfigurationError for what a limit cannot stand on: a class, whose making would be limited, or no function at all."""
    if isinstance(function, type) or not callable(function):
        raise ConfigurationError(f"{function!r:.64}: a limit stands on a function; of a class, limit its methods")


def require_function(name: str, function: object) -> None:
    """Raise ConfigurationError for what is neither a function nor None."""
    if function is not None and not callable(function):
        raise ConfigurationError(f"{name}: want a function, got {function!r:.64}")


def require_plain(name: str, function: Callable[..., Any] | object, where: str) -> None:
    """Raise ConfigurationError for a coroutine function where nobody could await it: all clients would share one key."""
    if callable(function) and is_async(function):
        raise ConfigurationError(f"{name}: is a coroutine function, but {where} is not, so it cannot be awaited")


def template_of(value: Any) -> str | None:
    """What a function for the endpoint gave; raises ConfigurationError for what is no route template."""
    if value is None or isinstance(value, str):
        return value
    raise ConfigurationError(f"endpoint: gave {type(no_awaitable('endpoint', value)).__name__}, want a text, or None")


def answering(own: Any) -> Any:
    """The application that ``on_refused`` gave to answer with, or None; raises ConfigurationError for what is none."""
    if own is not None and (isinstance(own, type) or not callable(own)):
        raise ConfigurationError(f"on_refused: gave {own!r:.64}, want an application such as a response, or None")
    return own


async def awaited(value: Any) -> Any:
    """The value, or what it gives when it is awaited."""
    return await value if inspect.isawaitable(value) else value


def no_awaitable(name: str, value: Any) -> Any:
    """What a plain function gave; raises ConfigurationError for an awaitable, which would be the same key for everybody."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise ConfigurationError(f"{name}: gave an awaitable where nobody can await it")
    return value


def on_event_loop() -> bool:
    """Whether this thread runs an event loop, so that to wait here would stop all others."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
