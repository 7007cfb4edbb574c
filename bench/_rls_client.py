"""A client of Envoy's rate limit service that trusts nothing: every field of every answer is read and compared, its status too.

    python bench/_rls_client.py PORT CALLS

keeps as many calls under way as h2load does in ``envoy_rls``, and prints as JSON how many calls of each kind were made, how many of their answers
were wrong, and the first of those. The calls of a connection differ in kind from one to the next, so that an answer that went to another
call's stream does not fit it.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ngh2 import Connection, DataReceived, ResponseReceived, Role, StreamClosed, TrailersReceived

from sluicegate.doors.grpc.protobuf import delimited, fields

__all__ = ["CONNECTIONS", "PATH", "RULES", "STREAMS", "Session", "framed", "one"]

KEYS = 10_000
CONNECTIONS, STREAMS = 8, 16
PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
RULES = """
version: 1
rules:
  - {name: floor, quota: 5000000/second}
  - {name: per-key, match: {domain: edge}, per: [descriptor.api_key], quota: 1000000/second}
"""
LIMITS = {b"floor": 5_000_000, b"per-key": 1_000_000}
HEAD = tuple(
    (name.encode(), value.encode())
    for name, value in (
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "checked"),
        (":path", PATH),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
)
PATIENCE_S = 30.0
SHOWN = 5


def framed(message: bytes) -> bytes:
    """A message as gRPC frames it."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def descriptor(key: str, value: str) -> bytes:
    """A field of a RateLimitRequest: one descriptor of one entry."""
    return delimited(2, delimited(1, delimited(1, key.encode()) + delimited(2, value.encode())))


def one(number: int) -> bytes:
    """One descriptor with a limit."""
    return delimited(1, b"edge") + descriptor("api_key", f"key{number * 7919 % KEYS}")


def two(number: int) -> bytes:
    """Two descriptors with a limit each."""
    return one(number) + descriptor("api_key", f"key{(number * 7919 + 1) % KEYS}")


def free(number: int) -> bytes:
    """A descriptor that no rule knows: only the rule of the whole request has a say."""
    return delimited(1, b"edge") + descriptor("other", f"value{number % 100}")


def broken(number: int) -> bytes:
    """No message."""
    return b"\xff" * (number % 7 + 1)


Maker = Callable[[int], bytes]
KINDS: tuple[Maker, ...] = (one, two, one, free, one, broken, one)
DECIDED: dict[Maker, tuple[int, bytes]] = {one: (1, b"per-key"), two: (2, b"per-key"), free: (0, b"floor")}
"""For each kind that is decided: how many of its statuses have a limit, and the rule that the header fields tell of."""


class Reply:
    """What has come of one answer."""

    __slots__ = ("body", "fields", "kind")

    def __init__(self, kind: Maker) -> None:
        self.kind = kind
        self.body = b""
        self.fields: list[tuple[bytes, bytes]] = []

    def fault(self) -> str | None:
        """What is wrong with it; None where all is right."""
        try:
            self._check(dict(self.fields))
        except (AssertionError, ValueError, LookupError) as error:
            return f"{self.kind.__name__}: {error!r}: {self.fields} {self.body!r}"
        return None

    def _check(self, told: dict[bytes, bytes]) -> None:
        assert len(told) == len(self.fields), "a field stands twice"
        assert (told[b":status"], told[b"content-type"]) == (b"200", b"application/grpc"), "no gRPC"
        if self.kind is broken:
            assert (told[b"grpc-status"], self.body) == (b"3", b""), "want INVALID_ARGUMENT"
            assert told[b"grpc-message"].startswith(b"request: is malformed"), "other words"
            return
        assert told[b"grpc-status"] == b"0", "not OK"
        assert self.body[:5] == b"\0" + (len(self.body) - 5).to_bytes(4, "big"), "want one message"
        check_answer(self.body[5:], *DECIDED[self.kind])


