"""OpenTelemetry: spans of sampled requests and counts of decisions, sent by OTLP over HTTP.

Everything is set by the standard variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``, ``OTEL_METRIC_EXPORT_INTERVAL``, ...). Sending happens on threads of the SDK;
a span that finds its queue full is dropped, and an exporter that cannot be reached delays nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any, Final

import msgspec

from sluicegate.app import logs
from sluicegate.bounds import OTEL_CLOSE_S
from sluicegate.doors.tracing import Ended, Parent
from sluicegate.errors import MissingExtra
from sluicegate.limiter.limiter import Limiter

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import (
        NonRecordingSpan,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        set_span_in_context,
    )
except ImportError as error:
    raise MissingExtra("otel", "--otel") from error

__all__ = ["OpenTelemetry"]

_NAME: Final = "sluicegate"
_RESULTS: Final = {200: "allowed", 204: "allowed", 401: "refused", 403: "refused", 429: "refused", 503: "undecided"}
_ALLOWED: Final = "allowed"


class OpenTelemetry:
    """A tracer for doors (``doors.tracing.Tracer``), and the counts of a limiter. ``close`` sends what is left."""

    def __init__(self, limiter: Limiter) -> None:
        sdk = logging.getLogger("opentelemetry")
        # What the SDK complains about goes where all lines go, and never waits.
        sdk.handlers[:], sdk.propagate = logs.LOGGER.handlers, False
        sdk.setLevel(logging.ERROR)
        resource = Resource.create(_own_attributes())
        self._limiter = limiter
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        if _is_wanted("TRACES"):
            self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if _is_wanted("METRICS") else []
        self._metrics = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
        self._tracer = self._traces.get_tracer(_NAME, version(_NAME))
        self._metrics.get_meter(_NAME, version(_NAME)).create_observable_counter(
            "sluicegate.rate_limiting.requests",
            [self._requests],
            unit="{request}",
            description="Requests that were decided, by the rule that refused and the result",
        )

    def begin(self, parent: Parent, method: str, route: str) -> Ended:
        """See ``doors.tracing.Tracer``."""
        caller = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(1))
        span = self._tracer.start_span(
            f"{method} {route}",
            set_span_in_context(NonRecordingSpan(caller)),
            SpanKind.SERVER,
            {"http.request.method": method, "http.route": route},
        )

        def ended(status: int, body: bytes) -> None:
            span.set_attribute("http.response.status_code", status)
            span.set_attribute("sluicegate.outcome", _RESULTS.get(status, "error"))
            rule = _rule_of(body)
            if rule is not None:
                span.set_attribute("sluicegate.rule", rule)
            if status >= 500:
                # By the convention for servers: what the client did, 429 among it, is no error of the server.
                span.set_status(Status(StatusCode.ERROR))
            span.end()

        return ended

    def close(self) -> None:
        """Send what is left, for ``OTEL_CLOSE_S`` at most."""
        ends = [
            threading.Thread(target=_quietly, args=(each.shutdown,), daemon=True, name="otel-close")
            for each in (self._traces, self._metrics)
        ]
        for end in ends:
            end.start()
        for end in ends:
            end.join(OTEL_CLOSE_S / len(ends))

    def _requests(self, _options: CallbackOptions) -> Iterable[Observation]:
        for (rule, outcome), count in self._limiter.stats.decisions.items():
            attributes = {"result": "acquired"} if outcome == _ALLOWED else {"policy": rule, "result": outcome}
            yield Observation(count, attributes)


def _own_attributes() -> dict[str, Any]:
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {"service.version": version(_NAME)} | ({} if named else {"service.name": _NAME})


def _is_wanted(signal: str) -> bool:
    return os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp").strip().lower() != "none"


def _rule_of(body: bytes) -> str | None:
    """The rule that a decision names, if the answer is one of them."""
    with contextlib.suppress(msgspec.DecodeError):
        document = msgspec.json.decode(body)
        if isinstance(document, dict) and isinstance(document.get("rule"), str):
            return str(document["rule"])
    return None


def _quietly(call: Any) -> None:
    with contextlib.suppress(Exception):
        call()
