"""nginx asking by auth_request, by the configuration as shipped."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.rules.facts import Facts

Start = Callable[..., Any]

INTEGRATION = Path(__file__).resolve().parents[3] / "integrations" / "nginx"
MODULES = Path("/usr/lib/nginx/modules")

RULES = """
version: 1
identity: {trusted_peers: [127.0.0.1/32]}
rules:
  - {name: login, match: {methods: [POST], path: /login}, per: [ip], quota: 2/hour}
  - {name: money, match: {path: /money}, per: [ip], quota: 50/hour, on_store_failure: closed}
"""


def test_refusals_are_429(asking: Start, python: Start) -> None:
    """The client gets 429 with the fields and Retry-After; its budget is the one of a Python program."""
    nginx, _ = asking(RULES)
    first = nginx.get("/login", method="POST")
    assert first.status_code == 200, nginx.log()
    assert first.headers.get_list("X-RateLimit-Limit") == ["2"], "and not the backend's"
    assert first.headers["X-RateLimit-Remaining"] == "1"
    assert first.headers["X-RateLimit-Policy"].startswith("login;q=2;")
    assert python(RULES).check(Facts(method="POST", path="/login", ip="203.0.113.9")).remaining == 0
    refused = nginx.get("/login", method="POST")
    assert refused.status_code == 429, nginx.log()
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["title"] == "Quota Exceeded"
    assert refused.headers["X-RateLimit-Remaining"] == "0"
    assert refused.headers["Retry-After"] == refused.headers["X-RateLimit-Reset"]
    assert int(refused.headers["Retry-After"]) >= 1
    assert nginx.get("/login", ip="203.0.113.10", method="POST").status_code == 200
    assert nginx.get("/login").status_code == 200, "another method is not limited"
    assert " [error] " not in nginx.log()


def test_headers_on_answers_that_nginx_makes(asking: Start) -> None:
    """The fields stand on a 502 as on any answer, and where no rule matched there are none."""
    nginx, _ = asking(RULES)
    money = nginx.get("/money")
    assert money.headers["X-RateLimit-Limit"] == "50"
    other = nginx.get("/other")
    assert other.status_code == 200
    assert "X-RateLimit-Limit" not in other.headers
    broken = asking(RULES.replace("/money", "/broken"))[0].get("/broken")
    assert broken.status_code == 502
    assert broken.headers["X-RateLimit-Limit"] == "50"


def test_nothing_a_client_sends_counts(asking: Start) -> None:
    """Neither X-Original-URI nor a forwarded address of the client's own is believed, and the door inside is not for clients."""
    nginx, _ = asking(RULES)
    for number in range(3):
        answer = nginx.get(
            "/login",
            method="POST",
            X_Original_URI="/free",
            X_Original_Method="GET",
            X_Forwarded_For=f"198.51.100.{number}",
            Forwarded=f"for=198.51.100.{number}",
        )
    assert answer.status_code == 429
    assert nginx.get("/_sluicegate").status_code == 404


def test_a_rule_that_fails_closed(asking: Start, servers: Any, require_program: Callable[[str], str]) -> None:
    """Without Redis the server decides by each rule's policy: a closed one is 503 to the client, the others have local counters."""
    nginx, _ = asking(RULES)
    assert nginx.get("/money").status_code == 200
    pid = servers.get("redis", require_program("redis-server")).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        refused = nginx.get("/money")
        assert refused.status_code == 503, nginx.log()
        assert refused.json()["title"] == "Temporary Reduced Capacity"
        assert nginx.get("/login", method="POST").status_code == 200
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(("mode", "status"), [("204", 200), ("403", 503)])
@pytest.mark.parametrize("how", ["gone", "silent"])
def test_fail_mode(asking: Start, mode: str, status: int, how: str) -> None:
    """Without the server requests pass, or are refused, as one line of the configuration says; also where it is only silent."""
    nginx, limits = asking(RULES, edits={"return 204;": f"return {mode};"}, slow="1s" if how == "silent" else "9s")
    assert nginx.get("/login", method="POST").status_code == 200
    if how == "gone":
        limits.stop()
    else:
        os.kill(limits.process.pid, signal.SIGSTOP)
    answer = nginx.get("/login", method="POST")
    assert answer.status_code == status, nginx.log()
    assert "X-RateLimit-Limit" not in answer.headers


def test_a_token(asking: Start) -> None:
    """A server that wants a token gets it in a field of its own; without it nothing is decided."""
    line = '# With --api-token: proxy_set_header X-Sluicegate-Token "...";'
    given, _ = asking(
        RULES, "--api-token", "the-token", edits={line: 'proxy_set_header X-Sluicegate-Token "the-token";'}
    )
    assert given.get("/money").headers["X-RateLimit-Limit"] == "50"
    absent, _ = asking(RULES, "--api-token", "the-token")
    answer = absent.get("/money", X_Sluicegate_Token="a guess")
    assert answer.status_code == 200
    assert "X-RateLimit-Limit" not in answer.headers


def test_nginx_with_every_module_has_room_for_it(
    nginx: Callable[..., Any], require_program: Callable[[str], str], tmp_path: Path
) -> None:
    """Debian's nginx says nothing about this file, however many modules of its packages are loaded."""
    binary = require_program("nginx")
    if not MODULES.is_dir():
        require_program("the modules of nginx")
    # In the order of their names, but for the kit that others need; those for streams need one another.
    names = [path for path in sorted(MODULES.glob("*.so")) if "stream" not in path.name and "ndk" not in path.name]
    kit = MODULES / "ndk_http_module.so"
    loads = "".join(f"load_module {path};\n" for path in [*([kit] if kit.exists() else []), *names])
    conf = tmp_path / "all.conf"
    head = f"{loads}pid {tmp_path}/pid; error_log stderr;\nevents {{}}\n"
    conf.write_text(f"{head}http {{ access_log off; include {INTEGRATION}/auth_request.conf; }}\n")
    checked = subprocess.run(
        [binary, "-t", "-p", str(tmp_path), "-c", str(conf)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr
