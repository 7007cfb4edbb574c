"""Lines of common and combined logs: what they tell, and which are none."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.replaying.bad_line import BadLine
from sluicegate.replaying.request_line import client_of, unescaped
from sluicegate.replaying.text_log import TextParser
from sluicegate.rules.facts import Facts

US = 1_431_857_103_000_000
TIME = "[17/May/2015:10:05:03 +0000]"
ALL = ("ip", "user", "method", "path", "host", "header.referer", "header.user-agent", "api_key")


def facts_of(line: str, needed: tuple[str, ...] = ALL, *, combined: bool | None = None) -> Facts:
    """The facts of a line at the usual time."""
    parser = TextParser(needed, combined=combined)
    us, key = parser.read(line)
    assert us == US
    return parser.facts(key)[0]


@pytest.mark.parametrize(
    ("line", "known"),
    [
        (f'10.0.0.1 - - {TIME} "GET /a HTTP/1.1" 200 5', {"method": "GET", "path": "/a"}),
        (f'10.0.0.1 - - {TIME} "GET /a HTTP/1.1" 200 -', {"method": "GET", "path": "/a"}),
        (f'10.0.0.1 - - {TIME} "GET /a HTTP/1.1" - 5 more things', {"method": "GET", "path": "/a"}),
        (f'10.0.0.1 - - {TIME} "GET /a HTTP/1.1" 200 5\r', {"method": "GET", "path": "/a"}),
        (f'10.0.0.1 - alice {TIME} "GET /a?b=c HTTP/2" 200 5', {"user": "alice", "method": "GET", "path": "/a"}),
        (f'10.0.0.1 - "" {TIME} "GET / HTTP/1.0" 200 5', {"method": "GET", "path": "/"}),
        (f'10.0.0.1 id J. Doe [x] {TIME} "GET / HTTP/1.0" 200 5', {"user": "J. Doe [x]", "method": "GET", "path": "/"}),
        (f'10.0.0.1 - - {TIME} "GET /old" 200 5', {"method": "GET", "path": "/old"}),
        (f'10.0.0.1 - - {TIME} "GET /a b HTTP/1.1" 400 5', {"method": "GET", "path": "/a b"}),
        (f'10.0.0.1 - - {TIME} "OPTIONS * HTTP/1.1" 200 5', {"method": "OPTIONS", "path": "*"}),
        (
            f'10.0.0.1 - - {TIME} "GET http://u@x.org/p?q HTTP/1.1" 200 5',
            {"method": "GET", "path": "/p", "host": "x.org"},
        ),
        (f'10.0.0.1 - - {TIME} "GET http://x.org HTTP/1.1" 200 5', {"method": "GET", "path": "/", "host": "x.org"}),
        (f'10.0.0.1 - - {TIME} "CONNECT x.org:443 HTTP/1.1" 405 5', {"method": "CONNECT", "host": "x.org:443"}),
        (f'10.0.0.1 - - {TIME} "-" 408 0', {}),
        (f'10.0.0.1 - - {TIME} "" 400 0', {}),
        (f'10.0.0.1 - - {TIME} "\\x16\\x03\\x01\\x02 \\x00" 400 157', {}),
        (f'10.0.0.1 - - {TIME} "\x16\x03\x01\x02" 400 157', {}),
        (f'10.0.0.1 - - {TIME} "Cookie: mstshash=Administr" 400 157', {}),
        (f'10.0.0.1 - - {TIME} "quit" 400 157', {}),
        (f'10.0.0.1 - - {TIME} "GET /\\"q\\" HTTP/1.1" 200 5', {"method": "GET", "path": '/"q"'}),
        (f'10.0.0.1 - - {TIME} "GET /\\x22q\\x22 HTTP/1.1" 200 5', {"method": "GET", "path": '/"q"'}),
        (f'10.0.0.1 - - {TIME} "GET /\\xc3\\xa9 HTTP/1.1" 200 5', {"method": "GET", "path": "/é"}),
        (f'10.0.0.1 - - {TIME} "GET /é HTTP/1.1" 200 5', {"method": "GET", "path": "/é"}),
        (f'10.0.0.1 - - {TIME} "GET /\\\\ HTTP/1.1" 200 5', {"method": "GET", "path": "/\\"}),
        (f'2001:db8::7 - - {TIME} "GET / HTTP/1.1" 200 5', {"ip": "2001:db8::7", "method": "GET", "path": "/"}),
        (f'- - - {TIME} "GET / HTTP/1.1" 200 5', {"ip": None, "method": "GET", "path": "/"}),
        (f'unix: - - {TIME} "GET / HTTP/1.1" 200 5', {"ip": None, "method": "GET", "path": "/"}),
        (
            f'10.0.0.1 - - {TIME} "GET / HTTP/1.1" 200 5 "http://a/\\"" "x \\"y\\" z"',
            {"method": "GET", "path": "/", "headers": {"referer": 'http://a/"', "user-agent": 'x "y" z'}},
        ),
        (
            f'10.0.0.1 - - {TIME} "GET / HTTP/1.1" 200 5 "-" "cut off',
            {"method": "GET", "path": "/", "headers": {"user-agent": "cut off"}},
        ),
    ],
)
def test_facts(line: str, known: dict[str, Any]) -> None:
    """What a line tells, and nothing else."""
    assert facts_of(line) == Facts(**({"ip": "10.0.0.1"} | known))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "client, identity and user"),
        ("   ", "client, identity and user"),
        ("server restarted", "client, identity and user"),
        ("10.0.0.1 - - 17/May/2015 GET", "no time in brackets"),
        ('10.0.0.1 - - [] "GET / HTTP/1.1" 200 5', "no time in brackets"),
        (f'10.0.0.1 - -{TIME} "GET / HTTP/1.1" 200 5', "no time in brackets"),
        (f"10.0.0.1 - - {TIME} GET / 200 5", "no request in quotation marks"),
        (f'10.0.0.1 - - {TIME} "GET /a', "no request in quotation marks"),
        (f'10.0.0.1 - - {TIME} "GET /a\\', "no request in quotation marks"),
        (f'10.0.0.1 - - {TIME} "GET /a HTTP/1.1"', "no status"),
        (f'10.0.0.1 - - {TIME} "GET /a HTTP/1.1" 2000 5', "no status"),
        (f'10.0.0.1 - - {TIME} "GET /a HTTP/1.1" OK 5', "no status"),
        ('10.0.0.1 - - [17/Mai/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5', "no time: '17/Mai"),
        ('10.0.0.1 - - [17/May/1815:10:05:03 +0000] "GET / HTTP/1.1" 200 5', "1970 to 2112"),
        (f'999.0.0.1 - - {TIME} "GET / HTTP/1.1" 200 5', "no client: '999.0.0.1'"),
        (f'a/b - - {TIME} "GET / HTTP/1.1" 200 5', "no client: 'a/b'"),
        ('{"time": 1, "ip": "10.0.0.1"}', "no time in brackets"),
    ],
)
def test_bad_lines(line: str, reason: str) -> None:
    """What a line lacks is said."""
    with pytest.raises(BadLine) as error:
        facts_of(line)
    assert reason in error.value.reason


def test_combined_asks_for_its_fields() -> None:
    """A common line is bad in the format combined and fine in the others; common ignores what follows."""
    common = f'10.0.0.1 - - {TIME} "GET / HTTP/1.1" 200 5'
    with pytest.raises(BadLine, match="common"):
        facts_of(common, combined=True)
    with pytest.raises(BadLine, match="common"):
        facts_of(common, ("ip",), combined=True)
    combined = f'{common} "-" "agent"'
    for needed in (("ip",), ALL):
        assert facts_of(combined, needed, combined=True).ip == "10.0.0.1"
    assert facts_of(combined, combined=False).headers is None
    assert facts_of(combined).headers == {"user-agent": "agent"}
    assert facts_of(common).headers is None


def test_only_what_is_needed_tells_lines_apart() -> None:
    """Lines of one client are one for a rule that looks at addresses only, and the request counts where one looks at it."""
    lines = [f'10.0.0.1 - - {TIME} "GET /{n} HTTP/1.1" 200 5' for n in range(3)]
    by_ip = TextParser(("ip",), combined=None)
    assert len({by_ip.read(line)[1] for line in lines}) == 1
    by_path = TextParser(("ip", "path"), combined=None)
    assert len({by_path.read(line)[1] for line in lines}) == 3


def test_host_names_are_clients() -> None:
    """A host name is one client, in any case, apart from other names and from every address a rule could name."""
    one, same, other = (
        client_of(name) for name in ("crawl-1.Example.COM", "crawl-1.example.com.", "crawl-2.example.com")
    )
    assert one == same
    assert one.name == "crawl-1.example.com"
    assert one.ip is not None
    assert one.ip.startswith("1")
    assert one.ip != other.ip
    assert ":" in one.ip


@given(st.text(max_size=200))
def test_any_text_is_read_or_bad(line: str) -> None:
    """No text makes the parser fail in another way."""
    parser = TextParser(ALL, combined=None)
    with contextlib.suppress(BadLine):
        parser.facts(parser.read(line)[1])


@given(
    st.lists(
        st.sampled_from([*list(' "\\[]-/:+0127aGETx\x00é\udc80\n'), TIME, "10.0.0.1", '" 200 ', "HTTP/1.1"]),
        max_size=40,
    )
)
def test_any_mixture_of_parts_is_read_or_bad(parts: list[str]) -> None:
    """The same for texts that are nearly lines."""
    for combined in (None, True, False):
        parser = TextParser(ALL, combined=combined)
        with contextlib.suppress(BadLine):
            parser.facts(parser.read("".join(parts))[1])


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_escapes_come_back(text: str) -> None:
    """What nginx escapes is what the client sent."""
    escaped = "".join(
        c if c.isascii() and c.isprintable() and c not in '"\\' else "".join(f"\\x{b:02X}" for b in c.encode())
        for c in text
    )
    assert unescaped(escaped) == text


@pytest.mark.parametrize(
    "line",
    [
        "a b c" + " [" * 60_000,
        "a b " + "c [x] " * 10_000,
        f'a b c {TIME} "' + "\\" * 60_001,
        f"a b c {TIME} " + '"x" ' * 15_000,
        f'a b c {TIME} "' + f' {TIME} "' * 3_000,
        "a b c" + f" {TIME}" * 3_000,
    ],
)
@pytest.mark.parametrize("combined", [None, True])
def test_hostile_lines_take_no_time(line: str, combined: bool | None) -> None:
    """A line that nearly matches in many ways is refused in far less than a second of processor time."""
    parser = TextParser(ALL, combined=combined)
    begun = time.process_time()
    with pytest.raises(BadLine):
        parser.facts(parser.read(line)[1])
    assert time.process_time() - begun < 2
