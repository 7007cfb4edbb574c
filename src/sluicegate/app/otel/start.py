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
from sluicegate.doors.grpc.calls import CODES, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, UNIMPLEMENTED
from sluicegate.doors.tracing import CallEnded, Ended, Parent
from sluicegate.errors import MissingExtra
from sluicegate.limiter.limiter import Limiter

try:
    from opentelemetry.context import Context
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
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        Tracer,
        set_span_in_context,
    )
except ImportError as error:
    raise MissingExtra("otel", "--otel") from error

__all__ = ["OpenTelemetry", "Passing"]

_NAME: Final = "sluicegate"
_RESULTS: Final = {200: "allowed", 204: "allowed", 401: "refused", 403: "refused", 429: "refused", 503: "undecided"}
_ALLOWED: Final = "allowed"
_METHODS: Final = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"})
_OTHER_METHOD: Final = "_OTHER"
_FAULTS: Final = frozenset({DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, UNIMPLEMENTED})
"""The codes of gRPC that are an error of the server, by the convention."""


class Passing:
    """The spans of one request that the gateway passes on (``doors.tracing.Passage``): one of kind server, and one of kind client for each attempt."""

    def __init__(self, tracer: Tracer, span: Span, method: str) -> None:
        self._tracer = tracer
        self._span = span
        self._method = method
        self._attempt: Span | None = None
        self._is_ended = False

    def decided(self, outcome: str, rule: str | None) -> None:
        """See ``doors.tracing.Passage``."""
        self._span.set_attribute("sluicegate.outcome", outcome)
        if rule is not None:
            self._span.set_attribute("sluicegate.rule", rule)

    def upstream(self) -> bytes:
        """See ``doors.tracing.Passage``."""
        if self._attempt is not None:
            _end(self._attempt, 0, fault_from=400)
        known = self._method if self._method in _METHODS else _OTHER_METHOD
        self._attempt = self._tracer.start_span(
            "HTTP" if known == _OTHER_METHOD else known,
            set_span_in_context(self._span),
            SpanKind.CLIENT,
            {"http.request.method": known},
        )
        context = self._attempt.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}".encode()

    def ended(self, status: int) -> None:
        """See ``doors.tracing.Passage``."""
        if self._is_ended:
            return
        self._is_ended = True
        if self._attempt is not None:
            _end(self._attempt, status, fault_from=400)
        _end(self._span, status, fault_from=500)


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
        span = self._begun(parent, method, route)

        def ended(status: int, body: bytes) -> None:
            span.set_attribute("sluicegate.outcome", _RESULTS.get(status, "error"))
            rule = _rule_of(body)
            if rule is not None:
                span.set_attribute("sluicegate.rule", rule)
            _end(span, status, fault_from=500)

        return ended

    def passing(self, parent: Parent, method: str) -> Passing:
        """See ``doors.tracing.Tracer``."""
        return Passing(self._tracer, self._begun(parent, method, None), method)

    def begin_call(self, parent: Parent, method: str) -> CallEnded:
        """See ``doors.tracing.Tracer``."""
        span = self._tracer.start_span(
            method, _below(parent), SpanKind.SERVER, {"rpc.system.name": "grpc", "rpc.method": method}
        )

        def ended(code: int, outcome: str) -> None:
            span.set_attribute("rpc.response.status_code", CODES.get(code, str(code)))
            span.set_attribute("sluicegate.outcome", outcome)
            if code in _FAULTS:
                span.set_status(Status(StatusCode.ERROR))
            span.end()

        return ended

    def _begun(self, parent: Parent, method: str, route: str | None) -> Span:
        """A span of kind server below the caller's; without a route it has the name of the method."""
        known = method if method in _METHODS else _OTHER_METHOD
        attributes = {"http.request.method": known} | ({} if route is None else {"http.route": route})
        name = "HTTP" if known == _OTHER_METHOD else known
        return self._tracer.start_span(
            name if route is None else f"{name} {route}",
            _below(parent),
            SpanKind.SERVER,
            attributes,
        )

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


def _below(parent: Parent) -> Context:
    caller = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(1))
    return set_span_in_context(NonRecordingSpan(caller))


def _end(span: Span, status: int, *, fault_from: int) -> None:
    """By the conventions: to a server what the client did, 429 among it, is no error; to a client it is one. 0: there was no whole answer."""
    if status:
        span.set_attribute("http.response.status_code", status)
    if not status or status >= fault_from:
        span.set_status(Status(StatusCode.ERROR))
    span.end()


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
