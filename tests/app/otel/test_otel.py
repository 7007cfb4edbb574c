"""Spans and counts at a real receiver of OTLP over HTTP."""

from __future__ import annotations

import asyncio
import http.server
import queue
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from sluicegate.app.build import Application, build
from sluicegate.app.settings import Settings
from sluicegate.clock import ManualClock, SystemClock
from sluicegate.doors.listen import Address
from sluicegate.doors.tracing import Parent, sampled_parent
from sluicegate.errors import MissingExtra

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY = b'{"facts": {"method": "POST", "path": "/login", "ip": "203.0.113.9"}}'


class Receiver:
    """What was posted, by path."""

    def __init__(self) -> None:
        self.posted: queue.Queue[tuple[str, bytes]] = queue.Queue()
        received = self.posted

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.put((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing is printed."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def of(self, path: str) -> list[bytes]:
        """All that was posted there."""
        return [body for where, body in list(self.posted.queue) if where == path]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A collector, which the variables name."""
    receiver = Receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    yield receiver
    receiver.server.shutdown()
    receiver.thread.join(60)
    receiver.server.server_close()


def composed(rules: Path) -> Application:
    """A server with --otel, not listening."""
    return build(Settings(rules=rules, api=Address("127.0.0.1", 0), otel=True), rules, ManualClock())


def ask(application: Application, traceparent: str | None) -> int:
    """The status of one login."""
    field = b"" if traceparent is None else b"traceparent: %b\r\n" % traceparent.encode()
    head = b"POST /v1/check HTTP/1.1\r\nHost: a\r\n%bContent-Length: %d\r\n\r\n" % (field, len(BODY))
    site = application.metrics.doors["api"]._site
    known = site.heads.young.get(head) or site.learn(head, None)
    return known.handler(BODY)[0]


async def test_sampled_requests_have_spans_and_no_others(rules: Path, receiver: Receiver) -> None:
    """Each request of a sampled trace is a span below its caller's with route, outcome and rule; 429 is no error; nobody's address is in it."""
    application = composed(rules)
    statuses = [ask(application, f"00-{TRACE}-{SPAN}-01") for _ in range(6)]
    assert statuses == [200] * 5 + [429]
    assert ask(application, f"00-{TRACE}-{SPAN}-00") == ask(application, None) == 429
    await application.close()
    posted = receiver.of("/v1/traces")
    spans = [
        (resource, span)
        for body in posted
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert len(spans) == 6
    for resource, span in spans:
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
        assert span.name == "POST /v1/check"
        assert span.status.code == 0
        assert "service.name" in {each.key for each in resource.resource.attributes}
    last = {each.key: each.value for each in spans[-1][1].attributes}
    assert last["http.response.status_code"].int_value == 429
    assert last["sluicegate.outcome"].string_value == "refused"
    assert last["sluicegate.rule"].string_value == "login"
    assert all(b"203.0.113.9" not in body for body in posted)


async def test_the_trace_of_a_measured_request_is_an_exemplar(rules: Path, receiver: Receiver) -> None:
    """In OpenMetrics only, and of sampled traces only: one bucket names the trace and how long it took."""
    application = composed(rules)
    ask(application, f"00-{TRACE}-{SPAN}-01")
    for _ in range(20):
        ask(application, None)
    kind, opened = application.metrics.open_metrics()
    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    exemplars = [
        (sample.name, sample.exemplar.labels)
        for family in text_string_to_metric_families(opened.decode())
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert exemplars == [("sluicegate_decision_duration_seconds_bucket", {"trace_id": TRACE})]
    assert TRACE.encode() not in application.metrics.exposition()[1]
    await application.close()


async def test_decisions_are_counted(rules: Path, receiver: Receiver) -> None:
    """What was decided is told at the end at the latest, by rule and result."""
    application = composed(rules)
    for _ in range(7):
        ask(application, None)
    await application.close()
    points = [
        ({each.key: each.value.string_value for each in point.attributes}, point.as_int)
        for body in receiver.of("/v1/metrics")
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "sluicegate.rate_limiting.requests"
        for point in metric.sum.data_points
    ]
    assert ({"result": "acquired"}, 5) in points
    assert ({"policy": "login", "result": "denied"}, 2) in points


async def test_a_collector_that_is_away_delays_nothing_for_long(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are answered, and the end of the process comes."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    application = composed(rules)
    assert ask(application, f"00-{TRACE}-{SPAN}-01") == 200
    await application.close()


def test_without_the_extra_it_is_named(rules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wants it and has it not is told what to install."""
    monkeypatch.delitem(sys.modules, "sluicegate.app.otel.start", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtra, match=r"sluicegate\[otel\]"):
        composed(rules)


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"01-{TRACE}-{SPAN}-01-more", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-01-more", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN}-01\r\ntraceparent: 00-{TRACE}-{SPAN}-01", False),
        ("", False),
        ("x" * 5_000, False),
    ],
)
def test_callers_by_the_recommendation(value: str, is_sampled: bool) -> None:
    """W3C Trace Context: malformed, doubled and unsampled fields are no caller."""
    found = sampled_parent(f"GET / HTTP/1.1\r\nTraceParent: {value}\r\nHost: a\r\n\r\n".encode())
    assert found == (Parent(int(TRACE, 16), int(SPAN, 16)) if is_sampled else None)


