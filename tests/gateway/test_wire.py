"""Message heads: what the grammar takes, and that two other parsers read it in the same way."""

from __future__ import annotations

import h11
import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.doors.gateway.wire import Fault, RequestLine, parse_fields, parse_request, parse_response

GOOD = b"GET /a?b=c HTTP/1.1\r\nHost: x\r\n\r\n"


def test_a_head_is_read_into_its_parts():
    """Names keep their case, values lose surrounding white space, order is kept."""
    line = parse_request(b"POST /p HTTP/1.0\r\nHost: x\r\nA:\r\nB:  1  2 \t\r\na: \xe9\r\n\r\n")
    assert line == RequestLine(b"POST", b"/p", 0, [(b"Host", b"x"), (b"A", b""), (b"B", b"1  2"), (b"a", b"\xe9")])


@pytest.mark.parametrize(
    ("head", "status", "kind"),
    [
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, "bad_field"),
        (b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", 400, "folded_field"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\n 2\r\n\r\n", 400, "folded_field"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\n\t2\r\n\r\n", 400, "folded_field"),
        (b"GET / HTTP/1.1\r\nHost: x\x00y\r\n\r\n", 400, "bad_field"),
        (b"GET / HTTP/1.1\r\nHost: x\ry\r\n\r\n", 400, "bad_field"),
        (b"GET / HTTP/1.1\r\nHost: x\ny: z\r\n\r\n", 400, "bad_field"),
        (b"GET / HTTP/1.1\r\nHost: x\x7f\r\n\r\n", 400, "bad_field"),
        (b"GET / HTTP/1.1\r\nHo st: x\r\n\r\n", 400, "bad_field"),
        (b"GET / HTTP/1.1\r\nH\xc3\xb6st: x\r\n\r\n", 400, "bad_field"),
        (b"GET / HTTP/1.1\r\n: x\r\n\r\n", 400, "bad_field"),
        (b"GET / HTTP/1.1\r\nHost\r\n\r\n", 400, "bad_field"),
        (b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
        (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
        (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
        (b"GET /\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
        (b"get / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
        (b"GET / http/1.1\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
        (b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n", 400, "bad_request_line"),
        (b"GET /\r\nHost: x\r\n\r\n", 400, "bad_request_line"),
        (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505, "bad_version"),
        (b"PRI * HTTP/2.0\r\n\r\n", 505, "bad_version"),
        (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505, "bad_version"),
        (b"GET / HTTP/9\r\nHost: x\r\n\r\n", 505, "bad_version"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, "line_too_long"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431, "too_many_fields"),
    ],
)
def test_a_head_outside_the_grammar_is_refused(head, status, kind):
    """Nothing is repaired: each tolerance of RFC 9112 is a difference between two readers."""
    fault = parse_request(head)
    assert isinstance(fault, Fault)
    assert (fault.status, fault.kind) == (status, kind)


token = st.text("abcXYZ-_!09", min_size=1, max_size=8)
value = st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=12)
field = st.tuples(token, st.sampled_from([":", ": ", " :", ":\t", ""]), value, st.sampled_from(["\r\n", "\n", "\r\n "]))


@given(
    method=st.sampled_from(["GET", "POST", "OPTIONS", "get", "G T"]),
    target=st.text(st.characters(min_codepoint=1, max_codepoint=255), max_size=8).map(lambda t: "/" + t),
    version=st.sampled_from(["HTTP/1.1", "HTTP/1.0", "HTTP/1.1 "]),
    fields=st.lists(field, max_size=4),
)
def test_what_is_accepted_is_read_alike_by_two_other_parsers(method, target, version, fields):
    """h11 and llhttp agree with this grammar on method, target and fields of every head it accepts."""
    text = f"{method} {target} {version}\r\nHost: x\r\n{''.join(map(''.join, fields))}\r\n"
    head = text.encode("latin-1")
    if head.find(b"\r\n\r\n") + 4 != len(head):
        return  # the connection would have cut it earlier
    line = parse_request(head)
    if isinstance(line, Fault):
        return
    theirs = h11.Connection(h11.SERVER)
    theirs.receive_data(head)
    event = theirs.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method, event.target) == (line.method, line.target)
    assert [(n.lower(), v) for n, v in line.fields] == [(bytes(n), bytes(v)) for n, v in event.headers]
    seen = Recorder()
    parser = httptools.HttpRequestParser(seen)
    parser.feed_data(head)
    assert parser.get_method() == line.method
    assert seen.url == line.target
    assert [(n, v.strip(b" \t")) for n, v in seen.fields] == line.fields


class Recorder:
    """What llhttp saw."""

    def __init__(self):
        self.url = b""
        self.fields = []

    def on_url(self, url):
        self.url += url

    def on_header(self, name, value):
        self.fields.append((name, value))


@given(st.binary(max_size=200))
def test_any_bytes_are_answered_with_a_value(data):
    """Neither parser raises, whatever it is given."""
    for head in (data, data + b"\r\n\r\n", b"GET / HTTP/1.1\r\n" + data + b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + data):
        parse_request(head)
        parse_response(head)
        parse_fields(head)


def test_a_long_head_of_near_misses_takes_linear_time():
    """Every repetition in the grammar is possessive, so a mismatch at the end is found without going back."""
    head = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b " * 200_000 + b"\x00\r\n\r\n"
    assert isinstance(parse_request(head), Fault)
    trailing = b"GET / HTTP/1.1\r\nHost: x\r\nA:" + b" " * 500_000 + b"\r\n\r\n"
    assert parse_request(trailing) == RequestLine(b"GET", b"/", 1, [(b"Host", b"x"), (b"A", b"")])


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\nA: b\r\n\r\n",
        b"HTTP/1.1 99 No\r\n\r\n",
        b"HTTP/1.1 600 No\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA b\r\n\r\n",
        b"HTTP/1.1 200 O\x00K\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 101 + b"\r\n",
    ],
)
def test_an_answer_outside_the_grammar_is_the_upstreams_fault(head):
    """It becomes 502."""
    fault = parse_response(head)
    assert isinstance(fault, Fault)
    assert fault.status == 502


def test_an_answer_may_leave_out_its_reason():
    """As RFC 9112 allows, with the space or without."""
    assert parse_response(b"HTTP/1.1 204 \r\n\r\n") == (1, 204, b"", [])
    assert parse_response(b"HTTP/1.0 204\r\n\r\n") == (0, 204, b"", [])
