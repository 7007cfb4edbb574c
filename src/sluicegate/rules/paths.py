"""Path patterns: what a rule writes in ``match.path``.

    /login              this path
    /users/{id}         one segment in place of {id}; the name is for the reader
    /users/*            the same
    /api/**             /api and everything below it
    /**/admin           /admin, and a segment "admin" at the end of any path
    /files/report-*.pdf  ``*`` in a segment: any characters, also none
    /v{major}/items     ``{...}`` in a segment: any characters, at least one

A pattern is matched against readings (see ``normal_form``), so case, a trailing slash, encoding and the like need not be
written. At most one ``**`` stands in a pattern, and it is a whole segment. Whatever the pattern and the path, matching
takes one look per segment and never backtracks.

Precedence: none. Every rule that matches applies, whether its pattern is exact or ``/**``; ``not`` takes paths out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias
from urllib.parse import unquote

from sluicegate.bounds import PATTERN_SEGMENTS_MAX, SEGMENT_WILDCARDS_MAX
from sluicegate.rules.normal_form import decoded, normal_form, readings

__all__ = ["Glob", "PathPattern", "Segment", "Wild", "normal_form", "parse_pattern", "readings", "segments_of"]


class Wild(Enum):
    """Segments that are wildcards as a whole."""

    ONE = "*"
    """One segment."""
    REST = "**"
    """Any number of segments, also none."""


@dataclass(frozen=True, slots=True)
class Glob:
    """Wildcards inside one segment: literals with gaps between them.

    ``gaps[i]`` is how many characters at least stand before ``literals[i]``, None where nothing may. The last literal
    ends the segment ("" where a wildcard does).
    """

    literals: tuple[str, ...]
    gaps: tuple[int | None, ...]

    def matches(self, segment: str) -> bool:
        """Leftmost placement of every literal; that leaves most room for the next, so nothing is ever tried twice."""
        position = 0
        last = len(self.literals) - 1
        for index, (literal, gap) in enumerate(zip(self.literals, self.gaps, strict=True)):
            if gap is None:
                if not segment.startswith(literal):
                    return False
                position = len(literal)
            elif index == last:
                return segment.endswith(literal) and len(segment) - len(literal) >= position + gap
            else:
                found = segment.find(literal, position + gap)
                if found < 0:
                    return False
                position = found + len(literal)
        return position == len(segment)


Segment: TypeAlias = str | Wild | Glob


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A parsed pattern. ``text`` is what the user wrote; ``segments`` hold literals as ``segments_of`` gives them."""

    text: str
    segments: tuple[Segment, ...]

    def matches(self, segments: Sequence[str]) -> bool:
        """Whether the segments of one reading match."""
        if Wild.REST not in self.segments:
            return len(segments) == len(self.segments) and all(map(_fits, self.segments, segments))
        at = self.segments.index(Wild.REST)
        head, tail = self.segments[:at], self.segments[at + 1 :]
        if len(segments) < len(head) + len(tail):
            return False
        return all(map(_fits, head, segments)) and all(map(_fits, tail, segments[len(segments) - len(tail) :]))


def segments_of(reading: str) -> list[str]:
    """The segments of a reading, none for ``/``; an encoded byte is one character again, so a wildcard cannot split it."""
    segments = reading[1:].split("/") if len(reading) > 1 else []
    return [unquote(segment, _ONE_BYTE) for segment in segments] if "%" in reading else segments


def parse_pattern(text: str) -> PathPattern:
    """Parse a path pattern; raises ValueError that says what is wrong and, where it can, what to write."""
    if not text.startswith("/"):
        raise ValueError(f"a path pattern begins with '/', got {text!r}{_suggest_slash(text)}")
    for character, reason in _FORBIDDEN.items():
        if character in text:
            raise ValueError(f"{character!r} in {text!r}: {reason}")
    body = text[1:].removesuffix("/")
    parts = body.split("/") if body else []
    if len(parts) > PATTERN_SEGMENTS_MAX:
        raise ValueError(f"a path pattern has at most {PATTERN_SEGMENTS_MAX} segments, got {len(parts)}")
    if parts.count("**") > 1:
        raise ValueError(f"{text!r} holds '**' twice; once is the most")
    return PathPattern(text, tuple(_parse_segment(part, text) for part in parts))


