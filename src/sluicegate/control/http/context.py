"""What all requests of one interface share, and how a request gets at it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends
from starlette.requests import Request

from sluicegate.clock import Clock
from sluicegate.control.http.access import Access
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.service import RulesService

__all__ = ["Context", "Numbers", "Shared"]


@dataclass(slots=True)
class Numbers:
    """What the interface counts. ``requests``: by operation and status. ``internal_errors``: faults of ours, answered with 500.

    ``bodies``: of each token how many bodies are waited for.
    """

    requests: dict[tuple[str, int], int] = field(default_factory=dict)
    at_work: int = 0
    polls: int = 0
    bodies: Counter[str] = field(default_factory=Counter)
    overloaded: int = 0
    internal_errors: int = 0


@dataclass(slots=True)
class Context:
    """One per application. ``closing`` is set when the server is to end: long polls end at once, ``/readyz`` says no."""

    service: RulesService
    settings: ApiSettings
    clock: Clock
    access: Access
    numbers: Numbers = field(default_factory=Numbers)
    closing: asyncio.Event = field(default_factory=asyncio.Event)


async def _shared(request: Request) -> Context:
    """The context of the application that serves a request."""
    context: Context = request.app.state.context
    return context


Shared = Annotated[Context, Depends(_shared)]