async def passed_on(rules: Path, traceparents: list[str]) -> list[bytes]:
    """The heads that an upstream is sent when logins with these traces come to the gateway."""
    heads: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(upstream, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    anywhere = Address("127.0.0.1", 0)
    settings = Settings(rules=rules, gateway=anywhere, upstreams=(url,), otel=True)
    application = build(settings, rules, ManualClock())
    application.start_gateway([url])
    gateway = await application.roles[0].open()
    async with asyncio.timeout(60):
        for traceparent in traceparents:
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.address.port)
            writer.write(
                b"POST /login HTTP/1.1\r\nHost: a\r\nConnection: close\r\ntraceparent: %b\r\n\r\n"
                % traceparent.encode()
            )
            await reader.read()
            writer.close()
    gateway.close()
    await application.close()
    server.close()
    return heads


async def test_the_gateway_puts_its_spans_between_caller_and_upstream(rules: Path, receiver: Receiver) -> None:
    """A server span below the caller's, a client span below it which the upstream is told; a refusal has no client span and is no error."""
    heads = await passed_on(rules, [f"00-{TRACE}-{SPAN}-01"] * 6)
    told = [re.findall(rb"\r\ntraceparent: ([^\r]*)", head) for head in heads]
    spans = [
        span
        for body in receiver.of("/v1/traces")
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    servers = {span.span_id: span for span in spans if span.kind == 2}
    clients = {span.span_id: span for span in spans if span.kind == 3}
    assert (len(servers), len(clients)) == (6, 5)
    assert all((span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN) for span in servers.values())
    assert all(span.parent_span_id in servers for span in clients.values())
    assert [each for (each,) in told] == [f"00-{TRACE}-{span.hex()}-01".encode() for span in clients]
    statuses = {
        (span.attributes[-1].value.int_value, span.status.code, span.attributes[1].value.string_value)
        for span in servers.values()
    }
    assert statuses == {(404, 0, "allowed"), (429, 0, "refused")}
    assert {(span.attributes[-1].value.int_value, span.status.code) for span in clients.values()} == {(404, 2)}
    assert all(b"127.0.0.1" not in span.SerializeToString() for span in spans)


async def test_the_gateway_leaves_other_traces_alone(rules: Path, receiver: Receiver) -> None:
    """A trace that is not sampled is passed on as it came, without spans."""
    (head,) = await passed_on(rules, [f"00-{TRACE}-{SPAN}-00"])
    assert f"\r\ntraceparent: 00-{TRACE}-{SPAN}-00\r\n".encode() in head
    assert receiver.of("/v1/traces") == []


def field(number: int, content: bytes) -> bytes:
    """A field of a message that holds bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.parametrize("engine", ["ngh2", "grpcio"])
async def test_calls_of_grpc_have_spans(tmp_path: Path, receiver: Receiver, engine: str) -> None:
    """Of sampled traces only, with either engine: the metadata names the caller, a refusal is an answer like another."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules:\n  - {name: two, per: [descriptor.key], quota: 2/hour}\n")
    settings = Settings(rules=rules, grpc=Address("127.0.0.1", 0), grpc_engine=engine, otel=True)
    application = build(settings, rules, SystemClock())
    listener = await application.roles[0].open()
    message = field(1, b"edge") + field(2, field(1, field(1, b"key") + field(2, b"zaphod")))
    async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{listener.address.port}") as channel:
        method = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
        for _ in range(3):
            await method(message, metadata=[("traceparent", f"00-{TRACE}-{SPAN}-01")])
        await method(message, metadata=[("traceparent", f"00-{TRACE}-{SPAN}-00")])
        await method(message)
    listener.close()
    await application.roles[0].connections.drain(1)
    await application.close()
    posted = receiver.of("/v1/traces")
    spans = [
        span
        for body in posted
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert [(span.name, span.kind, span.status.code) for span in spans] == [("ShouldRateLimit", 2, 0)] * 3
    assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in spans} == {(TRACE, SPAN)}
    outcomes = [{each.key: each.value.string_value for each in span.attributes} for span in spans]
    assert [each["sluicegate.outcome"] for each in outcomes] == ["allowed", "allowed", "refused"]
    assert {each["rpc.response.status_code"] for each in outcomes} == {"OK"}
    assert all(b"zaphod" not in body for body in posted)
