"""Servers whose counters are in a Redis: real processes, real servers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]


def check(server: Any, ip: str = "203.0.113.9") -> Any:
    """Ask for one login."""
    facts = {"method": "POST", "path": "/login", "ip": ip}
    return server.client.post(f"{server.url('api')}/v1/check", json={"facts": facts})


def ready(server: Any) -> Any:
    """What ``/readyz`` says."""
    return server.client.get(f"{server.url('api')}/readyz")


def until(condition: Callable[[], bool], *, within_s: float = 60) -> float:
    """Wait until something is so; returns how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s
        time.sleep(0.05)
    return time.monotonic() - began


def events(server: Any) -> list[str]:
    """The names of what was logged."""
    return [json.loads(line)["event"] for line in server.err.read_text().splitlines()]


def test_two_servers_share_counters_and_know_of_each_other(
    start: Start, rules: Path, servers: Any, require_program: Callable[[str], str]
) -> None:
    """Five logins a minute are five, whoever is asked; each counts two processes, idle as they are."""
    url = servers.empty("redis", require_program).url
    pair = [start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", "--store", url) for _ in range(2)]
    assert [check(pair[number % 2]).status_code for number in range(7)] == [200] * 5 + [429] * 2
    for server in pair:
        until(lambda server=server: ready(server).json()["nodes"] == 2)  # type: ignore[misc]
        detail = ready(server).json()
        assert detail["store"] == url.partition("?")[0]
        assert detail["degraded_since"] is None
        assert [each["state"] for each in detail["servers"]] == ["up"]
        assert "sluicegate_store_nodes 2.0" in server.client.get(f"{server.url('api')}/metrics").text
        assert "store_ready" in events(server)
    assert [server.stop() for server in pair] == [0, 0]


@pytest.mark.measured
def test_a_store_that_is_absent_at_start_is_used_when_it_comes(
    start: Start, rules: Path, free_port: Callable[[], int], start_redis: Callable[..., Any]
) -> None:
    """T80: the server starts, is ready, decides by policy and says so; two seconds after the store comes it shares counters."""
    port = free_port()
    url = f"redis://user:pass@127.0.0.1:{port}?timeout_ms=1000"
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", "--store", url, SLUICEGATE_NODES="2")
    answer = check(server)
    assert (answer.status_code, answer.json()["degraded"], answer.json()["limit"]) == (200, True, 5)
    detail = ready(server)
    assert (detail.status_code, detail.json()["store"]) == (200, f"redis://127.0.0.1:{port}")
    assert detail.json()["degraded_since"] is not None
    until(lambda: ready(server).json()["servers"][0]["state"] == "down")
    start_redis("--port", str(port), "--user", "user", "on", ">pass", "~*", "&*", "+@all")
    # What was decided without the store is not handed over here: each address asks once.
    addresses = (f"198.51.100.{number}" for number in range(255))
    took_s = until(lambda: not check(server, next(addresses)).json()["degraded"])
    assert took_s < 2.5
    until(lambda: "store_up" in events(server))
    assert events(server).count("store_absent") == 1
    assert ready(server).json()["degraded_since"] is None
    assert "pass" not in server.err.read_text() + server.out.read_text() + detail.text
    assert server.stop() == 0


@pytest.mark.parametrize("why", ["another key secret", "no cluster"])
def test_a_store_that_refuses_from_the_start_is_shown_without_traffic(
    start: Start, rules: Path, servers: Any, require_program: Callable[[str], str], why: str
) -> None:
    """Nobody asks for a decision, and within seconds readiness says since when and why, metrics that it fails; also when it is over."""
    url = servers.empty("redis", require_program).url
    client = servers.get("redis", require_program("redis-server")).client()
    client.set("rl1:key_secret", "made:" + "00" * 16)
    store = f"{url}&key_secret=another-secret-of-it" if why == "another key secret" else f"redis+cluster{url[5:]}"
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", "--store", store)
    until(lambda: ready(server).json()["degraded_since"] is not None)
    until(lambda: ready(server).json()["degraded_error"] is not None)
    detail = ready(server).json()
    assert [each["state"] for each in detail["servers"]] == ["failing"]
    assert all(each["error"] for each in detail["servers"])
    metrics = server.client.get(f"{server.url('api')}/metrics").text
    (up,) = [line for line in metrics.splitlines() if line.startswith("sluicegate_store_up{")]
    assert up.endswith(" 0.0")
    assert "sluicegate_store_failing 1.0" in metrics
    until(lambda: "store_failing" in events(server))
    if why == "another key secret":
        client.delete("rl1:key_secret")
        until(lambda: ready(server).json()["degraded_since"] is None)
        assert [each["state"] for each in ready(server).json()["servers"]] == ["up"]
        until(lambda: "store_answers" in events(server))
    client.close()
    assert server.stop() == 0
