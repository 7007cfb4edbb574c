"""docs/envoy.md and integrations/envoy/ext_authz.yaml are what happens with a real Envoy."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[3] / "docs" / "envoy.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONFIGURATION = "ext_authz.yaml"
WorldOf = Callable[..., Any]

TRUSTING = "version: 1\nidentity:\n  trusted_peers: [0.0.0.0/0]\n  api_key: {header: X-API-Key}\nrules:\n"


def rules_of_the_page() -> str:
    return next(text for language, text in FENCE.findall(PAGE.read_text()) if language == "yaml")


def dialogues() -> Iterator[tuple[list[list[str]], list[str]]]:
    """The curl commands of each console block, and the lines of the answer to the last of them."""
    blocks = FENCE.findall(PAGE.read_text())
    for (language, commands), (then, answer) in itertools.pairwise(blocks):
        if language == "console" and "$ curl" in commands:
            assert then == "text"
            yield [shlex.split(line)[2:] for line in commands.splitlines()], answer.splitlines()


def test_the_page_is_what_happens(envoy_world: WorldOf, curl: Callable[[list[str]], str]) -> None:
    """Each printed command gets the printed status and header fields."""
    world = envoy_world(CONFIGURATION, rules_of_the_page())
    count = 0
    for commands, (status, *fields) in dialogues():
        for command in commands:
            answer = curl([word.replace("127.0.0.1:10000", world.url.removeprefix("http://")) for word in command])
        first, *lines = answer.split("\r\n\r\n")[0].split("\r\n")
        assert first == status, commands
        assert [field for field in fields if field not in set(lines)] == [], (commands, answer)
        count += 1
    assert count == 3
    assert [path for _, path, _ in world.backend.seen] == ["/api/orders", "/api/orders", "/api/orders?deny_status=200"]


def test_clients_are_told_apart_by_the_address_that_envoy_saw(envoy_world: WorldOf) -> None:
    """What a client writes into X-Forwarded-For stands before what Envoy adds, and does not make it another client."""
    world = envoy_world(CONFIGURATION, rules_of_the_page().replace("quota: 5/minute", "quota: 3/minute"))
    answers = [
        world.client.post("/login", headers={"X-Forwarded-For": f"203.0.113.{n}"}, content=b"user=a") for n in range(5)
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[-1].json()["violated-policies"] == ["login"]
    assert [method for method, _, _ in world.backend.seen] == ["POST", "POST", "POST"]


def test_a_refusal_reaches_the_client_as_the_rule_wants_it(envoy_world: WorldOf) -> None:
    """Status, media type and body of a template pass through, and HEAD has no body."""
    respond = '{template: "<p>{rule}</p>", content_type: text/html}'
    world = envoy_world(CONFIGURATION, TRUSTING + f"  - {{name: shut, quota: 0, respond: {respond}}}\n")
    answer = world.client.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (429, "text/html; charset=utf-8")
    assert answer.text == "<p>shut</p>"
    head = world.client.head("/")
    assert (head.status_code, head.content) == (429, b"")
    assert world.backend.seen == []


def test_the_proxy_has_a_token_of_its_own(envoy_world: WorldOf) -> None:
    """With --api-token Envoy proves itself in X-Sluicegate-Token; without it, or with a client's, nothing passes."""
    token = "        authorization_request:\n"
    commented = "# authorization_request:\n                        #   headers_to_add: [{key: x-sluicegate-token, value: TOKEN}]"
    plain = commented.replace("# ", "").replace("#   ", "  ").replace("TOKEN", "secret")
    assert token.strip() in plain
    rules = TRUSTING + "  - {name: all, per: [api_key], quota: 1000/minute}\n"
    world = envoy_world(
        CONFIGURATION, rules, "--api-token", "secret", edit=lambda text: with_token(text, commented, plain)
    )
    assert world.client.get("/", headers={"X-Sluicegate-Token": "wrong", "X-API-Key": "k"}).status_code == 200
    bare = envoy_world(CONFIGURATION, rules, "--api-token", "secret")
    refused = bare.client.get("/", headers={"X-Sluicegate-Token": "secret", "Authorization": "Bearer secret"})
    assert refused.status_code == 401


def with_token(text: str, commented: str, plain: str) -> str:
    assert commented in text
    return text.replace(commented, plain)


def test_without_an_answer_requests_pass_or_are_refused_as_configured(envoy_world: WorldOf) -> None:
    """Sluicegate away: 200 without rate headers as shipped, 503 with ``failure_mode_allow: false``; and back again."""
    rules = TRUSTING + "  - {name: shut, quota: 0}\n"
    opened = envoy_world(CONFIGURATION, rules)
    closed = envoy_world(
        CONFIGURATION,
        rules,
        edit=lambda text: text.replace("failure_mode_allow: true", "failure_mode_allow: false"),
    )
    assert [world.client.get("/").status_code for world in (opened, closed)] == [429, 429]
    opened.stop_server()
    closed.stop_server()
    answer = opened.client.get("/")
    assert (answer.status_code, "x-ratelimit-limit" in answer.headers) == (200, False)
    assert closed.client.get("/").status_code == 503


@pytest.mark.parametrize(("allow", "status"), [("true", 200), ("false", 503)])
def test_a_closed_rule_closes_where_envoy_is_told_to(envoy_world: WorldOf, allow: str, status: int) -> None:
    """The counter of a closed rule is out of reach: the 503 is a failed check to Envoy, whose failure mode has the last word."""
    rules = TRUSTING + "  - {name: money, per: [api_key], quota: 5/minute, on_store_failure: closed}\n"
    # Nobody listens there.
    world = envoy_world(
        CONFIGURATION,
        rules,
        "--store",
        "redis://127.0.0.1:9/0",
        edit=lambda text: text.replace("failure_mode_allow: true", f"failure_mode_allow: {allow}"),
    )
    assert world.client.get("/", headers={"X-API-Key": "k"}).status_code == status
