"""The rows of docs/doors.md for nginx: asked by its clients under the rule of that page, while the server's Redis answers and while it does not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]

CONF = Path(__file__).resolve().parents[3] / "integrations" / "nginx" / "auth_request.conf"
RULES = """
version: 1
identity: {trusted_peers: [127.0.0.1/32]}
rules:
  - {name: small, match: {path: /closed}, per: [ip], quota: 1/hour, on_store_failure: closed}
  - {name: small-local, match: {path: /local}, per: [ip], quota: 1/hour, on_store_failure: local}
  - {name: small-open, match: {path: /open}, per: [ip], quota: 1/hour, on_store_failure: open}
"""


@pytest.fixture
def by_asking(nginx: Start, serve: Start) -> Start:
    """nginx by the shipped auth_request.conf, beside a server of these rules; deadlines are those of a busy machine."""

    def start(rules: str, *, store: str) -> Any:
        text = CONF.read_text()
        for old, new in {
            "127.0.0.1:8081": f"127.0.0.1:{serve(rules, store=store).port}",
            "100ms": "9s",
            "200ms": "9s",
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        return nginx(text, lua=False)

    return start


@pytest.mark.parametrize("door", ["nginx, Lua", "nginx, `auth_request`"])
def test_the_rows_of_nginx(
    front: Start,
    by_asking: Start,
    url: str,
    port_of: Callable[[str], int],
    servers: Any,
    require_program: Start,
    doors_page: Any,
    said: Any,
    door: str,
) -> None:
    """What nginx's clients get by either way is what the page says."""
    quick = url.replace("timeout_ms=5000", "timeout_ms=2000")
    assert quick != url
    redis = f"port = {port_of(url)}, timeout_ms = "
    nginx = (
        front(RULES, store=quick, edits={f"{redis}5000": f"{redis}2000"})[0]
        if door == "nginx, Lua"
        else by_asking(RULES, store=quick)
    )

    def ask(path: str, times: int, ip: str = "203.0.113.9") -> list[Any]:
        answers = [nginx.get(path, ip) for _ in range(times)]
        # The backend behind this nginx sends a rate field of its own, which is nobody's word.
        return [
            said(
                str(each.status_code),
                {name.lower(): value for name, value in each.headers.items() if value != "999999"},
                each.content,
            )
            for each in answers
        ]

    closed = ask("/closed", 2)
    pid = servers.get("redis", require_program("redis-server")).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        # Another client: Lua repeats what it told the first one for a moment.
        closed += ask("/closed", 1, "203.0.113.10")
        doors_page.add(door, closed, ask("/local", 2), ask("/open", 2))
    finally:
        os.kill(pid, signal.SIGCONT)
    doors_page.compare()
