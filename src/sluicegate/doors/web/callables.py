"""Functions that users hand to a door: plain ones, and coroutine functions where somebody can await them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from sluicegate.errors import ConfigurationError, InvalidRequest

__all__ = ["awaited", "is_async", "no_awaitable", "require_plain"]


def is_async(function: object) -> bool:
    """Whether calling it gives a coroutine; sees through partials and objects with an ``async`` ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 -- it is the method itself that is looked at


def require_plain(name: str, function: Callable[..., Any] | object, where: str) -> None:
    """Raise ConfigurationError for a coroutine function where nobody could await it: all clients would share one key."""
    if callable(function) and is_async(function):
        raise ConfigurationError(f"{name}: is a coroutine function, but {where} is not, so it cannot be awaited")


async def awaited(value: Any) -> Any:
    """The value, or what it gives when it is awaited."""
    return await value if inspect.isawaitable(value) else value


def no_awaitable(name: str, value: Any) -> Any:
    """What a plain function gave; raises InvalidRequest for an awaitable, which would be the same key for everybody."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise InvalidRequest(name, "gave an awaitable where nobody can await it")
    return value
