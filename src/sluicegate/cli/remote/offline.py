"""The rules service without its process: the same interface, on the database directly.

Whoever may write the database may do everything; the audit trail names the user of the system.
"""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluicegate.clock import SystemClock
from sluicegate.errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    import httpx

    from sluicegate.control.model import Actor
    from sluicegate.control.service import RulesService

__all__ = ["interface", "missing_control", "opened_locally", "user_name"]

_NEEDS: Final = frozenset({"sqlalchemy", "alembic", "aiosqlite", "greenlet", "fastapi", "starlette", "uvicorn", "h11"})


def missing_control(error: ModuleNotFoundError) -> Exception:
    """What to say of a module that is not there."""
    if (error.name or "").split(".")[0] in _NEEDS:
        return MissingExtra("control", "the rules service")
    return error


def user_name() -> str:
    """The user of the system, by name where it has one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


@contextlib.asynccontextmanager
async def opened_locally(db: str | None, data: Path, *, make: bool) -> AsyncIterator[tuple[RulesService, Actor]]:
    """The service on its database, and who changes it by hand. ``make``: the database may be a new one. Raises ConfigurationError."""
    try:
        from sluicegate.app.control.run import opened
        from sluicegate.control.model import Actor, Role
    except ModuleNotFoundError as error:
        raise missing_control(error) from error
    if db is None and not make and not (data / "control.db").is_file():
        raise ConfigurationError(
            f"there is no rules service in {str(data)!r}: name one with --server URL and --token TOKEN, or where it keeps its "
            "database with --data DIR or --db URL"
        )
    async with opened(db, data, SystemClock()) as service:
        yield service, Actor(f"offline:{user_name()}", "local", role=Role.ADMIN)


@contextlib.asynccontextmanager
async def interface(db: str | None, data: Path, *, make: bool) -> AsyncIterator[httpx.AsyncBaseTransport]:
    """What the process of the service would answer, answered here. Raises as ``opened_locally``."""
    import httpx

    async with opened_locally(db, data, make=make) as (service, actor):
        from sluicegate.control.http.app import build_local

        yield httpx.ASGITransport(build_local(service, SystemClock(), actor), raise_app_exceptions=False)