_FORBIDDEN: Final = {
    "?": "a query is not part of the path; match on a header or an attribute instead",
    "#": "a fragment is never sent",
    "\\": "write '/'",
    ";": "parameters are not part of the path",
}
_ONE_BYTE: Final = "latin-1"
_SEPARATOR_ESCAPES: Final = frozenset(b"/\\;?#\0\r\n")
_TOKENS = re.compile(r"(\{[^{}]*\}|\*+)")
_NAME = re.compile(r"\{[A-Za-z_][A-Za-z0-9_.\-]*\}", re.ASCII)
_OTHER_STYLE = re.compile(r":[A-Za-z_]\w*|<[^<>]+>")


def _parse_segment(part: str, text: str) -> Segment:
    if part == "**":
        return Wild.REST
    if not part:
        raise ValueError(f"{text!r} holds an empty segment; write it without '//'")
    if _OTHER_STYLE.fullmatch(part):
        name = re.sub(r"[^A-Za-z0-9_]", "", part.rsplit(":", 1)[-1]) or "id"
        raise ValueError(f"{part!r} in {text!r} is not a wildcard here; write '{{{name}}}'")
    tokens = _TOKENS.split(part)
    # split() with one group: literals at even places, wildcards at odd ones.
    wildcards = tokens[1::2]
    for wildcard in wildcards:
        _check_wildcard(wildcard, text)
    literals = [_literal(token, text) for token in tokens[::2]]
    if not wildcards and literals[0] in (".", ".."):
        raise ValueError(f"{text!r} holds the segment {part!r}, which requests never keep; write the path it leads to")
    if not wildcards:
        return literals[0]
    if literals == ["", ""]:
        return Wild.ONE
    if len(wildcards) > SEGMENT_WILDCARDS_MAX:
        raise ValueError(f"{part!r} in {text!r} holds {len(wildcards)} wildcards; {SEGMENT_WILDCARDS_MAX} are the most")
    return _glob(literals, wildcards)


def _glob(literals: list[str], wildcards: list[str]) -> Glob:
    """Gaps that meet without a literal between them become one that asks for as much as both."""
    kept: list[str] = [literals[0]] if literals[0] else []
    gaps: list[int | None] = [None] if literals[0] else []
    pending = 0
    for index, wildcard in enumerate(wildcards):
        pending += wildcard != "*"
        literal = literals[index + 1]
        if literal or index == len(wildcards) - 1:
            kept.append(literal)
            gaps.append(pending)
            pending = 0
    return Glob(tuple(kept), tuple(gaps))


def _check_wildcard(wildcard: str, text: str) -> None:
    if wildcard.startswith("**"):
        raise ValueError(f"{text!r}: '**' stands alone between slashes; inside a segment write '*'")
    if wildcard == "*" or _NAME.fullmatch(wildcard):
        return
    name, colon, kind = wildcard[1:-1].partition(":")
    if colon and kind == "path":
        raise ValueError(f"{wildcard!r} in {text!r}: write '**' for any number of segments")
    if colon:
        raise ValueError(f"{wildcard!r} in {text!r}: a wildcard has no type; write '{{{name}}}'")
    raise ValueError(f"{wildcard!r} in {text!r} is not a name in braces such as '{{id}}'")


def _literal(token: str, text: str) -> str:
    """A literal as ``segments_of`` gives it; a character that the normal form would cut at could never match, so it is an error."""
    if "{" in token or "}" in token:
        raise ValueError(f"{text!r} holds a brace without its partner")
    data = decoded(token)
    for byte in _SEPARATOR_ESCAPES.intersection(data):
        raise ValueError(f"{text!r} holds an encoded {chr(byte)!r}, which is no plain character of a path")
    return data.decode(_ONE_BYTE)


def _fits(segment: Segment, actual: str) -> bool:
    if isinstance(segment, str):
        return segment == actual
    return segment is Wild.ONE or (isinstance(segment, Glob) and segment.matches(actual))


def _suggest_slash(text: str) -> str:
    path = re.sub(r"^[A-Za-z][A-Za-z0-9+.\-]*://[^/]*", "", text)
    path = path if path.startswith("/") else f"/{path}"
    return f"; did you mean {path!r}?" if text and path != text else ""
