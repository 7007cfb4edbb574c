"""The rules as a document: who has it already is not sent it again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

Start = Callable[..., Awaitable[Any]]
Request = Callable[..., bytes]


class Rules:
    """The document that is served; ``text`` may be replaced."""

    def __init__(self) -> None:
        self.text = b'{"format":1}'

    def __call__(self) -> bytes:
        return self.text


async def test_the_document_comes_with_its_version(start: Start, make_request: Request) -> None:
    """200 with a quoted ETag that stays while the document does, and changes with it."""
    rules = Rules()
    server = await start(ruleset=rules)
    client = await server.connect()
    ask = make_request("GET", "/v1/ruleset")
    first, second = await client.ask(ask), await client.ask(ask)
    assert (first.status, first.headers["content-type"], first.body) == (200, "application/json", b'{"format":1}')
    assert first.headers["etag"] == second.headers["etag"]
    assert first.headers["etag"].startswith('"')
    rules.text = b'{"format":1,"version":2}'
    changed = await client.ask(ask)
    assert (changed.body, changed.headers["etag"] != first.headers["etag"]) == (rules.text, True)
    assert server.stats.requests["/v1/ruleset"] == {200: 3}


async def test_who_has_it_is_not_sent_it(start: Start, make_request: Request) -> None:
    """If-None-Match with the version is answered 304 without a body, also among others and as a weak one; another version 200."""
    rules = Rules()
    client = await (await start(ruleset=rules)).connect()
    tag = (await client.ask(make_request("GET", "/v1/ruleset"))).headers["etag"]
    for value, status in ((tag, 304), (f'"x", W/{tag}', 304), ("*", 304), ('"x"', 200), (tag.strip('"'), 200)):
        await client.send(make_request("GET", "/v1/ruleset", b"", f"If-None-Match: {value}"))
        answer = await client.read(bodiless=status == 304)
        assert (answer.status, answer.headers["etag"]) == (status, tag), value
    rules.text += b" "
    await client.send(make_request("GET", "/v1/ruleset", b"", f"If-None-Match: {tag}"))
    assert (await client.read()).status == 200


async def test_it_asks_for_the_token(start: Start, make_request: Request) -> None:
    """Rules name customers, so the document is for who has the API token."""
    client = await (await start(ruleset=Rules(), api_token="secret")).connect()
    assert (await client.ask(make_request("GET", "/v1/ruleset"))).status == 401
    assert (await client.ask(make_request("GET", "/v1/ruleset", b"", "Authorization: Bearer secret"))).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
async def test_it_is_read_only(start: Start, make_request: Request, method: str) -> None:
    """No other method is taken."""
    client = await (await start(ruleset=Rules())).connect()
    refused = await client.ask(make_request(method, "/v1/ruleset"))
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
