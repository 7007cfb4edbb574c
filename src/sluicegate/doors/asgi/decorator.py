"""``@limit("5/minute")`` for functions that serve requests, or are called while one is served."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

from sluicegate.clock import US_PER_S
from sluicegate.doors.asgi.middleware import Current, current
from sluicegate.doors.web.callables import described, is_async, on_event_loop, require_plain
from sluicegate.doors.web.declared import Limit, stack
from sluicegate.doors.web.request import Refusal
from sluicegate.errors import ConfigurationError, RateLimited
from sluicegate.limiter.decision import Decision

__all__ = ["limit"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def limit(quota: str, **options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator for a function that runs inside ``RateLimitMiddleware``: sync or async, with any signature.

    ``options`` are those of ``Limit``; ``key`` and ``cost`` functions get the scope. Where the limit refuses, the function does not
    run and ``RateLimited`` is raised, which the middleware answers with 429. Without a ``name`` the rule is named after the
    function. A function that is called several times for one request is charged once. A plain function that is called on the event loop
    keeps the loop waiting while a store over the network is asked, and it cannot be held: what a leaky bucket would delay is refused there.

    Raises ConfigurationError at decoration for what cannot be read, and for a coroutine function as ``key`` or ``cost`` of a plain
    function; at a call, where no middleware is around it, because the limit would not exist.
    """
    declared = Limit(quota, **options)

    def decorator(function: Callable[P, R]) -> Callable[P, R]:
        mine = stack(declared, function)
        if is_async(function):
            return cast("Callable[P, R]", mine.mark(_legible(_limit_coroutine(mine.limit, function), function)))
        require_plain("key", declared.key, described(function))
        require_plain("cost", declared.cost, described(function))
        return mine.mark(_legible(_limit_function(mine.limit, function), function))

    return decorator


def _limit_coroutine(mine: Limit, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def limited(*args: Any, **kwargs: Any) -> Any:
        door, limits, scope = _required(function)
        if door.door.switched_on(mine):
            _admit(await door.admit_declared(limits, mine, scope, scope, Refusal.RAISED))
        return await function(*args, **kwargs)

    return limited


def _limit_function(mine: Limit, function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def limited(*args: P.args, **kwargs: P.kwargs) -> R:
        door, limits, scope = _required(function)
        if door.door.switched_on(mine):
            facts = door.with_route(limits, scope)
            asked = door.door.declared(limits, mine, facts, scope)._replace(refusal=Refusal.RAISED)
            _admit(door.holder.admit(limits, asked, may_wait=not on_event_loop()))
        return function(*args, **kwargs)

    return limited


def _legible(limited: F, function: Callable[..., Any]) -> F:
    """``limited`` with the annotations of ``function`` resolved, where they are texts.

    Older releases of FastAPI look up the names in them where the function that they are given was made, which would be this module.
    """
    with contextlib.suppress(NameError, AttributeError, SyntaxError, TypeError, ValueError):
        limited.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return limited


def _required(function: Callable[..., Any]) -> Current:
    found = current.get()
    if found is None:
        raise ConfigurationError(
            f"{described(function)} is limited, but no RateLimitMiddleware is around it, or its thread does not have the context "
            "of the request, as those of asyncio.to_thread have"
        )
    return found


def _admit(decision: Decision) -> None:
    if not decision.allowed:
        wait_us = decision.retry_after_us
        raise RateLimited(decision, decision.rule, None if wait_us is None else wait_us / US_PER_S)
