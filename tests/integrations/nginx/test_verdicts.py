"""What Lua makes of the counters that the script shows, against the algorithms in Python, on long random walks."""

from __future__ import annotations

import json
import random
import struct
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.algorithms.verdict import Outcome
from sluicegate.app.ruleset import ruleset_document
from sluicegate.bounds import CLOCK_BEHIND_US_MAX
from sluicegate.doors.headers import RateHeaders
from sluicegate.limiter.engine import Engine
from sluicegate.rules.load import load_rules

CONF = """
lua_package_path "/etc/nginx/sluicegate/?.lua;;";
client_body_buffer_size 8m;
client_max_body_size 8m;
server {
    listen 8000;
    location / {
        content_by_lua_block {
            local cjson = require "cjson"
            local verdicts = require "sluicegate.verdicts"
            ngx.req.read_body()
            local asked, answer = cjson.decode(ngx.req.get_body_data()), {}
            for i, each in ipairs(asked.replies) do
                local reply = ngx.decode_base64(each.reply)
                local charge = { counter = asked.counter, rule = {}, cost = each.cost }
                local one = assert(verdicts.read(reply, { charge }, asked.bounds))[1]
                answer[i] = { one.passes, one.remaining, one.wait_us or cjson.null }
            end
            ngx.print(cjson.encode(answer))
        }
    }
}
"""
FIELDS = (
    "quota: 7/second",
    "quota: 100/minute burst 30",
    "quota: 7777/day",
    "quota: 5/10s, algorithm: fixed_window",
    "quota: 5/week, algorithm: fixed_window",
    "quota: 9/second, algorithm: sliding_window",
    "quota: 1000000/day, algorithm: sliding_window",
    "quota: 9/10s, algorithm: sliding_window, strict: true",
    "quota: 20/minute, algorithm: sliding_window, strict: 7",
    "quota: 9/10s, algorithm: sliding_log",
    "quota: 0/hour",
)


def split(number: int) -> tuple[int, int]:
    return number & 0xFFFFFFFF, number >> 32


def shown(spec: Any, state: Any, remaining: int, wait_us: int | None, now_us: int) -> bytes:
    """The text of a counter as the script shows it; what only the script needs is left zero."""
    if spec.algorithm == "token_bucket":
        whole_us, rest = spec.split(state)
        return struct.pack("<24xQIB", whole_us, *split(rest))
    if spec.algorithm == "sliding_log":
        # The one time that matters: of a pass the newest, of a refusal that of the entry that has to leave.
        time_us = now_us - spec.window_us + (wait_us or 0)
        total = spec.limit - remaining
        return struct.pack("<IBQ", *split(total), time_us if total else 0)
    start, *counts = state
    return struct.pack("<12xQ", start) + b"".join(struct.pack("<IB", *split(count)) for count in counts)


@pytest.mark.parametrize("fields", FIELDS)
def test_described_as_python_does(nginx: Callable[..., Any], fields: str) -> None:
    """For hits at random times, also after the clock went back, tokens that remain and times to wait are Python's to the microsecond."""
    engine = Engine(load_rules(f"version: 1\nrules:\n  - {{name: r, {fields}}}\n", "rules.yaml"))
    document = json.loads(ruleset_document(engine, RateHeaders()))
    (counter,) = document["rules"][0]["counters"]
    spec: Any = engine.compiled[0].counters[None][0].spec
    draw = random.Random(5)
    now_us, state = 1_790_000_000_000_000 + draw.randrange(10**12), None
    replies, expected = [], []
    for _ in range(1500):
        step_us = draw.choice(
            (0, 1, 1000, spec.window_us // (spec.capacity + 1), spec.window_us // 3, 2 * spec.window_us)
        )
        now_us += draw.randint(-min(step_us, CLOCK_BEHIND_US_MAX // 2) // 4, step_us)
        cost = draw.choice((1, 1, 1, 2, max(spec.capacity, 1), spec.capacity + 1))
        after = spec.admit(state, now_us, cost)
        if after is not None:
            state = after
        elif state is not None:
            state = spec.clamp(state, now_us)
        verdict = spec.verdict(state, now_us, cost, after is not None)
        outcome, remaining, retry_us, reset_us, _ = verdict
        wait_us = reset_us if outcome is Outcome.ALLOWED else retry_us
        code = (1 if after is not None else 0) if state is not None else (4 if after is not None else 3)
        text = b"" if state is None else shown(spec, state, remaining, wait_us, now_us)
        replies.append({"reply": b64encode(struct.pack("<QB", now_us, code) + text).decode(), "cost": cost})
        expected.append([after is not None, remaining, wait_us])
        if spec.algorithm == "sliding_log" and outcome is Outcome.NEVER_FITS:
            replies.pop()
            expected.pop()
    running = nginx(CONF, lua=True)
    asked = {"counter": counter, "bounds": document["bounds"], "replies": replies}
    answer = running.client.post("/", content=json.dumps(asked))
    assert answer.status_code == 200, running.log()
    got = answer.json()
    for index, (mine, other) in enumerate(zip(got, expected, strict=True)):
        assert mine == other, (fields, index, replies[index])
    assert spec.capacity == 0 or {each[0] for each in got} == {True, False}
