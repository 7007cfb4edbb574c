"""What went through the nodes: counts of decisions, and the batches of nodes that have nobody else to tell."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.bounds import TRAFFIC_BATCHES_MAX
from sluicegate.control.errors import Conflict, Fault, Invalid
from sluicegate.control.http.answers import ok
from sluicegate.control.http.bodies import media_type, read_body
from sluicegate.control.http.callers import Node, Viewer
from sluicegate.control.http.context import Context, Shared
from sluicegate.control.http.operations import Operations
from sluicegate.control.traffic import Traffic, TrafficAnswer, TrafficQuestion
from sluicegate.rules.notation import NotationError, parse_span

__all__ = ["TRAFFIC", "Since", "Taken", "Until", "Window", "span_of", "traffic_of"]

TRAFFIC: Final = Operations("traffic")

Window = Annotated[str, Query(description="How long a time up to `until_us`, such as `15m`; not beside `since_us`.")]
Since = Annotated[int | None, Query(ge=0, lt=2**53, description="Of this time and later.")]
Until = Annotated[int | None, Query(ge=0, lt=2**53, description="Before this time; without it up to now.")]
Name = Annotated[str | None, Query(max_length=256)]


def traffic_of(context: Context) -> Traffic:
    """What is kept about traffic. Raises Conflict where this service was started without."""
    traffic = context.service.traffic
    if traffic is None:
        raise Conflict(
            "this rules service keeps nothing about traffic: it was started with --no-analytics, or --analytics off of up"
        )
    return traffic


def span_of(context: Context, window: str, since_us: int | None, until_us: int | None, usual: str) -> tuple[int, int]:
    """The span that a query asks for. ``usual``: the window of who names neither one nor a beginning. Raises Invalid."""
    if window and since_us is not None:
        raise Invalid([Fault("window: give it or since_us, not both", "/window")])
    until_us = context.clock.now_us() if until_us is None else until_us
    if since_us is None:
        try:
            since_us = max(0, until_us - parse_span(window or usual))
        except NotationError as error:
            raise Invalid([Fault(f"window: {error}", "/window")]) from error
    if until_us < since_us:
        raise Invalid([Fault(f"until_us: {until_us} is before since_us, {since_us}", "/until_us")])
    return since_us, until_us


@TRAFFIC.add("GET", "/v1/traffic", answer=TrafficAnswer, refusals=(409,))
async def _get_traffic(
    _actor: Viewer,
    context: Shared,
    window: Window = "",
    since_us: Since = None,
    until_us: Until = None,
    of: Annotated[
        Literal["requests", "rules"], Query(description="Decisions, each once; or what rules did.")
    ] = "requests",
    by: Annotated[str, Query(description="What to group by: `rule,outcome,tier,version,node,degraded`.")] = "outcome",
    step: Annotated[str, Query(description="Length of the steps of a series, such as `1m`; without it totals.")] = "",
    rule: Name = None,
    outcome: Name = None,
    tier: Name = None,
    version: Annotated[int | None, Query(ge=0, lt=2**53)] = None,
    node: Name = None,
) -> Response:
    """Decisions of the last hour, or another span, by rule, outcome, tier, version and node.

    Seconds are known for about an hour, minutes for two days, hours for a quarter of a year; the span is widened to those.
    """
    since_us, until_us = span_of(context, window, since_us, until_us, "1h")
    names = tuple(name.strip() for name in by.split(",") if name.strip())
    question = TrafficQuestion(since_us, until_us, of, _step_s(step), names, rule, outcome, tier, version, node)
    return ok(await traffic_of(context).counts(question))


def _step_s(text: str) -> int | None:
    if not text:
        return None
    try:
        step_us = parse_span(text)
    except NotationError as error:
        raise Invalid([Fault(f"step: {error}", "/step")]) from error
    if step_us % 1_000_000:
        raise Invalid([Fault(f"step: want whole seconds, got {text!r}", "/step")])
    return step_us // 1_000_000


class Taken(msgspec.Struct, frozen=True):
    """``batches``: how many are kept now that were sent, those that were kept before included."""

    batches: int


_NDJSON: Final = "application/x-ndjson"
_BATCHES: Final[dict[str, Any]] = {
    _NDJSON: {"type": "string", "description": "Batches as in docs/analytics/events.md, one a line."}
}


@TRAFFIC.add("POST", "/v1/feed/traffic", answer=Taken, media=_BATCHES, refusals=(409,))
async def _take_batches(request: Request, _actor: Node, context: Shared) -> Response:
    """What a node tells of its decisions. A batch that was sent before changes nothing."""
    traffic = traffic_of(context)
    media_type(request, _NDJSON)
    lines = [line for line in (await read_body(request)).split(b"\n") if line]
    if len(lines) > TRAFFIC_BATCHES_MAX:
        raise Invalid([Fault(f"{len(lines)} batches; at most {TRAFFIC_BATCHES_MAX} at once")])
    await traffic.take(lines)
    return ok(Taken(len(lines)))
