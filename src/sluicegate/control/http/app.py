"""The application: all operations, and one form for everything that goes wrong."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sluicegate.clock import Clock
from sluicegate.control.errors import ControlError, Fault
from sluicegate.control.http.access import Access, LocalAccess
from sluicegate.control.http.context import Context
from sluicegate.control.http.counters import COUNTERS
from sluicegate.control.http.edge import Edge
from sluicegate.control.http.feed import FEED
from sluicegate.control.http.health import HEALTH
from sluicegate.control.http.lists import LISTS
from sluicegate.control.http.offenders import OFFENDERS
from sluicegate.control.http.openapi import complete, queries_of
from sluicegate.control.http.operating import OPERATING
from sluicegate.control.http.problems import Refused, of_control_error, problem
from sluicegate.control.http.rules import RULES
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.http.subjects import SUBJECTS
from sluicegate.control.http.suggestions import SUGGESTIONS
from sluicegate.control.http.traffic import TRAFFIC
from sluicegate.control.http.trials import PAUSES, ROLLOUTS
from sluicegate.control.http.versions import VERSIONS
from sluicegate.control.http.whatif import WHATIF
from sluicegate.control.model import Actor
from sluicegate.control.service import RulesService

__all__ = ["build_app", "build_local"]

# More special paths come before those that take anything.
_PARTS = (
    RULES,
    VERSIONS,
    SUBJECTS,
    LISTS,
    PAUSES,
    ROLLOUTS,
    COUNTERS,
    TRAFFIC,
    SUGGESTIONS,
    OFFENDERS,
    WHATIF,
    OPERATING,
    FEED,
    HEALTH,
)

_ABOUT = "Rules, tiers, subjects and lists, changed while traffic flows. Times are microseconds since 1970, UTC. Errors are problem documents (RFC 9457)."


def build_app(service: RulesService, settings: ApiSettings, clock: Clock) -> FastAPI:
    """The interface of a service, which it neither opens nor closes. ``app.state.context`` is the ``Context``; to end, set its ``closing``."""
    app = FastAPI(
        title="Sluicegate rules service",
        description=_ABOUT,
        version=version("sluicegate"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        strict_content_type=False,
    )
    context = Context(service, settings, clock, Access(service, settings, clock))
    app.state.context = context
    for part in _PARTS:
        app.include_router(part.router)
    app.add_middleware(Edge, context=context)
    app.add_exception_handler(ControlError, _refused_by_service)
    app.add_exception_handler(Refused, _refused_here)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused_by_framework)
    app.state.queries = queries_of(complete(app))
    return app


def build_local(service: RulesService, clock: Clock, actor: Actor) -> FastAPI:
    """The same without a network and without tokens: every request is made by ``actor``. It must not be served to anybody."""
    settings = ApiSettings()
    app = build_app(service, settings, clock)
    app.state.context.access = LocalAccess(service, settings, clock, actor)
    return app


async def _refused_by_service(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ControlError)
    return of_control_error(error)


async def _refused_here(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return error.response()


async def _invalid(_request: Request, error: Exception) -> Response:
    """A parameter of path, query or head that is not what it should be."""
    assert isinstance(error, RequestValidationError)
    faults = [
        Fault(f"{'/'.join(map(str, each['loc'][1:]))}: {each['msg']}", f"/{'/'.join(map(str, each['loc'][1:]))}")
        for each in error.errors()
    ]
    return problem(422, "; ".join(fault.detail for fault in faults), faults)


async def _refused_by_framework(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    detail, headers = error.detail, error.headers
    if error.status_code == 404:
        detail = f"there is nothing at {request.url.path!r:.200}"
    elif error.status_code == 405:
        # The framework names the methods of one operation at the path, not of all.
        headers = {"Allow": ", ".join(sorted(_methods_at(request)))}
        detail = f"{request.method} is not allowed here, only {headers['Allow']}"
    return problem(error.status_code, detail, headers=headers)


def _methods_at(request: Request) -> set[str]:
    found: set[str] = set()
    for route in [*request.app.routes, *(each for part in _PARTS for each in part.router.routes)]:
        if isinstance(route, Route) and route.path_regex.match(request.scope["path"]):
            found |= route.methods or set()
    return found
