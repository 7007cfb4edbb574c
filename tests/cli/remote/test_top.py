"""``sluicegate top`` against a rules service in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sluicegate.clock import US_PER_S, SystemClock

LOG = "".join(f'10.0.0.1 - - [17/May/2025:10:00:0{n} +0000] "GET / HTTP/1.1" 200 5 "-" "a"\n' for n in range(6))
RULES = "version: 1\nrules:\n  - {name: two, per: [ip], quota: 2/minute, algorithm: fixed_window}\n"
AT = ("--at", "2025-05-17T10:01:00Z", "--window", "1h")


def test_server_and_directory_tell_the_same(remote: Callable[..., Any], service: Any) -> None:
    """Over HTTP it shows what it shows of the service's own directory, clients looked up included; the window may be up to now."""
    Path("rules.yaml").write_text(RULES)
    Path("access.log").write_text(LOG)
    data = str(service.data.resolve())
    replayed = remote("replay", "--rules", "rules.yaml", "--record", "--data", data, "access.log")
    assert replayed.status == 0, replayed.err
    for more in ((), ("--find", "ip:10.0.0.1"), ("--rule", "*"), ("--kind", "asked")):
        here = remote("top", "--data", data, "--json", *AT, *more)
        there = remote("top", "--json", *AT, *more)
        assert (here.status, there.status) == (0, 0), there.err + here.err
        told = json.loads(there.out)
        assert {**json.loads(here.out), "now_us": 0} == {**told, "now_us": 0}
        assert [row["times"] for row in told["rows"]] == [6 if "asked" in more else 4]
    now = json.loads(remote("top", "--json").out)
    assert abs(now["now_us"] - SystemClock().now_us()) < 600 * US_PER_S
    assert now["until_us"] > now["now_us"]


def test_wrong_use_is_one_clear_line(remote: Callable[..., Any], service: Any) -> None:
    """A token that is none, two places at once, and a window that is none end with 2 and a line that names it."""
    wrong = remote("top", "--token", "wrong")
    assert (wrong.status, wrong.out, len(wrong.err.splitlines())) == (2, "", 1)
    both = remote("top", "--server", service.address, "--data", "here")
    assert (both.status, "not both" in both.err) == (2, True)
    window = remote("top", "--window", "soon")
    assert (window.status, "window" in window.err) == (2, True)
