"""Bodies and bytes made to break the API: always a 4xx that names the field, never an admission, never a 500."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.clock import ManualClock
from sluicegate.doors.http.door import HttpDoor
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules

BUCKET = '{"algorithm":"token_bucket","capacity":100,"refill_per_sec":10}'
WINDOW = '{"algorithm":"sliding_window","limit":100,"window_s":60}'


def with_cost(cost: str) -> str:
    return f'{{"key":"k","cost":{cost},"policy":{BUCKET}}}'


def with_key(key: str) -> str:
    return f'{{"key":{key},"policy":{BUCKET}}}'


def with_policy(policy: str) -> str:
    return f'{{"key":"k","policy":{policy}}}'


def with_facts(facts: str, more: str = "") -> str:
    return f'{{"facts":{facts}{more}}}'


COSTS = ["-1", "0", "1.5", "1.0", "1e1", "1e300", "true", "false", '"1"', "null", "[]", "{}", "NaN", "Infinity", "-Infinity",
         "01", "+1", "0x1", ".5", "1e", "1" * 20, "1" * 5000, "-" + "1" * 5000, "1000000000001", "1_000"]  # fmt: skip

CASES: list[tuple[str | bytes, str]] = [
    *[(with_cost(cost), "#/cost") for cost in COSTS],
    *[(with_key(key), "#/key") for key in ("1", "null", "true", "[]", "{}", '""', json.dumps("x" * 1025), json.dumps("é" * 513),
                                            json.dumps("x" * 65_536))],
    *[(with_policy(policy), "#/policy") for policy in ("1", "null", '"token_bucket"', "[]", f"[{BUCKET}]")],
    (with_policy("{}"), "#/policy/algorithm"),
    (with_policy('{"capacity":1,"refill_per_sec":1}'), "#/policy/algorithm"),
    (with_policy('{"algorithm":1}'), "#/policy/algorithm"),
    (with_policy('{"algorithm":"tokenbucket","capacity":1,"refill_per_sec":1}'), "#/policy/algorithm"),
    (with_policy('{"algorithm":"token_bucket"}'), "#/policy/capacity"),
    (with_policy('{"algorithm":"token_bucket","capacity":1}'), "#/policy/refill_per_sec"),
    *[(with_policy(f'{{"algorithm":"token_bucket","capacity":{n},"refill_per_sec":1}}'), "#/policy/capacity")
      for n in ("-1", "1.5", '"1"', "true", "null", "1e300", "1" * 30, "NaN")],
    *[(with_policy(f'{{"algorithm":"token_bucket","capacity":1,"refill_per_sec":{n}}}'), "#/policy/refill_per_sec")
      for n in ("-1", "0", '"1"', "true", "null", "1e300", "1e-300", "1" * 30, "1e999999999", "[]", "NaN")],
    (with_policy('{"algorithm":"token_bucket","capacity":1,"refill_per_sec":1,"limit":5}'), "#/policy/limit"),
    (with_policy('{"algorithm":"token_bucket","capacity":1,"refill_per_sec":1,"window_s":5}'), "#/policy/window_s"),
    (with_policy('{"algorithm":"token_bucket","capacity":1,"refill_per_sec":1,"strict":true}'), "#/policy/strict"),
    (with_policy('{"algorithm":"token_bucket","capacity":1,"refil_per_sec":1}'), "#/policy/refil_per_sec"),
    (with_policy('{"algorithm":"sliding_window","capacity":1,"window_s":5}'), "#/policy/capacity"),
    *[(with_policy(f'{{"algorithm":"sliding_window","limit":{n},"window_s":5}}'), "#/policy/limit")
      for n in ("-1", "1.5", '"1"', "null", "1" * 30)],
    *[(with_policy(f'{{"algorithm":"sliding_window","limit":1,"window_s":{n}}}'), "#/policy/window_s")
      for n in ("-1", "0", "1e-9", '"1"', "true", "null", "1e300", "99999999999")],
    (with_policy('{"algorithm":"sliding_window","limit":1,"window_s":5,"strict":"yes"}'), "#/policy/strict"),
    (with_policy('{"algorithm":"token_bucket","capacity":10000000000000,"refill_per_sec":1}'), "#/policy/capacity"),
    (with_policy('{"algorithm":"token_bucket","capacity":1000000000000,"refill_per_sec":0.0001}'), "#/policy/refill_per_sec"),
    (with_policy('{"algorithm":"fixed_window","limit":10000000000000,"window_s":1}'), "#/policy/limit"),
    (with_policy('{"algorithm":"sliding_log","limit":1000000,"window_s":5}'), "#/policy/limit"),
    (with_policy('{"algorithm":"sliding_window","limit":1,"window_s":5,"strict":61}'), "#/policy/strict"),
    (with_policy('{"algorithm":"leaky_bucket","capacity":1,"refill_per_sec":1,"max_delay_ms":-1}'), "#/policy/max_delay_ms"),
    (with_policy('{"algorithm":"token_bucket","capacity":1,"refill_per_sec":1e-17}'), "#/policy/refill_per_sec"),
    (with_policy('{"algorithm":"leaky_bucket","capacity":1,"refill_per_sec":1,"nodelay":1}'), "#/policy/nodelay"),
    (with_policy('{"algorithm":"leaky_bucket","capacity":1,"refill_per_sec":1,"max_delay_ms":1.5}'), "#/policy/max_delay_ms"),
    ('{"key":"k"}', "#/policy"),
    (f'{{"policy":{BUCKET}}}', "#/key"),
    ("{}", "#/key"),
    (f'{{"key":"k","cots":1,"policy":{BUCKET}}}', "#/cots"),
    (f'{{"Key":"k","policy":{BUCKET}}}', "#/Key"),
    (f'{{"key":"k","policy":{BUCKET},"":1}}', "#"),
    (f'{{"key":"k","policy":{BUCKET},"peek":1}}', "#/peek"),
    (f'{{"key":"k","policy":{BUCKET},"receipt":"yes"}}', "#/receipt"),
    (f'{{"key":"k","policy":{BUCKET},"receipt":true,"peek":true}}', "#/receipt"),
    (f'{{"key":"k","key":"k2","policy":{BUCKET}}}', "#/key"),
    (f'{{"key":"k","\\u006bey":"k2","policy":{BUCKET}}}', "#/key"),
    (f'{{"key":"k","cost":1,"cost":2,"policy":{BUCKET}}}', "#/cost"),
    (f'{{"key":"k","policy":{BUCKET},"policy":{WINDOW}}}', "#/policy"),
    (with_policy('{"algorithm":"token_bucket","capacity":1,"capacity":100,"refill_per_sec":1}'), "#/capacity"),
    (with_facts('{"path":"/x"}', ',"key":"k"'), "#/key"),
    (with_facts('{"path":"/x"}', f',"policy":{BUCKET}'), "#/policy"),
    (with_facts('{"path":"/x"}', ',"cost":-1'), "#/cost"),
    (with_facts("1"), "#/facts"),
    (with_facts("null"), "#/facts"),
    (with_facts('{"pth":"/x"}'), "#/facts/pth"),
    (with_facts('{"path":1}'), "#/facts/path"),
    (with_facts('{"path":"/x","path":"/y"}'), "#/path"),
    (with_facts('{"ip":""}'), "#/facts/ip"),
    (with_facts('{"ip":"not an address","path":"/login","method":"POST"}'), "#/facts/ip"),
    (with_facts('{"user":""}'), "#/facts/user"),
    (with_facts(json.dumps({"user": "x" * 65_536})), "#/facts/user"),
    (with_facts(json.dumps({"path": "/" + "x" * 65_536})), "#/facts/path"),
    (with_facts('{"headers":["a"]}'), "#/facts/headers"),
    (with_facts('{"headers":{"a":1}}'), "#/facts/headers"),
    (with_facts('{"attrs":{"":"x"}}'), "#/facts/attrs"),
    (with_facts('{"attrs":{"a":"b","a":"c"}}'), "#/a"),
    (with_facts(json.dumps({"attrs": {f"a{i}": "b" for i in range(129)}})), "#/facts/attrs"),
    ("", "#"),
    ("null", "#"),
    ("[]", "#"),
    ('"x"', "#"),
    ("1", "#"),
    ("{", "#"),
    ("{}}", "#"),
    ("{'key':'k'}", "#"),
    ('{"key":"k",}', "#"),
    ('{"key":"k" "policy":1}', "#"),
    ("{" * 100_000, "#"),
    ("[" * 100_000 + "]" * 100_000, "#"),
    ('{"a":' * 100_000 + "1" + "}" * 100_000, "#/a"),
    (with_policy("[" * 100_000 + "]" * 100_000), "#"),
    (with_cost("[" * 50_000 + "]" * 50_000), "#/cost"),
    (b"\xef\xbb\xbf" + with_cost("1").encode(), "#"),
    (with_cost("1").encode("utf-16"), "#"),
    (b'{"key":"\xff\xfe","policy":' + BUCKET.encode() + b"}", "#"),
    (b'{"key":"\xc3(","policy":' + BUCKET.encode() + b"}", "#"),
    (b'{"key":"\xed\xa0\x80","policy":' + BUCKET.encode() + b"}", "#"),
    (b'{"k\xff":1}', "#"),
    (with_key('"\\ud800"'), "#"),
    (with_key('"\\x00"'), "#"),
    (with_key('"a\nb"'), "#"),
    ("\0", "#"),
]  # fmt: skip


def pointers(document: dict[str, Any]) -> list[str]:
    return [error["pointer"] for error in document["errors"]]


async def test_hostile_bodies_are_named_and_never_admitted(server: Any, client: Any) -> None:
    """Each of them is a 400 problem that points at the field, on one connection, and no counter exists afterwards."""
    for body, pointer in CASES:
        raw = body if isinstance(body, bytes) else body.encode()
        answer = await client.post("/v1/check", raw)
        shown = raw[:120]
        assert answer.status == 400, shown
        assert answer.headers["content-type"] == "application/problem+json", shown
        assert "retry-after" not in answer.headers
        document = answer.json
        assert document["status"] == 400
        assert len(answer.body) < 1_000, shown
        (got,) = pointers(document)
        assert got == pointer, (shown, document)
        item = (await client.post("/v1/check/batch", b"[" + raw + b"]")).json
        problems = item if isinstance(item, list) else [item]
        assert [problem["status"] for problem in problems] == [400] or raw == b"", shown
    assert len(server.limiter.store) == 0
    assert server.stats.internal_errors == 0
    assert (await client.check(with_cost("1").encode())).status == 200


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (f'{{"key":"k","cots":1,"policy":{BUCKET}}}', "did you mean 'cost'?"),
        (with_policy('{"algorithm":"token_bucket","capasity":1,"refill_per_sec":1}'), "did you mean 'capacity'?"),
        (with_policy('{"algorithm":"tokenbucket","capacity":1,"refill_per_sec":1}'), "did you mean 'token_bucket'?"),
        (with_facts('{"pth":"/x"}'), "did you mean 'path'?"),
        (with_cost("0"), '"peek": true'),
        (with_cost("1.5"), "must be an integer, got a number that is no integer"),
        (with_cost('"1"'), "must be an integer, got a string"),
        (with_cost("-1"), "got -1"),
        ("", "empty"),
    ],
)
async def test_problems_help(client: Any, body: str, hint: str) -> None:
    """The detail says what was expected, and what the caller may have meant."""
    assert hint in (await client.post("/v1/check", body.encode())).json["detail"]


@pytest.mark.parametrize(
    "body", ["{}", '{"decision_id":1}', '{"decision_id":""}', '{"id":"x"}', '{"decision_id":"a","decision_id":"b"}', "[]", "", "{",
             json.dumps({"decision_id": "x" * 2000})]
)  # fmt: skip
async def test_hostile_refunds(client: Any, body: str) -> None:
    """A refund that names no id is a 400."""
    assert (await client.post("/v1/refund", body.encode())).status == 400


# ---------------------------------------------------------------------- fuzzing, without a network


class Wire(asyncio.Transport):
    """The far end of a protocol under test."""

    def __init__(self) -> None:
        super().__init__()
        self.got = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.got += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def answers(self) -> list[tuple[int, dict[str, str], bytes]]:
        """Parse everything that was written; fails on anything that is not a row of responses."""
        found = []
        data = bytes(self.got)
        while data:
            head, end, data = data.partition(b"\r\n\r\n")
            assert end
            status, *fields = head.decode().split("\r\n")
            assert status.startswith("HTTP/1.1 ")
            headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
            size = int(headers.get("content-length", "0"))
            found.append((int(status.split(" ")[1]), headers, data[:size]))
            assert len(data) >= size
            data = data[size:]
        return found


RULES = """
version: 1
rules:
  - {name: everything, quota: 1000000/second}
  - {name: login, match: {methods: [POST], path: /login}, per: [ip], quota: 5/minute}
