"""The Lua scripts: the parts they are put together from, and their digests."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["BEAT", "MOVING", "PACKED", "PARTS", "PLAIN", "Script", "Scripts"]

_FOLDER = Path(__file__).parent
_GENERAL = ("frame", "exact", "ledger", "buckets", "windows", "log", "algorithms", "standing")


class Script(NamedTuple):
    """A script's text and the digest a server knows it by."""

    name: str
    text: bytes
    digest: bytes


def _read(*names: str) -> str:
    return "\n".join((_FOLDER / f"{name}.lua").read_text("utf-8") for name in names)


def _script(name: str, *parts: str) -> Script:
    """A script is one text for the server; the shebang lets it refuse the whole call up front when memory is full."""
    text = "\n".join(("#!lua", *parts)).encode()
    # The digest is a name that Redis chose, not a protection.
    return Script(name, text, sha1(text, usedforsecurity=False).hexdigest().encode())


_ALONE: Final = "local keys_given = #KEYS"
_PACKED: Final = "local keys_given, olds = #KEYS, {}"
_MOVING: Final = """local keys_given, olds = #KEYS / 2, {}
for i = 1, keys_given do
  olds[KEYS[i]] = KEYS[keys_given + i]
end"""
"""What comes first: how many keys are of this layout, and which key in the layout before each has."""


class Scripts(NamedTuple):
    """The scripts of a layout. ``forget`` None: counters are forgotten by deleting their keys."""

    decide: Script
    decide_one: Script
    refund: Script
    grant: Script
    lease: Script
    forget: Script | None = None

    @property
    def loaded(self) -> tuple[Script, ...]:
        """The scripts that are called by their digest."""
        return tuple([script for script in self if script is not None])


def _deciding(first: str, states: str, *parts: str) -> tuple[str, ...]:
    return (
        first,
        "local function general(now, hold_ms, peek)",
        _read(*_GENERAL[:2], states, *_GENERAL[2:], "deciding"),
        "return decide_any\nend",
        _read("usual", *parts),
    )


def _packed(first: str) -> Scripts:
    quickly = _read("epochs", "quick")
    at_once = "\n".join((first, quickly, _read("place", "packed_first", "places")))
    first = "\n".join((first, quickly, _read("place", "places")))
    general = ("call", *_GENERAL[:2], "packed_states", *_GENERAL[2:])
    return Scripts(
        _script("decide", *_deciding(first, "packed_states", "call", "packed_many")),
        _script("decide_one", *_deciding(at_once, "packed_states", "packed_one")),
        _script("refund", first, _read(*general, "counters", "refund")),
        _script("grant", first, _read(*general, "counters", "grant")),
        _script("lease", first, _read(*general, "left", "lease")),
        _script("forget", _read("forget")),
    )


_general = ("place", "call", *_GENERAL[:2], "states", *_GENERAL[2:])

PLAIN: Final = Scripts(
    _script("decide", *_deciding("", "states", "place", "call", "decide")),
    _script("decide_one", *_deciding("", "states", "place", "decide_one")),
    _script("refund", _ALONE, _read(*_general, "counters", "refund")),
    _script("grant", _ALONE, _read(*_general, "counters", "grant")),
    _script("lease", _read(*_general, "left", "lease")),
)
PACKED: Final = _packed(_PACKED)
MOVING: Final = _packed(_MOVING)
"""``PACKED`` (a layout may be the plain one there too) where counters may still be where a layout before had them."""

PARTS: Final = _script("parts", _read(*_general, "left", "region"))
"""Of counters that stand by their own numbers, which have a key of their own in every layout."""

BEAT: Final = _script("beat", _read("beat"))
