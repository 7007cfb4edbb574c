"""docs/http-api.md is what happens.

Every ```http block is either a request (method and path, header fields, an empty line, a body) or, directly after one, the answer.
The test sends each request to one server, top to bottom, and compares the status line, every header field shown and the whole
body, as JSON. A string ending in "…" stands for any text; in a later request it is the text last seen in its place. The
server has the rules of the page's first YAML block; the request with Authorization goes to one that has a token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.http.stats import ROUTES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "http-api.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
Start = Callable[..., Awaitable[Any]]


def pairs() -> Iterator[tuple[str, str]]:
    blocks = [text for language, text in FENCE.findall(PAGE.read_text()) if language == "http"]
    for asked, answered in zip(blocks[::2], blocks[1::2], strict=True):
        assert not asked.startswith("HTTP/"), asked
        assert answered.startswith("HTTP/"), answered
        yield asked, answered


def split(block: str) -> tuple[str, list[str], str]:
    head, _, body = block.partition("\n\n")
    first, *fields = head.strip().split("\n")
    return first, fields, body.strip()


def matches(shown: Any, got: Any, seen: list[str]) -> bool:
    """Equal, except that a shown "…" matches any text, which is remembered."""
    if shown == "…" and isinstance(got, str):
        seen.append(got)
        return True
    if isinstance(shown, dict) and isinstance(got, dict):
        return shown.keys() == got.keys() and all(matches(shown[name], got[name], seen) for name in shown)
    if isinstance(shown, list) and isinstance(got, list):
        return len(shown) == len(got) and all(matches(a, b, seen) for a, b in zip(shown, got, strict=True))
    return bool(shown == got and type(shown) is type(got))


async def test_examples_run_as_printed(start: Start, make_request: Callable[..., bytes]) -> None:
    """Each printed request gets the printed answer."""
    rules = next(text for language, text in FENCE.findall(PAGE.read_text()) if language == "yaml")
    open_client = await (await start(rules=rules)).connect()
    guarded_client = await (await start(rules=rules, api_token="the-token")).connect()
    seen: list[str] = []
    count = 0
    for asked, answered in pairs():
        line, fields, body = split(asked)
        method, path = line.split(" ")
        client = guarded_client if any(field.startswith("Authorization") for field in fields) else open_client
        if "…" in body:
            body = body.replace("…", seen[-1])
        answer = await client.ask(make_request(method, path, body.encode(), *fields))
        status, shown_fields, shown_body = split(answered)
        assert answer.lines[0] == status, asked
        for field in shown_fields:
            name, _, value = field.partition(": ")
            assert answer.headers[name.lower()] == value, (asked, field)
        if shown_body:
            assert matches(json.loads(shown_body), answer.json, seen), (asked, answer.body)
        else:
            assert answer.body == b"", asked
        count += 1
    assert count >= 12


@pytest.mark.parametrize("route", [route for route in ROUTES if route != "other"])
def test_every_route_is_documented(route: str) -> None:
    """The page names every route."""
    assert f" {route}`" in PAGE.read_text()


def test_every_limit_is_documented() -> None:
    """The page names the flag of every setting with its default."""
    text = PAGE.read_text()
    for name in HttpSettings.__dataclass_fields__:
        if name in ("sweep_s", "api_token"):
            continue
        flag = "--api-" + name.removesuffix("_s").replace("_", "-")
        default = getattr(HttpSettings(), name)
        shown = f"{default:g}s" if name.endswith("_s") else f"{default:,}"
        assert f"| `{flag}` | {shown} |" in text, flag