"""


def fresh_door() -> tuple[HttpDoor, Limiter]:
    clock = ManualClock()
    limiter = Limiter.from_rules(load_rules(RULES, "rules.yaml"), clock=clock)
    return HttpDoor(limiter, clock=clock, ready=lambda: (True, {}), metrics=lambda: ("text/plain", b"")), limiter


async def speak(door: HttpDoor, pieces: list[bytes]) -> Wire:
    wire = Wire()
    protocol = door.protocol_factory()
    protocol.connection_made(wire)
    for piece in pieces:
        protocol.data_received(piece)
    protocol.eof_received()
    protocol.connection_lost(None)
    return wire


def posted(path: str, body: bytes) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=8), st.sampled_from(["", "token_bucket"])
)  # fmt: skip
names = st.sampled_from(
    ["key", "cost", "policy", "facts", "peek", "receipt", "algorithm", "capacity", "refill_per_sec", "limit", "window_s", "strict",
     "path", "ip", "method", "headers", "attrs", "decision_id", "x"]
)  # fmt: skip
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
near_misses = st.fixed_dictionaries(
    {},
    optional={
        "key": scalars | st.just("k"),
        "cost": scalars | st.just(1),
        "peek": scalars | st.booleans(),
        "receipt": scalars | st.booleans(),
        "policy": documents
        | st.fixed_dictionaries(
            {"algorithm": st.sampled_from(["token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"])},
            optional={
                "capacity": scalars | st.integers(0, 100),
                "refill_per_sec": scalars | st.floats(0.001, 1000),
                "limit": scalars | st.integers(0, 100),
                "window_s": scalars | st.integers(1, 100),
                "strict": scalars,
                "nodelay": scalars,
                "max_delay_ms": scalars,
            },
        ),
        "facts": documents | st.fixed_dictionaries({}, optional={"path": scalars, "ip": scalars, "attrs": documents}),
    },
)  # fmt: skip


@settings(max_examples=250)
@given(st.lists(documents | near_misses, min_size=1, max_size=4))
def test_json_bodies_never_break_the_api(bodies: list[Any]) -> None:
    """Any JSON, near to a valid check or far from it, is answered 200, 400 or 429 and the connection lives on."""
    run(fuzz_bodies, [json.dumps(body).encode() for body in bodies])


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4))
def test_binary_bodies_never_break_the_api(bodies: list[bytes]) -> None:
    """Any bytes as a body are a 400, and the connection lives on."""
    run(fuzz_bodies, bodies)


async def fuzz_bodies(bodies: list[bytes]) -> None:
    door, limiter = fresh_door()
    admitted = 0
    for body in bodies:
        wire = await speak(
            door,
            [
                posted("/v1/check", body)
                + posted("/v1/refund", body)
                + posted("/v1/check/batch", b"[" + body + b"]")
                + LIVE
            ],
        )
        single, refund, batch, alive = wire.answers()
        assert single[0] in (200, 400, 429), body
        assert refund[0] in (400, 404), body
        assert batch[0] in (200, 400), body
        assert alive[0] == 200
        items = json.loads(batch[2]) if batch[0] == 200 else []
        assert {item["status"] for item in items} <= {200, 400, 429}
        for answer in ([json.loads(single[2])] if single[0] == 200 else []) + items:
            admitted += answer.get("allowed", False) and not is_peek(body)
        if single[0] == 400:
            assert json.loads(single[2])["errors"][0]["pointer"].startswith("#")
    assert door.stats.internal_errors == 0
    assert limiter.stats.allowed == admitted
    await door.connections.drain(0)


def is_peek(body: bytes) -> bool:
    document = json.loads(body)
    return isinstance(document, dict) and document.get("peek") is True


fragments = st.sampled_from(
    [LIVE, posted("/v1/check", b"{}"), b"GET ", b" HTTP/1.1\r\n", b"\r\n", b"\r\n\r\n", b"\n", b"\n\n", b"\r", b"Host: x\r\n",
     b"Content-Length: 5\r\n", b"Content-Length: 5\r\n\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\n\r\n",
     b"5\r\nabcde\r\n", b"0\r\n\r\n", b"0\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"POST /v1/check HTTP/1.1\r\nHost: x\r\n",
     b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"\0", b" ", b"\t", b"PRI * HTTP/2.0\r\n\r\n", b"GET /livez HTTP/1.0\r\n\r\n",
     b"Upgrade: h2c\r\nConnection: upgrade\r\n", b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n"]
)  # fmt: skip


@settings(max_examples=250)
@given(st.lists(fragments | st.binary(max_size=12), max_size=10), st.integers(0, 2**16))
def test_raw_bytes_never_raise_in_the_protocol(pieces: list[bytes], cut: int) -> None:
    """Whatever comes in, in whatever pieces: no exception, well-formed responses, and the same ones for any segmentation."""
    run(fuzz_bytes, pieces, cut)


async def fuzz_bytes(pieces: list[bytes], cut: int) -> None:
    data = b"".join(pieces)
    middle = cut % (len(data) + 1)
    seen = []
    for way in ([data], pieces, [data[:middle], data[middle:]], [data[i : i + 1] for i in range(len(data))]):
        door, _ = fresh_door()
        wire = await speak(door, way)
        assert door.stats.internal_errors == 0
        await door.connections.drain(0)
        if b"HEAD" in data:
            continue  # A response without its body cannot be told apart here.
        found = [(status, headers.get("connection")) for status, headers, _ in wire.answers() if status != 100]
        assert all(status < 500 or status in (501, 505) for status, _ in found)
        assert [close for _, close in found[:-1] if close == "close"] == [], "nothing follows a last answer"
        seen.append(found)
    assert all(found[:-1] == seen[0][:-1] for found in seen if len(found) == len(seen[0]))


def run(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    asyncio.run(work(*arguments))  # type: ignore[arg-type]
