r"""The one form of a request path that rules are matched against.

A rule written for ``/login`` is worth nothing if ``/LOGIN``, ``//login``, ``/%6cogin`` or ``/x/..;/login`` reaches the
same handler without it. So a path is brought to its normal form, in this order:

1. Everything from the first ``?`` or ``#`` is cut; of an absolute-form target (``http://host/path``) the path is left.
2. ``%XX`` is decoded until nothing decodes (``%256c`` is ``l``). A ``%`` that starts no escape is an ordinary character.
3. ``\`` is ``/``; so are ``%2F`` and ``%5C``, because of step 2.
4. Of each segment everything from ``;`` is cut (parameters), and the path ends at a NUL, line end, ``?`` or ``#`` that was
   encoded.
5. Empty segments are dropped: ``//`` is ``/``, and a trailing slash means nothing. Then ``.`` is dropped and ``..`` takes
   back the segment before it, never above the root.
6. Letters are lower case.
7. UTF-8, and bytes that are not UTF-8, are written ``%XX`` with upper-case digits; so is every character that RFC 3986
   does not allow in a segment.

The result is ASCII, begins with ``/``, and is its own normal form.

Servers disagree about steps 1 to 5. Many route ``/files/a%2Fb`` as two segments, others as three; some ignore what
follows ``;``, others do not. Taking either side lets a client pick the other. So a path that holds such a construct has
several *readings*, all combinations of these choices, and a rule applies when any reading matches it:

- ``/``, ``;`` and dots count as such after all decoding, after one pass of it, or only where they are not encoded
  (``/login/%252e%252e/..`` is ``/login`` to a server that decodes once);
- encoded slashes and backslashes separate segments, or are data;
- ``;`` and an encoded NUL, line end, ``?`` or ``#`` cut, or are data (a regular expression that ends with ``$`` takes
  ``/login%0A`` for ``/login``);
- dot segments are resolved after empty segments are dropped, before it (as RFC 3986 does), or not at all;
- two slashes at the beginning are one, or a host follows them (RFC 3986 section 4.2; ``new URL(target, base)``).

A rule that does not fit costs a client some tokens; a rule that is evaded costs the backend.
"""

from __future__ import annotations

import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

from sluicegate.bounds import PATH_CHARS_MAX, PATH_READINGS_CHARS_MAX

__all__ = ["decoded", "normal_form", "readings"]

# pchar of RFC 3986 without "%" and ";".
_PLAIN = re.compile(r"(?:/(?!\.\.?(?:/|\Z))[A-Za-z0-9\-._~!$&'()*+,=:@]++)*/?", re.ASCII)
_QUERY = re.compile(r"[?#]")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:/+[^/?#\\]*", re.ASCII)
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}")
_SEPARATORS = re.compile(rb"[/\\]")
_CUTS = re.compile(rb"[;\0\r\n?#]")
_CUTS_PATH = re.compile(rb"[\0\r\n?#]")
# A host after two slashes; the WHATWG URL standard takes more slashes, and backslashes, for the same.
_AUTHORITY = re.compile(rb"[/\\]{2,}[^/\\]*")
_DOTS = re.compile(rb"(?:\A|[/\\])\.\.?(?:[/\\;]|\Z)")
_SEGMENT_SAFE = "!$&'()*+,;=:@"
_PERCENT = ord("%")
_HEX = frozenset(b"0123456789abcdefABCDEF")


def normal_form(target: str) -> str:
    """The normal form of a request target: ``/users/8123``.

    Raises ValueError where ``readings`` does. Never anything else, whatever the text.
    """
    return readings(target)[0]


def readings(target: str) -> tuple[str, ...]:
    """Every way a server may read ``target``, the normal form first, without repeats; nearly always one.

    Raises ValueError where it is longer than ``PATH_CHARS_MAX``, or all its readings than ``PATH_READINGS_CHARS_MAX``.
    """
    path = target
    if not _PLAIN.fullmatch(path):
        path = _QUERY.split(path, maxsplit=1)[0]
        absolute = _ABSOLUTE.match(path)
        if absolute:
            path = path[absolute.end() :]
    if len(path) > PATH_CHARS_MAX:
        raise ValueError(f"a path has at most {PATH_CHARS_MAX} characters, got {len(path)}")
    if not _PLAIN.fullmatch(path):
        return _all_readings(_bytes(path))
    return (path.lower().rstrip("/") or "/",)


