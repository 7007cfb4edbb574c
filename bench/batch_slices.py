"""Where the time of a batch of 64 inline checks goes, measured in this process, without sockets.

    python bench/batch_slices.py

The bodies are those of ``http_check``. A whole request goes through the protocol with a transport that throws the answer away;
the slices are its parts, called alone: reading (cutting the body and finding the keys), deciding, and writing the text of
the answers. What ``http_check`` measures beyond the whole is the kernel and the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from _report import of_rates, tell
from http_check import BATCH, PLENTY, SCARCE, bodies

from sluicegate.clock import SystemClock
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http import inline, policies, schema
from sluicegate.doors.http.door import HttpDoor
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.model import RuleSet

ROUNDS = 9


class NoWire(asyncio.Transport):
    """Takes answers and forgets them."""

    def write(self, data: Any) -> None:
        """Forget ``data``."""

    def is_closing(self) -> bool:
        """Never."""
        return False


def rounds_us(call: Callable[[Any], object], items: Sequence[Any]) -> list[float]:
    """Microseconds of processor time per item, round by round; the first round only warms up."""
    taken = []
    for _ in range(ROUNDS + 1):
        begin = time.process_time()
        for item in items:
            call(item)
        taken.append((time.process_time() - begin) / len(items) * 1e6)
    return taken[1:]


def requests(texts: Sequence[bytes]) -> list[bytes]:
    """Each body behind a head."""
    head = b"POST /v1/check/batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return [head % len(text) + text for text in texts]


async def slices(policy: dict[str, object]) -> dict[str, list[float]]:
    """Slice -> its rounds. Runs in a loop because connections have deadlines."""
    clock = SystemClock()
    limiter = Limiter.from_rules(RuleSet(rules=()), clock=clock)
    texts = [body.encode() for body in bodies(policy, BATCH)]
    door = HttpDoor(limiter, clock=clock, ready=lambda: (True, {}), metrics=lambda: ("text/plain", b""))
    protocol = door.protocol_factory()
    protocol.connection_made(NoWire())
    whole = rounds_us(protocol.data_received, requests(texts))
    checks = schema.Checks(policies.InlinePolicies(RateHeaders("x-ratelimit"), "bench"))
    for text in texts * 3:
        checks.read_batch(text)
    read = [checks.read_batch(text) for text in texts]
    decided = [limiter.decide_alike(batch.policy.counter, batch.keys, batch.cost) for batch in read]
    return {
        "whole request": whole,
        "reading": rounds_us(checks.read_batch, texts),
        "deciding": rounds_us(lambda batch: limiter.decide_alike(batch.policy.counter, batch.keys, batch.cost), read),
        "writing": rounds_us(
            lambda pair: inline._texts(pair[0].policy, pair[1]), list(zip(read, decided, strict=True))
        ),
    }


def main() -> None:
    """Measure both policies of ``http_check`` and tell."""
    figures = []
    for name, policy in (("passing", PLENTY), ("refused", SCARCE)):
        measured = asyncio.run(slices(policy))
        rates = [BATCH / us * 1e6 for us in measured["whole request"]]
        figures.append(of_rates(f"batch of 64, {name}, no sockets: checks per CPU second", rates, ""))
        figures += [of_rates(f"batch of 64, {name}: {part}", taken, "µs") for part, taken in measured.items()]
    tell(figures)


if __name__ == "__main__":
    main()
