"""``up`` with its rules service: real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

WAIT_S = 60.0
PORTS = ("--gateway", "127.0.0.1:0", "--api", "127.0.0.1:0", "--grpc", "off")
SERVICE = "sluicegate.app.control.child"
LOGIN = {"facts": {"method": "POST", "path": "/login", "ip": "192.0.2.7"}, "peek": True}


class Up:
    """A server with its service, which listens by now."""

    def __init__(self, server: Any, *, wait: bool = True) -> None:
        self.server = server
        self.data = server.directory / ".sluicegate"
        self.file = self.data / "rules.yaml"
        if wait:
            until(lambda: "\ncontrol " in server.out.read_text(), "the service's line")

    @property
    def token(self) -> str:
        found = re.search(
            r"^token +(\S+) \(of the first admin; it is shown this once\)$", self.server.out.read_text(), re.M
        )
        assert found is not None
        return found[1]

    def ask(self, method: str, path: str, token: str, **more: Any) -> httpx.Response:
        # A connection to a service that was killed would be tried again otherwise.
        headers = {"Authorization": f"Bearer {token}", "Connection": "close", **more.pop("headers", {})}
        url = self.server.url("control") + path
        return self.server.client.request(method, url, headers=headers, timeout=30, **more)  # type: ignore[no-any-return]

    def limit(self) -> int:
        """Of logins, as the server decides now."""
        answer = self.server.client.post(self.server.url("api") + "/v1/check?timeout_ms=5000", json=LOGIN)
        return int(answer.json()["limit"])

    def rules_error(self) -> str | None:
        """What the server says is wrong with its rules."""
        ready = self.server.client.get(self.server.url("api") + "/readyz").json()
        return ready["rules"]["error"]  # type: ignore[no-any-return]

    def set_limit(self, token: str, limit: int) -> int:
        """Change it at the service; the version made."""
        found = self.ask("GET", "/v1/rules/login", token)
        answer = self.ask(
            "PATCH", "/v1/rules/login", token, content=f'{{"quota": "{limit}/minute"}}',
            headers={"If-Match": found.headers["ETag"], "Content-Type": "application/merge-patch+json"},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        return int(self.ask("GET", "/v1/versions", token).json()["versions"][0]["version"])

    def serves(self, limit: int) -> bool:
        """Whether logins are decided by this limit."""
        return bool(self.limit() == limit)

    def holds(self, limit: int) -> bool:
        """Whether the file has this limit."""
        return f"{limit}/minute" in self.file.read_text()

    def edit(self, before: str, after: str) -> None:
        text = self.file.read_text()
        assert before in text
        self.file.write_text(text.replace(before, after))

    def pid(self) -> int:
        """Of the service."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                command = (entry / "cmdline").read_bytes().decode()
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if SERVICE in command and parent == self.server.process.pid:
                return int(entry.name)
        return 0


