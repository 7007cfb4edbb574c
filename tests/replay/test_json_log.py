"""JSON lines as programs write them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.errors import ConfigurationError
from sluicegate.replaying.bad_line import BadLine
from sluicegate.replaying.json_log import JsonParser, parse_map
from sluicegate.rules.facts import Facts

US = 1_431_857_103_000_000
ALL = ("ip", "user", "method", "path", "host", "header.referer", "header.user-agent")

NGINX = {
    "time": "2015-05-17T10:05:03+00:00",
    "remote_addr": "203.0.113.9",
    "remote_user": "",
    "request": "GET /a?b=c HTTP/1.1",
    "status": "200",
    "http_referer": "",
    "http_user_agent": "curl/8",
}
NGINX_PARTS = {
    "msec": "1431857103.000",
    "remote_addr": "203.0.113.9",
    "request_method": "GET",
    "request_uri": "/a?b=c",
    "http_host": "x.org",
    "remote_user": "alice",
}
CADDY = {
    "level": "info",
    "ts": 1431857103.0,
    "request": {
        "remote_ip": "10.0.0.1",
        "client_ip": "203.0.113.9",
        "method": "GET",
        "host": "x.org",
        "uri": "/a?b=c",
        "headers": {"User-Agent": ["curl/8"], "Referer": []},
    },
    "user_id": "",
    "status": 200,
}
TRAEFIK = {
    "ClientHost": "203.0.113.9",
    "ClientUsername": "-",
    "RequestMethod": "GET",
    "RequestPath": "/a?b=c",
    "RequestHost": "x.org",
    "StartUTC": "2015-05-17T10:05:03.000000000Z",
    "request_User-Agent": "curl/8",
}
ENVOY = {
    "start_time": "2015-05-17T10:05:03.000Z",
    "method": "GET",
    "path": "/a?b=c",
    "authority": "x.org",
    "downstream_remote_address": "203.0.113.9:51234",
    "user_agent": "curl/8",
}
PLAIN = {
    "timestamp": 1431857103000,
    "ip": "203.0.113.9",
    "method": "GET",
    "url": "https://x.org/a?b=c",
    "headers": {"user-agent": "curl/8"},
}
ECS = {
    "@timestamp": "2015-05-17T10:05:03Z",
    "client": {"ip": "203.0.113.9"},
    "http": {"request": {"method": "GET"}},
    "url": {"original": "/a?b=c", "domain": "x.org"},
    "user": {"name": "alice"},
}


def facts_of(record: Any, needed: tuple[str, ...] = ALL, *fields: str) -> Facts:
    """The facts of a record at the usual time."""
    parser = JsonParser(needed, parse_map(fields))
    us, key = parser.read(json.dumps(record))
    assert us == US
    return parser.facts(key)[0]


@pytest.mark.parametrize(
    ("record", "more"),
    [
        (NGINX, {"headers": {"user-agent": "curl/8"}}),
        (NGINX_PARTS, {"host": "x.org", "user": "alice"}),
        (CADDY, {"host": "x.org", "headers": {"user-agent": "curl/8"}}),
        (TRAEFIK, {"host": "x.org", "headers": {"user-agent": "curl/8"}}),
        (ENVOY, {"host": "x.org", "ip": "203.0.113.9:51234", "headers": {"user-agent": "curl/8"}}),
        (PLAIN, {"host": "x.org", "headers": {"user-agent": "curl/8"}}),
        (ECS, {"host": "x.org", "user": "alice"}),
    ],
    ids=["nginx", "nginx parts", "caddy", "traefik", "envoy", "plain", "ecs"],
)
def test_programs(record: dict[str, Any], more: dict[str, Any]) -> None:
    """The same request as several programs log it, and as seen again by a parser that has seen it before."""
    assert facts_of(record) == Facts(**({"method": "GET", "path": "/a", "ip": "203.0.113.9"} | more))
    parser = JsonParser(ALL, {})
    text = json.dumps(record)
    assert parser.read(text) == parser.read(text)


def test_map_names_other_fields() -> None:
    """``FIELD=FACT`` wins over what would be found, reaches into fields, and gives facts no log has by itself."""
    record = {
        "time": "never",
        "at": US // 1_000_000,
        "ip": "10.9.9.9",
        "req": {"peer": "203.0.113.9", "line": "POST /x HTTP/1.1"},
        "a.b": "tenant-7",
        "plan": "paid",
        "key": 17,
        "shop": "s1",
        "cost": "5",
    }
    facts = facts_of(
        record,
        ("ip", "method", "path", "tenant", "tier", "api_key", "attrs.shop", "descriptor.shop", "header.x-cost"),
        *("at=time", "req.peer=ip", "req.line=request", "a.b=tenant", "plan=tier", "key=api_key"),
        *("shop=attrs.shop", "shop=descriptor.shop", "cost=header.X-Cost"),
    )
    assert facts == Facts(
        method="POST",
        path="/x",
        ip="203.0.113.9",
        tenant="tenant-7",
        tier="paid",
        api_key="17",
        attrs={"shop": "s1"},
        descriptors={"shop": "s1"},
        headers={"x-cost": "5"},
    )


@pytest.mark.parametrize("item", ["", "=", "a", "a=", "=ip", "a=b", "a=headers", "a=attrs.", "a=header", "a=header."])
def test_bad_map(item: str) -> None:
    """What is no ``FIELD=FACT`` is said with the facts there are."""
    with pytest.raises(ConfigurationError, match="tenant"):
        parse_map([item])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "no JSON object"),
        ("[]", "no JSON object"),
        ("3", "no JSON object"),
        ('{"ts": 1', "no JSON object"),
        ("{" * 5_000, "no JSON object"),
        ('{"a":' * 100_000, "no JSON object"),
        ('{"ts": 1, "x": "\udc80"}', "not UTF-8"),
        ("{}", "no time: name its field"),
        ('{"ts": null}', "no time: name its field"),
        ('{"ts": true}', "no time: name its field"),
        ('{"ts": "soon"}', "no time: 'soon'"),
        ('{"ts": -5}', "1970 to 2112"),
        ('{"ts": 1e400}', "no "),
        ('{"ts": 1431857103, "ip": "a/b"}', "no client"),
    ],
)
def test_bad_lines(line: str, reason: str) -> None:
    """What a line lacks is said."""
    parser = JsonParser(ALL, {})
    with pytest.raises(BadLine) as error:
        parser.facts(parser.read(line)[1])
    assert reason in error.value.reason


def test_what_is_not_there_is_not_known() -> None:
    """A line with a time only is a request of which nothing is known."""
    assert facts_of({"ts": US // 1_000_000}) == Facts()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["time", "ts", "ip", "client", "request", "headers", "method", "url", "user-agent"]), inner
        )
    ),
    max_leaves=12,
)


@given(json_values | st.text(max_size=50))
def test_any_json_is_read_or_bad(value: Any) -> None:
    """No content makes the parser fail in another way."""
    parser = JsonParser(ALL, {})
    for text in (json.dumps(value), str(value)):
        with contextlib.suppress(BadLine):
            parser.facts(parser.read(text)[1])