def decoded(text: str) -> bytes:
    """``text`` with ``%XX`` decoded until nothing decodes, in lower case."""
    return _lower(_decode(_bytes(text)))


def _all_readings(path: bytes) -> tuple[str, ...]:
    found: dict[str, None] = {}
    work = 0
    encoded = _Encoded()
    authority = _AUTHORITY.match(path)
    for start in (path,) if authority is None else (path, path[authority.end() :]):
        for segments in _splits(start):
            for variant in (_cut(segments), segments) if _CUTS.search(b"".join(segments)) else (segments,):
                for read in _dot_readings(variant):
                    work += len(start)
                    if work > PATH_READINGS_CHARS_MAX:
                        raise ValueError("a path of this length may not be readable in so many ways")
                    found["/" + "/".join([encoded[segment] for segment in read])] = None
    return tuple(found)


def _splits(path: bytes) -> list[list[bytes]]:
    """The segments of a path by how far a server decodes before it looks for separators, and for what is in a segment."""
    whole = _decode(path)
    slashes = path.split(b"/")
    splits = [_SEPARATORS.split(whole)]
    if b"\\" in whole or whole.count(b"/") != path.count(b"/"):
        splits.append([_decode(segment) for segment in slashes])
    once = unquote_to_bytes(path)
    if once != whole:
        splits += [_SEPARATORS.split(once), [unquote_to_bytes(segment) for segment in slashes]]
    if once != path and (b";" in path or _DOTS.search(path)):
        splits += [slashes]
    return splits


class _Encoded(dict[bytes, str]):
    """A segment, decoded as far as its reader does, to the way it stands in a normal form."""

    __slots__ = ()

    def __missing__(self, segment: bytes) -> str:
        # A slash in here is data and must not look like a separator, so it stays encoded.
        text = self[segment] = quote_from_bytes(_lower(_decode(segment)), safe=_SEGMENT_SAFE)
        return text


def _dot_readings(segments: list[bytes]) -> list[list[bytes]]:
    """Dots resolved after and before empty segments are dropped, and not at all."""
    named = [segment for segment in segments if segment]
    if b"." not in named and b".." not in named:
        return [named]
    return [_resolve(named), [segment for segment in _resolve(segments) if segment], named]


def _resolve(segments: list[bytes]) -> list[bytes]:
    kept: list[bytes] = []
    for segment in segments:
        if segment == b"..":
            if kept:
                kept.pop()
        elif segment != b".":
            kept.append(segment)
    return kept


def _cut(segments: list[bytes]) -> list[bytes]:
    """Without parameters, and without what follows an encoded NUL, line end, ``?`` or ``#``."""
    kept: list[bytes] = []
    for segment in segments:
        end = _CUTS_PATH.search(segment)
        kept.append((segment if end is None else segment[: end.start()]).split(b";", 1)[0])
        if end is not None:
            break
    return kept


def _decode(data: bytes) -> bytes:
    """Decode until nothing decodes.

    One pass is enough for nearly every path. What is still encoded then is decoded from left to right with a stack, in
    time linear in the length: repeating passes instead would take as many as there are layers, and ``%4%3%3%31``
    has one layer per three bytes.
    """
    if b"%" not in data:
        return data
    once = unquote_to_bytes(data)
    if not _ESCAPE.search(once):
        return once
    stack = bytearray()
    for byte in once:
        stack.append(byte)
        while len(stack) > 2 and stack[-3] == _PERCENT and stack[-2] in _HEX and stack[-1] in _HEX:
            value = int(stack[-2:], 16)
            del stack[-3:]
            stack.append(value)
    return bytes(stack)


def _lower(data: bytes) -> bytes:
    """Lower case as Unicode has it where the bytes are UTF-8, ASCII only for the bytes that are not."""
    if data.isascii():
        return data.lower()
    return data.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    """The bytes of a path; a lone surrogate is the byte that ``surrogateescape`` made it from, where it did."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
