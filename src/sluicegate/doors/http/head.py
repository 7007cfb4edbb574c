"""Request heads: bytes in, a checked description out.

llhttp (through httptools) reads the request line and the fields; on top of it everything is refused on which two
parsers could disagree about where a message ends: bare CR or LF, folded lines, NUL, Content-Length together with
Transfer-Encoding, either of them twice, codings other than a single ``chunked``, a missing or doubled Host.
"""

from __future__ import annotations

import re
from typing import Final

from sluicegate.errors import MissingExtra

try:
    from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
except ImportError as error:
    raise MissingExtra("server", "the HTTP decision API") from error

__all__ = ["CHUNKED", "BadHead", "Head", "Subrequest", "essence", "parse_head", "parse_subrequest"]

CHUNKED: Final = -1
"""The ``length`` of a body that comes in chunks."""

_DIGITS: Final = re.compile(rb"[0-9]{1,15}")
_START_LINE: Final = re.compile(rb"[A-Z][A-Z-]* [\x21-\x7e\x80-\xff]+ HTTP/[0-9]\.[0-9]\r\n")
_SLASH: Final = ord("/")

# A well-formed field that nothing here looks at, with the line end before it. What is not plainly that stays for the parser.
_IDLE_FIELD: Final = re.compile(
    rb"\r\n(?!(?:accept|authorization|connection|content-encoding|content-length|expect|host|if-none-match|keep-alive|proxy-connection|te|trailer"
    rb"|transfer-encoding|upgrade):)[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*(?=\r\n)",
    re.IGNORECASE,
)


