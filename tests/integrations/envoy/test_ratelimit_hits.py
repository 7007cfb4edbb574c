"""What a real Envoy can ask of the rate limit service beyond one hit a descriptor: costs, looks, refunds, charges at the end, limits of its own."""

from __future__ import annotations

import re
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "grpc.md").read_text()
HITS = next(block for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S) if "hits_addend" in block)
RULES = """
version: 1
rules:
  - {name: key, match: {domain: edge}, per: [descriptor.api_key], quota: 2/hour, algorithm: fixed_window}
  - {name: report, match: {domain: edge}, per: [descriptor.report], quota: 10/hour, algorithm: fixed_window}
  - {name: upload, match: {domain: edge}, per: [descriptor.upload], quota: 1000/hour, algorithm: fixed_window}
  - {name: tokens, match: {domain: edge}, per: [descriptor.tokens], quota: 10/hour, algorithm: fixed_window, denied_counts: true}
"""
ROUTE = " " * 24 + "- match: {prefix: /}\n"
SENT = "failure_mode_deny: false"

WorldOf = Callable[..., Any]


def with_hits(configuration: str) -> str:
    """The shipped configuration with the page's hits on its route, and Envoy's own header fields."""
    assert ROUTE in configuration
    assert SENT in configuration
    own = textwrap.indent(HITS, " " * 26)
    configuration = configuration.replace(ROUTE, ROUTE + own)
    return configuration.replace(SENT, "enable_x_ratelimit_headers: DRAFT_VERSION_03\n" + " " * 22 + SENT)


def left(world: Any, **fields: str) -> int | str:
    """Ask with these header fields: what remains, by Envoy's own field; "over" for a refusal."""
    reply = world.client.get("/", headers={name.replace("_", "-"): value for name, value in fields.items()})
    if reply.status_code == 429:
        return "over"
    assert reply.status_code == 200
    return int(reply.headers["x-ratelimit-remaining"])


def until_left(world: Any, expected: int, **fields: str) -> None:
    """Look until so much remains: what is charged when a request is over is charged a moment after its answer."""
    deadline_s = time.monotonic() + 60
    while (found := left(world, **fields)) != expected:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.05)


def test_costs_looks_and_what_is_given_back(envoy_world: WorldOf) -> None:
    """The page's hits, as Envoy sends them: a cost, a refund, a look that charges nothing, and charges at the end. # T08 # T12"""
    world = envoy_world("ratelimit.yaml", RULES, "--headers", "off", edit=with_hits)
    assert [left(world, x_report_key="a") for _ in range(3)] == [6, 2, "over"]
    assert left(world, x_cancel_key="a") == 6
    assert [left(world, x_cancel_key="a") for _ in range(3)] == [10, 10, 10]
    assert left(world, x_report_key="a") == 6
    # A look, and then what the upstream says: 4 each, until the last takes what there is.
    assert left(world, x_token_key="t", x_costs="4") == 10
    until_left(world, 6, x_token_key="t", x_costs="0")
    assert left(world, x_token_key="t", x_costs="9") == 6
    deadline_s = time.monotonic() + 60
    while left(world, x_token_key="t", x_costs="0") != "over":
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    world.client.post("/", headers={"x-upload-key": "u"}, content=b"x" * 1200)
    api = f"http://127.0.0.1:{world.ports['api']}/metrics"
    deadline_s = time.monotonic() + 60
    while 'sluicegate_refused_total{outcome="never_fits",rule="upload"} 1' not in httpx.get(api, timeout=60).text:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_an_empty_field_frees_nobody(envoy_world: WorldOf) -> None:
    """Envoy makes an entry of a field without a value, and it is counted like any other value."""

    def by_key_alone(configuration: str) -> str:
        return configuration.replace("- generic_key: {descriptor_key: route, descriptor_value: all}\n", "")

    world = envoy_world("ratelimit.yaml", RULES, edit=by_key_alone)
    statuses = [world.client.get("/", headers={"x-api-key": ""}).status_code for _ in range(4)]
    assert statuses == [200, 200, 429, 429]


def test_old_connections_end_without_an_error(envoy_world: WorldOf) -> None:
    """Under load, with connections that live a quarter of a second, Envoy gets an answer to each of its questions."""
    rules = "version: 1\nrules:\n  - {name: all, quota: 1000000/second}\n"
    world = envoy_world("ratelimit.yaml", rules, "--grpc-age", "250ms")
    statuses: list[int] = []

    def ask() -> None:
        with httpx.Client(base_url=world.url, timeout=60) as client:
            end_s = time.monotonic() + 2.5
            while time.monotonic() < end_s:
                statuses.append(client.get("/", headers={"x-api-key": "a"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(0.3)
    admin = f"http://127.0.0.1:{world.ports['admin']}/stats"
    stats = httpx.get(admin, params={"filter": r"ratelimit\.|upstream_cx_total"}, timeout=60).text
    assert set(statuses) == {200}
    assert re.search(r"ratelimit\.error: [1-9]", stats) is None, stats
    api = httpx.get(f"http://127.0.0.1:{world.ports['api']}/metrics", timeout=60).text
    aged = re.search(r"sluicegate_grpc_connections_aged_total (\d+)", api)
    assert aged is not None
    assert int(aged[1]) >= 3


@pytest.mark.parametrize(("unit", "reset_s"), [("MINUTE", 60), ("HOUR", 3600)])
def test_a_limit_that_comes_with_the_request(envoy_world: WorldOf, unit: str, reset_s: int) -> None:
    """A limit in Envoy's metadata goes before the rules of its domain, and is told with its unit."""

    def with_limit(configuration: str) -> str:
        filters = "                http_filters:\n"
        made = f"""                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata: [{{metadata_namespace: own, value: {{limit: {{requests_per_unit: 3, unit: {unit}}}}}}}]
"""
        entry = "- request_headers: {header_name: x-api-key, descriptor_key: api_key}\n"
        limit = " " * 32 + "limit: {dynamic_metadata: {metadata_key: {key: own, path: [{key: limit}]}}}\n"
        assert filters in configuration
        assert entry in configuration
        configuration = configuration.replace(filters, filters + made).replace(entry, entry + limit)
        return configuration.replace(SENT, "enable_x_ratelimit_headers: DRAFT_VERSION_03\n" + " " * 22 + SENT)

    world = envoy_world("ratelimit.yaml", RULES, "--headers", "off", edit=with_limit)
    replies = [world.client.get("/", headers={"x-api-key": "a"}) for _ in range(4)]
    assert [reply.status_code for reply in replies] == [200, 200, 200, 429]
    assert replies[0].headers["x-ratelimit-limit"] == f'3, 3;w={reset_s};name="override"'