def until(holds: Callable[[], Any], what: str, limit_s: float = WAIT_S) -> float:
    """Wait until something holds; the seconds that took."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < limit_s, f"not in {limit_s:g} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - begun


@pytest.fixture
def up(start: Callable[..., Any]) -> Callable[..., Up]:
    """Start ``up`` with a service on a free port."""

    def begin(*arguments: str, wait: bool = True, **environment: str) -> Up:
        return Up(start("up", *PORTS, "--control", "127.0.0.1:0", *arguments, **environment), wait=wait)

    return begin


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int) -> bool:
    return not alive(pid)


@pytest.mark.measured
def test_the_file_and_the_database_follow_each_other(up: Callable[..., Up]) -> None:
    """An edit of ``DATA/rules.yaml`` is a version and is served, a change by API is served and written to the file; a bad edit changes nothing."""
    it = up()
    token = it.token
    assert it.limit() == 5
    until(lambda: it.ask("GET", "/v1/versions/1", token).status_code == 200, "the first version")
    it.edit("quota: 5/minute", "quota: 50/minute")
    took_s = until(lambda: it.limit() == 50, "the edit is served")
    assert took_s < 10
    latest = it.ask("GET", "/v1/versions", token).json()["versions"][0]
    assert (latest["version"], latest["actor"]) == (2, "file:rules.yaml")
    assert it.set_limit(token, 70) == 3
    until(lambda: it.limit() == 70, "the change is served")
    until(lambda: "70/minute" in it.file.read_text(), "the change is written")
    it.edit("version: 1", "version: one")
    until(lambda: [each for each in it.server.events() if each["event"] == "rules_rejected"], "the bad edit is told")
    assert it.limit() == 70
    until(lambda: "version" in (it.rules_error() or ""), "the node says so")
    it.edit("version: one", "version: 1")
    it.edit("70/minute", "80/minute")
    until(lambda: it.limit() == 80, "the good edit is served")
    until(lambda: it.rules_error() is None, "the node says nothing any more")
    assert it.ask("GET", "/v1/audit/verify", token).status_code == 200


def test_decisions_begin_before_the_service(up: Callable[..., Up]) -> None:
    """Requests are decided while the service still starts, and edits of the file are served in that time too."""
    it = up(wait=False)
    assert "\ncontrol " not in it.server.out.read_text()
    assert it.limit() == 5
    it.edit("quota: 5/minute", "quota: 50/minute")
    until(lambda: it.limit() == 50, "the edit is served")
    until(lambda: "\ncontrol " in it.server.out.read_text(), "the service's line")
    assert it.limit() == 50


def test_an_end_while_the_service_starts(up: Callable[..., Up]) -> None:
    """Where the end comes before the service was ready, the token that it makes all the same is shown: no later start makes another."""
    it = up(wait=False)
    assert it.server.stop() == 0
    assert it.token
    again = up("--data", str(it.data))
    assert again.ask("GET", "/v1/rules", it.token).status_code == 200


def test_a_service_that_is_killed(up: Callable[..., Up]) -> None:
    """Decisions go on when the service is killed; it is started again at the same address, and has every change it acknowledged."""
    it = up()
    token, url = it.token, it.server.url("control")
    it.set_limit(token, 60)
    until(lambda: it.limit() == 60, "the change is served")
    versions = it.ask("GET", "/v1/versions", token).json()["versions"]
    for limit in (61, 62):
        pid = it.pid()
        made = it.set_limit(token, limit)
        os.kill(pid, signal.SIGKILL)
        until(partial(gone, pid), "the service is gone")
        assert it.limit() in (60, 61, 62)
        # Who asks meanwhile waits for the next one.
        assert it.ask("GET", f"/v1/versions/{made}", token).status_code == 200
        until(partial(it.serves, limit), "the change is served")
        until(partial(it.holds, limit), "the change is in the file")
    assert len(it.ask("GET", "/v1/versions", token).json()["versions"]) == len(versions) + 2
    assert it.server.url("control") == url
    assert it.server.out.read_text().count("token ") == 1
    assert len([each for each in it.server.events() if each["event"] == "control_started"]) == 3


def test_a_second_start(up: Callable[..., Up], start: Callable[..., Any]) -> None:
    """A start on the data of another one goes on with its rules, at once, and shows no second token; an edit made in between counts."""
    it = up()
    token = it.token
    it.set_limit(token, 60)
    until(lambda: "60/minute" in it.file.read_text(), "the change is in the file")
    kept = it.data / "feed"
    until(lambda: any(b"60/minute" in file.read_bytes() for file in kept.rglob("*") if file.is_file()), "it is kept")
    assert it.server.stop() == 0
    again = up("--data", str(it.data))
    assert again.limit() == 60
    assert [each["version"] for each in again.server.events() if each["event"] == "started_with_kept_rules"]
    assert len(list((it.data / "feed").iterdir())) == 1
    assert "token " not in again.server.out.read_text()
    assert again.ask("GET", "/v1/rules", token).status_code == 200
    assert again.server.stop() == 0
    it.edit("60/minute", "61/minute")
    third = up("--data", str(it.data), wait=False)
    assert third.limit() == 61
    until(lambda: "\ncontrol " in third.server.out.read_text(), "the service's line")
    until(
        lambda: third.ask("GET", "/v1/versions", token).json()["versions"][0]["actor"] == "file:rules.yaml", "a version"
    )
    assert third.limit() == 61


def test_two_on_one_directory(up: Callable[..., Up], start: Callable[..., Any]) -> None:
    """A second server with a service on the same data says whose it is, and ends with status 2."""
    it = up()
    second = start("up", *PORTS, "--control", "127.0.0.1:0", "--data", str(it.data), ready=False)
    assert second.process.wait(60) == 2
    assert f"is in use by another sluicegate (process {it.server.process.pid})" in second.err.read_text()
    assert it.limit() == 5


def test_a_file_that_owns_the_rules(up: Callable[..., Up], rules: Path) -> None:
    """With ``--rules`` the file owns them: edits are versions, the API refuses and names the file, and lists still work."""
    it = up("--rules", str(rules))
    token = it.token
    found = it.ask("GET", "/v1/rules/login", token)
    refused = it.ask("DELETE", "/v1/rules/login", token, headers={"If-Match": found.headers["ETag"]})
    assert refused.status_code == 409
    assert str(rules) in refused.text
    rules.write_text(rules.read_text().replace("5/minute", "9/minute"))
    until(lambda: it.limit() == 9, "the edit is served")
    assert it.ask("GET", "/v1/versions", token).json()["versions"][0]["actor"] == "file:rules.yaml"


def test_the_end_of_the_parent_is_the_end_of_the_service(up: Callable[..., Up]) -> None:
    """A server that is killed takes its service with it, and one that is told to stop leaves no process and exits 0."""
    it = up()
    pid = it.pid()
    it.server.process.kill()
    until(lambda: not alive(pid), "the service is gone")
    other = up()
    pid = other.pid()
    assert other.server.stop(timeout_s=60) == 0
    assert not alive(pid)
    assert not list(other.data.rglob("*.sock"))


def test_workers(up: Callable[..., Up], require_program: Callable[[str], str]) -> None:
    """Each worker is a node: all of them decide by a change. The service gives back in the store that they share, once, however many they are."""
    it = up("--workers", "2")
    token = it.token
    it.set_limit(token, 60)
    for _ in range(10):
        until(lambda: it.limit() == 60, "the change is served")
    until(lambda: len(it.ask("GET", "/v1/nodes", token).json()["nodes"]) == 2, "two nodes")
    charged = {"facts": LOGIN["facts"], "cost": 10}
    check = it.server.url("api") + "/v1/check?timeout_ms=5000"
    assert it.server.client.post(check, json=charged).json()["allowed"]
    grant = {"facts": LOGIN["facts"], "rule": "login", "tokens": 3}
    answer = it.ask("POST", "/v1/counters/grant", token, json=grant)
    assert answer.status_code == 200, answer.text
    (place,) = answer.json()["nodes"]
    assert [(each["given"], each["used"]) for each in place["counters"]] == [(3, 7)]
    assert it.server.stop(timeout_s=60) == 0


def test_tls_of_the_service(up: Callable[..., Up], authority: Any) -> None:
    """The service's listener has TLS as the others do; the nodes beside it need none of its certificates."""
    cert, key = authority.issue("server")
    it = up("--tls-cert", str(cert), "--tls-key", str(key), "--api-tls", "off")
    url = it.server.url("control")
    assert url.startswith("https://")
    with httpx.Client(
        verify=authority.trusting(), headers={"Authorization": f"Bearer {it.token}"}, timeout=60
    ) as client:
        assert client.get(f"{url}/v1/rules").status_code == 200
        until(lambda: client.get(f"{url}/v1/nodes").json()["nodes"], "the node has reported")


