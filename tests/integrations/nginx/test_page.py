"""docs/nginx.md is what happens: its rules, its two configurations, and its commands with their answers."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.app.ruleset import FORMAT

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "nginx.md").read_text()
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(title: str) -> str:
    """From a heading to the next one of its rank."""
    return re.split(r"^## ", PAGE.split(f"\n## {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def timeless(line: str) -> str:
    """A line without what passes while a test runs."""
    return re.sub(r"^(X-RateLimit-Reset|Retry-After): \d+", r"\1: n", line.strip())


@pytest.mark.parametrize(("title", "file"), [("Lua inside nginx", "lua.conf"), ("`auth_request`", "auth_request.conf")])
def test_examples_run_as_printed(
    nginx: Callable[..., Any],
    serve: Callable[..., Any],
    url: str,
    port_of: Callable[[str], int],
    require_program: Callable[[str], str],
    title: str,
    file: str,
) -> None:
    """The printed configuration is the one that is shipped, and the printed commands get the printed lines."""
    blocks = FENCE.findall(section(title))
    conf = next(text for language, text in blocks if language == "nginx")
    assert conf == (ROOT / "integrations" / "nginx" / file).read_text()
    rules = next(text for language, text in FENCE.findall(PAGE) if language == "yaml")
    limits = serve(rules)
    text = conf.replace("port = 6379", f"port = {port_of(url)}, timeout_ms = 5000")
    text = text.replace("port = 8081", f"port = {limits.port}, timeout_ms = 5000")
    text = text.replace("127.0.0.1:8081", f"127.0.0.1:{limits.port}").replace("100ms", "9s").replace("200ms", "9s")
    running = nginx(text, lua=file == "lua.conf")
    require_program("curl")
    shown = 0
    for (language, commands), (then, answer) in itertools.pairwise(blocks):
        if language != "console" or "$ curl" not in commands:
            continue
        assert then == "text"
        out = ""
        for line in commands.splitlines():
            command = shlex.split(line.removeprefix("$ ").replace("127.0.0.1:8000", f"127.0.0.1:{running.port}"))
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        lines = {timeless(line) for line in out.splitlines()}
        assert {timeless(line) for line in answer.splitlines()} <= lines, (out, running.log())
        shown += 1
    assert shown == 2


def test_the_format_is_the_pages() -> None:
    """The page, the Lua code and the server speak of the same format."""
    assert f"`format` is {FORMAT};" in PAGE
    lua = (ROOT / "integrations" / "nginx" / "lua" / "sluicegate" / "server.lua").read_text()
    assert f"local FORMAT = {FORMAT}\n" in lua


def test_every_setting_is_on_the_page() -> None:
    """What ``setup`` has a default for stands in the page's table."""
    lua = (ROOT / "integrations" / "nginx" / "lua" / "sluicegate.lua").read_text()
    body = lua.split("function M.setup(options)")[1].split("\nend\n")[0]
    names = re.findall(r"(\w+) = (?:\"|\d)", body)
    rows = section("Lua inside nginx").split("### Settings")[1].split("### ")[0]
    assert set(names) - {"name"} <= set(re.findall(r"\w+", rows))
    assert len(names) > 8