class BadHead(Exception):
    """The request cannot be served; the connection ends after the answer, since what follows cannot be trusted."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class Head:
    """What matters of one request head. Immutable after parsing.

    ``accept``: the values of that field as one, empty where there is none. ``if_none_match``: the versions that the client has, if it says so once. ``length``: bytes of the body, or ``CHUNKED``. ``expect``: the client waits for ``100 Continue``. ``authorization``: the
    value of that field, if there was exactly one.
    """

    __slots__ = (
        "accept",
        "authorization",
        "expect",
        "http10",
        "if_none_match",
        "keep_alive",
        "length",
        "method",
        "path",
    )

    def __init__(self, fields: _Fields, parser: HttpRequestParser) -> None:
        first, doubled = fields.first, fields.doubled
        self.method: str = parser.get_method().decode("ascii")
        self.http10 = _version(parser) == "1.0"
        self.keep_alive = _keep_alive(fields, http10=self.http10)
        self.path = _path(fields.target)
        self.length = _length(fields, http10=self.http10)
        self.accept = b",".join((first.get(b"accept", b""), *doubled.get(b"accept", ())))
        self.authorization = None if b"authorization" in doubled else first.get(b"authorization")
        self.if_none_match = None if b"if-none-match" in doubled else first.get(b"if-none-match")
        self.expect = _expect(fields, http10=self.http10)
        if b"host" in doubled or (b"host" not in first and not self.http10):
            raise BadHead(400, f"a request has exactly one Host field, this one has {fields.count(b'host')}")
        self._check_coding(fields)

    def _check_coding(self, fields: _Fields) -> None:
        if fields.first.get(b"content-encoding", b"identity") != b"identity" or b"content-encoding" in fields.doubled:
            raise BadHead(415, "Content-Encoding: request bodies are taken uncompressed only")


class Subrequest(Head):
    """The head of a request in which a proxy asks about another one, whose header fields it passes on.

    ``lines``: all of them, names in lower case, lines of one name in their order. A body is the other request's, if it is there at
    all, so that its coding does not matter.
    """

    __slots__ = ("lines",)

    def __init__(self, fields: _Fields, parser: HttpRequestParser) -> None:
        super().__init__(fields, parser)
        self.lines: list[tuple[bytes, bytes]] = list(fields.first.items())
        for name, values in fields.doubled.items():
            self.lines += [(name, value) for value in values]

    def values(self, name: bytes) -> list[bytes]:
        """The values of a field, in their order."""
        return [value for own, value in self.lines if own == name]

    def _check_coding(self, fields: _Fields) -> None:
        pass


class _Fields:
    """Collects what the parser calls out. ``first``: the first value of each field; ``doubled``: the others."""

    __slots__ = ("_left", "done", "doubled", "first", "target")

    def __init__(self, fields_max: int) -> None:
        self.target = b""
        self.first: dict[bytes, bytes] = {}
        self.doubled: dict[bytes, list[bytes]] = {}
        self.done = False
        self._left = fields_max

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._left -= 1
        if self._left < 0:
            raise BadHead(431, "too many header fields")
        name = name.lower()
        if name in self.first:
            self.doubled.setdefault(name, []).append(value)
        else:
            self.first[name] = value

    def on_headers_complete(self) -> None:
        self.done = True

    def count(self, name: bytes) -> int:
        """How often the field is there."""
        return (name in self.first) + len(self.doubled.get(name, ()))


def essence(raw: bytes, fields_max: int) -> bytes:
    """The head without the well-formed fields that nothing here looks at: a request id, a trace, a user agent.

    Heads with one essence mean the same or are refused alike, so a head that differs in such fields only need not be parsed.
    A head that could break a rule about the whole (its beginning, the number of fields) is its own essence.
    """
    if raw.startswith(b"\r") or raw.count(b"\n") > fields_max:
        return raw
    return _IDLE_FIELD.sub(b"", raw)


def parse_head(raw: bytes, fields_max: int) -> Head:
    """Read a whole head, its closing blank line included. Raises BadHead."""
    return Head(*_parsed(raw, fields_max))


def parse_subrequest(raw: bytes, fields_max: int) -> Subrequest:
    """``parse_head``, for one in which a proxy asks about another request."""
    return Subrequest(*_parsed(raw, fields_max))


def _parsed(raw: bytes, fields_max: int) -> tuple[_Fields, HttpRequestParser]:
    # A client that sent one line end too many after its last body is forgiven (RFC 9112, section 2.2).
    raw = raw.removeprefix(b"\r\n")
    lines = raw.count(b"\r\n")
    if raw.count(b"\n") != lines or raw.count(b"\r") != lines or b"\0" in raw:
        raise BadHead(400, "the request head holds a bare CR, a bare LF or a NUL")
    if b"\n " in raw or b"\n\t" in raw:
        raise BadHead(400, "the request head holds a folded header line")
    if _START_LINE.match(raw) is None:
        raise BadHead(400, "the request line is not 'METHOD target HTTP/1.1' with single spaces")
    fields = _Fields(fields_max)
    parser = HttpRequestParser(fields)
    try:
        parser.feed_data(raw)
    except HttpParserUpgrade:
        pass  # An upgrade may be ignored (RFC 9110, section 7.8); CONNECT has no route here and gets its 404.
    except HttpParserError as error:
        if isinstance(error.__context__, BadHead):
            raise error.__context__ from None
        raise BadHead(400, f"the request head is malformed: {error}") from None
    if not fields.done:
        raise BadHead(400, "the request head is malformed")
    return fields, parser


def _version(parser: HttpRequestParser) -> str:
    version: str = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise BadHead(505, f"HTTP/{version} is not spoken here; use HTTP/1.1")
    return version


def _keep_alive(fields: _Fields, *, http10: bool) -> bool:
    value = fields.first.get(b"connection")
    if value is None:
        return not http10
    values = [value, *fields.doubled.get(b"connection", ())]
    options = {option.strip().lower() for each in values for option in each.split(b",")}
    return b"close" not in options and (not http10 or b"keep-alive" in options)


def _path(target: bytes) -> str:
    """The path of the request target; a query is not looked at, and an absolute form loses its authority."""
    if target[:1] != b"/" and (scheme := target.find(b"://")) > 0:
        slash = target.find(_SLASH, scheme + 3)
        target = target[slash:] if slash >= 0 else b"/"
    return target.partition(b"?")[0].decode("latin-1")


def _length(fields: _Fields, *, http10: bool) -> int:
    length = fields.first.get(b"content-length")
    coding = fields.first.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise BadHead(400, "Content-Length and Transfer-Encoding exclude each other")
        if http10:
            raise BadHead(400, "Transfer-Encoding does not exist in HTTP/1.0")
        if b"transfer-encoding" in fields.doubled or coding.strip().lower() != b"chunked":
            raise BadHead(501, "Transfer-Encoding: only a single 'chunked' is understood")
        return CHUNKED
    if length is None:
        return 0
    if b"content-length" in fields.doubled:
        raise BadHead(400, "a request has at most one Content-Length")
    if not _DIGITS.fullmatch(length):
        raise BadHead(400, "Content-Length is not a number of at most 15 digits")
    return int(length)


def _expect(fields: _Fields, *, http10: bool) -> bool:
    value = fields.first.get(b"expect")
    if value is None or http10:
        return False
    if b"expect" in fields.doubled or value.strip().lower() != b"100-continue":
        raise BadHead(417, "Expect: only 100-continue is understood")
    return True
