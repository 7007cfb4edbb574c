"""Pages by key: a token names the last row that was seen, so rows that come and go in between neither repeat nor hide others."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sluicegate.bounds import CONTROL_TEXT_CHARS_MAX, PAGE_SIZE_MAX, PAGE_TOKEN_CHARS_MAX
from sluicegate.control.errors import Fault, Invalid
from sluicegate.control.model import Page

__all__ = ["check_text", "page_of", "read_token", "rows_of_page", "write_token"]

R = TypeVar("R")
T = TypeVar("T")

_CHECKSUM_BYTES: Final = 9


def write_token(collection: str, *key: str | int) -> str:
    """An opaque text for a key in a collection. It holds a checksum of both, which finds slips; who forges one reads nothing that he may not."""
    content = json.dumps(key, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(_checksum(collection, content) + content).decode().rstrip("=")


def read_token(token: str, collection: str, *kinds: type, name: str = "page_token") -> list[Any] | None:
    """The key of a token, of values of these kinds; None for "".

    Raises Invalid for a text that is no token of this kind, one of another collection, and one that was changed.
    """
    if not token:
        return None
    try:
        padded = token[:PAGE_TOKEN_CHARS_MAX] + "=" * (-len(token) % 4)
        data = base64.b64decode(padded, altchars=b"-_", validate=True)
        content = data[_CHECKSUM_BYTES:]
        key = json.loads(content) if data == _checksum(collection, content) + content else None
    except (ValueError, binascii.Error, RecursionError):
        key = None
    if not isinstance(key, list) or [type(part) for part in key] != list(kinds) or not all(map(_is_fit, key)):
        raise Invalid([Fault(f"{name}: not one that was given out here", f"/{name}")])
    return key


def rows_of_page(page_size: int) -> int:
    """How many rows to read for a page: one more than it shows, which tells whether there is a next one."""
    return max(1, min(page_size, PAGE_SIZE_MAX)) + 1


def page_of(
    rows: Sequence[R],
    page_size: int,
    collection: str,
    made: Callable[[R], T],
    key: Callable[[R], tuple[str | int, ...]],
) -> Page[T]:
    """The page of a collection that rows read for it make up."""
    size = rows_of_page(page_size) - 1
    shown = rows[:size]
    return Page([made(row) for row in shown], write_token(collection, *key(shown[-1])) if len(rows) > size else "")


def check_text(name: str, value: object, most: int = CONTROL_TEXT_CHARS_MAX, *, least: int = 0) -> str:
    """A text for people, on one or several lines; raises Invalid for anything else. ``name`` is its field."""
    if not isinstance(value, str):
        raise Invalid([Fault(f"{name}: expected text", f"/{name}")])
    if not least <= len(value) <= most:
        raise Invalid([Fault(f"{name}: has {len(value)} characters; {least} to {most} are allowed", f"/{name}")])
    if not all(char.isprintable() or char in "\n\t" for char in value):
        raise Invalid([Fault(f"{name}: holds a character that cannot be printed", f"/{name}")])
    return value


def _checksum(collection: str, content: bytes) -> bytes:
    return hashlib.sha256(collection.encode() + b"\0" + content).digest()[:_CHECKSUM_BYTES]


def _is_fit(part: str | int) -> bool:
    """Whether a database takes it: 64 bits, or a text without zeros and half characters."""
    if isinstance(part, str):
        return part.isprintable()
    return -(2**63) <= part < 2**63
