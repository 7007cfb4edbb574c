"""A process whose client is refused. Reads orders, one JSON object a line, and answers each with one.

``open``: a limiter of ``quota`` on the store ``url``, which trusts a refusal for ``trust_us``. ``ask``: checks the key ``key`` until it is refused;
answers how often it was admitted before. ``watch``: answers at once, then checks ``key`` all the time until it is admitted, and
answers with the time of that by the machine's monotonic clock, in microseconds, and how often the store was asked meanwhile.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from sluicegate.limiter import Limiter
from sluicegate.stores.near import NearSettings


def say(answer: object) -> None:
    """Answer an order."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def opened(order: dict[str, Any]) -> Limiter:
    """The limiter of an order."""
    near = NearSettings(trust_us=order["trust_us"])
    return Limiter.from_quota(order["quota"], store=order["url"], on_store_failure="closed", near=near)


def main() -> None:
    """Do what is asked until the orders end."""
    limiter = opened(json.loads(sys.stdin.readline()))
    say(limiter.store.warm())  # type: ignore[attr-defined]
    for line in sys.stdin:
        order = json.loads(line)
        key = order["key"]
        if order["do"] == "ask":
            admitted = 0
            while limiter.check(key).allowed:
                admitted += 1
            say(admitted)
            continue
        calls = limiter.store.stats.calls  # type: ignore[attr-defined]
        say("watching")
        while not limiter.check(key).allowed:
            # As many as a loop can, but the other process has to have its turn on a small machine.
            time.sleep(0.000_2)
        now_us = time.monotonic_ns() // 1_000
        say([now_us, limiter.store.stats.calls - calls])  # type: ignore[attr-defined]
    limiter.close()


main()