def check_answer(answer: bytes, limited: int, rule: bytes) -> None:
    """Every field of a RateLimitResponse is what the rules above come to."""
    found = list(fields(answer, "answer"))
    statuses = max(1, limited)
    assert [number for number, *_ in found] == [1, *[2] * statuses, 3, 3, 3, 3, 6], "other fields"
    assert found[0][2] == 1, "OVER_LIMIT"
    least = LIMITS[rule]
    for _, _, _, content in found[1 : 1 + statuses]:
        status = {number: inner or value for number, _, value, inner in fields(content, "status")}
        if not limited:
            assert status == {1: 1}, "want a status without a limit"
            continue
        limit = {number: inner or value for number, _, value, inner in fields(status[2], "limit")}
        assert (status[1], limit) == (1, {1: LIMITS[rule], 2: 1, 3: rule}), "another limit"
        assert 0 < status[3] < LIMITS[rule], "another remaining"
        least = min(least, status[3])
    pairs = [tuple(inner for *_, inner in fields(field[3], "header")) for field in found[1 + statuses : -1]]
    told = dict(pairs)
    names = {b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset", b"x-ratelimit-policy"}
    assert set(told) == names, "other header fields"
    assert (int(told[b"x-ratelimit-limit"]), int(told[b"x-ratelimit-reset"])) == (LIMITS[rule], 1), "another limit"
    remaining = int(told[b"x-ratelimit-remaining"])
    assert remaining == least or (not limited and 0 < remaining < least), "another remaining in the header fields"
    assert told[b"x-ratelimit-policy"].startswith(rule + b";q=%d;w=1;" % LIMITS[rule]), "another policy"
    assert rule in found[-1][3], "another rule in the metadata"


class Session:
    """One connection. ``made``: calls by kind. ``faults``: of answers that were wrong."""

    def __init__(self, port: int, first: int = 0) -> None:
        self.made: Counter[str] = Counter()
        self.faults: list[str] = []
        self.open: dict[int, Reply] = {}
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = first
        self._http2 = Connection(Role.CLIENT)
        self._http2.initiate_connection({})

    def begin(self, count: int) -> None:
        """Make so many calls more."""
        for _ in range(count):
            kind = KINDS[self._number % len(KINDS)]
            stream = self._http2.send_request(HEAD)
            self._http2.send_data(stream, framed(kind(self._number)), end_stream=True)
            self.open[stream] = Reply(kind)
            self.made[kind.__name__] += 1
            self._number += 1
        self._flush()

    def read(self) -> int:
        """Take what comes next; how many answers were complete."""
        data = self.socket.recv(262_144)
        if not data:
            raise ConnectionError("the server has ended the connection")
        self._http2.receive_data(data)
        ended = 0
        for event in self._http2.events():
            ended += self._take(event)
        self._flush()
        return ended

    def _take(self, event: Any) -> bool:
        reply = self.open.get(getattr(event, "stream_id", 0))
        if reply is None:
            return False
        if isinstance(event, DataReceived):
            reply.body += event.data
        elif isinstance(event, ResponseReceived | TrailersReceived):
            reply.fields += event.headers
        elif isinstance(event, StreamClosed):
            del self.open[event.stream_id]
            fault = reply.fault()
            if fault is not None:
                self.faults.append(fault)
            return True
        return False

    def _flush(self) -> None:
        data = self._http2.data_to_send()
        if data:
            self.socket.sendall(data)

    def ask(self, count: int = STREAMS) -> None:
        """Make calls together and wait for their answers."""
        self.begin(count)
        while self.open:
            self.read()


def load(port: int, calls: int) -> dict[str, Any]:
    """Make about so many calls, in as many connections with as many calls under way as h2load has."""
    sessions = [Session(port, number * 1_000_003) for number in range(CONNECTIONS)]
    left = [calls // CONNECTIONS] * CONNECTIONS
    began_s = time.perf_counter()
    with selectors.DefaultSelector() as ready:
        for number, session in enumerate(sessions):
            ready.register(session.socket, selectors.EVENT_READ, number)
            session.begin(min(STREAMS, left[number]))
            left[number] -= len(session.open)
        while any(session.open for session in sessions):
            events = ready.select(PATIENCE_S)
            if not events:
                raise SystemExit("an answer does not come")
            for key, _ in events:
                session = sessions[key.data]
                more = min(session.read(), left[key.data])
                left[key.data] -= more
                session.begin(more)
    took_s = time.perf_counter() - began_s
    made = sum((session.made for session in sessions), Counter[str]())
    faults = [fault for session in sessions for fault in session.faults]
    return {"made": made, "wrong": len(faults), "first": faults[:SHOWN], "per_s": made.total() / took_s}


if __name__ == "__main__":
    print(json.dumps(load(int(sys.argv[1]), int(sys.argv[2]))))
