"""Limits on functions.

    @rate_limit("100/minute", key=lambda request: request.user_id)
    async def search(request): ...

The function runs only if its call is allowed; else ``RateLimited`` is raised. A call that a leaky bucket delays waits that
long before the function runs: a coroutine sleeps, a plain function blocks its thread.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from sluicegate.clock import US_PER_S
from sluicegate.errors import ConfigurationError, InvalidRequest, RateLimited
from sluicegate.limiter.decision import Decision

__all__ = ["Checks", "Cost", "Key", "decorate"]

P = ParamSpec("P")
R = TypeVar("R")

Key = Callable[..., Any] | str | None
"""Whose call it is: a function of the call's arguments, one fixed key, or None for one counter per function."""

Cost = Callable[..., int] | int
"""What a call costs, >= 1: a number or a function of the call's arguments."""


class Checks(Protocol):
    """The part of a limiter that a decorator needs."""

    def check(self, facts_or_key: Any, cost: int = 1) -> Decision: ...
    async def acheck(self, facts_or_key: Any, cost: int = 1) -> Decision: ...


def decorate(limiter: Checks, key: Key, cost: Cost) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The decorator behind ``Limiter.limit`` and ``rate_limit``.

    Raises ConfigurationError at decoration where a plain function has a ``key`` or ``cost`` that is a coroutine function: its
    result could not be awaited, and all callers would end up on one key. At a call, what ``key`` returns is checked like
    every key, so None or an empty text raises InvalidRequest instead of being shared.
    """

    def decorator(function: Callable[P, R]) -> Callable[P, R]:
        key_of = _key_function(key, function)
        cost_of = cost if callable(cost) else None
        fixed = 1 if callable(cost) else cost
        if _is_async(function):
            return cast("Callable[P, R]", _limit_coroutine(limiter, function, key_of, cost_of, fixed))
        for name, part in (("key", key_of), ("cost", cost_of)):
            if part is not None and _is_async(part):
                raise ConfigurationError(
                    f"{name}: is a coroutine function, but {function.__qualname__} is not, so it cannot be awaited"
                )
        return _limit_function(limiter, function, key_of, cost_of, fixed)

    return decorator


def _limit_function(
    limiter: Checks,
    function: Callable[P, R],
    key_of: Callable[..., Any],
    cost_of: Callable[..., int] | None,
    fixed: int,
) -> Callable[P, R]:
    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        key = _plain("key", key_of(*args, **kwargs))
        cost = fixed if cost_of is None else _plain("cost", cost_of(*args, **kwargs))
        decision = _admit(limiter.check(key, cost))
        if decision.delay_us:
            threading.Event().wait(decision.delay_us / US_PER_S)
        return function(*args, **kwargs)

    return limited


def _limit_coroutine(
    limiter: Checks,
    function: Callable[P, Any],
    key_of: Callable[..., Any],
    cost_of: Callable[..., int] | None,
    fixed: int,
) -> Callable[P, Awaitable[Any]]:
    @functools.wraps(function)
    async def limited(*args: P.args, **kwargs: P.kwargs) -> Any:
        key = await _awaited(key_of(*args, **kwargs))
        cost = fixed if cost_of is None else await _awaited(cost_of(*args, **kwargs))
        decision = _admit(await limiter.acheck(key, cost))
        if decision.delay_us:
            await asyncio.sleep(decision.delay_us / US_PER_S)
        return await function(*args, **kwargs)

    return limited


def _key_function(key: Key, function: Callable[..., object]) -> Callable[..., Any]:
    if callable(key):
        return key
    fixed = f"{function.__module__}.{function.__qualname__}" if key is None else key
    return lambda *_args, **_kwargs: fixed


def _is_async(function: Callable[..., object]) -> bool:
    """Whether calling it gives a coroutine; sees through partials and objects with an ``async`` ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 -- it is the method itself that is looked at


def _admit(decision: Decision) -> Decision:
    if not decision.allowed:
        wait_us = decision.retry_after_us
        raise RateLimited(decision, decision.rule, None if wait_us is None else wait_us / US_PER_S)
    return decision


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _plain(name: str, value: Any) -> Any:
    """What a plain function's ``key`` or ``cost`` gave; an awaitable is an error, because nobody would await it."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise InvalidRequest(name, "gave an awaitable to a function that is not a coroutine")
    return value
