"""An edit of the rule file under a running server: live in less than a second, and never the worse for a mistake."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Start = Callable[..., Any]
LIVE_WITHIN_S = 1.0


@pytest.fixture
def server(start: Start, rules: Path) -> Any:
    """A decision API by the rule file."""
    return start("serve", "--rules", str(rules), "--api", "127.0.0.1:0")


def peek(server: Any) -> dict[str, Any]:
    """What the server would say to a login now; charges nothing."""
    question = {"facts": {"method": "POST", "path": "/login", "ip": "203.0.113.9"}, "peek": True}
    answer: dict[str, Any] = server.client.post(f"{server.url('api')}/v1/check", json=question).json()
    return answer


def serves(server: Any, limit: int) -> bool:
    """Whether logins are decided by this limit now."""
    return bool(peek(server)["limit"] == limit)


def login(server: Any) -> dict[str, Any]:
    """One login, charged."""
    question = {"facts": {"method": "POST", "path": "/login", "ip": "203.0.113.9"}}
    answer: dict[str, Any] = server.client.post(f"{server.url('api')}/v1/check", json=question).json()
    return answer


def seconds_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> float:
    """How long it takes until the condition holds."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < timeout_s, "it did not happen"
        time.sleep(0.01)
    return time.monotonic() - begun


def rules_detail(server: Any) -> dict[str, Any]:
    """What ``/readyz`` says of the rules."""
    detail: dict[str, Any] = server.client.get(f"{server.url('api')}/readyz").json()["rules"]
    return detail


def metric(server: Any, name: str) -> float:
    """One value of ``/metrics``."""
    for line in server.client.get(f"{server.url('api')}/metrics").text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def write_in_place(path: Path, text: str) -> None:
    path.write_text(text)


def move_over(path: Path, text: str) -> None:
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.rename(path)


@pytest.mark.parametrize("change", [write_in_place, move_over])
def test_edit_is_live_within_a_second(server: Any, rules: Path, change: Callable[[Path, str], None]) -> None:
    """T98, T99, P100: written in place or moved over, the new number answers in less than a second, as the next version."""
    assert peek(server)["limit"] == 5
    for version, limit in ((2, 7), (3, 9)):
        change(rules, rules.read_text().replace(f"{limit - 2}/minute", f"{limit}/minute"))
        assert seconds_until(partial(serves, server, limit)) < LIVE_WITHIN_S
        assert peek(server)["version"] == version


def test_swapped_link_is_live_within_a_second(start: Start, tmp_path: Path, rules: Path) -> None:
    """T98: a ConfigMap is a link to a link to a directory that is swapped; the new number answers in less than a second."""
    mount = tmp_path / "mount"
    for name, limit in (("..one", 5), ("..two", 7)):
        (mount / name).mkdir(parents=True)
        (mount / name / "rules.yaml").write_text(rules.read_text().replace("5/minute", f"{limit}/minute"))
    (mount / "..data").symlink_to("..one")
    (mount / "rules.yaml").symlink_to("..data/rules.yaml")
    server = start("serve", "--rules", str(mount / "rules.yaml"), "--api", "127.0.0.1:0")
    assert peek(server)["limit"] == 5
    (mount / "..new").symlink_to("..two")
    (mount / "..new").rename(mount / "..data")
    assert seconds_until(lambda: peek(server)["limit"] == 7) < LIVE_WITHIN_S


def test_counters_survive_an_edit(server: Any, rules: Path) -> None:
    """T101: tokens used stay used when the limit is raised, for a client that was there before."""
    for left in (4, 3, 2):
        assert login(server)["remaining"] == left
    rules.write_text(rules.read_text().replace("5/minute", "10/minute"))
    seconds_until(lambda: peek(server)["limit"] == 10)
    assert login(server)["remaining"] == 6


def test_bad_edit_is_seen_and_changes_nothing(server: Any, rules: Path) -> None:
    """T109: the last good rules stay; log, ``/readyz`` and a metric show what is wrong; mending it clears all three."""
    good = rules.read_text()
    rules.write_text(good.replace("quota", "qouta"))
    assert seconds_until(lambda: rules_detail(server)["error"] is not None) < LIVE_WITHIN_S
    detail = rules_detail(server)
    assert (detail["version"], detail["rejected"]) == (1, 1)
    assert f"{rules}:6" in detail["error"]
    assert "did you mean 'quota'?" in detail["error"]
    assert server.client.get(f"{server.url('api')}/readyz").status_code == 200
    assert metric(server, "sluicegate_rules_file_ok") == 0
    assert metric(server, "sluicegate_rules_rejected_total") == 1
    assert peek(server)["limit"] == 5
    events = [json.loads(line) for line in server.err.read_text().splitlines()]
    assert [e["error"] for e in events if e["event"] == "rules_rejected"] == [detail["error"]]

    rules.write_text(good.replace("5/minute", "6/minute"))
    seconds_until(lambda: peek(server)["limit"] == 6)
    assert rules_detail(server)["error"] is None
    assert metric(server, "sluicegate_rules_file_ok") == 1
    assert metric(server, "sluicegate_rules_version") == 2


def test_deleted_file_changes_nothing(server: Any, rules: Path) -> None:
    """Without its file the server goes on by the rules it has, and says that the file is gone."""
    rules.unlink()
    seconds_until(lambda: rules_detail(server)["error"] is not None)
    assert rules_detail(server)["error"] == f"cannot read {rules}: it does not exist"
    assert login(server)["remaining"] == 4


def test_edit_under_traffic_fails_no_request(server: Any, rules: Path) -> None:
    """While the rules change several times, every request gets an answer by one version or another."""
    versions = set()
    for limit in (6, 7, 8):
        rules.write_text(rules.read_text().replace(f"{limit - 1}/minute", f"{limit}/minute"))
        until = time.monotonic() + 0.8
        while time.monotonic() < until:
            answer = peek(server)
            assert answer["limit"] == answer["version"] + 4
            versions.add(answer["version"])
    assert versions == {1, 2, 3, 4}