def test_off_and_left_out(start: Callable[..., Any], up: Callable[..., Up]) -> None:
    """``off`` starts no service. An address that is in use ends the start where it was named."""
    alone = start("up", *PORTS, "--control", "off")
    assert "control" not in alone.out.read_text()
    it = up()
    taken = start("up", *PORTS, "--control", it.server.url("control").removeprefix("http://"), ready=False)
    assert taken.process.wait(60) == 2
    assert "--control: cannot listen on 127.0.0.1:" in taken.err.read_text()


def test_what_the_service_needs_is_not_loaded_by_the_nodes() -> None:
    """A server that has a rules service beside it, or none, does not load what only the service needs."""
    code = (
        "import sys, sluicegate.app.run; "
        "print([name for name in ('sqlalchemy', 'alembic', 'fastapi', 'uvicorn') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_service_reaches_the_counters_of_its_node(up: Callable[..., Up]) -> None:
    """Without a store and an API token the service reads, explains and resets the counters of the process beside it, which nobody else can."""
    it = up()
    token = it.token
    charged = {"facts": LOGIN["facts"], "cost": 2}
    api = it.server.url("api")
    assert it.server.client.post(f"{api}/v1/check?timeout_ms=5000", json=charged).json()["allowed"]
    question = {"facts": LOGIN["facts"]}

    def read() -> httpx.Response:
        return it.ask("POST", "/v1/counters/read", token, json=question)

    until(lambda: read().status_code == 200, "the node has told of itself")
    (node,) = read().json()["nodes"]
    assert (node["error"], {each["counter"]: each["used"] for each in node["counters"]}["login"]) == ("", 2)
    told = it.ask("POST", "/v1/explain", token, json=question).json()
    assert (told["unknown"], told["nodes"][0]["explanation"]["store_answers"]) == ("", True)
    assert it.ask("POST", "/v1/counters/reset", token, json=question).json()["changed"]
    assert it.server.client.post(f"{api}/v1/counters/read", json=question).status_code == 404
    (own,) = it.data.glob("run/*/own.sock")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(own)), base_url="http://localhost", timeout=60) as stranger:
        assert stranger.post("/v1/counters/read", json=question).status_code == 401
        assert stranger.post("/v1/check", json=charged).status_code == 404
    assert "own.sock" not in it.server.out.read_text() + it.server.err.read_text()
